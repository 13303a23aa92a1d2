"""A process whose children die at each step of a move or of an expiry; it prints the table that each has left.

A child dies of SIGKILL before its n-th call of the functions that touch the disk, for every n until none is left. With
the argument ``delta`` it also keeps Delta's logs, and it dies before and after each commit to one of them.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import shutil
import signal
import sys
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from tests.streams.application import ApplicationFiles, some_batches
from tests.streams.samples import GONE, ORDERS, forgotten, records
from wallaroo_spark.sidecar import durable
from wallaroo_spark.streams.delta import DeltaLogs
from wallaroo_spark.streams.mover import TableMover

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
    commit = DeltaLogs._commit

    def committed(*args: Any) -> None:
        step()
        commit(*args)
        step()

    setattr(DeltaLogs, "_commit", committed)  # noqa: B010  # mypy knows no other way
    for name in DURABLE:
        setattr(durable, name, before(getattr(durable, name)))


def mover(app: ApplicationFiles, delta: bool) -> TableMover:
    """A mover of a process that has just begun."""
    return TableMover(app.location, delta=DeltaLogs(app.location) if delta else None)


def logged(app: ApplicationFiles, stream: str) -> list[str]:
    """The files of a stream that a reader of Delta reads."""
    from deltalake import DeltaTable

    place = app.folder / "streams" / stream
    return sorted(DeltaTable(place).file_uris()) if (place / "_delta_log").is_dir() else []


def work(app: ApplicationFiles, delta: bool) -> None:
    """Rename a file, join others, delete the table of a stream and begin another, delete a partition's first file."""
    mover(app, delta).move(0)
    mover(app, delta).move(4)
    mover(app, delta).move(6)
    mover(app, delta).expire(ORDERS, 0, 5)


def after(app: ApplicationFiles, delta: bool) -> dict[str, Any]:
    """The tables after a death, after another mover, and after the work was done again."""

    def logs() -> list[tuple[list[str], list[str]]]:
        return [(logged(app, one), [*map(str, app.files(one))]) for one in (ORDERS, GONE)] if delta else []

    left, parts, before = app.table(), len(app.files()), logs()
    app.commit()
    mover(app, delta).move(7)
    moved, again, moved_logs = app.table(), app.table(GONE), logs()
    work(app, delta)
    return {
        "left": left,
        "files": parts,
        "moved": moved,
        "then": app.table(),
        "again": again,
        "logs_left": before,
        "logs_moved": moved_logs,
    }


def in_child(call: Callable[[], Any]) -> int:
    """Call a function in a child; return its status. A process that has used ``deltalake`` must not have children."""
    child = os.fork()
    if child == 0:
        try:
            call()
        except BaseException:
            traceback.print_exc()
            os._exit(1)
        os._exit(0)
    return os.waitpid(child, 0)[1]


def main(folder: Path, delta: bool) -> None:
    """Let a child die at each step; print what is there after each death, and after the work was done again."""
    deaths = []
    template = ApplicationFiles(folder / "template")
    some_batches(template)
    template.commit(records(1, 2, stream=GONE))
    template.commit(forgotten(3, stream=GONE))
    template.commit(records(3, 4, stream=GONE))
    for number in range(MOST):
        app, found = ApplicationFiles(folder / f"app-{number}"), folder / "found.json"
        shutil.copytree(template.folder, app.folder)
        app.next = template.next

        def dying(app: ApplicationFiles = app, number: int = number) -> None:
            dies_at(number)
            work(app, delta)

        status = in_child(dying)
        if os.WIFEXITED(status):
            assert os.WEXITSTATUS(status) == 0, status
            break
        if delta:
            assert in_child(lambda: found.write_text(json.dumps(after(app, delta)))) == 0  # noqa: B023  # called at once
            deaths.append(json.loads(found.read_text()))
        else:
            deaths.append(after(app, delta))
        shutil.rmtree(app.folder)
    print(json.dumps(deaths))


if __name__ == "__main__":
    main(Path(sys.argv[1]), "delta" in sys.argv)
