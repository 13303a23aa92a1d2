"""Processes as the system sees them: command lines, descendants, listeners and environments; and ending a program."""

from __future__ import annotations

import contextlib
import signal
import subprocess
import sys
from collections.abc import Iterable, Iterator
from typing import Any

import psutil

END_SECONDS = 30.0
"""The longest wait for the end of a process whose input is closed. A choice."""


def exit_on_sigterm() -> None:
    """Have the first SIGTERM raise SystemExit, so that this program ends what it has started."""

    def leave(number: int, _: object) -> None:
        # Another one must not end it while it does that.
        signal.signal(number, lambda *_: None)
        sys.exit(128 + number)

    signal.signal(signal.SIGTERM, leave)


def end(process: subprocess.Popen[Any]) -> None:
    """Close the input of a program, which then ends; kill one that does not."""
    assert process.stdin is not None
    process.stdin.close()
    try:
        process.wait(END_SECONDS)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def command_of(pid: int) -> str:
    """The command line of a process; empty when it has ended."""
    try:
        return " ".join(psutil.Process(pid).cmdline())
    except psutil.Error:
        return ""


def descendants(pid: int) -> list[int]:
    """The children of a process, their children, and so on."""
    try:
        return [child.pid for child in psutil.Process(pid).children(recursive=True)]
    except psutil.Error:
        return []


def listeners(port: int, among: Iterable[int]) -> list[int]:
    """Which of these processes listen on a port."""
    return [pid for pid in among if port in _ports_of(pid)]


def processes_with(variable: str, value: str) -> list[int]:
    """The processes in whose environment a variable has this value. Children inherit it, whatever their group."""
    return [process.pid for process in _running() if _environment_of(process).get(variable) == value]


def _ports_of(pid: int) -> set[int]:
    with contextlib.suppress(psutil.Error):
        connections = psutil.Process(pid).net_connections("tcp")
        return {one.laddr.port for one in connections if one.status == psutil.CONN_LISTEN}
    return set()


def _running() -> Iterator[psutil.Process]:
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error):
            if process.status() != psutil.STATUS_ZOMBIE:
                yield process


def _environment_of(process: psutil.Process) -> dict[str, str]:
    try:
        found: dict[str, str] = process.environ()
    except psutil.Error:
        return {}
    return found
