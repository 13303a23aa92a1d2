"""The log of a sink server, and the transactions of its workers, which are built from the records of the log.

``TRANSACTION[state][event]`` is a transaction's next state. A missing key means that the event cannot happen in the
state. The diagram in ``docs/sinks/connector.md`` is drawn from this table.

When :meth:`Journal.append` returns, the record is on the disk; after an error it is not. The transactions are pure: no
file, socket or clock. Source: ``docs/protocol.md#sinks``.
"""

from __future__ import annotations

import itertools
import json
import os
import zlib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any

from wallaroo_spark.errors import SinkError, one_line
from wallaroo_spark.sidecar.syncing import sync, sync_open_file
from wallaroo_spark.steps import SinkStep, passed


class TransactionState(StrEnum):
    """The states of a transaction in the sink."""

    UNKNOWN = "unknown"
    OPEN = "open"
    PREPARED = "prepared"
    COMMITTED = "committed"
    APPLIED = "applied"


class TransactionEvent(StrEnum):
    """The events of a transaction."""

    ROWS = "rows"
    PHASE1 = "PHASE1, and all is on the disk"
    REFUSED = "PHASE1 with a vote to abort"
    SUPERSEDED = "another session of that worker, or a crash"
    COMMIT = "PHASE2(commit)"
    ABORT = "PHASE2(abort)"
    APPENDED = "readers see it"


TRANSACTION: Mapping[TransactionState, Mapping[TransactionEvent, TransactionState]] = {
    TransactionState.UNKNOWN: {
        TransactionEvent.ROWS: TransactionState.OPEN,
        TransactionEvent.PHASE1: TransactionState.PREPARED,
        TransactionEvent.ABORT: TransactionState.UNKNOWN,
    },
    TransactionState.OPEN: {
        TransactionEvent.ROWS: TransactionState.OPEN,
        TransactionEvent.PHASE1: TransactionState.PREPARED,
        TransactionEvent.REFUSED: TransactionState.UNKNOWN,
        TransactionEvent.SUPERSEDED: TransactionState.UNKNOWN,
    },
    TransactionState.PREPARED: {
        TransactionEvent.COMMIT: TransactionState.COMMITTED,
        TransactionEvent.ABORT: TransactionState.UNKNOWN,
    },
    TransactionState.COMMITTED: {
        TransactionEvent.APPENDED: TransactionState.APPLIED,
        TransactionEvent.COMMIT: TransactionState.COMMITTED,
    },
    TransactionState.APPLIED: {TransactionEvent.COMMIT: TransactionState.APPLIED},
}


log = one_line("wallaroo_spark.sinks")

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
    lines = data.splitlines(keepends=True)
    found = [decode_record(line) for line in lines]
    records = [*itertools.takewhile(lambda record: record is not None, found)]
    end = sum(map(len, lines[: len(records)]))
    if any(record is not None for record in found[len(records) :]):
        raise SinkError(
            f"{where} is damaged at byte {end}, and goes on behind it; restore it from a copy, and find out which "
            "of its transactions are in the outputs before it is used again",
            code="sink-log-damaged",
            path=where,
            offset=end,
        )
    return [record for record in records if record is not None], end


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
        with shorter.open("wb", buffering=0) as file:
            file.write(b"".join(lines))
            sync_open_file(file.fileno())
            passed(SinkStep.SERVER_LOG_REWRITTEN)
            os.replace(shorter, self._path)
        sync(self._path.parent)
        self._file.close()
        self._file = self._path.open("ab", buffering=0)
        self._end, self.lines = sum(map(len, lines)), len(lines)

    def close(self) -> None:
        """Close the file."""
        self._file.close()


LONGEST_ID = 1024
"""The most bytes of a transaction's id. A choice: the type ``short_bytes`` of the protocol would permit 64 KiB."""

LogRecord = Mapping[str, Any]
_EVENTS = {
    "prepare": TransactionEvent.PHASE1,
    "commit": TransactionEvent.COMMIT,
    "abort": TransactionEvent.ABORT,
    "append": TransactionEvent.APPENDED,
}


@dataclass(frozen=True)
class OutputPart:
    """The rows that a transaction adds to a worker's output: the bytes of ``file``, from ``start`` to ``end``."""

    transaction: str
    """Id of the transaction."""
    worker: str
    """Name of the worker, and of its output."""
    start: int
    """Offset in the output of the first byte."""
    end: int
    """Offset in the output behind the last byte."""
    file: str
    """Name of the file with the bytes."""


class ServerTransactions:
    """The length of every worker's output, and the transactions in progress. Only :meth:`apply` changes them."""

    def __init__(self) -> None:
        self.offsets: dict[str, int] = {}
        """Every worker's offset."""
        self._parts: dict[str, OutputPart] = {}
        self._states: dict[str, TransactionState] = {}

    def offset(self, worker: str) -> int:
        """Return the number of bytes in the worker's output that readers see: its point of reference."""
        return self.offsets.get(worker, 0)

    def parts(self) -> Iterator[OutputPart]:
        """Iterate over the prepared and committed transactions whose rows are not in the output yet."""
        return iter(list(self._parts.values()))

    def state(self, transaction: str) -> TransactionState:
        """Return the state of a transaction; UNKNOWN also after it has ended."""
        return self._states.get(transaction, TransactionState.UNKNOWN)

    def part(self, transaction: str) -> OutputPart | None:
        """The rows that a transaction adds; None for an unknown transaction."""
        return self._parts.get(transaction)

    def of_worker(self, worker: str, state: TransactionState) -> OutputPart | None:
        """Return the part of the worker's prepared or committed transaction (at most one exists), or None.

        A committed part is not in the worker's output yet.
        """
        found = (part for part in self._parts.values() if part.worker == worker)
        return next((part for part in found if self._states[part.transaction] is state), None)

    def objection(self, part: OutputPart) -> str:
        """Return the reason why a part cannot be prepared; empty when it can."""
        size = len(part.transaction.encode())
        if not 0 < size <= LONGEST_ID:
            return f"its id has {size} bytes; it has 1 to {LONGEST_ID}"
        if part.transaction in self._states:
            return f"it is {self._states[part.transaction]} already"
        if self.of_worker(part.worker, TransactionState.COMMITTED) is not None:
            return f"an earlier transaction of {part.worker} is committed and not in its output yet"
        if part.start != self.offset(part.worker) or part.end < part.start:
            return (
                f"its rows are {part.start} to {part.end}, and the output of {part.worker} ends at "
                f"{self.offset(part.worker)}"
            )
        other = self.of_worker(part.worker, TransactionState.PREPARED)
        if other is not None:
            return f"{other.transaction} of {part.worker} waits for a decision; a worker has one transaction at a time"
        return ""

    def apply(self, record: LogRecord) -> None:
        """Apply a record of the log: ``prepare``, ``commit``, ``append``, ``abort`` or ``offset``.

        Raises :class:`SinkError` for a record that cannot follow the records before it.
        """
        do = record["do"]
        if do == "offset":
            self.offsets[record["worker"]] = record["offset"]
            return
        name = record["transaction"]
        state, event = self.state(name), _EVENTS[do]
        after = TRANSACTION[state].get(event)
        if after is None:
            raise SinkError(
                f"transaction {name!r} is {state}, and '{event}' cannot follow; the log is not whole",
                code="sink-log-damaged",
                transaction=name,
            )
        if do == "prepare":
            self._parts[name] = OutputPart(**{field: value for field, value in record.items() if field != "do"})
        if after not in (TransactionState.UNKNOWN, TransactionState.APPLIED):
            self._states[name] = after
        elif (part := self._parts.pop(name, None)) is not None:
            del self._states[name]
            if after is TransactionState.APPLIED:
                self.offsets[part.worker] = part.end

    def records(self) -> list[LogRecord]:
        """Return the shortest log with the same result."""
        records: list[LogRecord] = [
            {"do": "offset", "worker": worker, "offset": offset} for worker, offset in self.offsets.items()
        ]
        for name, part in self._parts.items():
            records.append(prepare_record(part))
            if self._states[name] is TransactionState.COMMITTED:
                records.append({"do": "commit", "transaction": name})
        return records

    def validate(self) -> None:
        """Raise AssertionError if an invariant is broken; for tests."""
        assert set(self._parts) == set(self._states)
        committed = [self._parts[name] for name, s in self._states.items() if s is TransactionState.COMMITTED]
        assert len({part.worker for part in committed}) == len(committed)
        assert all(part.start == self.offset(part.worker) for part in committed)
        assert all(0 <= part.start <= part.end for part in self._parts.values())


def prepare_record(part: OutputPart) -> LogRecord:
    """The record that a part is prepared."""
    return {"do": "prepare", **asdict(part)}
