"""Rules of the product that are broken on purpose, one at a time, to test that the simulator finds each."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import replace
from typing import Any
from unittest import mock

import numpy as np

from proving.simulator.door_mutants import DOOR_MUTANTS
from proving.simulator.engine.core import Steps
from proving.simulator.parts.query import Query, Task
from proving.simulator.parts.worker import Worker
from wallaroo_spark.checkpoint import model
from wallaroo_spark.inner.calls import PlanAnswer, PlanQuestion
from wallaroo_spark.inner.notices import Followers
from wallaroo_spark.protocol import WorkerSession
from wallaroo_spark.references import References, VersionedReferences, references_of
from wallaroo_spark.source.forgetting import Decision, Forgetting
from wallaroo_spark.source.planner import Inquiry, Plan
from wallaroo_spark.worker.buffer.buffer import Buffer
from wallaroo_spark.worker.buffer.held_stream import HeldStream
from wallaroo_spark.worker.buffer.replays import IncreasingIds, OpaqueIds
from wallaroo_spark.worker.buffer.stream_ends import EndedStreams
from wallaroo_spark.worker.machine import events as e
from wallaroo_spark.worker.machine.connection_state import Connection, ConnectionPhase
from wallaroo_spark.worker.machine.connections import Connections
from wallaroo_spark.worker.machine.handshake import Handshake
from wallaroo_spark.worker.machine.pressure.flow import FlowControl
from wallaroo_spark.worker.machine.pressure.shedding import Shedding
from wallaroo_spark.worker.machine.query_position import QueryPosition
from wallaroo_spark.worker.machine.resend import Resend
from wallaroo_spark.worker.machine.state import WorkerState

Mutant = Callable[[], AbstractContextManager[Any]]


def acks_what_is_only_planned() -> AbstractContextManager[Any]:
    """A batch counts as committed as soon as it is in ``offsets/``."""

    def newest(offsets: Any, commits: Any) -> int | None:
        return max(offsets, default=None)

    return mock.patch.object(model, "newest_committed", newest)


def tells_what_it_merely_holds() -> AbstractContextManager[Any]:
    """OK and NOTIFY_ACK name the last accepted message, not the last committed one."""
    committed = Buffer.resumable

    def held(self: Buffer, scope: str) -> Iterator[Any]:
        for key, reference in committed(self, scope):
            ledger = self.streams.get(key)
            last = ledger._id_before(ledger.end) if ledger is not None else None
            yield key, reference if last is None else last

    return mock.patch.object(Buffer, "resumable", held)


def plans_a_planned_batch_again() -> AbstractContextManager[Any]:
    """A batch that is run again is read up to the newest rows of the workers, not up to its planned end."""

    def whole(self: HeldStream, start: Any, end: Any) -> tuple[int, int] | None:
        begin = self.position_after(start)
        return None if begin is None or self.empty else (begin, self.end)

    return mock.patch.object(HeldStream, "range", whole)


def takes_replays_for_new() -> AbstractContextManager[Any]:
    """Messages that are sent again are accepted again."""
    return mock.patch.object(IncreasingIds, "select", return_value=None)


def takes_opaque_replays_for_new() -> AbstractContextManager[Any]:
    """The same for opaque ids."""
    return mock.patch.object(OpaqueIds, "select", return_value=None)


def drops_the_first_of_a_run() -> AbstractContextManager[Any]:
    """The first message of each received run is lost."""
    select = IncreasingIds.select

    def lossy(self: IncreasingIds, ids: Any) -> Any:
        new = select(self, ids)
        kept = np.ones(len(ids), dtype=np.bool_) if new is None else new
        kept[0] = kept[0] and len(ids) < 3
        return kept

    return mock.patch.object(IncreasingIds, "select", lossy)


def applies_stale_commits() -> AbstractContextManager[Any]:
    """A worker applies a ``committed`` notice of an older batch or query."""

    def committed(self: QueryPosition, event: e.Committed) -> None:
        self._moved(self._connections.buffer.commit(event.references))

    return mock.patch.object(QueryPosition, "committed", committed)


def applies_stale_rewinds() -> AbstractContextManager[Any]:
    """A worker applies the last ``rewind`` notice, even one of an older query."""
    rewound = QueryPosition.rewound

    def follow(self: QueryPosition, event: e.Rewound) -> bool:
        self.epoch, self.batch = 0, -1
        return rewound(self, event)

    return mock.patch.object(QueryPosition, "rewound", follow)


def accepts_old_answers() -> AbstractContextManager[Any]:
    """A worker takes the references of scopes from an answer that is older than what it was told."""
    committed = QueryPosition.committed

    def any_answer(self: QueryPosition, event: e.Committed) -> bool:
        if event.scopes and event.epoch <= self.epoch and event.batch < self.batch:
            self._set(event.references, self._connections.following.take(event.scopes, None))
            return True
        return committed(self, event)

    return mock.patch.object(QueryPosition, "committed", any_answer)


def serves_without_references() -> AbstractContextManager[Any]:
    """A handshake does not wait until the driver has told the references of the instance."""
    serve = Handshake._await_references

    def at_once(self: Handshake, connection: Connection) -> None:
        serve(self, connection)
        if connection.phase is ConnectionPhase.AWAITING:
            self._accept(connection)

    return mock.patch.object(Handshake, "_await_references", at_once)


def tells_new_scopes_once() -> AbstractContextManager[Any]:
    """The driver answers a worker that asks for references, and does not tell it their changes."""
    return mock.patch.object(Followers, "add", return_value=None)


def ignores_rewinds() -> AbstractContextManager[Any]:
    """A worker does not go back with the query: it does not ask connectors to send rows again."""
    return mock.patch.object(Resend, "send_again", return_value=None)


def serves_without_its_lease() -> AbstractContextManager[Any]:
    """A worker continues to serve after it has lost its lease."""
    return mock.patch.object(Worker, "lease_lost", return_value=None)


def grants_credits_twice() -> AbstractContextManager[Any]:
    """A frame carries twice the credits that the worker counts."""
    grant = WorkerSession.ack

    def twice(self: WorkerSession, credits: int = 0, refs: Any = ()) -> bytes:
        data = grant(self, 2 * credits, refs)
        self.credits.available -= credits
        self.credits.granted -= credits
        return data

    return mock.patch.object(WorkerSession, "ack", twice)


def reads_past_its_budget() -> AbstractContextManager[Any]:
    """Sockets are read even when the buffer is full."""
    return mock.patch.object(FlowControl, "may_read", return_value=True)


def passes_errors_over() -> AbstractContextManager[Any]:
    """A session goes on after an error that may have lost its messages, as when an event loop only logs the error."""
    return mock.patch.object(Connections, "give_up", return_value=None)


def never_makes_room() -> AbstractContextManager[Any]:
    """A full worker keeps all its rows, even while a reading task waits for other rows."""
    return mock.patch.object(Shedding, "shed", return_value=None)


def accepts_every_answer() -> AbstractContextManager[Any]:
    """The planner accepts a worker's answer without comparing the start that the worker has assumed."""
    return mock.patch.object(Inquiry, "_compare", return_value={})


def ends_batches_anywhere() -> AbstractContextManager[Any]:
    """A batch may end where a stream cannot be resumed."""
    return mock.patch.object(HeldStream, "stable_end", property(lambda self: self.end))


def reads_a_broken_range_from_its_start() -> AbstractContextManager[Any]:
    """A read that broke off begins its range again, and keeps the rows from before."""
    advance = Task.advance

    def only_the_end(self: Task, index: int, reference: Any, done: bool) -> None:
        advance(self, index, None, done)

    return mock.patch.object(Task, "advance", only_the_end)


def takes_a_plan_for_an_announcement() -> AbstractContextManager[Any]:
    """The answer to a plan counts as the worker's announcement of its buffer, so rows in it are never announced."""
    plan = Query._plan

    def advance(self: Query, start: Any, *, everybody: bool) -> Steps:
        found = yield from plan(self, start, everybody=everybody)
        for view in self.view.answering().values():
            worker = self.world.inner.ports.get(view.address)
            if isinstance(worker, Worker) and worker.state is not None:
                view.news.version = worker.state.buffer.version
        return found

    return mock.patch.object(Query, "_plan", advance)


def forgets_too_early() -> AbstractContextManager[Any]:
    """Streams are forgotten at once after their end, whatever the retention is."""
    init = Forgetting.__init__

    def impatient(self: Forgetting, retention: float, dwell: float, clock: Any, unused: float) -> None:
        init(self, 0.001 if retention else 0.0, dwell, clock, unused)
        self._dwell = 0

    return mock.patch.object(Forgetting, "__init__", impatient)


def forgets_open_streams() -> AbstractContextManager[Any]:
    """Streams count as ended when all of their rows are committed."""
    tidy = Connections.tidy

    def also_open(self: Connections, stream: HeldStream) -> None:
        if stream.empty:
            self.ends.ended(stream.key, stream.committed)
        tidy(self, stream)

    return mock.patch.object(Connections, "tidy", also_open)


def forgets_without_confirmation() -> AbstractContextManager[Any]:
    """The driver forgets leaving streams before every worker has confirmed that it knows them."""
    decide = Forgetting.decide

    def believing(self: Forgetting, start: VersionedReferences, plan: Plan, ends: References, slots: int) -> Decision:
        leaving = start.endings.leaving if start.endings is not None else None
        token = "" if leaving is None else leaving.token
        return decide(self, start, replace(plan, leaving=dict.fromkeys(range(slots), token)), ends, slots)

    return mock.patch.object(Forgetting, "decide", believing)


def forgets_before_lost_workers_end() -> AbstractContextManager[Any]:
    """The driver does not wait until a worker that has lost its slot has ended."""
    init = Forgetting.__init__

    def hasty(self: Forgetting, retention: float, dwell: float, clock: Any, unused: float) -> None:
        init(self, retention, 0.0, clock, unused)

    return mock.patch.object(Forgetting, "__init__", hasty)


def begins_leaving_streams() -> AbstractContextManager[Any]:
    """A worker lets connectors begin leaving streams, and tells them the references."""
    stack = ExitStack()
    stack.enter_context(mock.patch.object(EndedStreams, "ask", return_value=False))
    stack.enter_context(mock.patch.object(EndedStreams, "ask_all", return_value=0))
    return stack


def settles_and_reads() -> AbstractContextManager[Any]:
    """A plan that settles a group of leaving streams also reads rows."""
    decide = Forgetting.decide

    def reading(self: Forgetting, start: VersionedReferences, plan: Plan, ends: References, slots: int) -> Decision:
        return replace(decide(self, start, plan, ends, slots), settles=False)

    return mock.patch.object(Forgetting, "decide", reading)


def counts_retention_from_planning() -> AbstractContextManager[Any]:
    """A stream's retention begins when the batch of its end is planned, and not when that is committed."""
    decide, answer = Forgetting.decide, WorkerState.offer

    def early(self: Forgetting, start: VersionedReferences, plan: Plan, ends: References, slots: int) -> Decision:
        decision = decide(self, start, plan, ends, slots)
        times = {scope: dict(streams) for scope, streams in decision.endings.times.items()}
        planned = references_of(ends, plan.ended)
        for key, reference in plan.ended.items():
            if planned[key] == reference:
                times.setdefault(key.scope, {})[str(key.stream_id)] = decision.endings.at
        return replace(decision, endings=decision.endings._replace(times=times))

    def at_once(self: WorkerState, question: PlanQuestion) -> PlanAnswer:
        found = answer(self, question)
        streams = (stream for stream in self.buffer.with_rows() if stream.ended and stream.key in found.offers)
        ended = {stream.key: found.offers[stream.key].end for stream in streams}
        return replace(found, ended={**found.ended, **ended})

    stack = ExitStack()
    stack.enter_context(mock.patch.object(Forgetting, "decide", early))
    stack.enter_context(mock.patch.object(WorkerState, "offer", at_once))
    return stack


def commits_before_the_sink() -> AbstractContextManager[Any]:
    """The watcher sees the commit of a batch that is still being read."""
    run = Query._read

    def early(self: Query, start: Any, end: Any, leaving: tuple[str, int]) -> Steps:
        batch = max(self.world.checkpoint.batches("offsets"))
        self.world.checkpoint.commit(batch)
        self._reported()
        rows = yield from run(self, start, end, leaving)
        return rows

    return mock.patch.object(Query, "_read", early)


MUTANTS: dict[str, Mutant] = {
    mutant.__name__: mutant
    for mutant in (
        acks_what_is_only_planned,
        tells_what_it_merely_holds,
        plans_a_planned_batch_again,
        takes_replays_for_new,
        takes_opaque_replays_for_new,
        drops_the_first_of_a_run,
        applies_stale_commits,
        applies_stale_rewinds,
        accepts_old_answers,
        serves_without_references,
        tells_new_scopes_once,
        ignores_rewinds,
        serves_without_its_lease,
        grants_credits_twice,
        reads_past_its_budget,
        passes_errors_over,
        never_makes_room,
        accepts_every_answer,
        ends_batches_anywhere,
        reads_a_broken_range_from_its_start,
        takes_a_plan_for_an_announcement,
        forgets_too_early,
        forgets_open_streams,
        forgets_without_confirmation,
        forgets_before_lost_workers_end,
        begins_leaving_streams,
        settles_and_reads,
        counts_retention_from_planning,
        commits_before_the_sink,
        *DOOR_MUTANTS,
    )
}


@contextmanager
def mutated(name: str) -> Iterator[None]:
    """The product with one rule broken."""
    with ExitStack() as stack:
        stack.enter_context(MUTANTS[name]())
        yield
