"""The interface of transactional sinks: two-phase commit, and the ids of transactions.

A sink is pickled and sent to the tasks. So it holds only settings, and opens its connections in the process that needs
them. This module does not import Spark. Source: ``docs/protocol.md#sinks``.
"""

from __future__ import annotations

import re
import uuid
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

from wallaroo_spark.errors import ConfigurationError

if TYPE_CHECKING:
    import pyarrow as pa

LONGEST_NAME = 64
"""The most characters of a sink's name, so that a transaction's id has fewer than 200 bytes (PostgreSQL's limit)."""

_NAME = re.compile(rf"[A-Za-z0-9][A-Za-z0-9._-]{{0,{LONGEST_NAME - 1}}}")
_ATTEMPT = re.compile(r"[0-9a-z]{1,32}")
_NUMBER = r"0|[1-9][0-9]{0,18}"
_ID = re.compile(rf"({_NAME.pattern})/({_NUMBER})/({_NUMBER})/({_ATTEMPT.pattern})")


def checked_name(name: str) -> str:
    """Return a valid sink name unchanged. Raises :class:`ConfigurationError` for a name that no file could have."""
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        raise ConfigurationError(
            f"a sink is named {name!r}; use 1 to {LONGEST_NAME} of the characters A-Z a-z 0-9 . _ -, the first of them "
            "a letter or a digit",
            code="name-invalid",
            name=name,
        )
    return name


@dataclass(frozen=True)
class Transaction:
    """The identity of the rows that one attempt of a task, for one partition of one batch, sends to a sink."""

    sink: str
    batch: int
    """Spark's batch id."""
    partition: int
    """Partition of the batch."""
    attempt: str
    """Random text that the task makes; for a connector sink it begins with the number of the batch's try."""

    def __post_init__(self) -> None:
        checked_name(self.sink)
        if not _ID.fullmatch(self.id):
            raise ConfigurationError(
                f"transaction id {self.id!r} is invalid: batch and partition are numbers from 0 on, and an attempt is "
                "1 to 32 of the characters 0-9 a-z",
                code="name-invalid",
                transaction=self.id,
            )

    @classmethod
    def new(cls, sink: str, batch: int, partition: int) -> Transaction:
        """Return the transaction of a new attempt, with a random text that no other attempt has."""
        return cls(sink, batch, partition, uuid.uuid4().hex)

    @property
    def id(self) -> str:
        """The text ``<sink>/<batch>/<partition>/<attempt>``: ASCII, at most 136 bytes."""
        return f"{self.sink}/{self.batch}/{self.partition}/{self.attempt}"

    @classmethod
    def parse(cls, text: str) -> Transaction | None:
        """Return the transaction with an id; None for a text of another form, which another program has made."""
        match = _ID.fullmatch(text)
        return cls(match[1], int(match[2]), int(match[3]), match[4]) if match else None


@dataclass(frozen=True)
class Prepared:
    """A sink's vote to commit a transaction, with the values that its commit needs."""

    transaction: Transaction
    rows: int
    """The number of its rows."""
    detail: Mapping[str, Any] = field(default_factory=dict)
    """JSON-ready values that the sink's ``commit`` needs, such as offsets or names of files."""

    def to_json(self) -> dict[str, Any]:
        """Return the vote as JSON-ready values."""
        return asdict(self)

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> Prepared:
        """Convert the values that :meth:`to_json` returns back. Raises KeyError or TypeError for other values."""
        return cls(Transaction(**value["transaction"]), int(value["rows"]), dict(value["detail"]))


class Sink(Protocol):
    """A destination of rows with two-phase commit. Picklable, because every task gets a copy.

    ``prepare`` runs in tasks, the other methods in the driver. The caller alone decides, by the decision log: a sink
    commits the transactions that it is given to commit, and ignores transactions that it does not know.
    """

    @property
    def name(self) -> str:
        """The sink's name, which is part of its transactions' ids and the name of its decision log."""

    def prepare(self, transaction: Transaction, rows: Iterator[pa.RecordBatch]) -> Prepared:
        """Store the rows of one partition durably, invisible to readers, and return the vote to commit.

        Raises :class:`SinkError` when the sink refuses the rows: that is a vote to abort the whole batch. Any other
        error fails the task; Spark may run it again, with another transaction.
        """
        ...

    def commit(self, batch: int, prepared: Sequence[Prepared]) -> None:
        """Make the prepared rows of all partitions of a batch visible to readers.

        Idempotent: after a crash, another process may call it again when some or all rows are visible already. Raises
        :class:`SinkError` when it cannot commit now; it is then called again later.
        """
        ...

    def abort(self, transactions: Sequence[Transaction]) -> None:
        """Delete the rows of transactions, prepared or incomplete. Idempotent; unknown transactions are ignored."""
        ...

    def recover(self) -> Sequence[Transaction]:
        """Return the prepared transactions of this sink's name that are not decided, without those in progress."""
        ...


Memory = Mapping[str, Any]
"""A JSON-ready value that the decision log stores for a sink from one batch to the next."""


@runtime_checkable
class Remembering(Protocol):
    """A sink that needs state which its destination does not store: the decision log stores a value for it.

    The value is part of each decision to commit. All methods run in the driver, before the sink is sent to the tasks.
    """

    def remember(self, memory: Memory | None) -> None:
        """Set the sink's state to the value in the newest decision to commit; None for a log without one."""

    def after(self, prepared: Sequence[Prepared]) -> Memory:
        """Return the value after these transactions are committed."""
        ...

    def begin(self, batch: int, try_number: int, *, alone: bool) -> None:
        """Begin a try of a batch; ``alone`` says that Spark runs each task only once at a time (no speculation)."""


@runtime_checkable
class PreCommitting(Protocol):
    """A sink that tries to commit a batch before it is decided, so that what its store refuses is never decided."""

    def pre_commit(self, batch: int, prepared: Sequence[Prepared]) -> AbstractContextManager[None]:
        """Do all of a batch's commit but its last step, which ``commit`` does while this context is open.

        It runs in the driver, when every partition has voted to commit. Raises :class:`SinkError` when it is entered
        to abort the batch. Until ``commit``, no row of the batch is visible to readers. The context ends when the batch
        is committed or has failed; its end undoes what ``commit`` has not made visible. Another process may call
        ``commit`` without it.
        """
        ...
