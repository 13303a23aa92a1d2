"""A thread that calls something at regular intervals."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable


class Ticker:
    """Calls ``work`` with the monotonic time every ``seconds`` in a thread, from entry to exit."""

    def __init__(self, seconds: float, work: Callable[[float], None]) -> None:
        self._seconds = seconds
        self._work = work
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def __enter__(self) -> Ticker:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stopping.set()
        self._thread.join()

    @property
    def alive(self) -> bool:
        """Whether it goes on calling."""
        return self._thread.is_alive()

    def _run(self) -> None:
        while not self._stopping.wait(self._seconds):
            self._work(time.monotonic())
