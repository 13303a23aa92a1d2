"""A sink in memory that several coordinators share, and that can be told to misbehave."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

import pyarrow as pa

from wallaroo_spark.errors import SinkError
from wallaroo_spark.sinks import Prepared, Transaction
from wallaroo_spark.sinks.coordinator import Vote, vote


class MemorySink:
    """Rows of column ``value``, by their state; ``shown`` has the visible rows, in order of commits."""

    def __init__(self, name: str = "orders") -> None:
        self.name = name
        self.held: dict[Transaction, list[bytes]] = {}
        self.shown: list[bytes] = []
        self.committed: set[Transaction] = set()
        self.refuses: set[int] = set()
        self.unreachable = False
        self.told: list[str] = []

    def prepare(self, transaction: Transaction, rows: Iterator[pa.RecordBatch]) -> Prepared:
        taken = [value for piece in rows for value in piece.column("value").to_pylist()]
        if transaction.partition in self.refuses:
            raise SinkError("the disk is full")
        self.held[transaction] = taken
        return Prepared(transaction, len(taken), {"first": len(taken)})

    def commit(self, batch: int, prepared: Sequence[Prepared]) -> None:
        self.told.append(f"commit {batch}")
        self._reach()
        for one in prepared:
            assert one.transaction.batch == batch
            if one.transaction not in self.committed:
                self.shown += self.held.pop(one.transaction)
                self.committed.add(one.transaction)

    def abort(self, transactions: Sequence[Transaction]) -> None:
        self.told.append("abort")
        self._reach()
        for one in transactions:
            assert one not in self.committed, f"{one.id} was committed, and is aborted"
            self.held.pop(one, None)

    def recover(self) -> Sequence[Transaction]:
        self.told.append("recover")
        self._reach()
        return list(self.held)

    def _reach(self) -> None:
        if self.unreachable:
            raise SinkError("the sink is away")


class PreCommittingMemorySink(MemorySink):
    """Tries each batch before its decision, and refuses those of ``rejects``; ``tried`` is the batch that is open."""

    def __init__(self, name: str = "orders") -> None:
        super().__init__(name)
        self.rejects: set[int] = set()
        self.tried: int | None = None

    @contextmanager
    def pre_commit(self, batch: int, prepared: Sequence[Prepared]) -> Iterator[None]:
        assert self.tried is None
        self.told.append(f"pre-commit {batch}")
        self._reach()
        if not {one.transaction for one in prepared} <= self.held.keys():
            raise SinkError("its rows are gone")
        if batch in self.rejects:
            raise SinkError("a key is there twice")
        self.tried = batch
        try:
            yield
        finally:
            self.told.append(f"end of {batch}")
            self.tried = None


def pieces(values: Sequence[str], size: int = 2) -> Iterator[pa.RecordBatch]:
    """Rows as a task gets them, a few at a time."""
    for at in range(0, len(values), size):
        yield pa.RecordBatch.from_pydict({"value": [value.encode() for value in values[at : at + size]]})


def partition_rows(batch: int, partition: int, count: int = 3) -> list[str]:
    return [f"{batch}-{partition}-{number}" for number in range(count)]


def run_here(sink: MemorySink, partitions: int = 2, attempt: int = 0) -> Callable[[int], list[Vote]]:
    """Runs every partition of a batch in this thread."""

    def run(batch: int) -> list[Vote]:
        return [vote(sink, batch, one, pieces(partition_rows(batch, one)), attempt) for one in range(partitions)]

    return run


def whole(batch: int, partitions: int = 2) -> list[bytes]:
    """The visible rows of a batch."""
    return [row.encode() for one in range(partitions) for row in partition_rows(batch, one)]
