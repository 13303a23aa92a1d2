"""Standard input as a source of lines that cannot be read again."""

from __future__ import annotations

import asyncio
import sys
import threading
from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from typing import BinaryIO

from wallaroo_spark.connector.message_columns import AsyncGroupedRecords, MessageColumns
from wallaroo_spark.connector.record import Record
from wallaroo_spark.errors import ConfigurationError

READ_BYTES = 64 * 1024
"""Bytes of one read of standard input. A choice: the usual size of a pipe's buffer."""

LONGEST_LINE = 64 << 20
"""Limit in bytes of a line. A choice that bounds memory; the frame limit of a session is usually lower."""

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
        reader = _LineReader(self._file or sys.stdin.buffer, results, room)
        reader.start()
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


class _LineReader(threading.Thread):
    """Reads lines in a daemon thread, because a read of a terminal may never return."""

    def __init__(self, file: BinaryIO, results: asyncio.Queue[_ReadResult], room: threading.Semaphore) -> None:
        super().__init__(name="wallaroo-stdin", daemon=True)
        self._file = file
        self._results = results
        self._room = room
        self._loop = asyncio.get_running_loop()
        self.stopped = False

    def run(self) -> None:
        last: Exception | None = None
        try:
            # The raw file, because a buffered one is locked while it is read, and a program that ends would have to
            # wait for that lock.
            self._read_lines(getattr(self._file, "raw", self._file))
        except (OSError, ValueError, ConfigurationError) as error:
            last = error
        self._put(last)

    def _read_lines(self, file: BinaryIO) -> None:
        rest = b""
        while not self.stopped and (data := file.read(READ_BYTES)):
            *lines, rest = (rest + data).split(b"\n")
            self._hand_over(lines)
            if len(rest) > LONGEST_LINE:
                raise ConfigurationError(
                    f"standard input has a line of more than {LONGEST_LINE} bytes; check that the input is text",
                    code="record-too-long",
                )
        if rest:
            self._hand_over([rest])

    def _hand_over(self, lines: Sequence[bytes]) -> None:
        """Queue lines, each time as many as there is room for."""
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

    def _put(self, result: _ReadResult) -> None:
        try:
            self._loop.call_soon_threadsafe(self._results.put_nowait, result)
        except RuntimeError:
            # The event loop is closed: nothing reads the lines any more.
            self.stopped = True
