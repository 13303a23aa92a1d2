"""What a connector can be fed from: the protocol of a source, and sources that are not files.

A source gives records with a point of reference each and, if it is replayable, gives them again from any of these.
Source: ``docs/protocol.md#points-of-reference``.
"""

from __future__ import annotations

import asyncio
import sys
import threading
from collections.abc import (
    AsyncGenerator,
    AsyncIterable,
    AsyncIterator,
    Callable,
    Generator,
    Iterable,
    Iterator,
    Sequence,
)
from typing import BinaryIO, Protocol

from wallaroo_spark.connector.batches import AsyncBatches, Batch, Batches, Item, Record, batches_of
from wallaroo_spark.errors import ConfigurationError, ReplayError

PIECE_BYTES = 64 * 1024
"""Bytes that are read from standard input at a time."""

LONGEST_LINE = 64 << 20
"""Bytes of a line of standard input before it is given up; the frame limit of a session is lower."""


class Source(Protocol):
    """Records in an order that is the same each time they are read."""

    @property
    def name(self) -> str:
        """The name of its stream, unless :meth:`Connector.feed` is given another."""

    @property
    def replayable(self) -> bool:
        """Whether the records can be read again. Those of a source that cannot are sent as EPHEMERAL messages."""

    def read(self, after: int | None) -> Iterator[Record] | AsyncIterator[Record]:
        """The records behind reference ``after``; from the beginning for None.

        May be called any number of times; the iterator of the last call is closed before. A plain iterator should not
        block for long, since everything else on the connection waits for it. Raises :class:`ReplayError` when the
        source no longer has what lies behind ``after``.
        """


class Records:
    """Any iterable of :class:`Record` or (reference, payload) that can be made again.

    ``make`` is called for each reading and returns an iterable, plain or asynchronous, that starts at the beginning;
    what is committed is passed over. With ``opaque`` references are compared for equality alone, else they increase.
    """

    replayable = True

    def __init__(
        self, name: str, make: Callable[[], Iterable[Item] | AsyncIterable[Item]], *, opaque: bool = False
    ) -> None:
        self.name = name
        self._make = make
        self._opaque = opaque

    def read(self, after: int | None) -> Iterator[Record] | AsyncIterator[Record]:
        """The records behind reference ``after``."""
        items = self._make()
        if isinstance(items, AsyncIterable):
            return self._asynchronous(items, after)
        return Batches(self._batches(iter(items), after))

    def _batches(self, items: Iterator[Item], after: int | None) -> Generator[Batch, None, None]:
        passing = _Passing(self, after)
        for batch in batches_of(items):
            if passing.found and batch.ids is not None:
                yield batch
                continue
            ids = [None] if batch.ids is None else batch.ids
            first = next((at for at, reference in enumerate(ids) if passing.is_behind(reference)), len(ids))
            if first < len(ids):
                yield batch.part(first, len(ids))
        passing.finish()

    async def _asynchronous(self, items: AsyncIterable[Item], after: int | None) -> AsyncIterator[Record]:
        passing = _Passing(self, after)
        async for item in items:
            record = item if isinstance(item, Record) else Record(*item)
            if passing.is_behind(record.id):
                yield record
        passing.finish()

    @property
    def opaque(self) -> bool:
        """Whether references are compared for equality alone."""
        return self._opaque


class _Passing:
    """Passes over what is committed."""

    def __init__(self, source: Records, after: int | None) -> None:
        self._source = source
        self._after = after
        self.found = after is None

    def is_behind(self, reference: int | None) -> bool:
        if reference is None:
            raise ReplayError(
                f"source {self._source.name!r} has a record without a reference; a source that is read again needs one "
                "in each record",
                source=self._source.name,
            )
        if self.found:
            return True
        assert self._after is not None
        if self._source.opaque:
            self.found = reference == self._after
            return False
        self.found = reference > self._after
        return self.found

    def finish(self) -> None:
        if self._source.opaque and not self.found:
            raise ReplayError(
                f"source {self._source.name!r} has no record with reference {self._after}, which is the last one "
                "committed; it is not the source it was",
                source=self._source.name,
                reference=self._after,
            )


_Read = Sequence[bytes] | Exception | None
"""Lines, what went wrong, or the end."""


class Stdin:
    """The lines of standard input (or another binary file that cannot be read again), without their newlines.

    They are EPHEMERAL messages, delivered at most once; in a revision without flags they are numbered and kept in
    memory until they are acknowledged. ``most_waiting`` lines are read ahead.
    """

    replayable = False

    def __init__(self, file: BinaryIO | None = None, *, name: str = "stdin", most_waiting: int = 1024) -> None:
        self.name = name
        self._file = file
        self._most_waiting = most_waiting

    def read(self, after: int | None) -> AsyncIterator[Record]:
        """The lines from here on; ``after`` is of no use to what cannot be read again."""
        return AsyncBatches(self._batches())

    async def _batches(self) -> AsyncGenerator[Batch, None]:
        lines: asyncio.Queue[_Read] = asyncio.Queue()
        room = threading.Semaphore(self._most_waiting)
        reader = _LineReader(self._file or sys.stdin.buffer, lines, room)
        reader.start()
        try:
            while (found := await lines.get()) is not None:
                if isinstance(found, Exception):
                    raise found
                yield Batch(found)
                # There is room again once the whole batch was taken.
                room.release(len(found))
        finally:
            reader.stopped = True
            # The reader may wait for room for each line of the piece it has.
            room.release(PIECE_BYTES)


class _LineReader(threading.Thread):
    """Reads in a thread of its own, and one that nobody waits for: a read of a terminal may never return."""

    def __init__(self, file: BinaryIO, lines: asyncio.Queue[_Read], room: threading.Semaphore) -> None:
        super().__init__(name="wallaroo-stdin", daemon=True)
        self._file = file
        self._lines = lines
        self._room = room
        self._loop = asyncio.get_running_loop()
        self.stopped = False

    def run(self) -> None:
        last: Exception | None = None
        try:
            # The raw file, because a buffered one is locked while it is read, and a program that wants to end would
            # have to wait for that lock.
            self._read_lines(getattr(self._file, "raw", self._file))
        except (OSError, ValueError, ConfigurationError) as error:
            last = error
        self._put(last)

    def _read_lines(self, file: BinaryIO) -> None:
        rest = b""
        while not self.stopped and (piece := file.read(PIECE_BYTES)):
            *lines, rest = (rest + piece).split(b"\n")
            self._hand_over(lines)
            if len(rest) > LONGEST_LINE:
                raise ConfigurationError(
                    f"standard input has a line of more than {LONGEST_LINE} bytes; are these lines of text?"
                )
        if rest:
            self._hand_over([rest])

    def _hand_over(self, lines: Sequence[bytes]) -> None:
        """As many at once as there is room for."""
        at = 0
        while at < len(lines):
            self._room.acquire()
            end = at + 1
            while end < len(lines) and self._room.acquire(blocking=False):
                end += 1
            if self.stopped:
                return
            self._put(lines[at:end])
            at = end

    def _put(self, item: _Read) -> None:
        try:
            self._loop.call_soon_threadsafe(self._lines.put_nowait, item)
        except RuntimeError:
            # The event loop is closed: nobody reads any more.
            self.stopped = True
