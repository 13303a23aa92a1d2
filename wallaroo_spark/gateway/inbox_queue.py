"""Writes events to the inbox, with one file for all that waited while the last file was written (group commit)."""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Awaitable, Callable, MutableMapping, Sequence
from typing import Any

from wallaroo_spark.gateway.files import ApplicationFiles
from wallaroo_spark.gateway.limits import GatewayLimits, Refused, busy
from wallaroo_spark.gateway.state.calls import ToInbox
from wallaroo_spark.pipelines.controller.messages.values import PartitionKey
from wallaroo_spark.pipelines.controller.stored.encoding import encode

_MOST_FILES = 1_000
"""The most files that are remembered without a look at what is read."""


Call = Callable[..., Awaitable[Any]]
"""Makes a call that blocks, in a thread."""


class InboxQueue:
    """The events that wait for the inbox, in order. :meth:`run` writes them, with calls that ``call`` makes.

    What is written is added to ``counts``, see :class:`~wallaroo_spark.gateway.state.figures.GatewayFigures`.
    """

    def __init__(
        self, inbox: ApplicationFiles, limits: GatewayLimits, call: Call, counts: MutableMapping[str, float]
    ) -> None:
        self._call, self._counts = call, counts
        self._inbox = inbox
        self._limits = limits
        self._waiting: deque[tuple[PartitionKey, bytes]] = deque()
        self._bytes = 0
        self._unread: deque[tuple[int, int]] = deque()
        """The files that no committed batch has read: number and bytes."""
        self.unread_bytes = 0
        """Their bytes."""
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

    @property
    def behind(self) -> bool:
        """Whether publishers have to wait, because the application has not read what was written."""
        return self.full or self.unread_bytes + self._bytes >= self._limits.unread_bytes

    @property
    def asks_what_is_read(self) -> bool:
        """Whether enough is unread to make a read of the application's progress worth its cost."""
        return self.unread_bytes >= self._limits.unread_bytes // 4 or len(self._unread) >= _MOST_FILES

    def read_to(self, number: int) -> None:
        """Committed batches have read the files up to this number."""
        while self._unread and self._unread[0][0] <= number:
            self.unread_bytes -= self._unread.popleft()[1]
        self._room.set()

    def require_room(self) -> None:
        """Raise :class:`Refused` when publishers have to wait."""
        if self.behind and not self.full:
            raise busy(
                f"the application has not read {self.unread_bytes} bytes that this gateway has received, which is the "
                "limit; publish more slowly, or try again later"
            )
        if self.full:
            raise busy(
                f"{len(self._waiting)} events of {self._bytes} bytes wait for the inbox, which is the limit; try again "
                "later, or with another gateway"
            )

    async def room(self, *, publishing: bool = False) -> None:
        """Wait until the queue is not full; ``publishing``: and the application is not behind.

        Raises :class:`Refused` when the gateway ends.
        """
        while self.behind if publishing else self.full:
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
            rows: list[tuple[PartitionKey, bytes]] = []
            size, begun = 0, time.monotonic()
            while self._waiting and len(rows) < self._limits.file_rows and size < self._limits.file_bytes:
                rows.append(self._waiting.popleft())
                size += len(rows[-1][1])
            number = await self._call(self._inbox.write, rows)
            self._unread.append((number, size))
            self.unread_bytes += size
            written = {"files": 1, "events": len(rows), "bytes": size, "seconds": time.monotonic() - begun}
            for name, more in written.items():
                self._counts[f"inbox-{name}"] += more
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
