"""A process whose children die at each step of a move or of an expiry; it prints the table that each has left.

A child dies of SIGKILL before its n-th call of the functions that touch the disk, for every n until none is left.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import shutil
import signal
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from tests.streams.application import ApplicationFiles, some_batches
from tests.streams.samples import GONE, ORDERS, forgotten, records
from wallaroo_spark.sidecar import durable
from wallaroo_spark.streams.tables.mover import TableMover

MOST = 200
DURABLE = ("make_folder", "write_file", "replace", "delete_file", "sync")


class HalfWritten:
    """A stream with a step behind its first bytes."""

    closed = False

    def __init__(self, stream: Any, step: Callable[[], None]) -> None:
        self._stream, self._step = stream, step
        self._begun = False

    def write(self, data: Any) -> int:
        """Write bytes."""
        self._stream.write(bytes(data)[:2] if not self._begun else data)
        if not self._begun:
            self._stream.flush()
            self._begun = True
            self._step()
            self._stream.write(bytes(data)[2:])
        return len(data)

    def flush(self) -> None:
        """Do nothing."""

    def tell(self) -> int:
        """The number of written bytes."""
        written: int = self._stream.tell()
        return written


def dies_at(number: int) -> None:
    """From now on this process dies at the step of this number."""
    steps = itertools.count()

    def step() -> None:
        if next(steps) == number:
            os.kill(os.getpid(), signal.SIGKILL)

    def before(function: Callable[..., Any]) -> Callable[..., Any]:
        def called(*args: Any, **kwargs: Any) -> Any:
            step()
            return function(*args, **kwargs)

        return called

    new_file = durable.new_file

    @contextlib.contextmanager
    def half_written(*args: Any, **kwargs: Any) -> Iterator[Any]:
        with new_file(*args, **kwargs) as stream:
            yield HalfWritten(stream, step)

    durable.new_file = half_written
    for name in DURABLE:
        setattr(durable, name, before(getattr(durable, name)))


def work(app: ApplicationFiles) -> None:
    """Rename a file, join others, delete the table of a stream and begin another, delete a partition's first file."""
    TableMover(app.location).move(0)
    TableMover(app.location).move(4)
    TableMover(app.location).move(6)
    TableMover(app.location).expire(ORDERS, 0, 5)


def main(folder: Path) -> None:
    """Let a child die at each step; print what is there after each death, and after the work was done again."""
    deaths = []
    template = ApplicationFiles(folder / "template")
    some_batches(template)
    template.commit(records(1, 2, stream=GONE))
    template.commit(forgotten(3, stream=GONE))
    template.commit(records(3, 4, stream=GONE))
    for number in range(MOST):
        app = ApplicationFiles(folder / f"app-{number}")
        shutil.copytree(template.folder, app.folder)
        app.next = template.next
        child = os.fork()
        if child == 0:
            dies_at(number)
            work(app)
            os._exit(0)
        _, status = os.waitpid(child, 0)
        if os.WIFEXITED(status):
            assert os.WEXITSTATUS(status) == 0, status
            break
        left, parts = app.table(), len(app.files())
        app.commit()
        TableMover(app.location).move(7)
        moved, again = app.table(), app.table(GONE)
        work(app)
        deaths.append({"left": left, "files": parts, "moved": moved, "then": app.table(), "again": again})
        shutil.rmtree(app.folder)
    print(json.dumps(deaths))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
