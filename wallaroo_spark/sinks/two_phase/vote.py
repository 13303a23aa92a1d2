"""A task's part in two-phase commit: hand over a partition's rows, and vote."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from wallaroo_spark.errors import SinkError
from wallaroo_spark.sinks.interface import Prepared, Sink, Transaction
from wallaroo_spark.steps import SinkStep, passed

if TYPE_CHECKING:
    import pyarrow as pa


@dataclass(frozen=True)
class Vote:
    """One partition's vote: ``prepared``, or the ``reason`` to abort."""

    partition: int
    """Partition of the batch."""
    transaction: Transaction
    """The transaction that the task made."""
    prepared: Prepared | None
    """The sink's yes; None for a vote to abort."""
    reason: str = ""
    """Why the vote is to abort; empty otherwise."""
    attempt_number: int = 0
    """Spark's number of the task's attempt, from 0."""

    def to_json(self) -> str:
        """The vote as text, as it travels from a task to the driver."""
        return json.dumps(
            {
                "partition": self.partition,
                "transaction": asdict(self.transaction),
                "prepared": self.prepared and self.prepared.to_json(),
                "reason": self.reason,
                "attempt_number": self.attempt_number,
            }
        )

    @classmethod
    def from_json(cls, text: str) -> Vote:
        """The inverse of :meth:`to_json`."""
        value: Mapping[str, Any] = json.loads(text)
        prepared = value["prepared"] and Prepared.from_json(value["prepared"])
        transaction = Transaction(**value["transaction"])
        return cls(value["partition"], transaction, prepared, value["reason"], value["attempt_number"])


def vote(sink: Sink, batch: int, partition: int, rows: Iterator[pa.RecordBatch], attempt_number: int = 0) -> Vote:
    """Hand a partition's rows over as a new transaction; a :class:`SinkError` is a vote to abort."""
    transaction = Transaction.new(sink.name, batch, partition)
    try:
        prepared = sink.prepare(transaction, _watched(rows))
    except SinkError as error:
        return Vote(partition, transaction, None, error.message, attempt_number)
    passed(SinkStep.PREPARED)
    return Vote(partition, transaction, prepared, "", attempt_number)


def _watched(rows: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """The rows, with a step between one piece of them and the next."""
    for number, piece in enumerate(rows):
        if number:
            passed(SinkStep.ROWS_HALF_HANDED_OVER)
        yield piece
