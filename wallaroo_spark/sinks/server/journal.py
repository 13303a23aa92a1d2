"""A durable log: when :meth:`Journal.append` returns, the record is on the disk; after an error it is not."""

from __future__ import annotations

import json
import logging
import os
import zlib
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from wallaroo_spark.errors import SinkError, one_line
from wallaroo_spark.sidecar.syncing import sync, sync_open_file
from wallaroo_spark.steps import SinkStep, passed

log = one_line(logging.getLogger("wallaroo_spark.sinks"))

_CHECKSUM = 8


def encode_record(record: Mapping[str, Any]) -> bytes:
    """Return the record's line: the CRC-32 of its JSON as eight hexadecimal digits, a space, the JSON, a newline."""
    text = json.dumps(record, separators=(",", ":")).encode()
    return b"%08x %s\n" % (zlib.crc32(text), text)


def decode_record(line: bytes) -> dict[str, Any] | None:
    """Return the record of a line (with its newline); None for a line that is truncated or damaged."""
    text = line[_CHECKSUM + 1 : -1]
    if line[-1:] != b"\n" or line[: _CHECKSUM + 1] != b"%08x " % zlib.crc32(text):
        return None
    record = json.loads(text)
    return record if isinstance(record, dict) else None


def decode_log(data: bytes, where: str) -> tuple[list[dict[str, Any]], int]:
    """Return the records, and the offset of the byte after the last whole one.

    The last line may be damaged by a crash while it was written; it was not acknowledged then. Raises
    :class:`SinkError` when whole records follow a damaged one.
    """
    records: list[dict[str, Any]] = []
    at = end = 0
    damaged = False
    for line in data.splitlines(keepends=True):
        record = decode_record(line)
        if record is not None and damaged:
            raise SinkError(
                f"{where} is damaged at byte {end}, and goes on behind it; restore it from a copy, and find out which "
                "of its transactions are in the outputs before it is used again",
                code="sink-log-damaged",
                path=where,
                offset=end,
            )
        at += len(line)
        if record is None:
            damaged = True
        else:
            records.append(record)
            end = at
    return records, end


class Journal:
    """The log in the file ``path``. Not for several threads at once. Methods raise OSError as files do."""

    def __init__(self, path: Path) -> None:
        self._path = path
        new = not path.exists()
        self._file = path.open("ab", buffering=0)
        if new:
            sync(path.parent)
        self._end = 0
        self.lines = 0

    def read(self) -> list[dict[str, Any]]:
        """Return all records and remove a damaged end. To be called once, before the first :meth:`append`."""
        data = self._path.read_bytes()
        records, self._end = decode_log(data, str(self._path))
        if self._end < len(data):
            log.warning("%s: %d bytes at its end are not whole, and are dropped", self._path, len(data) - self._end)
            os.ftruncate(self._file.fileno(), self._end)
            sync_open_file(self._file.fileno())
        self.lines = len(records)
        return records

    def append(self, record: Mapping[str, Any], *, synced: bool = True) -> None:
        """Append a record; with ``synced`` it is on the disk afterwards. After an OSError it is not in the log."""
        line = encode_record(record)
        try:
            written = self._file.write(line)
            if written != len(line):
                raise OSError(f"{written} of {len(line)} bytes were written")
            if synced:
                sync_open_file(self._file.fileno())
        except OSError:
            os.ftruncate(self._file.fileno(), self._end)
            raise
        self._end += len(line)
        self.lines += 1

    def rewrite(self, records: Iterable[Mapping[str, Any]]) -> None:
        """Replace the whole log by these records, atomically and durably."""
        lines = [encode_record(record) for record in records]
        shorter = self._path.with_name(self._path.name + ".new")
        file = shorter.open("wb", buffering=0)
        try:
            file.write(b"".join(lines))
            sync_open_file(file.fileno())
            passed(SinkStep.SERVER_LOG_REWRITTEN)
            os.replace(shorter, self._path)
        except OSError:
            file.close()
            raise
        sync(self._path.parent)
        file.close()
        self._file.close()
        self._file = self._path.open("ab", buffering=0)
        self._end, self.lines = sum(map(len, lines)), len(lines)

    def close(self) -> None:
        """Close the file."""
        self._file.close()
