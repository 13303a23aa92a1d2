"""Writes events to the inbox, with one file for all that waited while the last file was written (group commit)."""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Protocol

from wallaroo_spark.gateway.limits import GatewayLimits
from wallaroo_spark.gateway.refusals import Refused, busy
from wallaroo_spark.gateway.state.requests import ToInbox
from wallaroo_spark.pipelines.controller.messages.values import PartitionKey
from wallaroo_spark.pipelines.controller.stored.encoding import encode


class Writes(Protocol):
    """The inbox of a gateway; see ``wallaroo_spark.streams.inbox``."""

    def write(self, events: Sequence[tuple[PartitionKey, bytes]]) -> int:
        """Write one file durably, and return its number."""


Call = Callable[..., Awaitable[Any]]
"""Makes a call that blocks, in a thread."""


class InboxQueue:
    """The events that wait for the inbox, in order. :meth:`run` writes them, with calls that ``call`` makes."""

    def __init__(self, inbox: Writes, limits: GatewayLimits, call: Call = asyncio.to_thread) -> None:
        self._call = call
        self.files = 0
        """Number of written files."""
        self.written_events = 0
        """Number of events in them."""
        self.written_bytes = 0
        """Bytes of these events."""
        self.write_seconds = 0.0
        """Seconds that writing them has taken."""
        self._inbox = inbox
        self._limits = limits
        self._waiting: deque[tuple[PartitionKey, bytes]] = deque()
        self._bytes = 0
        self._written: deque[tuple[int, asyncio.Future[None]]] = deque()
        self._added = 0
        self._durable = 0
        self._wake = asyncio.Event()
        self._room = asyncio.Event()
        self._room.set()
        self._ended: Refused | None = None

    def __len__(self) -> int:
        return len(self._waiting)

    @property
    def full(self) -> bool:
        """Whether as much waits as is permitted."""
        return len(self._waiting) >= self._limits.inbox_rows or self._bytes >= self._limits.inbox_bytes

    def require_room(self) -> None:
        """Raise :class:`Refused` when the queue is full."""
        if self.full:
            raise busy(
                f"{len(self._waiting)} events of {self._bytes} bytes wait for the inbox, which is the limit; try again "
                "later, or with another gateway"
            )

    async def room(self) -> None:
        """Wait until the queue is not full. Raises :class:`Refused` when the gateway ends."""
        while self.full:
            if self._ended is not None:
                raise self._ended
            self._room.clear()
            await self._room.wait()

    def add(self, events: Sequence[ToInbox]) -> None:
        """Add events, also when the queue is full: they are of known members."""
        for key, event in events:
            data = encode(event)
            self._waiting.append((key, data))
            self._bytes += len(data)
        self._added += len(events)
        if events:
            self._wake.set()

    async def durable(self) -> None:
        """Wait until all events that were added before are durable. Raises :class:`Refused` when the gateway ends."""
        if self._ended is not None:
            raise self._ended
        if self._durable < self._added:
            done = asyncio.get_running_loop().create_future()
            self._written.append((self._added, done))
            await done

    async def run(self) -> None:
        """Write files until cancelled. An error of the inbox ends this."""
        while True:
            self._wake.clear()
            if not self._waiting:
                await self._wake.wait()
                continue
            rows = [self._waiting.popleft() for _ in range(min(len(self._waiting), self._limits.file_rows))]
            begun, size = time.monotonic(), sum(len(data) for _, data in rows)
            await self._call(self._inbox.write, rows)
            self.files += 1
            self.written_events += len(rows)
            self.written_bytes += size
            self.write_seconds += time.monotonic() - begun
            self._bytes -= size
            self._durable += len(rows)
            self._room.set()
            while self._written and self._written[0][0] <= self._durable:
                _, done = self._written.popleft()
                if not done.done():
                    done.set_result(None)

    def end(self, problem: Refused) -> None:
        """Nothing is written any more: tell those who wait."""
        self._ended = problem
        for _, done in self._written:
            if not done.done():
                done.set_exception(problem)
        self._written.clear()
        self._room.set()
