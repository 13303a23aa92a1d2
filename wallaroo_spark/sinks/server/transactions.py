"""The transactions of a sink server's workers, built from the records of its log.

Pure: no file, socket or clock. The states are ``TRANSACTION`` in ``wallaroo_spark/sinks/two_phase/states.py``.
Source: ``docs/protocol.md#sinks``.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from typing import Any

from wallaroo_spark.errors import SinkError
from wallaroo_spark.sinks.two_phase.states import TRANSACTION, TransactionEvent, TransactionState

LONGEST_ID = 1024
"""The most bytes of a transaction's id. A choice: the type ``short_bytes`` of the protocol would permit 64 KiB."""

LogRecord = Mapping[str, Any]
_EVENTS = {"commit": TransactionEvent.COMMIT, "abort": TransactionEvent.ABORT, "append": TransactionEvent.APPENDED}


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
        self._offsets: dict[str, int] = {}
        self._parts: dict[str, OutputPart] = {}
        self._states: dict[str, TransactionState] = {}

    def offset(self, worker: str) -> int:
        """Return the number of bytes in the worker's output that readers see: its point of reference."""
        return self._offsets.get(worker, 0)

    def outputs(self) -> Mapping[str, int]:
        """Every worker's offset."""
        return self._offsets

    def parts(self) -> Iterator[OutputPart]:
        """Iterate over the prepared and committed transactions whose rows are not in the output yet."""
        return iter(list(self._parts.values()))

    def state(self, transaction: str) -> TransactionState:
        """Return the state of a transaction; UNKNOWN also after it has ended."""
        return self._states.get(transaction, TransactionState.UNKNOWN)

    def part(self, transaction: str) -> OutputPart | None:
        """The rows that a transaction adds; None for an unknown transaction."""
        return self._parts.get(transaction)

    def uncommitted(self, worker: str) -> list[str]:
        """Return the worker's prepared transactions: at most one, but several in a log of an older version."""
        return [
            name
            for name, state in self._states.items()
            if state is TransactionState.PREPARED and self._parts[name].worker == worker
        ]

    def waiting(self, worker: str) -> OutputPart | None:
        """Return the committed part that is not in the worker's output yet (at most one exists), or None."""
        for name, state in self._states.items():
            if state is TransactionState.COMMITTED and self._parts[name].worker == worker:
                return self._parts[name]
        return None

    def objection(self, part: OutputPart) -> str:
        """Return the reason why a part cannot be prepared; empty when it can."""
        size = len(part.transaction.encode())
        if not 0 < size <= LONGEST_ID:
            return f"its id has {size} bytes; it has 1 to {LONGEST_ID}"
        if part.transaction in self._states:
            return f"it is {self._states[part.transaction]} already"
        if self.waiting(part.worker) is not None:
            return f"an earlier transaction of {part.worker} is committed and not in its output yet"
        if part.start != self.offset(part.worker) or part.end < part.start:
            return (
                f"its rows are {part.start} to {part.end}, and the output of {part.worker} ends at "
                f"{self.offset(part.worker)}"
            )
        waiting = self.uncommitted(part.worker)
        if waiting:
            return f"{waiting[0]} of {part.worker} waits for a decision; a worker has one transaction at a time"
        return ""

    def apply(self, record: LogRecord) -> None:
        """Apply a record of the log: ``prepare``, ``commit``, ``append``, ``abort`` or ``offset``.

        Raises :class:`SinkError` for a record that cannot follow the records before it.
        """
        do = record["do"]
        if do == "offset":
            self._offsets[record["worker"]] = record["offset"]
        elif do == "prepare":
            part = OutputPart(**{name: value for name, value in record.items() if name != "do"})
            self._turn(part.transaction, TransactionEvent.PHASE1)
            self._parts[part.transaction] = part
        else:
            self._decide(record["transaction"], _EVENTS[do])

    def _decide(self, transaction: str, event: TransactionEvent) -> None:
        part = self._parts.get(transaction)
        state = self._turn(transaction, event)
        if part is None or state in (TransactionState.PREPARED, TransactionState.COMMITTED):
            return
        if state is TransactionState.APPLIED:
            self._offsets[part.worker] = part.end
        del self._parts[transaction], self._states[transaction]

    def _turn(self, transaction: str, event: TransactionEvent) -> TransactionState:
        state = self.state(transaction)
        after = TRANSACTION[state].get(event)
        if after is None:
            raise SinkError(
                f"transaction {transaction!r} is {state}, and '{event}' cannot follow; the log is not whole",
                code="sink-log-damaged",
                transaction=transaction,
            )
        if after is not TransactionState.UNKNOWN or state is not TransactionState.UNKNOWN:
            self._states[transaction] = after
        return after

    def records(self) -> list[LogRecord]:
        """Return the shortest log with the same result."""
        records: list[LogRecord] = [
            {"do": "offset", "worker": worker, "offset": offset} for worker, offset in self._offsets.items()
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
