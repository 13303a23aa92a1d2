"""Two-phase commit of one sink's batches: the votes of the tasks, and the driver's part. Without Spark.

A task sends a partition's rows to the sink, and returns a vote. The driver recovers, prepares, decides, commits and
finishes.

Source: ``docs/protocol.md#sinks``; ``docs/sinks.md#a-batch-in-the-driver`` has the states of a batch.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from wallaroo_spark.errors import SinkError, one_line, split_code
from wallaroo_spark.sinks.decision_log import DecisionLog
from wallaroo_spark.sinks.interface import PreCommitting, Prepared, Remembering, Sink, Transaction
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


log = one_line("wallaroo_spark.sinks")

RunPartitions = Callable[[int], Iterable[Vote]]
"""Runs :func:`vote` for every partition of a batch, in tasks, and returns the votes."""


class Coordinator:
    """Delivers batches to one sink, each once, one batch at a time. Only one thread may use it.

    ``always_recover`` makes it look for transactions of earlier attempts before every batch, and not only after an
    error: for a Spark that may run a task twice at the same time (speculation).
    """

    def __init__(self, sink: Sink, decisions: DecisionLog, *, always_recover: bool = False) -> None:
        self._sink = sink
        self._decisions = decisions
        self._always_recover = always_recover
        self._remembering = sink if isinstance(sink, Remembering) else None
        self._pre_committing = sink if isinstance(sink, PreCommitting) else None
        self._settled = False

    def deliver(self, batch: int, run: RunPartitions) -> None:
        """Deliver a batch unless it has been delivered. The batch is in the sink when this returns.

        Raises :class:`SinkError`, with the partition and the reason, when a partition votes to abort: then no row of
        the batch is visible in the sink. Other errors of ``run`` are passed on, with the same effect. An error after
        the decision to commit means that the sink could not commit; the next call makes it commit.
        """
        if not self._settled or self._always_recover:
            self.recover(batch)
        self._settled = False
        if self._decisions.finished(batch):
            # Perhaps the recovery above has just finished it.
            log.info("sink %s: batch %d was delivered before", self._sink.name, batch)
            retried = False
        else:
            self._check_memory(batch)
            with ExitStack() as pre_committed:
                prepared, retried = self._prepare(batch, run, pre_committed)
                self._tell(batch, prepared)
        # An earlier attempt of a task may still be running and prepare now: the next batch looks for it.
        self._settled = not retried

    def recover(self, batch: int) -> None:
        """Commit the decided transactions of an ended process, and abort its other transactions.

        ``batch`` is the next batch. If another driver is still working on it, that driver's try is decided to abort.
        Raises :class:`SinkError`.
        """
        self._decisions.load()
        if self._remembering is not None:
            self._remembering.remember(self._decisions.memory())
        self._overrule({batch})
        for number, prepared in self._decisions.unfinished().items():
            log.warning("sink %s: batch %d was decided and not finished; it is finished now", self._sink.name, number)
            self._tell(number, prepared)
        found = list(self._sink.recover())
        if not found:
            return
        # Transactions of other batches may belong to a driver that still intends to commit them.
        self._overrule({one.batch for one in found} - {batch})
        committed = {number: self._decisions.committed(number) for number in {one.batch for one in found}}
        undecided = [one for one in found if one not in {known.transaction for known in committed[one.batch]}]
        for number in sorted({one.batch for one in found} - {one.batch for one in undecided}):
            self._sink.commit(number, committed[number])
        if undecided:
            log.warning("sink %s: %d transactions without a decision are aborted", self._sink.name, len(undecided))
            self._sink.abort(undecided)

    def _overrule(self, batches: set[int]) -> None:
        """Decide the open try of each batch to abort, so that no other driver can commit what this one aborts."""
        for number in sorted(batches):
            if self._decisions.committed(number):
                continue
            if not self._decisions.abort(number, self._decisions.next_try(number)):
                raise SinkError(
                    f"sink {self._sink.name}: another driver decides batch {number} at this moment, in "
                    f"{self._decisions.identity}; run one query per checkpoint",
                    code="checkpoint-in-use",
                    batch=number,
                )

    def _check_memory(self, batch: int) -> None:
        if self._decisions.forgotten(batch):
            raise SinkError(
                f"sink {self._sink.name}: batch {batch} is older than all that {self._decisions.identity} remembers, "
                "so it may have been delivered; start the query with the newest checkpoint, or remove that folder to "
                "deliver the batch again",
                code="sink-batch-unknown",
                batch=batch,
            )

    def _prepare(self, batch: int, run: RunPartitions, pre_committed: ExitStack) -> tuple[Sequence[Prepared], bool]:
        """Run the partitions and decide. Returns the committed transactions, and whether a task was run again.

        A sink's pre-commit stays open in ``pre_committed``. Raises when the batch is aborted.
        """
        try_number = self._decisions.next_try(batch)
        if self._remembering is not None:
            self._remembering.begin(batch, try_number, alone=not self._always_recover)
        votes: list[Vote] = []
        try:
            votes.extend(run(batch))
            prepared = _unanimous(self._sink.name, batch, votes)
            if self._pre_committing is not None:
                pre_committed.enter_context(self._pre_committing.pre_commit(batch, prepared))
        except BaseException as error:
            pre_committed.close()
            ours = self._decisions.abort(batch, try_number)
            self._throw_away(batch, votes, all_of_it=ours)
            if isinstance(error, SinkError) and not ours:
                # The other driver has aborted rows that this one needs.
                raise self._taken_over(batch) from error
            raise
        passed(SinkStep.VOTED)
        memory = self._remembering.after(prepared) if self._remembering is not None else None
        if not self._decisions.commit(batch, try_number, prepared, memory):
            pre_committed.close()
            self._throw_away(batch, votes, all_of_it=False)
            raise self._taken_over(batch)
        if self._remembering is not None and memory is not None:
            self._remembering.remember(memory)
        passed(SinkStep.DECIDED)
        retried = any(one.attempt_number for one in votes)
        if retried:
            # An earlier attempt of a task may have prepared, too, without returning its vote.
            self._abort_others(batch, prepared)
        return prepared, retried

    def _taken_over(self, batch: int) -> SinkError:
        return SinkError(
            f"sink {self._sink.name}: batch {batch} was taken over by another driver, as "
            f"{self._decisions.identity} says, so this driver's rows are aborted; run one query per checkpoint",
            code="checkpoint-in-use",
            batch=batch,
        )

    def _tell(self, batch: int, prepared: Sequence[Prepared]) -> None:
        try:
            self._sink.commit(batch, prepared)
        except SinkError as error:
            raise SinkError(
                f"sink {self._sink.name}: batch {batch} is decided, and the sink could not commit it: "
                f"{error.message}; no row is lost: the query's next start commits it",
                code="sink-batch-uncommitted",
                **{**error.fields, "batch": batch},
            ) from error
        passed(SinkStep.COMMITTED)
        self._decisions.finish(batch)
        passed(SinkStep.FINISHED)

    def _abort_others(self, batch: int, prepared: Sequence[Prepared]) -> None:
        ours = {one.transaction for one in prepared}
        others = [one for one in self._sink.recover() if one.batch == batch and one not in ours]
        if others:
            self._sink.abort(others)

    def _throw_away(self, batch: int, votes: Sequence[Vote], *, all_of_it: bool) -> None:
        """Abort this try's transactions, if the sink can be reached; otherwise the next start aborts them.

        ``all_of_it`` means that the log has the decision to abort; then every transaction of the batch is aborted.
        """
        try:
            found = [one for one in self._sink.recover() if one.batch == batch] if all_of_it else []
            ours = [(one.prepared or one).transaction for one in votes]
            transactions: dict[Transaction, None] = dict.fromkeys([*ours, *found])
            self._sink.abort(list(transactions))
        except Exception as error:
            log.warning("sink %s: batch %d is aborted later: %s", self._sink.name, batch, error)


def _unanimous(name: str, batch: int, votes: Sequence[Vote]) -> list[Prepared]:
    """Return the prepared transactions of all partitions, in order. Raises :class:`SinkError` for a vote to abort."""
    prepared: dict[int, Prepared] = {}
    for one in sorted(votes, key=lambda one: one.partition):
        if one.prepared is None:
            reason, code = split_code(one.reason)
            raise SinkError(
                f"sink {name}: batch {batch} is aborted, because of partition {one.partition}: {reason}",
                code=code or "sink-batch-aborted",
                batch=batch,
                partition=one.partition,
                reason=reason,
            )
        if one.partition in prepared:
            raise SinkError(
                f"sink {name}: batch {batch} has two votes of partition {one.partition}; this is a defect, report it",
                code="internal-error",
                batch=batch,
                partition=one.partition,
            )
        prepared[one.partition] = one.prepared
    return list(prepared.values())
