"""A query: it plans a batch, writes its offset, reads its rows from the workers, writes them to the sink and commits.

It may die between any two of these steps. Planning and reading follow ``wallaroo_spark/source/`` and use its pure
parts.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from proving.simulator.engine.core import Part, Promise, Steps
from proving.simulator.parts.checkpoint import RECEIVER, Row
from proving.simulator.parts.surroundings import Surroundings
from wallaroo_spark.errors import RegistryError, ReplayError, TransportError
from wallaroo_spark.inner.calls import PlanAnswer, PlanQuestion
from wallaroo_spark.references import (
    PlannedRange,
    References,
    StreamKey,
    VersionedReferences,
    merge,
    ranges,
    slot_of_ephemeral,
)
from wallaroo_spark.registry import KnownWorkers
from wallaroo_spark.sidecar.plan_files import NAMED_VERSION
from wallaroo_spark.source.forgetting import Forgetting, PlanClock, dwell_seconds
from wallaroo_spark.source.plan_book import PlanBook
from wallaroo_spark.source.planner import Inquiry, Limits, NextCall, NothingToRead, Plan, SlotNews, Uncommitted, slot_of
from wallaroo_spark.source.reader import LEAVING_SECONDS

PATIENCE_SECONDS = 0.5
REFRESH_SECONDS = 1.0
POLL_SECONDS = 1.0
RETRY_SECONDS = 0.2
STANDSTILL_SECONDS = 0.02
LOOK_SECONDS = 0.1
"""Between two calls of ``latestOffset``; Spark's pause is shorter, and steps are dear."""
PLAN_SECONDS = 0.05
"""From a plan to its offset, and from the plan to its snapshot."""
TASK_ATTEMPTS = 4
_IDS = 1 << 64
"""An id of 64 bits without a sign; Spark's column has one."""


class FleetView:
    """The workers that the source knows, as ``source/fleet_view.py`` has them.

    ``stamp`` grows with each announcement that is news, and with each worker that is found.
    """

    def __init__(self, query: Query) -> None:
        self.known = KnownWorkers()
        self.stamp = 0
        self.slots: dict[int, SlotView] = {}
        self._query = query
        self._world = query.world

    def follow(self) -> Steps:
        """Look for workers, without an end."""
        while True:
            with contextlib.suppress(RegistryError):
                self.known.learn((yield self._world.registry.ask(lambda r: r.leases())))
            for slot, address in sorted(self.known.addresses().items()):
                view = self.slots.get(slot)
                if view is None or view.address != address:
                    if view is not None:
                        view.closed = True
                    self.slots[slot] = SlotView(address)
                    self.stamp += 1
                    self._query.sim.spawn(self._query, self._follow_slot(self.slots[slot]))
            yield POLL_SECONDS

    def _follow_slot(self, view: SlotView) -> Steps:
        """Wait for the announcements of one worker, as a thread of the product does."""
        news = view.news
        while not view.closed:
            try:
                answer = yield self._available(view)
            except TransportError:
                news.lost()
                yield RETRY_SECONDS
                continue
            pause = news.announced(answer)
            if pause is not NextCall.NONE:
                view.planned = Promise()
                self.stamp += 1
                if pause is NextCall.UNTIL_PLANNED:
                    yield self._planned(view)
                else:
                    yield STANDSTILL_SECONDS

    def _available(self, view: SlotView) -> Promise:
        version = view.news.version
        return self._world.inner.call(
            view.address, self._query.token, lambda worker: worker.available(version, POLL_SECONDS)
        )

    def _planned(self, view: SlotView) -> Promise:
        """Resolved when the worker was asked for a plan, or when it was not for long enough."""
        planned = view.planned
        self._query.sim.after(POLL_SECONDS, self._query, lambda: planned.resolve(None))
        return planned

    def answering(self) -> dict[int, SlotView]:
        """The workers that answer now, by slot."""
        return {slot: view for slot, view in sorted(self.slots.items()) if view.news.answer}


@dataclass
class SlotView:
    """One worker as last seen."""

    address: str
    """The address of its inner port."""
    news: SlotNews = field(default_factory=SlotNews)
    """Its last announcement."""
    planned: Promise = field(default_factory=Promise)
    """Resolved once it was asked for a plan."""
    closed: bool = False
    """Whether another worker has the slot now."""


class Query(Part):
    """One run of the query in one driver, with ``workers`` slots and the ``token`` of the workers' inner ports.

    ``reported`` is called when the query has reported progress; ``ended`` has the reason for its end.
    """

    def __init__(self, world: Surroundings, workers: int, token: str, reported: Callable[[], None]) -> None:
        super().__init__(f"query#{world.next_number()}")
        self.workers = workers
        self.token = token
        self._reported = reported
        self.world = world
        self.sim = world.sim
        self.view = FleetView(self)
        self.ended = Promise()
        self.start = VersionedReferences.of({})
        """Where the batch starts that is planned now, or was planned last."""
        self.tasks: list[Task] = []
        self._holders: dict[StreamKey, int] = {}
        self._uncommitted = Uncommitted()
        self._nothing = NothingToRead()
        self._asked_at = 0.0
        profile = world.profile
        # Another process has another clock, which may be behind.
        clock = PlanClock(lambda: self.sim.now + 1_000.0 - 7 * world.next_number() % 40, lambda: self.sim.now)
        options = world.options(workers)
        self._forgets = options.forgets
        dwell = dwell_seconds(profile.lease_seconds)
        self._forgetting = Forgetting(profile.retention, dwell, clock, options.producer_retention)
        self._book = PlanBook(
            RECEIVER,
            world.profile.message_ids,
            lambda: world.checkpoint.plans,
            inline_bytes=world.profile.inline_bytes,
            beside=lambda work: self.sim.after(PLAN_SECONDS, self, work),
        )
        self.sim.spawn(self, self.view.follow())
        self.sim.spawn(self, self._run())

    def kill(self, reason: str) -> None:
        """End the query and its tasks."""
        if not self.alive:
            return
        self.alive = False
        for task in self.tasks:
            task.alive = False
        self.sim.log(self.name, f"ends: {reason}")
        self.ended.resolve(reason)

    def _run(self) -> Steps:
        checkpoint = self.world.checkpoint
        batch = max(checkpoint.batches("offsets"), default=-1)
        if batch > checkpoint.last_committed:
            self.sim.log(self.name, f"runs batch {batch} again")
        else:
            batch += 1
        while True:
            start = checkpoint.references(batch - 1)
            if f"offsets/{batch}" not in checkpoint.files:
                value = yield from self._plan_until_there_is_something(checkpoint.offset(batch - 1))
                planned = self._book.references(value)
                ends = planned.plain()
                self.world.judge.planned(batch, start, ends)
                self.world.judge.named(self, planned.endings)
                if value["wallaroo"] == NAMED_VERSION:
                    self.sim.log(self.name, f"the plan of batch {batch} is written beside the checkpoint")
                    # A query that dies here leaves a plan that Spark does not know.
                    yield PLAN_SECONDS
                checkpoint.plan(batch, value)
                self.world.judge.written(start, ends)
                self.sim.log(self.name, f"offsets/{batch} is written: {_shown(start, ends)}")
                yield self.sim.latency()
            try:
                rows = yield from self._read(start, checkpoint.references(batch), checkpoint.leaving(batch))
            except ReplayError as error:
                self.kill(error.message)
                return
            self.world.judge.was_read(batch, start, checkpoint.references(batch), rows)
            checkpoint.sink.setdefault(batch, rows)
            self.sim.log(self.name, f"batch {batch} is in the sink, {len(rows)} rows")
            yield self.sim.latency()
            checkpoint.commit(batch)
            self.sim.log(self.name, f"commits/{batch} is written")
            self.world.judge.committed(batch)
            if not self.sim.chance(0.2):
                self._reported()
            yield self.sim.latency()
            batch += 1

    def _plan_until_there_is_something(self, value: dict[str, Any]) -> Steps:
        """The offset of the next batch, as ``source/reader.py`` comes to it in ``latestOffset``."""
        references = self.start = self._book.references(value)
        leaving = references.endings is not None and references.endings.leaving is not None
        while True:
            stamp = self.view.stamp
            again = leaving and self.sim.now - self._asked_at >= LEAVING_SECONDS
            if self._nothing.holds(stamp, value) and not again:
                self.world.judge.waits(self)
                if self.sim.chance(0.05):
                    # Spark asks for a progress report, whose plan is used for nothing else.
                    yield from self._plan(references, everybody=leaving)
                yield LOOK_SECONDS
                continue
            plan = yield from self._plan(references, everybody=leaving)
            self._nothing.found(stamp, value, plan)
            if plan is not None and not plan.empty:
                self._nothing.clear()
                return self._after(value, plan, plan.ends)[0]
            if plan is not None and leaving and self._forgets:
                offset, due = self._after(value, plan, {})
                if due:
                    return offset
            yield LOOK_SECONDS

    def _after(self, value: dict[str, Any], plan: Plan, ends: References) -> tuple[dict[str, Any], bool]:
        """The next offset, and whether it is to be planned though there is nothing to read."""
        if not self._forgets:
            return self._book.after(value, ends), False
        decision = self._forgetting.decide(self._book.references(value), plan, ends, self.workers)
        if decision.settles and ends:
            ends = {}
            decision = self._forgetting.decide(self._book.references(value), plan, ends, self.workers)
        if not ends and not decision.due:
            return value, False
        for scope, streams in decision.forgotten.items():
            self.sim.log(self.name, f"forgets the streams {', '.join(streams)} of {scope!r}")
            self.sim.history.counts["forgotten"] += len(streams)
        return self._book.after(value, merge(ends, decision.forgotten), decision.endings), decision.due

    def _plan(self, start: VersionedReferences, *, everybody: bool) -> Steps:
        limits = Limits(self.world.profile.max_rows)
        self._asked_at = self.sim.now
        self.world.judge.plans(self)
        workers = self.view.answering()
        wanted = [slot for slot, view in workers.items() if everybody or view.news.may_tell]
        inquiry = Inquiry(wanted, start, limits, self._uncommitted)
        while inquiry.questions:
            asked = {
                slot: self._ask_plan(workers[slot].address, question) for slot, question in inquiry.questions.items()
            }
            failed = False
            for slot, answer in asked.items():
                try:
                    found = PlanAnswer.decode((yield answer))
                except TransportError:
                    workers[slot].news.lost()
                    failed = True
                    continue
                if not failed:
                    inquiry.answer(slot, found)
            if failed:
                return None
        for view in workers.values():
            view.planned.resolve(None)
        plan = inquiry.plan()
        self._holders = {**self._holders, **plan.holders}
        return plan

    def _ask_plan(self, address: str, question: PlanQuestion) -> Promise:
        asked = question.encode()
        return self.world.inner.call(address, self.token, lambda worker: worker.plan(asked))

    def _read(self, start: dict[str, Any], end: dict[str, Any], leaving: tuple[str, int]) -> Steps:
        """All rows of a batch, task by task; a failed task is run again a few times."""
        by_slot: dict[int, list[PlannedRange]] = {}
        for one in ranges(start, end):
            if (slot_of_ephemeral(one.end) or 0) >= self.workers:
                continue
            slot = slot_of(one, self._holders, {})
            by_slot.setdefault(slot, []).append(one)
        self.tasks = [Task(self, slot, by_slot[slot], leaving) for slot in sorted(by_slot)]
        rows: list[Row] = []
        for place in range(len(self.tasks)):
            attempts = 1
            while True:
                task = self.tasks[place]
                try:
                    yield task.done
                    rows += task.rows
                    break
                except TransportError as error:
                    self.sim.log(self.name, f"the task of slot {task.slot} failed: {error.message}")
                    attempts += 1
                    if attempts > TASK_ATTEMPTS:
                        raise ReplayError("a task failed too often") from error
                    self.tasks[place] = Task(self, task.slot, by_slot[task.slot], leaving)
        return rows


class Task(Part):
    """One reading task, as ``source/ranges.py`` reads."""

    def __init__(self, query: Query, slot: int, planned: list[PlannedRange], leaving: tuple[str, int]) -> None:
        super().__init__(f"task {slot}")
        self.query = query
        self.world = query.world
        self.sim = query.sim
        self.slot = slot
        self.rows: list[Row] = []
        self.done = Promise()
        self._missing = dict(enumerate(planned))
        self._leaving = leaving
        self._planned_at = query.view.known.addresses()
        self._known = KnownWorkers()
        self._refreshed = self.sim.now
        self.sim.spawn(self, self._run())

    def kill(self) -> None:
        """Kill its process; the rows that it has read are lost."""
        if self.alive:
            self.alive = False
            self.done.fail(TransportError("the task was killed"))

    def leave(self) -> None:
        """Its executor is lost to the driver, and its process goes on; the driver uses none of its rows."""
        if self.alive and not self.done.settled:
            done, self.done = self.done, Promise()
            done.fail(TransportError("the task's executor is lost"))

    def advance(self, index: int, reference: Any, done: bool) -> None:
        """A range has come as far as a reference, or to its end."""
        if done:
            self._missing.pop(index, None)
        elif reference is not None:
            self._missing[index] = self._missing[index]._replace(start=reference)

    def _run(self) -> Steps:
        patience = self.world.profile.replay_timeout
        until = self.sim.now + patience
        while self._missing:
            before = dict(self._missing)
            addresses = self._planned_at | self._known.addresses()
            turn = sorted(addresses, key=lambda slot: (slot != self.slot, slot))
            for number, slot in enumerate(turn):
                if self._missing:
                    wait = PATIENCE_SECONDS if number == 0 else 0.0
                    yield from self._read_from(addresses[slot], wait)
            if self._missing != before:
                until = self.sim.now + patience
            elif self.sim.now > until:
                self.alive = False
                self.done.fail(ReplayError(f"not sent again in time: {list(self._missing.values())}"))
                return
            if self._missing:
                if not turn:
                    yield PATIENCE_SECONDS
                yield from self._refresh()
        self.alive = False
        self.done.resolve(None)

    def _refresh(self) -> Steps:
        if self.sim.now - self._refreshed < REFRESH_SECONDS:
            return
        self._refreshed = self.sim.now
        try:
            leases = yield self.world.registry.ask(lambda r: r.leases())
        except RegistryError:
            return
        self._known.learn(leases)

    def _read_from(self, address: str, wait: float) -> Steps:
        """Read the missing rows that one worker has; the stream may break between any two batches."""
        indexes = list(self._missing)
        asked = {number: self._missing[index] for number, index in enumerate(indexes)}
        stream = _Stream(self, indexes)
        finished = Promise()
        call = self.world.inner.call(
            address, self.query.token, lambda worker: self._begin(worker, asked, wait, stream, finished)
        )
        try:
            yield call
        except TransportError:
            yield PATIENCE_SECONDS
        stream.broken = True

    def _begin(
        self, worker: Any, asked: dict[int, PlannedRange], wait: float, stream: _Stream, finished: Promise
    ) -> Promise:
        worker.read(asked, wait, stream.take, finished, self._leaving)
        return finished


class _Stream:
    """Batches on their way to a task. Once ``broken``, no more of them arrive."""

    def __init__(self, task: Task, indexes: list[int]) -> None:
        self.broken = False
        self._task = task
        self._indexes = indexes

    def take(self, batch: Any, marks: Any) -> None:
        """A batch has arrived, with the ranges that it completes."""
        task = self._task
        if self.broken or not task.alive:
            return
        if task.sim.chance(0.02):
            self.broken = True
            return
        for number, reference, done in marks:
            task.advance(self._indexes[number], reference, done)
        task.rows += _rows(batch)


def _rows(batch: Any) -> list[Row]:
    columns = [batch[name].to_pylist() for name in ("instance", "stream_id", "message_id", "value", "stream")]
    return [
        (StreamKey("" if stream.startswith("v3") else instance, stream_id % _IDS), message_id, value)
        for instance, stream_id, message_id, value, stream in zip(*columns, strict=True)
    ]


def _shown(start: dict[str, Any], ends: dict[str, Any]) -> str:
    return ", ".join(str(planned) for planned in ranges(start, ends))
