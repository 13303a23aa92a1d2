"""The protocol of a source for :meth:`Connector.feed`, an iterable as a source, and standard input as a source.

A source returns records, each with a point of reference, and returns them again from any reference if it is replayable.
The lines of standard input cannot be read again. Source: ``docs/protocol.md#points-of-reference``.
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
from dataclasses import dataclass
from typing import BinaryIO, Protocol

from wallaroo_spark.connector.arguments import callable_of
from wallaroo_spark.connector.record import (
    AsyncGroupedRecords,
    GroupedRecords,
    MessageColumns,
    Record,
    RecordOrPair,
    as_record,
    grouped,
)
from wallaroo_spark.connector.sources.files import LONGEST_RECORD
from wallaroo_spark.errors import ConfigurationError, ReplayError


class Records:
    """An iterable of :class:`Record` or (reference, payload) that can be made again.

    ``make`` is called for each reading and returns an iterable, plain or asynchronous, that starts at the beginning;
    committed records are skipped. With ``opaque`` references are only compared for equality; otherwise they increase.
    """

    replayable = True

    def __init__(
        self,
        name: str,
        make: Callable[[], Iterable[RecordOrPair] | AsyncIterable[RecordOrPair]],
        *,
        opaque: bool = False,
    ) -> None:
        self.name = name
        self._make = callable_of(make, "make")
        self.opaque = opaque
        """Whether references are only compared for equality."""

    def read(self, after: int | None) -> Iterator[Record] | AsyncIterator[Record]:
        """The records after reference ``after``."""
        given = self._make()
        if isinstance(given, AsyncIterable):
            return self._asynchronous(given, after)
        return GroupedRecords(self._groups(iter(given), after))

    def _groups(self, given: Iterator[RecordOrPair], after: int | None) -> Generator[MessageColumns, None, None]:
        committed = _Committed(self, after)
        for group in grouped(given):
            if committed.passed and group.ids is not None:
                yield group
                continue
            ids = [None] if group.ids is None else group.ids
            first = next((at for at, reference in enumerate(ids) if not committed.includes(reference)), len(ids))
            if first < len(ids):
                yield group.part(first, len(ids))
        committed.finish()

    async def _asynchronous(self, given: AsyncIterable[RecordOrPair], after: int | None) -> AsyncIterator[Record]:
        committed = _Committed(self, after)
        async for one in given:
            record = as_record(one)
            if not committed.includes(record.id):
                yield record
        committed.finish()


class _Committed:
    """Recognises the committed records at the beginning of a reading."""

    def __init__(self, source: Records, after: int | None) -> None:
        self._source = source
        self._after = after
        self.passed = after is None
        """Whether all committed records were read."""

    def includes(self, reference: int | None) -> bool:
        """Whether the next record, with this reference, is committed."""
        if reference is None:
            raise ReplayError(
                f"source {self._source.name!r} has a record without a reference; a source that is read again needs one "
                "in each record",
                code="source-without-reference",
                source=self._source.name,
            )
        if self.passed:
            return False
        assert self._after is not None
        if self._source.opaque:
            self.passed = reference == self._after
            return True
        self.passed = reference > self._after
        return not self.passed

    def finish(self) -> None:
        """The source has ended. Raises :class:`ReplayError` if the committed reference was not in it."""
        if self._source.opaque and not self.passed:
            raise ReplayError(
                f"source {self._source.name!r} has no record with reference {self._after}, which is the last one "
                "committed; the source has changed",
                code="source-changed",
                source=self._source.name,
                reference=self._after,
            )


class Source(Protocol):
    """Records in an order that is the same each time they are read."""

    @property
    def name(self) -> str:
        """The name of its stream, unless :meth:`Connector.feed` gets another."""

    @property
    def replayable(self) -> bool:
        """Whether the records can be read again. If not, they are sent as EPHEMERAL messages."""

    def read(self, after: int | None) -> Iterator[Record] | AsyncIterator[Record]:
        """The records after reference ``after``; None means from the beginning.

        May be called any number of times; the iterator of the call before is closed first. A plain iterator should not
        block for long, because everything else on the connection waits for it. Raises :class:`ReplayError` when the
        source no longer has the records after ``after``.
        """


READ_BYTES = 64 * 1024
"""Bytes of one read of standard input. A choice: the usual size of a pipe's buffer."""

_ReadResult = Sequence[bytes] | Exception | None
"""Lines; or the error that ended reading; or None at the end."""


class Stdin:
    """The lines of standard input (or another binary file that cannot be read again), without their newlines.

    They are EPHEMERAL messages, delivered at most once; in a revision without flags they are numbered and kept in
    memory until they are acknowledged. At most ``most_waiting`` lines are read ahead.
    """

    replayable = False

    def __init__(self, file: BinaryIO | None = None, *, name: str = "stdin", most_waiting: int = 1024) -> None:
        self.name = name
        self._file = file
        self._most_waiting = most_waiting

    def read(self, after: int | None) -> AsyncIterator[Record]:
        """The lines from here on. ``after`` is ignored, because earlier lines cannot be read again."""
        return AsyncGroupedRecords(self._groups())

    async def _groups(self) -> AsyncGenerator[MessageColumns, None]:
        results: asyncio.Queue[_ReadResult] = asyncio.Queue()
        room = threading.Semaphore(self._most_waiting)
        reader = _LineReader(self._file or sys.stdin.buffer, results, room, asyncio.get_running_loop())
        threading.Thread(target=reader.run, name="wallaroo-stdin", daemon=True).start()
        try:
            while (found := await results.get()) is not None:
                if isinstance(found, Exception):
                    raise found
                yield MessageColumns(found)
                # There is room again once the whole group was sent.
                room.release(len(found))
        finally:
            reader.stopped = True
            # The reader may wait for room for each line of the bytes that it has read.
            room.release(READ_BYTES)


@dataclass
class _LineReader:
    """Reads lines in a daemon thread, because a read of a terminal may never return."""

    file: BinaryIO
    results: asyncio.Queue[_ReadResult]
    room: threading.Semaphore
    loop: asyncio.AbstractEventLoop
    stopped: bool = False

    def run(self) -> None:
        last: Exception | None = None
        try:
            # The raw file, because a buffered one is locked while it is read, and a program that ends would have to
            # wait for that lock.
            self._read_lines(getattr(self.file, "raw", self.file))
        except (OSError, ValueError, ConfigurationError) as error:
            last = error
        self._put(last)

    def _read_lines(self, file: BinaryIO) -> None:
        rest = b""
        while not self.stopped and (data := file.read(READ_BYTES)):
            *lines, rest = (rest + data).split(b"\n")
            self._hand_over(lines)
            if len(rest) > LONGEST_RECORD:
                raise ConfigurationError(
                    f"standard input has a line of more than {LONGEST_RECORD} bytes; check that the input is text",
                    code="record-too-long",
                )
        if rest:
            self._hand_over([rest])

    def _hand_over(self, lines: Sequence[bytes]) -> None:
        """Queue lines, each time as many as there is room for."""
        at = 0
        while at < len(lines):
            self.room.acquire()
            end = at + 1
            while end < len(lines) and self.room.acquire(blocking=False):
                end += 1
            if self.stopped:
                return
            self._put(lines[at:end])
            at = end

    def _put(self, result: _ReadResult) -> None:
        try:
            self.loop.call_soon_threadsafe(self.results.put_nowait, result)
        except RuntimeError:
            # The event loop is closed: nothing reads the lines any more.
            self.stopped = True
