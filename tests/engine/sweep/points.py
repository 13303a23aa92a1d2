"""The points of an application's batch at which a process may die, found while the application runs.

A point is a change of a file in the application's folder that a Python process has just made, a named step of the
product, or a call of Spark into the product. Each process notes the points that it comes to. A test orders a death at
one of them, and the next process that comes there dies: alone, or together with the driver and all its processes.
Nothing in the product knows of it: the functions of the file system are replaced in the processes of the test.
"""

from __future__ import annotations

import contextlib
import functools
import os
import re
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any
from urllib.parse import quote, unquote

from pyarrow import fs

from wallaroo_spark.steps import AnyStep, at_each

DIRECTORY = "WALLAROO_TEST_SWEEP"
"""The variable that names the folder of the orders."""
FOLDER = "WALLAROO_TEST_SWEEP_FOLDER"
"""The variable that names the application's folder."""
PATH = [str(Path(__file__).resolve().parents[3]), str(Path(__file__).parent / "site")]
"""The folder where Python finds the tests, and that of the module which it runs at its start."""
_NUMBERS = re.compile(r"[0-9a-f]*\d[0-9a-f]*|[0-9a-f]{8,}")
_STREAM = re.compile(r"^streams/[^/]+/[^/]+")
_CALLS = (
    ("wallaroo_spark.engine.source.datasource", "InputReader", "latestOffset", "a batch is planned"),
    (
        "wallaroo_spark.engine.source.datasource",
        "InputReader",
        "partitions",
        "offsets are written, and divided into tasks",
    ),
    ("wallaroo_spark.engine.operator.processor", "StateEntries", "write", "a key has had its turn"),
    ("wallaroo_spark.engine.application.housekeeping", "Housekeeping", "work", "the work after a commit is done"),
)
"""Calls of Spark, or near them: module, class, function, and the point behind the call."""
_BEFORE = (
    ("wallaroo_spark.streams.batch_outputs", "BatchOutputs", "seal", "all tasks have written their outputs"),
    ("wallaroo_spark.engine.application.housekeeping", "Housekeeping", "work", "the driver has seen the commit"),
)
"""The same for the point before a call."""


class Points:
    """The points that processes came to, and the orders to die; files in one folder."""

    def __init__(self, directory: Path) -> None:
        self._seen, self._armed, self._done = (directory / name for name in ("seen", "armed", "done"))
        self._driver = directory / "driver"
        for folder in (self._seen, self._armed, self._done):
            folder.mkdir(parents=True, exist_ok=True)
        self._noted: set[str] = set()

    def driver_is(self, pid: int) -> None:
        """The driver of now, which leads a process group."""
        self._driver.write_text(str(pid))

    def seen(self) -> dict[str, bool]:
        """The points that were reached so far, in the order of their first time, and whether only the driver did."""
        files = sorted(self._seen.iterdir(), key=lambda file: file.stat().st_mtime_ns)
        return {unquote(file.name): file.read_text() == "driver" for file in files}

    def order(self, point: str, *, alone: bool) -> None:
        """The next process that reaches the point dies there, alone or with the driver and all its processes."""
        (self._done / quote(point, safe="")).unlink(missing_ok=True)
        draft = self._done / ".order"
        draft.write_text("alone" if alone else "all")
        os.rename(draft, self._armed / quote(point, safe=""))

    def withdraw(self, point: str) -> None:
        """Nobody is to die there any more."""
        (self._armed / quote(point, safe="")).unlink(missing_ok=True)

    def happened(self, point: str) -> bool:
        """Whether somebody has died there since the last order."""
        return (self._done / quote(point, safe="")).exists()

    def passed(self, point: str) -> None:
        """This process is at a point."""
        name = quote(point, safe="")
        driver = int(self._driver.read_text())
        if name not in self._noted:
            self._noted.add(name)
            with contextlib.suppress(FileExistsError), (self._seen / name).open("x") as file:
                file.write("driver" if os.getpid() == driver else "process")
        try:
            os.rename(self._armed / name, self._done / name)
        except FileNotFoundError:
            return
        if os.getpid() == driver or (self._done / name).read_text() == "all":
            os.killpg(driver, signal.SIGKILL)
        os.kill(os.getpid(), signal.SIGKILL)


def be_mortal() -> None:
    """Make this process, and all Python processes that it starts, carry out the orders, if there may be any."""
    if DIRECTORY not in os.environ:
        return
    os.environ["PYTHONPATH"] = os.pathsep.join(PATH)
    points = Points(Path(os.environ[DIRECTORY]))

    def step(one: AnyStep) -> None:
        points.passed(f"step {one.name}")

    at_each(step)
    watch_files(os.environ[FOLDER], points.passed, functools.partial(_watch_calls, points))


def watch_files(root: str, passed: Callable[[str], None], opened: Callable[[], None] = lambda: None) -> None:
    """Call ``passed`` after each change of a file in the folder ``root``, and ``opened`` for each opened file system.

    A point has the kind of the change and the file's path, without numbers and random names.
    """

    def changed(verb: str, path: Any) -> None:
        text = str(path)
        if text.startswith(root + "/"):
            passed(f"{verb} {_NUMBERS.sub('#', _STREAM.sub('streams/*', text[len(root) + 1 :]))}")

    _watch_system(changed)
    _watch_arrow(changed, opened)


def _watch_system(changed: Callable[[str, Any], None]) -> None:
    """Notice the changes that are made with the functions of ``os``."""
    for verb in ("replace", "rename", "link"):
        setattr(os, verb, _followed(getattr(os, verb), lambda _, target, *rest, verb=verb: changed(verb, target)))


def _followed(call: Callable[..., Any], then: Callable[..., None]) -> Callable[..., Any]:
    @functools.wraps(call)
    def both(*arguments: Any, **named: Any) -> Any:
        result = call(*arguments, **named)
        then(*arguments)
        return result

    return both


def _watch_arrow(changed: Callable[[str, Any], None], opened: Callable[[], None]) -> None:
    """Notice the changes that are made with Arrow's file system of this machine."""

    class Watched(fs.LocalFileSystem):
        def __init__(self, *arguments: Any, **named: Any) -> None:
            super().__init__()
            opened()

        def open_output_stream(self, path: str, *arguments: Any, **named: Any) -> Any:
            stream = super().open_output_stream(path, *arguments, **named)
            changed("open", path)
            return stream

        def move(self, source: str, target: str) -> None:
            super().move(source, target)
            changed("move", target)

        def delete_file(self, path: str) -> None:
            super().delete_file(path)
            changed("delete", path)

        def delete_dir(self, path: str) -> None:
            super().delete_dir(path)
            changed("delete", path)

        def create_dir(self, path: str, *arguments: Any, **named: Any) -> None:
            super().create_dir(path, *arguments, **named)
            changed("create", path)

    fs.LocalFileSystem = Watched


def _watch_calls(points: Points) -> None:
    """Notice Spark's calls of the modules that are loaded by now."""
    for before, calls in ((True, _BEFORE), (False, _CALLS)):
        for module, owner, name, point in calls:
            found = getattr(sys.modules.get(module), owner, None)
            watched: set[tuple[str, bool]] = getattr(found, "_watched", set())
            if found is None or (name, before) in watched:
                continue
            found._watched = watched | {(name, before)}
            setattr(found, name, _noticed(points, getattr(found, name), point, before))


def _noticed(points: Points, call: Callable[..., Any], point: str, before: bool) -> Callable[..., Any]:
    @functools.wraps(call)
    def noticed(*arguments: Any, **named: Any) -> Any:
        if before:
            points.passed(point)
        result = call(*arguments, **named)
        # A look of the source that finds nothing new is no point.
        if not before and (name_of(call) != "latestOffset" or result != arguments[1]):
            points.passed(point)
        return result

    return noticed


def name_of(call: Callable[..., Any]) -> str:
    """The name of a function."""
    return str(getattr(call, "__name__", ""))
