"""Files as sources: lines, and records framed by their length. A reference is the byte offset after a record."""

from __future__ import annotations

import asyncio
import os
import struct
from collections.abc import AsyncGenerator, AsyncIterator, Generator, Iterator
from itertools import accumulate
from pathlib import Path
from typing import BinaryIO

from wallaroo_spark.connector.arguments import u64_of, wrong_type
from wallaroo_spark.connector.record import AsyncGroupedRecords, GroupedRecords, MessageColumns, Record
from wallaroo_spark.errors import ArgumentValueError, ConfigurationError, ReplayError, one_line

_log = one_line("wallaroo_spark.connector")

CHUNK_BYTES = 1 << 20
"""Bytes of one read of a file. A choice: large enough that a system call costs little for each record."""

LONGEST_RECORD = 64 << 20
"""Limit in bytes of a record. A choice that bounds memory; the frame limit of a session is usually lower."""

TOO_LONG = ("error", "skip", "cut")
"""The treatments of a line that is too long."""

_FOUND_BY = 200
"""Bytes of a long line by which it is recognised. A choice."""

_LENGTH = struct.Struct(">I")


class _FileSource:
    """A file that is read in order from any of its references, to its end or, with ``follow``, as it grows.

    With ``follow`` the end of the file is checked every ``poll`` seconds. The stream's name is the path as given, or
    ``name``.
    """

    replayable = True

    def __init__(
        self, path: str | os.PathLike[str], *, follow: bool = False, name: str = "", poll: float = 0.2
    ) -> None:
        if not isinstance(path, str | os.PathLike):
            raise wrong_type("path is a str or a path", path, "path")
        self.path = self._reading = Path(path)
        self.name = name or os.fspath(path)
        self.follow = follow
        self._poll = poll
        self._refused: ConfigurationError | None = None

    def read(self, after: int | None) -> Iterator[Record] | AsyncIterator[Record]:
        """The records after byte offset ``after``.

        Raises :class:`ConfigurationError` when the file cannot be read, and :class:`ReplayError` when ``after`` is not
        a reference of this file.
        """
        if self.follow:
            return AsyncGroupedRecords(self._following(after or 0))
        return GroupedRecords(self._once(after or 0))

    def _split(self, data: bytes, at: int) -> tuple[MessageColumns, int]:
        """The records in ``data``, which begins at offset ``at``, and the number of bytes that they take."""
        raise NotImplementedError

    def _last(self, rest: bytes, at: int) -> MessageColumns:
        """The incomplete record at the end of the file. Raises :class:`ReplayError` if it is not a record."""
        raise NotImplementedError

    def _check_boundary(self, file: BinaryIO, at: int) -> None:
        """Raise :class:`ReplayError` when ``at`` is not the end of a record, as far as the file shows that."""

    def _open(self, at: int) -> BinaryIO:
        try:
            file = self.path.open("rb")
        except OSError as error:
            raise self._unreadable(error) from error
        try:
            self._check_size(file, at)
            self._check_boundary(file, at)
            file.seek(at)
        except BaseException:
            file.close()
            raise
        return file

    def _check_size(self, file: BinaryIO, at: int) -> None:
        """Raise :class:`ReplayError` when the file ends before ``at``."""
        size = os.fstat(file.fileno()).st_size
        if size < at:
            raise self._changed(
                f"file {self.path} has {size} bytes, and was read to offset {at}: it was truncated or replaced; "
                "restore it, or send the new file as a stream of its own name",
                size=size,
                reference=at,
            )

    def _once(self, at: int) -> Generator[MessageColumns, None, None]:
        rest = b""
        with self._open(at) as file:
            while data := file.read(CHUNK_BYTES):
                columns, rest, at = self._columns(rest + data, at)
                yield columns
                self._raise_refused()
        if rest:
            yield self._last(rest, at)
            self._raise_refused()

    async def _following(self, at: int) -> AsyncGenerator[MessageColumns, None]:
        rest = b""
        with self._open(at) as file:
            replaced = False
            while True:
                data = file.read(CHUNK_BYTES)
                if data:
                    columns, rest, at = self._columns(rest + data, at)
                    yield columns
                    self._raise_refused()
                elif replaced:
                    raise self._changed(
                        f"file {self.path} was moved, deleted or replaced while it was followed, and read to offset "
                        f"{at}; feed the new file as a stream of its own name",
                        reference=at,
                    )
                else:
                    # Bytes written between the last read and the replacement are still read.
                    replaced = self._is_replaced(file, at + len(rest))
                    if not replaced:
                        await asyncio.sleep(self._poll)

    def _raise_refused(self) -> None:
        """Raise the error of a record that cannot be sent, behind the records before it."""
        if self._refused is not None:
            error, self._refused = self._refused, None
            raise error

    def _columns(self, data: bytes, at: int) -> tuple[MessageColumns, bytes, int]:
        columns, taken = self._split(data, at)
        rest = data[taken:]
        if len(rest) > LONGEST_RECORD + _LENGTH.size:
            raise ConfigurationError(
                f"file {self.path} has a record of more than {LONGEST_RECORD} bytes at offset {at + taken}; "
                "check that the file has this format",
                code="record-too-long",
                path=str(self.path),
                offset=at + taken,
            )
        return columns, rest, at + taken

    def _is_replaced(self, file: BinaryIO, at: int) -> bool:
        self._check_size(file, at)
        place = self._place()
        return place is None or not is_at(place, file)

    def _place(self) -> os.stat_result | None:
        """The file that has the path now; None without one."""
        try:
            return self.path.stat()
        except FileNotFoundError:
            return None

    def _unreadable(self, error: OSError) -> ConfigurationError:
        return ConfigurationError(
            f"file {error.filename or self.path} cannot be read: {error.strerror}; check the path and its permissions",
            code="file-unreadable",
            path=str(error.filename or self.path),
        )

    def _changed(self, text: str, **fields: object) -> ReplayError:
        return ReplayError(text, code="source-changed", **{"path": str(self.path), **fields})


class Lines(_FileSource):
    """The lines of a file, byte for byte and without their newline (a carriage return stays).

    A line's reference is the byte offset after its newline, so that resuming is a seek. Bytes after the last newline
    are a line too, unless the file is followed: then they become a line when their newline has been written.

    A line of more than ``longest`` bytes is an error that names its number; with ``too_long="skip"`` it is left out and
    with ``too_long="cut"`` its first ``longest`` bytes are sent, and a warning is logged.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        follow: bool = False,
        name: str = "",
        poll: float = 0.2,
        longest: int = LONGEST_RECORD,
        too_long: str = "error",
    ) -> None:
        super().__init__(path, follow=follow, name=name, poll=poll)
        self._longest = u64_of(longest, "longest")
        if too_long not in TOO_LONG:
            raise ArgumentValueError(
                f"too_long: {too_long!r} is not one of {', '.join(TOO_LONG)}",
                code="option-out-of-range",
                argument="too_long",
            )
        self._too_long = too_long

    def _split(self, data: bytes, at: int) -> tuple[MessageColumns, int]:
        lines = data.split(b"\n")
        rest = lines.pop()
        ends = list(accumulate(map((1).__add__, map(len, lines)), initial=at))
        return self._fitting(lines, ends[1:]), len(data) - len(rest)

    def _last(self, rest: bytes, at: int) -> MessageColumns:
        return self._fitting([rest], [at + len(rest)])

    def _fitting(self, lines: list[bytes], ends: list[int]) -> MessageColumns:
        """The lines that can be sent. An error is raised behind those before it."""
        if not lines or max(map(len, lines)) <= self._longest:
            return MessageColumns(lines, ends)
        kept: list[bytes] = []
        kept_ends: list[int] = []
        for line, end in zip(lines, ends, strict=True):
            fitting = line
            if len(line) > self._longest:
                complaint = (
                    f"file {self.path}, line {self._line_number(line)}: it has {len(line)} bytes, and the limit is "
                    f"{self._longest}"
                )
                if self._too_long == "error":
                    self._refused = ConfigurationError(
                        f"{complaint}; shorten it, or leave such lines out or cut them (too_long, --long-lines)",
                        code="record-too-long",
                        path=str(self.path),
                        limit=self._longest,
                    )
                    break
                _log.warning("%s; it is %s", complaint, "left out" if self._too_long == "skip" else "cut there")
                if self._too_long == "skip":
                    continue
                fitting = line[: self._longest]
            kept.append(fitting)
            kept_ends.append(end)
        return MessageColumns(kept, kept_ends)

    def _line_number(self, line: bytes) -> str:
        """The number of a line, found by reading the file from its beginning; for messages alone."""
        before = line[:_FOUND_BY]
        try:
            with self._reading.open("rb") as file:
                for number, found in enumerate(file, 1):
                    if found.startswith(before) and len(found.rstrip(b"\n")) == len(line):
                        return str(number)
        except OSError:
            pass
        return "unknown"

    def _check_boundary(self, file: BinaryIO, at: int) -> None:
        if at == 0:
            return
        file.seek(at - 1)
        before, behind = file.read(1), file.read(1)
        if before != b"\n" and (behind or self.follow):
            raise self._changed(
                f"file {self.path}: the committed reference {at} is not the end of a line; the file was changed, or "
                "its last line was sent before it was complete (a file that still grows is read with follow=True); "
                "send it as a stream of another name",
                reference=at,
            )


class Framed(_FileSource):
    """Records that are each a big-endian u32 length and that many bytes; a reference is the offset of a record's end.

    An incomplete record at the end of the file is an error, unless the file is followed: then the source waits for the
    rest.
    """

    def _split(self, data: bytes, at: int) -> tuple[MessageColumns, int]:
        payloads, ends, taken = [], [], 0
        while taken + _LENGTH.size <= len(data):
            (length,) = _LENGTH.unpack_from(data, taken)
            if length > LONGEST_RECORD:
                raise ConfigurationError(
                    f"file {self.path} announces a record of {length} bytes at offset {at + taken}, and at most "
                    f"{LONGEST_RECORD} are read; check that the file has u32-length-framed records",
                    code="record-too-long",
                    path=str(self.path),
                    offset=at + taken,
                )
            end = taken + _LENGTH.size + length
            if end > len(data):
                break
            payloads.append(data[taken + _LENGTH.size : end])
            ends.append(at + end)
            taken = end
        return MessageColumns(payloads, ends), taken

    def _last(self, rest: bytes, at: int) -> MessageColumns:
        raise ReplayError(
            f"file {self.path} ends within the record at offset {at}: {len(rest)} bytes of it are there; "
            "complete the file, or read it with follow=True while it is being written",
            code="source-incomplete",
            path=str(self.path),
            offset=at,
        )


def is_at(place: os.stat_result, file: BinaryIO) -> bool:
    """Whether an open file is the one of these facts."""
    return os.path.samestat(place, os.fstat(file.fileno()))
