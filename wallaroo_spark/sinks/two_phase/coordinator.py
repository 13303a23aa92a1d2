"""Two-phase commit of one sink's batches, in the driver: recover, run, decide, tell, note. No Spark in here.

Source: ``docs/protocol.md#sinks``; the states are in ``states.py``.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Sequence

from wallaroo_spark.errors import SinkError, one_line
from wallaroo_spark.sinks.interface import Prepared, Remembering, Sink, Transaction
from wallaroo_spark.sinks.two_phase.decision_log import DecisionLog
from wallaroo_spark.sinks.two_phase.states import BatchEvent, BatchRun, BatchState
from wallaroo_spark.sinks.two_phase.vote import Vote
from wallaroo_spark.steps import SinkStep, passed

log = one_line(logging.getLogger("wallaroo_spark.sinks"))

RunPartitions = Callable[[int], Iterable[Vote]]
"""Runs :func:`~.vote.vote` for every partition of a batch, each somewhere, and collects the votes."""


class Coordinator:
    """Delivers batches to one sink, each once. One at a time; not for several threads.

    ``always_recover`` looks for what earlier attempts have left before every batch, not only after something went
    wrong: for a Spark that may run a partition twice at once (speculation).
    """

    def __init__(self, sink: Sink, decisions: DecisionLog, *, always_recover: bool = False) -> None:
        self._sink = sink
        self._decisions = decisions
        self._always_recover = always_recover
        self._remembering = sink if isinstance(sink, Remembering) else None
        self._settled = False

    def deliver(self, batch: int, run: RunPartitions) -> BatchState:
        """Deliver a batch unless it was. FINISHED when it is in the sink now, or was.

        Raises :class:`SinkError` naming the partition and the reason when one votes abort: then nothing of the batch
        is in the sink. Whatever else ``run`` raises is passed on, with the same effect. After the decision to commit
        an error means that the sink could not be told; the next call tells it.
        """
        if not self._settled or self._always_recover:
            self.recover(batch)
        self._settled = False
        state = BatchRun(batch)
        if self._decisions.finished(batch):
            # Also where recovering has just finished it.
            log.info("sink %s: batch %d was delivered before", self._sink.name, batch)
            state.on(BatchEvent.FOUND_FINISHED)
        else:
            self._check_memory(batch)
            prepared, retried = self._prepare(state, batch, run)
            self._tell(state, prepared)
            if retried:
                # An earlier attempt whose task was given up may prepare even now: the next batch looks for it.
                return state.state
        self._settled = True
        return state.state

    def recover(self, batch: int) -> None:
        """Finish decided transactions and abort all others that a dead process left.

        ``batch`` is the one that comes next: another driver still at work on it is overruled. Raises
        :class:`SinkError`.
        """
        self._decisions.load()
        self._remind()
        self._overrule({batch})
        for number, prepared in self._decisions.unfinished().items():
            log.warning("sink %s: batch %d was decided and not finished, which is done now", self._sink.name, number)
            self._tell(_found(number), prepared)
        found = list(self._sink.recover())
        if not found:
            return
        # Others than this batch's may belong to a driver that thinks it can still commit them.
        self._overrule({one.batch for one in found} - {batch})
        committed = {number: self._decisions.committed(number) for number in {one.batch for one in found}}
        undecided = [one for one in found if one not in {known.transaction for known in committed[one.batch]}]
        for number in sorted({one.batch for one in found} - {one.batch for one in undecided}):
            self._sink.commit(number, committed[number])
        if undecided:
            log.warning("sink %s: %d transactions without a decision are aborted", self._sink.name, len(undecided))
            self._sink.abort(undecided)

    def _remind(self) -> None:
        if self._remembering is None:
            return
        memory = self._decisions.memory()
        if memory is None:
            history, whole = self._decisions.history()
            memory = self._remembering.recollect(history, whole=whole)
        self._remembering.remember(memory)

    def _overrule(self, batches: set[int]) -> None:
        """Decide the open try of each batch to abort, so that nobody can commit what is aborted here."""
        for number in sorted(batches):
            if self._decisions.committed(number):
                continue
            if not self._decisions.abort(number, self._decisions.next_try(number)):
                raise SinkError(
                    f"sink {self._sink.name}: another driver decides batch {number} at this moment, in "
                    f"{self._decisions.identity}; run one query per checkpoint",
                    batch=number,
                )

    def _check_memory(self, batch: int) -> None:
        if self._decisions.forgotten(batch):
            raise SinkError(
                f"sink {self._sink.name}: batch {batch} is older than all that {self._decisions.identity} remembers, "
                "so it may have been delivered; start the query with the newest checkpoint, or remove that folder to "
                "deliver the batch again",
                batch=batch,
            )

    def _prepare(self, state: BatchRun, batch: int, run: RunPartitions) -> tuple[Sequence[Prepared], bool]:
        """Run the partitions and decide: what is committed, and whether a task was run again.

        Raises when the batch is aborted.
        """
        try_number = self._decisions.next_try(batch)
        state.on(BatchEvent.RUN)
        if self._remembering is not None:
            self._remembering.begin(batch, try_number, alone=not self._always_recover)
        votes: list[Vote] = []
        try:
            votes.extend(run(batch))
            prepared = _unanimous(self._sink.name, batch, votes)
        except BaseException:
            state.on(BatchEvent.ONE_NO)
            self._throw_away(state, votes, all_of_it=self._decisions.abort(batch, try_number))
            raise
        state.on(BatchEvent.ALL_YES)
        passed(SinkStep.VOTED)
        memory = self._remembering.after(prepared) if self._remembering is not None else None
        if not self._decisions.commit(batch, try_number, prepared, memory):
            state.on(BatchEvent.OVERRULED)
            self._throw_away(state, votes, all_of_it=False)
            raise SinkError(
                f"sink {self._sink.name}: batch {batch} was taken over by another driver, as "
                f"{self._decisions.identity} says, so this one's rows are thrown away; run one query per checkpoint",
                batch=batch,
            )
        state.on(BatchEvent.LOGGED)
        if self._remembering is not None and memory is not None:
            self._remembering.remember(memory)
        passed(SinkStep.DECIDED)
        retried = any(one.attempt_number for one in votes)
        if retried:
            # An earlier attempt may have prepared too, and said so to nobody.
            self._abort_others(batch, prepared)
        return prepared, retried

    def _tell(self, state: BatchRun, prepared: Sequence[Prepared]) -> None:
        try:
            self._sink.commit(state.batch, prepared)
        except SinkError as error:
            raise SinkError(
                f"sink {self._sink.name}: batch {state.batch} is decided, and the sink could not be told: "
                f"{error.message}; nothing is lost: the query's next start tells it",
                **{**error.fields, "batch": state.batch},
            ) from error
        state.on(BatchEvent.TOLD)
        passed(SinkStep.COMMITTED)
        self._decisions.finish(state.batch)
        state.on(BatchEvent.NOTED)
        passed(SinkStep.FINISHED)

    def _abort_others(self, batch: int, prepared: Sequence[Prepared]) -> None:
        ours = {one.transaction for one in prepared}
        others = [one for one in self._sink.recover() if one.batch == batch and one not in ours]
        if others:
            self._sink.abort(others)

    def _throw_away(self, state: BatchRun, votes: Sequence[Vote], *, all_of_it: bool) -> None:
        """Abort this try's transactions, as far as the sink can be reached; the next start aborts the rest.

        With ``all_of_it`` the log says that nothing of the batch can be committed, whichever task prepared it.
        """
        try:
            found = [one for one in self._sink.recover() if one.batch == state.batch] if all_of_it else []
            ours = [(one.prepared or one).transaction for one in votes]
            transactions: dict[Transaction, None] = dict.fromkeys([*ours, *found])
            self._sink.abort(list(transactions))
        except Exception as error:
            log.warning("sink %s: batch %d is aborted later: %s", self._sink.name, state.batch, error)
            return
        state.on(BatchEvent.THROWN_AWAY)


def _found(batch: int) -> BatchRun:
    """A batch that the log has as committed."""
    state = BatchRun(batch)
    state.on(BatchEvent.FOUND_COMMITTED)
    return state


def _unanimous(name: str, batch: int, votes: Sequence[Vote]) -> list[Prepared]:
    """The prepared transactions of all partitions, in order. Raises :class:`SinkError` for a vote to abort."""
    prepared: dict[int, Prepared] = {}
    for one in sorted(votes, key=lambda one: one.partition):
        if one.prepared is None:
            raise SinkError(
                f"sink {name}: batch {batch} is aborted, because of partition {one.partition}: {one.reason}",
                batch=batch,
                partition=one.partition,
                reason=one.reason,
            )
        if one.partition in prepared:
            raise SinkError(
                f"sink {name}: batch {batch} has two votes of partition {one.partition}; this is a defect, report it",
                batch=batch,
                partition=one.partition,
            )
        prepared[one.partition] = one.prepared
    return list(prepared.values())
