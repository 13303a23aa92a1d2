"""Files that are read once for all subscribers that need them at about the same time.

A commit wakes every subscriber at once, and all of them need the messages of the same files. They share one pass over a
file, which keeps the newest of its messages in memory. A subscriber that falls behind these messages starts a pass of
its own.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Hashable, Iterator
from itertools import islice

from wallaroo_spark.pubsub.messages import Data

SHARED_BYTES = 8 << 20
"""Bytes of messages that one shared pass keeps in memory. The newest message is always kept, also when it is larger.

A choice: two messages of ``MESSAGE_BYTES`` (4 MiB), so that subscribers may be one message apart. With
``SHARED_READINGS`` it bounds the memory of a publisher's passes to 32 MiB, for any number of subscribers.
"""
SHARED_READINGS = 4
"""Number of shared passes at a time; a subscriber that needs another file reads it alone.

A choice that bounds memory; see ``SHARED_BYTES``.
"""


class Reading:
    """One pass over the messages of a file. ``users`` is the number of subscribers that use the pass."""

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
        """Whether a new user can still get every message: all messages that were read are kept, and no read failed."""
        return self._first == 0 and self._error is None

    def has_dropped(self, index: int) -> bool:
        """Whether the message at ``index`` was read and is no longer kept."""
        return index < self._first

    async def at(self, index: int) -> Data | None:
        """Return the message at ``index``, which must not have been dropped; None behind the last message.

        An error of reading the file is raised to every user of this pass.
        """
        while index >= self._first + len(self._kept):
            if self._error is not None:
                raise self._error
            if self._ended:
                return None
            if self._under_way is None:
                self._under_way = asyncio.ensure_future(self._read_one())
            # The shield keeps the read alive when one subscriber stops waiting: others wait for the same message.
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
    """The passes over files that the subscribers of one publisher share. The object belongs to one event loop."""

    def __init__(self) -> None:
        self._shared: dict[Hashable, Reading] = {}

    async def messages(self, key: Hashable, read: Callable[[], Iterator[Data]]) -> AsyncIterator[Data]:
        """Iterate over the messages of the file ``key``, which ``read`` opens. Raises the errors of reading it."""
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
        """Offer a pass to other subscribers if there is room, or if removing an unused pass makes room."""
        for other in [other for other, known in self._shared.items() if not known.users]:
            if other == key or len(self._shared) >= SHARED_READINGS:
                del self._shared[other]
        if key not in self._shared and len(self._shared) < SHARED_READINGS:
            self._shared[key] = reading
