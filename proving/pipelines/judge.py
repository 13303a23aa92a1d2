"""The promises of durable streams and pipelines, checked against the committed instructions of a history."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from proving.pipelines.batches import Turn
from proving.pipelines.shop import DEAD, FULFIL, GHOST, KEYS, ORDERS, SHIPMENTS, TRIGGER
from proving.simulator.engine.core import Violation
from wallaroo_spark.pipelines.controller.messages import instructions as i
from wallaroo_spark.pipelines.controller.messages.plans import PartitionPlan, PipelinePlan
from wallaroo_spark.pipelines.controller.messages.values import (
    CloudEvent,
    Delivery,
    GroupDelivery,
    PartitionKey,
    Payload,
)
from wallaroo_spark.pipelines.controller.stored.key_state import PipelineProgress
from wallaroo_spark.pipelines.controller.stored.seen_ids import PAUSE_MILLIS

Place = tuple[PartitionKey, Delivery]


@dataclass
class Attempt:
    """The work of a member on one delivery."""

    outputs: list[Payload | None] = field(default_factory=list)
    """The outputs that its acks had."""
    records: dict[str, PartitionKey] = field(default_factory=dict)
    """Id of a record of its last ack's stream outputs and of its statements → target."""
    statements: list[tuple[PartitionKey, tuple[str, ...]]] = field(default_factory=list)
    """Its statements: target and ids."""
    accepted: bool = False
    """Whether the ack counted."""


class Judge:
    """Follows a history."""

    def __init__(self) -> None:
        self.attempts: dict[Place, Attempt] = defaultdict(Attempt)
        self.acks: dict[int, Place] = {}
        """Request of an ack → its delivery."""
        self.published: dict[int, tuple[PartitionKey, tuple[CloudEvent, ...]]] = {}
        """Request of a publish → its records."""
        self.may_exist: dict[PartitionKey, set[str]] = defaultdict(set)
        self.must_exist: dict[PartitionKey, dict[str, int]] = defaultdict(dict)
        self.counts: Counter[str] = Counter()
        self.plans: dict[tuple[PartitionKey, int], PartitionPlan] = {}
        """Key and version of the schema → the plan of the key."""
        self.first: dict[PartitionKey, int] = {}
        """Key → the first offset that retention has left."""
        self.not_before: dict[str, int] = {}
        """Id of a delayed record → the time before which it must not be written."""
        self._now = 0
        self._clock: dict[PartitionKey, int] = defaultdict(int)
        """Active time of each key: a pause between two of its turns counts for PAUSE_MILLIS at most."""
        self._turn_at: dict[PartitionKey, int] = {}
        self._written_at: dict[PartitionKey, dict[str, int]] = defaultdict(dict)
        self._repeated: dict[PartitionKey, Counter[str]] = defaultdict(Counter)
        """Records that were published again when their ids were forgotten."""
        self._skipped: dict[tuple[PartitionKey, str], set[int]] = defaultdict(set)
        """Records that retention has removed before a pipeline came to them."""
        self._versions: dict[tuple[PartitionKey, str, int], int] = {}
        """The version of the schema with which each instance began."""
        self._tries: Counter[tuple[PartitionKey, str, int, str]] = Counter()
        """Deliveries of each stage of each instance."""
        self._letters: Counter[str] = Counter()
        """Ids of the dead letters that there have to be."""
        self._tables: dict[PartitionKey, list[str]] = defaultdict(list)
        self._began: dict[tuple[PartitionKey, str], dict[int, int]] = defaultdict(dict)
        self._ended: dict[tuple[PartitionKey, str], dict[int, i.Outcome]] = defaultdict(dict)
        self._stored: dict[tuple[PartitionKey, str, int], dict[str, Payload | None]] = defaultdict(dict)
        self._cursors: dict[tuple[PartitionKey, str], int] = defaultdict(int)
        self._ranges: dict[Place, tuple[int, int]] = {}
        self._pointers: Counter[tuple[PartitionKey, object]] = Counter()
        self._pointed: Counter[Place] = Counter()

    def see(self, turn: Turn, pipelines: Mapping[str, PipelineProgress]) -> None:
        """Follow the instructions of one key in one committed batch."""
        key, said, self._now = turn.key, turn.said, turn.now
        self._clock[key] += min(max(0, turn.now - self._turn_at.get(key, turn.now)), PAUSE_MILLIS)
        self._turn_at[key] = turn.now
        # The answer to an ack may stand before the row of its output; both are in one batch.
        for one in sorted(said, key=lambda one: isinstance(one, i.AnswerRequest)):
            self.counts[type(one).__name__] += 1
            match one:
                case i.AppendRecords():
                    self._appended(key, one)
                case i.InstanceBegan():
                    self._instance_began(key, one)
                case i.InstanceEnded():
                    self._instance_ended(key, one)
                case i.StoreOutput():
                    self._output_stored(key, one)
                case i.StorePointer():
                    self._pointer_stored(key, one)
                case i.DeliverInputs():
                    self._inputs_given(key, one)
                case i.SkippedRecords():
                    self._records_skipped(key, one)
                case i.DeliverRecords():
                    self._records_given(key, one)
                case i.AnswerRequest():
                    self._answered(key, one)
        for name, progress in pipelines.items():
            active, limit = len(self._began[key, name]) - len(self._ended[key, name]), progress.plan.max_parallel
            if active > self._most_parallel(key, name, limit, said):
                raise Violation(f"{key}: {active} instances of {name}, and maxParallel is {limit}")

    def _most_parallel(self, key: PartitionKey, name: str, limit: int, said: Sequence[i.Instruction]) -> int:
        """After the limit was lowered, no instance begins until there is room."""
        began = any(isinstance(one, i.InstanceBegan) and one.pipeline == name for one in said)
        return limit if began else max(limit, len(self._began[key, name]))

    def _appended(self, key: PartitionKey, one: i.AppendRecords) -> None:
        table = self._tables[key]
        if one.first != len(table) + 1:
            raise Violation(f"{key}: a hole or a repeated offset: {one.first} after {len(table)}")
        for record in one.records:
            written_at = self._written_at[key].get(record.id)
            if written_at is not None:
                if self._clock[key] - written_at <= self._window(key):
                    raise Violation(f"{key}: the event {record.id} is there twice")
                self._repeated[key][record.id] += 1
            if self._now < self.not_before.get(record.id, 0):
                raise Violation(f"{key}: the event {record.id} is written before its time")
            self._written_at[key][record.id] = self._clock[key]
            table.append(record.id)

    def _window(self, key: PartitionKey) -> int:
        return max(plan.window_millis for (of, _), plan in self.plans.items() if of == key)

    def _plan(self, key: PartitionKey, pipeline: str, instance: int) -> PipelinePlan:
        """The plan with which an instance began."""
        plans = self.plans[key, self._versions[key, pipeline, instance]].pipelines
        return next(plan for plan in plans if plan.name == pipeline)

    def _instance_began(self, key: PartitionKey, one: i.InstanceBegan) -> None:
        began = self._began[key, one.pipeline]
        if one.instance in began:
            raise Violation(f"{key}: instance {one.instance} of {one.pipeline} began twice")
        if began and one.instance < max(began):
            raise Violation(f"{key}: instance {one.instance} of {one.pipeline} began after a later one")
        began[one.instance] = one.at
        self._versions[key, one.pipeline, one.instance] = one.version

    def _instance_ended(self, key: PartitionKey, one: i.InstanceEnded) -> None:
        ended = self._ended[key, one.pipeline]
        if one.instance in ended or one.instance not in self._began[key, one.pipeline]:
            raise Violation(f"{key}: instance {one.instance} of {one.pipeline} ended twice, or never began")
        ended[one.instance] = one.outcome
        self.counts[f"instances {one.outcome}"] += 1
        stages = self._stored[key, one.pipeline, one.instance]
        if one.outcome is i.Outcome.DONE:
            wanted = {stage.name for stage in self._plan(key, one.pipeline, one.instance).stages}
            if wanted != stages.keys():
                raise Violation(f"{key}: instance {one.instance} is done with {stages.keys()}, and it has {wanted}")
            for (of, delivery), attempt in self.attempts.items():
                mine = (of, delivery[:2]) == (key, (one.pipeline, one.instance)) and attempt.accepted
                if mine and attempt.records and not self._pointed[key, delivery]:
                    raise Violation(f"{key}: {delivery} has records, and its instance ended without their offsets")

        if one.outcome is i.Outcome.FAILED:
            root = self._tables[key][one.instance - 1]
            self._letters[f"{root}:{one.pipeline}:{key.partition}/{one.instance}"] += 1

    def _records_skipped(self, key: PartitionKey, one: i.SkippedRecords) -> None:
        if one.last >= self.first.get(key, 1):
            raise Violation(f"{key}: {one} though retention has left records from {self.first.get(key, 1)} on")
        self._skipped[key, one.pipeline].update(range(one.first, one.last + 1))

    def _output_stored(self, key: PartitionKey, one: i.StoreOutput) -> None:
        delivery = one.delivery
        stages = self._stored[key, delivery.pipeline, delivery.instance]
        attempt = self.attempts[key, delivery]
        if delivery.stage in stages:
            raise Violation(f"{key}: {delivery} has a second output")
        if delivery.instance in self._ended[key, delivery.pipeline]:
            raise Violation(f"{key}: {delivery} has an output after its instance ended")
        if one.output not in attempt.outputs:
            raise Violation(f"{key}: {delivery} has an output that nobody gave")
        if delivery.stage in ("charge", "reserve") and one.output is None:
            raise Violation(f"{key}: {delivery} has no output, though one is required")
        stages[delivery.stage] = one.output
        attempt.accepted = True

    def _pointer_stored(self, key: PartitionKey, one: i.StorePointer) -> None:
        self._pointers[key, one.output] += 1
        self._pointed[key, one.output.delivery] += 1
        if self._pointers[key, one.output] > 1:
            raise Violation(f"{key}: the pointer of {one.output} is there twice")
        table = self._tables[one.target]
        records = self.attempts[key, one.output.delivery].records
        for offset in one.offsets if one.output.place >= 0 else ():
            if not 1 <= offset <= len(table) or records.get(table[offset - 1]) != one.target:
                raise Violation(f"{key}: the pointer of {one.output} leads to another record")

    def _inputs_given(self, key: PartitionKey, one: i.DeliverInputs) -> None:
        delivery = one.delivery
        plan = self._plan(key, delivery.pipeline, delivery.instance).stage(delivery.stage)
        self._tries[key, *delivery[:3]] += 1
        if plan is None or (plan.attempts and self._tries[key, *delivery[:3]] > plan.attempts):
            raise Violation(f"{key}: {delivery} is delivered, and its plan is {plan}")
        stored = self._stored[key, delivery.pipeline, delivery.instance]
        if delivery.instance in self._ended[key, delivery.pipeline] or delivery.stage in stored:
            raise Violation(f"{key}: {delivery} is delivered after it was done")
        if delivery.stage in ("charge", "reserve", "mail") and one.root is None:
            raise Violation(f"{key}: {delivery} is not given the root event")
        if one.root is not None and one.root.id != self._tables[key][delivery.instance - 1]:
            raise Violation(f"{key}: {delivery} is given another root event")
        wanted = ("charge", "reserve") if delivery.stage == "ship" else ()
        needed = {"ship": {"charge", "reserve"}, "tidy": {"ship"}, "extra": {"charge"}}.get(delivery.stage, set())
        if dict(one.outputs) != {name: stored.get(name) for name in wanted} or not needed <= stored.keys():
            raise Violation(f"{key}: {delivery} is given {one.outputs}, and stored are {stored}")

    def _records_given(self, key: PartitionKey, one: i.DeliverRecords) -> None:
        cursor = self._cursors[key, one.delivery.group]
        if one.first != cursor + 1 or not one.first <= one.last <= len(self._tables[key]):
            raise Violation(f"{key}: {one} is delivered, and the group has acked up to {cursor}")
        if one.last < self.first.get(key, 1):
            raise Violation(f"{key}: {one} is delivered, and all of its records are expired")
        self._ranges[key, one.delivery] = (one.first, one.last)

    def _answered(self, key: PartitionKey, one: i.AnswerRequest) -> None:
        request = one.reply_to.request
        if request in self.published:
            _, records = self.published[request]
            # The answer to delayed records has no offsets.
            found = [[self._tables[key][offset - 1] for offset in written.offsets] for written in one.written]
            if found not in ([], [[record.id for record in records]]):
                raise Violation(f"{key}: a publisher is told the offsets of other records")
            self.must_exist[key].update({record.id: 1 for record in records})
        if request in self.acks:
            self._ack_answered(*self.acks[request], one)

    def _ack_answered(self, key: PartitionKey, delivery: Delivery, one: i.AnswerRequest) -> None:
        attempt = self.attempts[key, delivery]
        for written, (target, ids) in zip(one.written, attempt.statements, strict=True) if one.written else ():
            found = tuple(self._tables[target][offset - 1] for offset in written.offsets)
            if written.target != target or found != ids:
                raise Violation(f"{key}: an ack is told the offsets of other records than those of its statements")
        if isinstance(delivery, GroupDelivery):
            self.group_accepted(key, delivery)
        elif not attempt.accepted:
            raise Violation(f"{key}: the ack of {delivery} is answered, and no output is stored")

    def group_accepted(self, key: PartitionKey, delivery: GroupDelivery) -> None:
        """A group's ack counts."""
        attempt = self.attempts[key, delivery]
        if not attempt.accepted:
            attempt.accepted = True
            self.counts["group batches"] += 1

    def cursor_moved(self, key: PartitionKey, group: str, cursor: int, delivery: GroupDelivery | None) -> None:
        """The state of a group has another cursor after a batch."""
        before = self._cursors[key, group]
        if before < cursor == self.first.get(key, 1) - 1:
            # Retention has removed the records behind the cursor.
            self._cursors[key, group] = before = cursor
            self.counts["cursors that retention moved"] += 1
        if cursor == before:
            return
        acked = delivery is not None and (key, delivery) in self.acks.values()
        if delivery is None or not acked or self._ranges.get((key, delivery)) != (before + 1, cursor):
            raise Violation(f"{key}: the cursor of {group} went from {before} to {cursor} without an ack of that range")
        self._cursors[key, group] = cursor
        self.group_accepted(key, delivery)

    def finish(self, tables: Mapping[PartitionKey, Sequence[CloudEvent]], leftovers: Sequence[str]) -> None:
        """Check the whole, when all is calm and done."""
        if leftovers:
            raise Violation(f"not done: {leftovers[:5]}")
        wanted: dict[PartitionKey, Counter[str]] = defaultdict(Counter)
        for (key, delivery), attempt in self.attempts.items():
            records = [*attempt.records.items(), *((name, to) for to, names in attempt.statements for name in names)]
            for name, target in records if attempt.accepted else ():
                if target == GHOST:
                    raise Violation(f"{key}: {delivery} is done though a statement was refused")
                wanted[target][name] += 1
        for key in KEYS:
            found = Counter(record.id for record in tables.get(key, ())) - self._repeated[key]
            if key in DEAD:
                wanted[key] += self._letters
            missing = wanted[key] + Counter(self.must_exist[key]) - found
            surplus = found - wanted[key] - Counter(self.may_exist[key])
            if missing or surplus:
                raise Violation(f"{key}: missing {[*missing][:5]}, surplus {[*surplus][:5]}")
            self._check_instances(key, tables.get(key, ()))

    def _check_instances(self, key: PartitionKey, table: Sequence[CloudEvent]) -> None:
        name = FULFIL if key in ORDERS else "shop/notify" if key in SHIPMENTS else ""
        if name:
            matching = [
                offset
                for offset, record in enumerate(table, start=1)
                if (key in SHIPMENTS or record.type == TRIGGER) and offset not in self._skipped[key, name]
            ]
            if [*self._began[key, name]] != matching:
                raise Violation(f"{key}: instances {[*self._began[key, name]]}, and matching records {matching}")
            if self._ended[key, name].keys() != self._began[key, name].keys():
                raise Violation(f"{key}: instances of {name} that never ended")
        for (of, group), cursor in self._cursors.items():
            if of == key and cursor != len(table):
                raise Violation(f"{key}: group {group} has acked up to {cursor} of {len(table)}")
