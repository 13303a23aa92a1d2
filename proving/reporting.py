"""The output of a program while it runs: progress, or the steps that it has gone."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import TypeVar

LINE_SECONDS = 15.0
WAIT_SECONDS = 480.0
"""The longest wait for what a step needs. A choice: on two busy cores, Spark starts in four minutes."""

Found = TypeVar("Found")
Print = Callable[[str], None]


@contextmanager
def reporting() -> Iterator[tuple[Print, Print]]:
    """A function that prints a line that stays, and one that prints progress, which the next progress replaces.

    Without a terminal, progress is printed as a line every :data:`LINE_SECONDS`. Ctrl-C ends the program with a
    sentence.
    """
    try:
        with _printing() as printing:
            yield printing
    except KeyboardInterrupt:
        print("Interrupted; every program of this run has ended.", flush=True)
        sys.exit(130)


@contextmanager
def _printing() -> Iterator[tuple[Print, Print]]:
    from rich.console import Console

    console = Console(highlight=False, soft_wrap=True)
    if console.is_terminal:
        with console.status("") as status:
            yield console.print, status.update
        return
    printed = time.monotonic()

    def now_and_then(line: str) -> None:
        nonlocal printed
        if time.monotonic() - printed >= LINE_SECONDS:
            printed = time.monotonic()
            print(line, flush=True)

    yield lambda line: print(line, flush=True), now_and_then


class Steps:
    """The steps of a run on an installation. Each finding is printed with the seconds since the run began.

    After errors of the kinds in ``passing`` a wait goes on.
    """

    def __init__(self, passing: tuple[type[Exception], ...] = ()) -> None:
        self._passing = passing
        self._began = time.monotonic()

    def say(self, text: str) -> None:
        """Print a finding."""
        print(f"{time.monotonic() - self._began:6.1f} s  {text}", flush=True)

    def wait(self, what: str, holds: Callable[[], Found]) -> Found:
        """What ``holds`` returns once that is true. Raises RuntimeError when it does not come in time."""
        began = time.monotonic()
        while True:
            with suppress(*self._passing):
                if found := holds():
                    self.say(f"{what}, after {time.monotonic() - began:.1f} s")
                    return found
            if time.monotonic() > began + WAIT_SECONDS:
                raise RuntimeError(f"this does not come within {WAIT_SECONDS:g} s: {what}")
            time.sleep(0.2)
