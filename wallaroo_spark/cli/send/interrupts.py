"""Ctrl-C and SIGTERM while ``send`` runs."""

from __future__ import annotations

import asyncio
import os
import signal
import threading
from types import FrameType
from typing import Any

from wallaroo_spark.cli.common import INTERRUPTED, TERMINATED


class Interrupts:
    """SIGINT and SIGTERM: the first one cancels the sending, the second one ends the process at once."""

    def __init__(self) -> None:
        self.received: int | None = None
        """The number of the first signal; None before."""
        self.task: asyncio.Task[None] | None = None
        """The task that the first signal cancels."""
        self._before: dict[int, Any] = {}

    def __enter__(self) -> Interrupts:
        if threading.current_thread() is threading.main_thread():
            for number in (signal.SIGINT, signal.SIGTERM):
                self._before[number] = signal.signal(number, self._note)
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def _note(self, number: int, _: FrameType | None) -> None:
        if self.received is not None:
            # Nothing here outlives the process: acknowledgements are the receiver's, and positions are durable.
            os.write(2, b"Ended at once.\n")
            os._exit(INTERRUPTED if number == signal.SIGINT else TERMINATED)
        self.received = number
        if self.task is None:
            raise KeyboardInterrupt
        self.task.get_loop().call_soon_threadsafe(self.task.cancel)
