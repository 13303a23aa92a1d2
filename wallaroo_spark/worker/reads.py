"""Reads and plans that wait for the buffer to change; on the event loop's thread.

Source: ``design.md``, "Workers keep what is not committed".
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections import Counter
from collections.abc import Callable, Mapping

from wallaroo_spark.worker.buffer import Buffer, FoundRange, PlannedRange
from wallaroo_spark.worker.ledger import StreamKey


class Reads:
    """Who waits for the buffer. ``want`` is told which streams reads wait for, whenever that changes."""

    def __init__(self, buffer: Buffer, want: Callable[[frozenset[StreamKey]], None]) -> None:
        self._buffer = buffer
        self._tell = want
        self._changed = asyncio.Event()
        self._wanted: Counter[StreamKey] = Counter()

    def wake(self) -> None:
        """The buffer has changed."""
        self._changed.set()
        self._changed = asyncio.Event()

    async def changed_since(self, version: int, seconds: float) -> int:
        """Wait until the buffer's version is another than ``version``; what it is then."""
        until = time.monotonic() + seconds
        while self._buffer.version == version and (left := until - time.monotonic()) > 0:
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._changed.wait(), left)
        return self._buffer.version

    async def find(self, ranges: Mapping[int, PlannedRange], seconds: float) -> dict[int, FoundRange]:
        """The ranges that are here; waits until at least one is, or the time is over."""
        until = time.monotonic() + seconds
        found = self._find(ranges)
        if found or seconds <= 0:
            return found
        keys = [planned.key for planned in ranges.values()]
        self._want(keys, +1)
        try:
            while not found and (left := until - time.monotonic()) > 0:
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(self._changed.wait(), left)
                found = self._find(ranges)
            return found
        finally:
            self._want(keys, -1)

    def _find(self, ranges: Mapping[int, PlannedRange]) -> dict[int, FoundRange]:
        answers = ((index, self._buffer.find(planned)) for index, planned in ranges.items())
        return {index: found for index, found in answers if found is not None}

    def _want(self, keys: list[StreamKey], change: int) -> None:
        for key in keys:
            self._wanted[key] += change
        self._wanted = +self._wanted
        self._tell(frozenset(self._wanted))
