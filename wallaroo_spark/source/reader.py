"""The stream reader: it plans batches in its own process beside the driver, and reads them in executors.

Source: ``docs/architecture.md#the-source`` and ``docs/spark.md``.
"""

from __future__ import annotations

import dataclasses
import logging
import time
from collections.abc import Callable, Iterator, Sequence
from functools import cached_property
from typing import Any

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxBytes,
    ReadMaxRows,
    ReadMinRows,
    SupportsTriggerAvailableNow,
)

from wallaroo_spark.checkpoint.power_loss import begin_batch
from wallaroo_spark.errors import CheckpointError, ConfigurationError, TransportError, one_line
from wallaroo_spark.inner.client import Trust
from wallaroo_spark.options import Options, resolve_secret
from wallaroo_spark.references import Leaving, PlannedRange, References, StreamKey, merge, ranges, slot_of_ephemeral
from wallaroo_spark.registry import NO_QUERY, QUERY_STARTS, Registry
from wallaroo_spark.runtime.python_tasks import (
    TASK_PROCESS,
    LogSettings,
    least_level,
    log_to_stderr,
    secrets_of,
    without_collections,
)
from wallaroo_spark.sidecar.plan_files import PlanFiles, local_checkpoint, plans_at
from wallaroo_spark.source.available_now import AvailableNow
from wallaroo_spark.source.fleet_view import FleetView
from wallaroo_spark.source.forgetting import Decision, Forgetting, PlanClock, dwell_seconds
from wallaroo_spark.source.leader_election import LeaderElection, followed
from wallaroo_spark.source.plan_book import RETRY_SECONDS, PlanBook
from wallaroo_spark.source.planner import Limits, NothingToRead, Plan, slot_of
from wallaroo_spark.source.ranges import RangePartition, read_ranges
from wallaroo_spark.steps import Step, passed

log = one_line(logging.getLogger("wallaroo_spark.source"))

_RECORD_SECONDS = 0.05
"""Pause between two looks at the fleet's record, while it is awaited."""
_LOOK_SECONDS = 0.1
"""NextCall between two looks at a condition that is waited for."""
LEAVING_SECONDS = 0.2
"""How often workers are asked while streams are leaving and there is nothing to read. A choice."""
FIRST_LOOK_SECONDS = 5.0
"""How long a source waits, once, for the registry's record of its receiver. A choice."""
ADOPTION_SECONDS = 30.0
"""How long one call waits until the receiver tells which query it feeds. A choice: a receiver tells it in a second,
and while it adopts a query it tells that, too.
"""
WAIT_SECONDS = 0.03
"""The longest that an answer to an idle query waits for a message.

Spark asks again 10 ms after each answer, so this begins a batch sooner, and saves two of three questions. The first
answer behind a batch with messages of this source waits, too. Another source of the query is delayed by at most this,
when the query is idle and behind a batch with messages of this source.
"""
POLLED_SECONDS = 0.05
"""A question within this time of an answer without messages is that of an idle query: no batch has run between."""
_QUERY_ID = "sql.streaming.queryId"
"""The local property of a task in which Spark tells the id of its query."""


class WallarooStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Plans and reads the batches of one receiver. Only ``options`` is pickled into executors."""

    def __init__(self, options: Options) -> None:
        self.options = options
        self._nothing = NothingToRead()
        self._held_since: float | None = None
        self._holders: dict[StreamKey, int] = {}
        self._used_holders: dict[StreamKey, int] = {}
        self._run: AvailableNow | None = None
        self._last: dict[str, Any] = {}
        self._place: tuple[str, PlanFiles | None] = ("", None)
        self._place_again_at = 0.0
        self._said_no_place = False
        self._looked = False
        self._checked = False
        self._born = time.time()
        self._query = ""
        self._asked_at = 0.0
        self._idle_at = -POLLED_SECONDS
        self._asked_about: dict[str, Any] | None = None

    def __reduce__(self) -> tuple[Any, ...]:
        return WallarooStreamReader, (self.options,)

    @cached_property
    def _registry(self) -> Registry:
        return Registry(resolve_secret(self.options.registry), self.options.receiver)

    @cached_property
    def _trust(self) -> Trust | None:
        return Trust.of(self.options)

    @cached_property
    def _fleet(self) -> FleetView:
        fleet = FleetView(self._registry, resolve_secret(self.options.token), self._trust)
        fleet.start()
        return fleet

    @cached_property
    def _election(self) -> LeaderElection:
        return LeaderElection(self.options.receiver, self.options.token)

    @cached_property
    def _book(self) -> PlanBook:
        return PlanBook(self.options.receiver, self.options.message_ids, self._plans)

    @cached_property
    def _forgetting(self) -> Forgetting:
        options = self.options
        dwell = dwell_seconds(options.lease_seconds)
        return Forgetting(options.stream_retention, dwell, PlanClock(), options.producer_retention)

    def _plans(self) -> PlanFiles | None:
        """The place where large plans lie; None while the registry has not told it, and while it cannot be reached."""
        record = self._fleet.checkpoint
        again = self._place[1] is None and time.monotonic() >= self._place_again_at
        if record and (record != self._place[0] or again):
            self._place = record, plans_at(record, self.options.receiver)
            self._place_again_at = time.monotonic() + RETRY_SECONDS
        return self._place[1]

    def initialOffset(self) -> dict[str, Any]:
        """Where a query without a checkpoint starts: ``startingOffsets``, by default before the first message.

        Spark may call this more than once.
        """
        return self._book.begin(self.options.starting_offsets or {})

    def getDefaultReadLimit(self) -> ReadLimit:
        """The limit that the options set; Spark hands it back to :meth:`latestOffset`."""
        options = self.options
        if options.max_offsets_per_trigger is not None:
            return ReadMaxRows(options.max_offsets_per_trigger)
        if options.max_bytes_per_trigger is not None:
            return ReadMaxBytes(options.max_bytes_per_trigger)
        if options.min_offsets_per_trigger is not None:
            return ReadMinRows(options.min_offsets_per_trigger)
        return ReadAllAvailable()

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:
        """The end of the next batch; ``start`` itself when there is nothing to read.

        Raises no error for a failure that may pass, such as a worker that does not answer.
        """
        if not self._await_query() or not self._knows(start):
            return start
        if not self._election.leads():
            return self._follow(start)
        with without_collections():
            end = self._next(start, limit)
        self._election.write(start, end)
        return end

    def _knows(self, start: dict[str, Any]) -> bool:
        """Whether the plan of an offset can be found. It cannot before the registry has told where the checkpoint is.

        Raises :class:`CheckpointError` when the place is known and cannot be reached, because no wait changes that.
        """
        known = self._book.knows(start)
        if not known and self._place[0]:
            self._book.references(start)
        if not known and not self._said_no_place:
            log.warning(
                "planning waits for the registry, which knows where the plans of earlier batches are: check that "
                "Redis is reachable"
            )
        self._said_no_place = not known
        return known

    def _follow(self, start: dict[str, Any]) -> dict[str, Any]:
        """The end of the batch that the leading source of this receiver has planned."""
        led = self._election.read()
        if led is None or led[1] == start or not self._knows(led[1]):
            return start
        if led[0] == start:
            self._last = led[1]
            return self._last
        increasing = self.options.message_ids == "increasing"
        references, end = self._book.references(start), self._book.references(led[1])
        changes = followed(references, end, increasing=increasing)
        self._last = self._book.after(start, changes) if changes else start
        return self._last

    def _next(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:
        limits = self._limits(limit)
        if self._run is not None:
            return self._latest_of(self._run, start, limits)
        asked, stamp = time.monotonic(), self._fleet.stamp
        may_wait = asked - self._idle_at < POLLED_SECONDS or start != self._asked_about
        self._asked_about = start
        while True:
            if not self._idle(stamp, start):
                plan = self._plan(start, limits)
                if plan is not None and not plan.empty and not self._too_few(plan, limits):
                    return self._ends(start, plan, plan.ends)
                self._nothing.found(stamp, start, plan)
                end = start if plan is None else self._without_rows(start, plan)
                if end is not start or not self._idle(stamp, start):
                    return end
            seen = stamp
            if may_wait:
                stamp = self._fleet.wait(stamp, WAIT_SECONDS)
            self._idle_at = time.monotonic()
            if stamp == seen:
                return start
            may_wait = False

    def _idle(self, stamp: int, start: dict[str, Any]) -> bool:
        """Whether there is still nothing to read after ``start``, so that no worker need be asked."""
        return self._nothing.holds(stamp, start) and self._held_since is None and not self._leaving_again(start)

    def _leaving_again(self, start: dict[str, Any]) -> bool:
        """Whether workers are to be asked again, because streams are leaving, whatever they have to read."""
        if not self.options.forgets or self._leaving(start) is None:
            return False
        return time.monotonic() - self._asked_at >= LEAVING_SECONDS

    def _leaving(self, offset: dict[str, Any]) -> Leaving | None:
        """The streams that are leaving in the plan of an offset."""
        endings = self._book.references(offset).endings
        return None if endings is None else endings.leaving

    def _await_query(self) -> bool:
        """Wait until the receiver feeds a query; False while it is not known whether it does.

        The receiver adopts a query that Spark's own ``.start()`` began while the first call of its source waits here,
        so nothing is planned or committed before the workers know where the query continues. What the receiver has
        published before this source existed may be about an earlier query, so it does not count. Raises
        :class:`ConfigurationError` when the receiver does not feed this query.
        """
        fleet = self._fleet
        if self._query and fleet.fed.query == self._query:
            return True
        if not self._looked:
            fleet.wait_for_first_look(FIRST_LOOK_SECONDS)
            self._looked = True
        until = time.monotonic() + ADOPTION_SECONDS
        while True:
            fed, now = fleet.fed, time.monotonic()
            if fed.known and fed.fresh(self._born):
                if fed.query == NO_QUERY:
                    raise _not_started(self.options.receiver, fed.refused)
                if fed.query != QUERY_STARTS or fed.looked is None:
                    self._admit("" if fed.query == QUERY_STARTS else fed.query)
                    return True
            elif not fed.known and (self._run is None or self._run.late(now=now)):
                return False
            if now >= until:
                if fleet.answered and fed.query != QUERY_STARTS:
                    raise _not_started(self.options.receiver, f"its driver has told nothing for {ADOPTION_SECONDS:g} s")
                log.warning(
                    "receiver %r has not told for %g s which query it feeds: check that Redis is reachable",
                    self.options.receiver,
                    ADOPTION_SECONDS,
                )
                return False
            time.sleep(_RECORD_SECONDS)

    def _admit(self, query: str) -> None:
        """The receiver feeds this query. Whether it is the query of this source, its first task checks."""
        if self._query and query != self._query:
            raise _not_started(self.options.receiver, f"the receiver feeds query {query}, and no longer {self._query}")
        if self._fleet.hurried and self._run is not None:
            # Connectors could not connect before.
            self._run = AvailableNow(self.options, now=time.monotonic())
        self._query, self._fleet.hurried = query, False

    def _limits(self, limit: ReadLimit) -> Limits:
        """The limits of a batch. Spark names one limit only; when it is one of the options, the others hold as well."""
        options = self.options
        match limit:
            case ReadMaxRows():
                return Limits(limit.max_rows, options.max_bytes_per_trigger, options.min_offsets_per_trigger)
            case ReadMaxBytes():
                return Limits(None, limit.max_bytes, options.min_offsets_per_trigger)
            case ReadMinRows():
                return Limits(min_rows=limit.min_rows)
        return Limits()

    def _too_few(self, plan: Plan, limits: Limits) -> bool:
        """Whether the batch waits for more messages, which it does for ``maxTriggerDelay`` at most."""
        if limits.min_rows is None or plan.rows >= limits.min_rows:
            self._held_since = None
            return False
        now = time.monotonic()
        self._held_since = self._held_since or now
        if now - self._held_since < self.options.max_trigger_delay:
            return True
        self._held_since = None
        return False

    def _plan(self, start: dict[str, Any], limits: Limits) -> Plan | None:
        """The rows after ``start`` that the workers hold, as a plan; None when a worker did not answer."""
        try:
            leaving = self._leaving(start) is not None
            self._asked_at = time.monotonic()
            plan = self._fleet.plan(self._book.references(start), limits, everybody=leaving)
        except TransportError as error:
            log.warning("batches are planned without this worker until it answers: %s", error)
            return None
        # A batch is read after its plan, and perhaps after a plan for a progress report.
        self._holders = {**self._used_holders, **plan.holders}
        return plan

    def _ends(self, start: dict[str, Any], plan: Plan, ends: References) -> dict[str, Any]:
        self._nothing.clear()
        self._used_holders = plan.holders
        if not self.options.forgets:
            self._last = self._book.after(start, ends)
            return self._last
        decision = self._decide(start, plan, ends)
        if decision.settles:
            # It reads nothing, so that no connector has to send something again before workers know of it.
            ends = {}
            decision = self._decide(start, plan, ends)
        return self._after(start, ends, decision)

    def _after(self, start: dict[str, Any], ends: References, decision: Decision) -> dict[str, Any]:
        self._last = self._book.after(start, merge(ends, decision.forgotten), decision.endings)
        return self._last

    def _decide(self, start: dict[str, Any], plan: Plan, ends: References) -> Decision:
        return self._forgetting.decide(self._book.references(start), plan, ends, self._fleet.workers)

    def _without_rows(self, start: dict[str, Any], plan: Plan) -> dict[str, Any]:
        """``start``, or a plan that reads nothing and settles which leaving streams are forgotten."""
        if not self.options.forgets or self._leaving(start) is None:
            return start
        decision = self._decide(start, plan, {})
        return self._after(start, {}, decision) if decision.due else start

    def prepareForTriggerAvailableNow(self) -> None:
        """Begin an AvailableNow run, which ends with the messages that connectors sent until all of them were quiet."""
        self._run = AvailableNow(self.options, now=time.monotonic())
        self._fleet.watch_connectors()

    def _latest_of(self, run: AvailableNow, start: dict[str, Any], limits: Limits) -> dict[str, Any]:
        """As :meth:`latestOffset`, but this returns ``start`` only when the run has reached its target."""
        limits, references = Limits(limits.max_rows, limits.max_bytes), self._book.references(start)
        while True:
            if run.target is None and self._has_everything(run, references):
                everything = self._plan(start, Limits())
                if everything is not None:
                    run.target = everything.ends
            plan = self._plan(start, limits)
            if plan is not None and not plan.empty:
                ends = run.within_target(references, plan.ends)
                if ends:
                    run.busy()
                    return self._ends(start, plan, ends)
            if plan is not None and (settled := self._without_rows(start, plan)) is not start:
                return settled
            if run.target is not None:
                return start
            run.nothing_to_read(now=time.monotonic())
            time.sleep(_LOOK_SECONDS)

    def _has_everything(self, run: AvailableNow, start: References) -> bool:
        """Whether the workers hold all messages that the run takes."""
        now = time.monotonic()
        if run.late(now=now):
            return True
        connected = {connector["instance"]: connector for connector in self._fleet.connectors()}
        if not run.quiet(self._fleet.seen, connected, now=now):
            return False
        if self._connectors_wait(start):
            run.busy()
            return False
        return True

    def _connectors_wait(self, start: References) -> bool:
        """Whether some connector may wait for the ACK of a commit before it sends more, and so is not quiet yet."""
        try:
            return self._fleet.owes(start)
        except TransportError as error:
            log.warning("it is not known whether a connector waits for an ACK; the run goes on: %s", error)
            return True

    def reportLatestOffset(self) -> dict[str, Any] | None:
        """The end of the buffered messages, and ``lag``: the rows and bytes between the last planned offset and it.

        When the last plan is named, the offset has the name of that plan, and only ``lag`` tells of newer messages.
        """
        plan = self._plan(self._last, Limits()) if self._last and self._book.knows(self._last) else None
        if plan is None:
            return None
        return {**self._book.shown(self._last, plan.ends), "lag": {"rows": plan.rows, "bytes": plan.bytes}}

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        """One partition for each slot that has rows to read. May be the first call of a process, before any plan."""
        passed(Step.OFFSETS_WRITTEN)
        self._await(self._await_query, self.options.replay_timeout)
        self._last = end
        # The first batch of a process may name plans before the registry has told where they lie.
        self._await(lambda: self._book.knows(start) and self._book.knows(end), self.options.replay_timeout)
        if self.options.fsync:
            self._await_synced()
        planned = ranges(self._book.references(start), self._book.references(end))
        self._checked, first = True, not self._checked
        if not planned:
            # Only a task can tell which query it belongs to, so the first batch has a task that checks it.
            return [self._partition(0, [])] if first else []
        # The workers of a restarted query may take a short time to be found; the tasks look for them again.
        self._await(self._fleet.addresses, min(10.0, self.options.replay_timeout))
        planned = [one for one in planned if not self._dissolved(one)]
        by_slot: dict[int, list[PlannedRange]] = {}
        unknown = {one.key.scope for one in planned if one.key.scope and one.key not in self._holders}
        # Only a guess: a task asks the other workers too.
        assigned = self._fleet.slots_of(unknown)
        for one in planned:
            slot = slot_of(one, self._holders, assigned)
            by_slot.setdefault(slot, []).append(one)
        before, leaving = self._book.references(start).endings, self._leaving(end)
        told = ("" if leaving is None else leaving.token, 0 if before is None else before.at)
        return [self._partition(slot, by_slot[slot], told) for slot in sorted(by_slot)]

    def _await(self, holds: Callable[[], object], seconds: float) -> bool:
        """Wait for news of the fleet until a condition holds, for at most ``seconds``; return whether it holds."""
        until = time.monotonic() + seconds
        while not holds():
            if time.monotonic() >= until:
                return False
            self._fleet.wait(self._fleet.stamp, _LOOK_SECONDS)
        return True

    def _await_synced(self) -> None:
        """Wait until the planned offsets and the batch before are on the disk; see :func:`begin_batch`."""
        if not self._await(lambda: self._fleet.checkpoint, self.options.replay_timeout):
            raise CheckpointError(
                f"the option fsync needs the location of the checkpoint, and the registry has not told it for "
                f"{self.options.replay_timeout:g} s; check that Redis is reachable and that the query was started "
                "with receiver.start_query",
                code="sync-late",
            )
        folder = local_checkpoint(self._fleet.checkpoint)
        if folder is not None:
            begin_batch(folder, self.options.replay_timeout)

    def _dissolved(self, planned: PlannedRange) -> bool:
        """Whether an ephemeral range belongs to a slot that the fleet no longer has. No worker can report its loss."""
        slot = slot_of_ephemeral(planned.end)
        return slot is not None and 0 < self._fleet.workers <= slot

    def _partition(self, slot: int, planned: list[PlannedRange], leaving: tuple[str, int] = ("", 0)) -> RangePartition:
        options = dataclasses.replace(
            self.options, registry=resolve_secret(self.options.registry), token=resolve_secret(self.options.token)
        )
        return RangePartition(slot, planned, self._fleet.addresses(), options, self._trust, self._query, leaving)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """The partition's rows as Arrow record batches, in an executor."""
        assert isinstance(partition, RangePartition)
        _refuse_another_query(partition)
        options = partition.options
        if TASK_PROCESS.prepare() is not None:
            hidden = secrets_of(options.registry, options.token)
            log_to_stderr(LogSettings(options.receiver, least_level(options.log_level, ""), options.log_format, hidden))
        return read_ranges(partition, lambda: Registry(options.registry, options.receiver, attempts=1))

    def commit(self, end: dict[str, Any]) -> None:
        """Do nothing, because the receiver's watcher reads the commits from the commit log."""

    def stop(self) -> None:
        """Stop the threads and release the files of a query that has ended."""
        if "_fleet" in self.__dict__:
            self._fleet.stop()
        if "_election" in self.__dict__:
            self._election.close()


def _refuse_another_query(partition: RangePartition) -> None:
    """Refuse to read for a query that the receiver does not feed, if both queries are known."""
    context = TaskContext.get()
    query = context.getLocalProperty(_QUERY_ID) if context is not None else None
    if query and partition.query and query != partition.query:
        raise _not_started(
            partition.options.receiver, f"the receiver feeds query {partition.query}, not {query}: stop that one first"
        )


def _not_started(receiver: str, why: str) -> ConfigurationError:
    reason = why or "no query that reads it runs in the SparkContext of the receiver"
    return ConfigurationError(
        f"receiver {receiver!r} does not feed this query, so no message would ever be acknowledged: {reason}; "
        "or start it with receiver.start_query(rows.writeStream…, checkpoint=…) in place of .start()",
        code="query-not-started",
        receiver=receiver,
    )
