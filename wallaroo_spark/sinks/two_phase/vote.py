"""The task's part in two-phase commit: send a partition's rows to the sink, and return a vote."""

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
    """One partition's vote: to commit, or to abort with a reason."""

    partition: int
    """Partition of the batch."""
    transaction: Transaction
    """The transaction of the task's attempt."""
    prepared: Prepared | None
    """The sink's vote to commit; None for a vote to abort."""
    reason: str = ""
    """The reason of a vote to abort, with the code of its error behind it; empty for a vote to commit."""
    attempt_number: int = 0
    """Spark's number of the task's attempt, from 0."""

    def to_json(self) -> str:
        """Return the vote as JSON text, which the task sends to the driver."""
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str) -> Vote:
        """Parse the text that :meth:`to_json` returns."""
        value: Mapping[str, Any] = json.loads(text)
        prepared = value["prepared"] and Prepared.from_json(value["prepared"])
        transaction = Transaction(**value["transaction"])
        return cls(value["partition"], transaction, prepared, value["reason"], value["attempt_number"])


def vote(sink: Sink, batch: int, partition: int, rows: Iterator[pa.RecordBatch], attempt_number: int = 0) -> Vote:
    """Prepare a partition's rows as a new transaction and return the vote; a :class:`SinkError` is a vote to abort."""
    transaction = Transaction.new(sink.name, batch, partition)
    try:
        prepared = sink.prepare(transaction, _watched(rows))
    except SinkError as error:
        return Vote(partition, transaction, None, str(error), attempt_number)
    passed(SinkStep.PREPARED)
    return Vote(partition, transaction, prepared, "", attempt_number)


def _watched(rows: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Iterate over the rows, passing a step of crash tests before each record batch but the first."""
    for number, piece in enumerate(rows):
        if number:
            passed(SinkStep.ROWS_HALF_HANDED_OVER)
        yield piece
