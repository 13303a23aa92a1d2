"""A process whose children die at each step of an apply; it prints which schema each has left.

A child dies of SIGKILL before its n-th call of the functions that touch the disk, for every n until none is left.
"""

from __future__ import annotations

import itertools
import json
import os
import shutil
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests.pipelines.schema.samples import pipeline
from wallaroo_spark.pipelines.schema.applying import apply_files
from wallaroo_spark.pipelines.schema.declarations import StreamDeclaration
from wallaroo_spark.pipelines.schema.names import ObjectKey
from wallaroo_spark.pipelines.schema.store import SchemaStore
from wallaroo_spark.sidecar import durable
from wallaroo_spark.steps import at_each

MOST = 100
DURABLE = ("make_folder", "write_file", "rename_to_new", "delete_file", "sync_names", "sync")


def documents(partitions: int) -> str:
    """A file with a stream and a pipeline."""
    return pipeline("  - name: a\n").replace("name: orders\n", f"name: orders\npartitions: {partitions}\n")


def dies_at(number: int) -> None:
    """From now on this process dies at the step of this number."""
    steps = itertools.count()

    def step(*_: Any) -> None:
        if next(steps) == number:
            os.kill(os.getpid(), signal.SIGKILL)

    def before(function: Callable[..., Any]) -> Callable[..., Any]:
        def called(*args: Any, **kwargs: Any) -> Any:
            step()
            return function(*args, **kwargs)

        return called

    for name in DURABLE:
        setattr(durable, name, before(getattr(durable, name)))
    at_each(step)


def partitions(store: SchemaStore) -> int:
    """The partitions of the stream in the newest version."""
    stream = store.newest().objects[ObjectKey("Stream", "shop", "orders")]
    assert isinstance(stream, StreamDeclaration)
    return stream.partitions


def main(folder: Path) -> None:
    """Let a child die at each step; print what is there after each death, and after the next apply."""
    (folder / "old.yaml").write_text(documents(1))
    (folder / "new.yaml").write_text(documents(4))
    deaths = []
    for number in range(MOST):
        app = folder / f"app-{number}"
        store = SchemaStore(str(app))
        apply_files(store, [str(folder / "old.yaml")], 1.0)
        child = os.fork()
        if child == 0:
            dies_at(number)
            apply_files(store, [str(folder / "new.yaml")], 2.0)
            os._exit(0)
        _, status = os.waitpid(child, 0)
        if os.WIFEXITED(status):
            assert os.WEXITSTATUS(status) == 0, status
            break
        found = {"step": number, "version": store.newest().version, "partitions": partitions(store)}
        again = apply_files(store, [str(folder / "new.yaml")], 3.0)
        deaths.append({**found, "again": again.version, "then": partitions(store)})
        shutil.rmtree(app)
    print(json.dumps(deaths))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
