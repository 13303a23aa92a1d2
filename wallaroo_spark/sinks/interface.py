"""The interface of transactional sinks: two phases, and the names of transactions.

Source: ``docs/protocol.md#sinks``. A sink is pickled and sent to the tasks, so
it holds settings alone, and opens what it needs where it needs it. Nothing here imports Spark.
"""

from __future__ import annotations

import re
import uuid
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

from wallaroo_spark.errors import ConfigurationError

if TYPE_CHECKING:
    import pyarrow as pa

LONGEST_NAME = 64
"""Characters of a sink's name, so that a transaction's id fits a name of 199 bytes (PostgreSQL's limit)."""

_NAME = re.compile(rf"[A-Za-z0-9][A-Za-z0-9._-]{{0,{LONGEST_NAME - 1}}}")
_ATTEMPT = re.compile(r"[0-9a-z]{1,32}")
_NUMBER = r"0|[1-9][0-9]{0,18}"
_ID = re.compile(rf"({_NAME.pattern})/({_NUMBER})/({_NUMBER})/({_ATTEMPT.pattern})")


def checked_name(name: str) -> str:
    """A sink's name as it was given. Raises :class:`ConfigurationError` for one that is no part of a file's name."""
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        raise ConfigurationError(
            f"a sink is named {name!r}; use 1 to {LONGEST_NAME} of the characters A-Z a-z 0-9 . _ -, the first of them "
            "a letter or a digit",
            name=name,
        )
    return name


@dataclass(frozen=True)
class Transaction:
    """The rows that one attempt at one partition of one batch hands to a sink.

    The task makes ``attempt``, a random text.
    """

    sink: str
    """Name of the sink."""
    batch: int
    """Spark's batch id."""
    partition: int
    """Partition of the batch."""
    attempt: str
    """Random text that the task makes; of a connector sink it begins with the try."""

    def __post_init__(self) -> None:
        checked_name(self.sink)
        if not _ID.fullmatch(self.id):
            raise ConfigurationError(
                f"transaction {self.id!r} cannot be: batch and partition are numbers from 0 on, and an attempt is 1 to "
                "32 of the characters 0-9 a-z",
                transaction=self.id,
            )

    @classmethod
    def new(cls, sink: str, batch: int, partition: int) -> Transaction:
        """The transaction of a new attempt, unlike all others there ever were."""
        return cls(sink, batch, partition, uuid.uuid4().hex)

    @property
    def id(self) -> str:
        """``<sink>/<batch>/<partition>/<attempt>``, ASCII, at most 136 bytes."""
        return f"{self.sink}/{self.batch}/{self.partition}/{self.attempt}"

    @classmethod
    def parse(cls, text: str) -> Transaction | None:
        """The transaction that an id names, or None for what :attr:`id` never gives: somebody else's."""
        found = _ID.fullmatch(text)
        return cls(found[1], int(found[2]), int(found[3]), found[4]) if found else None


@dataclass(frozen=True)
class Prepared:
    """A sink's yes. ``detail`` is what its commit needs (offsets, names of files), of values that JSON has."""

    transaction: Transaction
    rows: int
    detail: Mapping[str, Any] = field(default_factory=dict)

    def to_json(self) -> dict[str, Any]:
        """The same as values for :func:`json.dumps`."""
        return {"transaction": asdict(self.transaction), "rows": self.rows, "detail": dict(self.detail)}

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> Prepared:
        """The inverse of :meth:`to_json`. Raises KeyError or TypeError for anything else."""
        return cls(Transaction(**value["transaction"]), int(value["rows"]), dict(value["detail"]))


class Sink(Protocol):
    """A place that takes rows under two-phase commit. Picklable: every task gets a copy.

    ``prepare`` runs in tasks, all else in the driver. The caller decides by the decision log alone, so a sink
    asks nobody: it commits what it is told to commit, and ignores transactions that it does not know.
    """

    @property
    def name(self) -> str:
        """The name in the ids of its transactions and of its decision log."""

    def prepare(self, transaction: Transaction, rows: Iterator[pa.RecordBatch]) -> Prepared:
        """Hand over the rows of one partition.

        When it returns they are durable in (or for) the sink, and no reader sees them. Raises :class:`SinkError` when
        the sink does not take them: that is a vote to abort the whole batch. Any other error fails the task, which
        Spark may run again, as another transaction.
        """
        ...

    def commit(self, batch: int, prepared: Sequence[Prepared]) -> None:
        """Show readers what was prepared, of all partitions of a batch.

        Idempotent: it may be called again after any crash, by another process, and with some or all of it done.
        """
        ...

    def abort(self, transactions: Sequence[Transaction]) -> None:
        """Delete prepared rows and rows handed over in part. Idempotent; unknown transactions are ignored."""
        ...

    def recover(self) -> Sequence[Transaction]:
        """The transactions of this sink's name that are prepared and not decided, without those still at work."""
        ...


Memory = Mapping[str, Any]
"""A value that the decision log keeps for a sink from one batch to the next; JSON can hold it."""


@runtime_checkable
class Remembering(Protocol):
    """A sink that needs more than its far end tells: the log keeps a value for it, beside each decision to commit.

    All runs in the driver, before the sink is sent to the tasks.
    """

    def remember(self, memory: Memory) -> None:
        """Take the value of the newest decision to commit."""

    def recollect(self, history: Sequence[Prepared], *, whole: bool) -> Memory:
        """The value of a log without one: a new log, or one of an older version.

        ``history`` is all that it has as committed, oldest first, and ``whole`` whether that is all there ever was.
        """
        ...

    def after(self, prepared: Sequence[Prepared]) -> Memory:
        """The value once these are committed."""
        ...

    def begin(self, batch: int, try_number: int, *, alone: bool) -> None:
        """A try at a batch begins; ``alone`` says that a task runs only once at a time (no speculation)."""
