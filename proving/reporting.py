"""The output of a program while it runs."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

LINE_SECONDS = 15.0

Print = Callable[[str], None]


@contextmanager
def reporting() -> Iterator[tuple[Print, Print]]:
    """A function that prints a line that stays, and one that prints progress, which the next progress replaces.

    Without a terminal, progress is printed as a line every :data:`LINE_SECONDS`.
    """
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
