"""Reads and plans that wait for the buffer to change, and drivers that wait for questions; on the event loop's thread.

Source: ``docs/architecture.md#workers-keep-uncommitted-rows``.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections import Counter, deque
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass

from wallaroo_spark.errors import TransportError
from wallaroo_spark.references import PlannedRange
from wallaroo_spark.worker.buffer.buffer import Buffer
from wallaroo_spark.worker.buffer.found import FoundRanges

LINGER_SECONDS = 2.0
"""A range counts as waited for until this many seconds after the last look for it.

A read looks repeatedly.
"""
NEWS_SECONDS = 0.02
"""Least seconds between two answers to :meth:`Reads.changed_since`.

There are at most 50 answers a second, because each costs about as much as a batch of messages.
"""
REQUESTS = 2
"""Requests that are remembered for the status. Two sources of one query ask at about the same time."""


@dataclass
class ReadRequest:
    """A request of a reading task, for the status. The thread of the request changes it."""

    ranges: Mapping[int, PlannedRange]
    asked_at: float
    """Time of the request in monotonic seconds."""
    missing: int
    """Number of ranges that were not sent yet."""
    done_at: float | None = None
    """When the last range was sent; None before."""
    ended: bool = False
    """Whether nobody waits for its ranges any more."""


class WaitedRanges:
    """The ranges that reads wait for. ``changed`` is called with all of them, each time that they change. Pure."""

    def __init__(self, changed: Callable[[tuple[PlannedRange, ...]], None]) -> None:
        self._reads: Counter[PlannedRange] = Counter()
        self._changed = changed

    def add(self, ranges: Iterable[PlannedRange]) -> None:
        """One more read waits for each of these ranges."""
        self._count(ranges, +1)

    def remove(self, ranges: Iterable[PlannedRange]) -> None:
        """One read less waits for each of these ranges."""
        self._count(ranges, -1)

    def _count(self, ranges: Iterable[PlannedRange], change: int) -> None:
        before = set(self._reads)
        for planned in ranges:
            self._reads[planned] += change
        self._reads = +self._reads
        if self._reads.keys() != before:
            self._changed(tuple(self._reads))


class Reads:
    """The reads and plans that wait for the buffer.

    ``want`` is called with all ranges that reads wait for, each time that these change, and ``planned`` with the ranges
    of a read, each time that it looks for them. ``later`` calls a function after some seconds, as an event loop's
    ``call_later`` does.
    """

    def __init__(
        self,
        buffer: Buffer,
        want: Callable[[tuple[PlannedRange, ...]], None],
        later: Callable[..., object],
        planned: Callable[[Collection[PlannedRange]], None] = lambda ranges: None,
    ) -> None:
        self.buffer = buffer
        self._later = later
        self._planned = planned
        self._changed = asyncio.Event()
        self._waited = WaitedRanges(want)
        self._asked = asyncio.Event()
        self._closed = False
        self._told_at = 0.0
        self.requests: deque[ReadRequest] = deque(maxlen=REQUESTS)
        """The last requests, the oldest first."""

    def begin(self, ranges: Mapping[int, PlannedRange]) -> ReadRequest:
        """Remember a request for the status; may be called from any thread."""
        request = ReadRequest(ranges, time.monotonic(), len(ranges))
        self.requests.append(request)
        return request

    def close(self) -> None:
        """End every wait, now and later, because the worker shuts down."""
        self._closed = True
        self.wake()
        self.wake_driver()

    def wake(self) -> None:
        """Let every wait check the buffer, because it has changed."""
        self._changed.set()
        self._changed = asyncio.Event()

    def wake_driver(self) -> None:
        """Answer the driver's calls that wait for scopes to be told."""
        self._asked.set()
        self._asked = asyncio.Event()

    async def next_question(self, seconds: float) -> None:
        """Wait until there are scopes to be told, for some seconds at most.

        Raises :class:`TransportError` once the worker shuts down.
        """
        await self._wait(self._asked, seconds)
        if self._closed:
            raise TransportError("the worker shuts down", code="worker-stopping")

    async def changed_since(self, version: int, seconds: float) -> int:
        """Wait until the buffer's version differs from ``version``; returns it."""
        # Continuous changes are reported at intervals, because each answer costs about as much as a batch of messages.
        until = time.monotonic() + seconds
        await asyncio.sleep(max(0.0, self._told_at + NEWS_SECONDS - time.monotonic()))
        while self.buffer.version == version and not self._closed and (left := until - time.monotonic()) > 0:
            await self.next_change(left)
        self._told_at = time.monotonic()
        return self.buffer.version

    async def next_change(self, seconds: float) -> None:
        """Wait until the buffer changes, for some seconds at most. It delays no answer of :meth:`changed_since`."""
        await self._wait(self._changed, seconds)

    async def _wait(self, event: asyncio.Event, seconds: float) -> None:
        if not self._closed:
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(event.wait(), seconds)

    async def find(self, ranges: Mapping[int, PlannedRange], seconds: float) -> FoundRanges:
        """The ranges that are held; waits until at least one is, or the time is over.

        Looking without waiting counts as waiting, too, because a full worker must make room for the range.

        Raises :class:`TransportError` once the worker shuts down.
        """
        until = time.monotonic() + seconds
        if self._closed:
            raise TransportError("the worker shuts down; read from the slot's next worker", code="worker-stopping")
        self._planned(ranges.values())
        found = self.buffer.find_all(ranges)
        if found:
            return found
        self._waited.add(ranges.values())
        try:
            while not found and not self._closed and (left := until - time.monotonic()) > 0:
                await self.next_change(left)
                found = self.buffer.find_all(ranges)
            return found
        finally:
            self._waited.remove(ranges[index] for index in found)
            missing = [ranges[index] for index in ranges.keys() - found.streams.keys()]
            self._later(LINGER_SECONDS, self._waited.remove, missing)
