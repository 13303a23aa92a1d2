"""Files read once for all subscribers that are sent them at about the same time.

A commit wakes every subscriber at once, and each wants the messages of the same files. They share one reading of a file
that keeps the newest of its messages; a subscriber that falls behind those goes on with a reading of its own.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Hashable, Iterator
from itertools import islice

from wallaroo_spark.pubsub.messages import Data

SHARED_BYTES = 8 << 20
"""Bytes of messages that one shared reading keeps; its newest message is kept whatever its size."""
SHARED_READINGS = 4
"""Shared readings at a time, so that memory has a bound; a subscriber that needs one more reads alone."""


class Reading:
    """One pass over the messages of a file. ``users`` counts the subscribers that are in it."""

    def __init__(self, messages: Iterator[Data]) -> None:
        self.users = 0
        self._messages = messages
        self._kept: list[Data] = []
        self._bytes = 0
        self._first = 0
        self._ended = False
        self._error: Exception | None = None
        self._under_way: asyncio.Future[None] | None = None

    @property
    def whole(self) -> bool:
        """Whether a newcomer misses nothing: every message that was read is kept, and reading did not fail."""
        return self._first == 0 and self._error is None

    def has_dropped(self, index: int) -> bool:
        """Whether the message at ``index`` was kept once and is not any more."""
        return index < self._first

    async def at(self, index: int) -> Data | None:
        """The message at ``index``, which was not dropped; None behind the last one.

        Raises what reading the file raised, to everyone who is in it.
        """
        while index >= self._first + len(self._kept):
            if self._error is not None:
                raise self._error
            if self._ended:
                return None
            if self._under_way is None:
                self._under_way = asyncio.ensure_future(self._read_one())
            # If one subscriber stops waiting, others still wait for the same message.
            await asyncio.shield(self._under_way)
        return self._kept[index - self._first]

    async def _read_one(self) -> None:
        try:
            found = await asyncio.to_thread(next, self._messages, None)
        except Exception as error:
            self._error = error
        else:
            self._keep(found)
        finally:
            self._under_way = None

    def _keep(self, found: Data | None) -> None:
        if found is None:
            self._ended = True
            return
        self._kept.append(found)
        self._bytes += len(found.payload)
        while self._bytes > SHARED_BYTES and len(self._kept) > 1:
            self._bytes -= len(self._kept.pop(0).payload)
            self._first += 1


class Readings:
    """The readings that the subscribers of a publisher share; on one event loop."""

    def __init__(self) -> None:
        self._shared: dict[Hashable, Reading] = {}

    async def messages(self, key: Hashable, read: Callable[[], Iterator[Data]]) -> AsyncIterator[Data]:
        """The messages of the file that ``key`` names and ``read`` opens; raises what reading it raises."""
        reading, index = self._join(key, read), 0
        try:
            while not reading.has_dropped(index):
                message = await reading.at(index)
                if message is None:
                    return
                index += 1
                yield message
        finally:
            reading.users -= 1
        alone = islice(read(), index, None)
        while (found := await asyncio.to_thread(next, alone, None)) is not None:
            yield found

    def _join(self, key: Hashable, read: Callable[[], Iterator[Data]]) -> Reading:
        reading = self._shared.get(key)
        if reading is None or not reading.whole:
            reading = Reading(read())
            self._share(key, reading)
        reading.users += 1
        return reading

    def _share(self, key: Hashable, reading: Reading) -> None:
        """Offer a reading to others, where there is room for it or one that nobody is in makes room."""
        for other in [other for other, known in self._shared.items() if not known.users]:
            if other == key or len(self._shared) >= SHARED_READINGS:
                del self._shared[other]
        if key not in self._shared and len(self._shared) < SHARED_READINGS:
            self._shared[key] = reading
