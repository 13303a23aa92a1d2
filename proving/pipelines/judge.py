"""The promises of durable streams and pipelines, checked against the committed instructions of a history."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from proving.pipelines.batches import Turn
from proving.pipelines.hands import AllHands, Changes
from proving.pipelines.shop import FULFIL, GHOST, INPUT, KEYS, NEWEST, POISON, TAIL, TRIGGER
from proving.simulator.engine.core import Violation
from wallaroo_spark.pipelines.controller.messages import instructions as i
from wallaroo_spark.pipelines.controller.messages.events import OutputRefused, PartitionDeclared
from wallaroo_spark.pipelines.controller.messages.plans import PartitionPlan, PipelinePlan, RetryPlan, StagePlan
from wallaroo_spark.pipelines.controller.messages.values import Delivery, GroupDelivery, PartitionKey, StageDelivery
from wallaroo_spark.pipelines.controller.stored.key_state import PipelineProgress
from wallaroo_spark.pipelines.controller.stored.seen_ids import PAUSE_MILLIS
from wallaroo_spark.pipelines.schema.cloud_event import CloudEvent, Payload

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
        self.published: dict[int, tuple[str, tuple[CloudEvent, ...]]] = {}
        """Request of a publish → its stream and its records."""
        self.may_exist: dict[PartitionKey, set[str]] = defaultdict(set)
        self.poison: set[str] = set()
        """Ids of the events with which no stage succeeds that has a retry policy."""
        self.counts: Counter[str] = Counter()
        self.hands = AllHands(self._retry)
        """Which members have which deliveries."""
        self._changes = Changes()
        """What the turn that is followed has done to groups."""
        self._begun_anew: set[tuple[PartitionKey, str]] = set()
        """The groups that an operator has deleted; one of that name may begin anywhere."""
        self._must_exist: dict[str, dict[str, int]] = defaultdict(dict)
        """Records whose publisher was told that they are stored → the life of the stream."""
        self._plans: dict[tuple[PartitionKey, int], PartitionPlan] = {}
        """Key and version of the schema → the plan of the key."""
        self._declared: dict[PartitionKey, PartitionPlan] = {}
        """The partitions that are declared now."""
        self._lives: Counter[PartitionKey] = Counter()
        """How often the stream of a key was declared."""
        self._life_from: dict[PartitionKey, int] = defaultdict(lambda: 1)
        """The first offset of the stream's life."""
        self._forgotten = 0
        """The first offset that the deletion of a stream has left in this turn; 0 without one."""
        self._births: dict[tuple[PartitionKey, str], dict[int, tuple[int, int]]] = defaultdict(dict)
        """For each life of a pipeline the version that declared it → its cursor then, at least and at most."""
        self.first: dict[PartitionKey, int] = {}
        """Key → the first offset that retention has left."""
        self._first_before: dict[PartitionKey, int] = {}
        """The same before the newest batch of the key."""
        self.not_before: dict[str, int] = {}
        """Id of a delayed record → the time before which it must not be written."""
        self._now = 0
        self._clock: dict[PartitionKey, int] = defaultdict(int)
        """Active time of each key: a pause between two of its turns counts for PAUSE_MILLIS at most."""
        self._turn_at: dict[PartitionKey, int] = {}
        self._written_at: dict[PartitionKey, dict[str, int]] = defaultdict(dict)
        self._elsewhere: dict[tuple[str, str], tuple[PartitionKey, int, dict[PartitionKey, int]]] = {}
        """Stream and event → where it was written last, in which life, and the active times of all partitions then."""
        self._repeated: dict[PartitionKey, Counter[str]] = defaultdict(Counter)
        """Records that were published again when their ids were forgotten."""
        self._skipped: dict[tuple[PartitionKey, str], set[int]] = defaultdict(set)
        """Records that retention has removed before a pipeline came to them."""
        self._versions: dict[tuple[PartitionKey, str, int], int] = {}
        """The version of the schema with which each instance began."""
        self._newest: dict[tuple[PartitionKey, str], tuple[int, int]] = {}
        """The life of a pipeline, by its version, and the instance that began last."""
        self._tries: Counter[tuple[PartitionKey, str, int, str]] = Counter()
        """Deliveries of each stage of each instance."""
        self._letters: Counter[tuple[str, int, int]] = Counter()
        """Pipeline, partition and instance of the dead letters that there have to be."""
        self._letters_refused: Counter[tuple[PartitionKey, str, int]] = Counter()
        """How often the dead letter of a group's record was refused, because its stream was deleted."""
        self._refused: Counter[tuple[PartitionKey, Delivery, PartitionKey]] = Counter()
        """Stream outputs of a delivery whose target did not exist any more."""
        self._led_to: set[tuple[PartitionKey, int]] = set()
        """The records that have a pointer, or whose offset was told to a transaction."""
        self._tables: dict[PartitionKey, list[str]] = defaultdict(list)
        self._began: dict[tuple[PartitionKey, str], dict[int, int]] = defaultdict(dict)
        self._ended: dict[tuple[PartitionKey, str], dict[int, i.Outcome]] = defaultdict(dict)
        self._stored: dict[tuple[PartitionKey, str, int], dict[str, Payload | None]] = defaultdict(dict)
        self._known_at_birth: dict[str, int] = {}
        """Stream → its partitions when the group that begins at the end was born in the first one."""
        self._cursors: dict[tuple[PartitionKey, str], int] = defaultdict(int)
        self._ranges: dict[Place, tuple[int, int]] = {}
        self._pointers: Counter[tuple[PartitionKey, object, PartitionKey]] = Counter()
        self._pointed: Counter[Place] = Counter()

    def see(self, turn: Turn, pipelines: Mapping[str, PipelineProgress]) -> None:
        """Follow the instructions of one key in one committed batch."""
        key, said, self._now = turn.key, turn.said, turn.now
        # A record whose time has come may be written in another partition after the clock was set back.
        self.not_before = {name: due for name, due in self.not_before.items() if due > turn.now}
        self._clock[key] += min(max(0, turn.now - self._turn_at.get(key, turn.now)), PAUSE_MILLIS)
        self._turn_at[key] = turn.now
        if turn.fresh:
            self._appended(key, turn.fresh_from, turn.fresh)
        # The answer to an ack may stand before the row of its output; both are in one batch.
        for one in sorted(said, key=lambda one: isinstance(one, i.AnswerRequest)):
            self.counts[type(one).__name__] += 1
            match one:
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
                case i.CarryOut(target, _, OutputRefused(GroupDelivery() as delivery)):
                    offset = self.hands.letters[target, delivery]
                    self._letters_refused[target, delivery.group, offset] += 1
        for name, progress in pipelines.items():
            active, limit = len(self._began[key, name]) - len(self._ended[key, name]), progress.plan.max_parallel
            if active > self._most_parallel(key, name, limit, said):
                raise Violation(f"{key}: {active} instances of {name}, and maxParallel is {limit}")

    def see_declarations(self, turn: Turn, first: int) -> None:
        """Follow the declarations of a turn, which come before all its other events."""
        key, length = turn.key, len(self._tables[turn.key])
        self.first[key] = first
        self._forgotten = max([0, *(one.first for one in turn.said if isinstance(one, i.ForgetRecords))])
        least = max(0, self._forgotten - 1)
        most = max(least, self.first[key] - 1)
        least = max(least, self._first_before.get(key, 1) - 1)
        self._first_before[key] = self.first[key]
        for event in turn.events:
            if not isinstance(event, PartitionDeclared):
                continue
            if event.plan is None or key not in self._declared:
                self._lives[key] += 1
                self._life_from[key] = max(length + 1, self._forgotten)
                self._written_at[key].clear()
                if key.partition == 0:
                    self._known_at_birth.pop(key.stream, None)
                for name in [name for of, name in self._cursors if of == key]:
                    del self._cursors[key, name]
                self._begun_anew = {(of, name) for of, name in self._begun_anew if of != key}
            known = {plan.name for plan in self._declared[key].pipelines} if key in self._declared else set()
            self._declared.pop(key, None)
            if event.plan is not None:
                self._declared[key] = self._plans[key, event.version] = event.plan
                for plan in event.plan.pipelines:
                    if plan.name not in known:
                        self._births[key, plan.name][event.version] = (least, most)

    def see_hands(self, turn: Turn) -> None:
        """Follow the members of a turn's key, and what an operator has done to its groups."""
        key = turn.key
        self._changes = self.hands.see(turn, len(self._tables[key]))
        for group in self._changes.deleted:
            self._cursors.pop((key, group), None)
            self._begun_anew.add((key, group))
            if key.partition == 0 and group == NEWEST:
                self._known_at_birth.pop(key.stream, None)

    def _retry(self, key: PartitionKey, delivery: Delivery, version: int) -> RetryPlan:
        """The newest treatment of a delivery."""
        if isinstance(delivery, GroupDelivery):
            return self._declared[key].retry if key in self._declared else RetryPlan()
        plan = next(plan for plan in self._plans[key, version].pipelines if plan.name == delivery.pipeline)
        stage = plan.stage(delivery.stage)
        assert stage is not None, delivery
        return self._policy(key, delivery.pipeline, stage).retry

    def _most_parallel(self, key: PartitionKey, name: str, limit: int, said: Sequence[i.Instruction]) -> int:
        """After the limit was lowered, no instance begins until there is room."""
        began = any(isinstance(one, i.InstanceBegan) and one.pipeline == name for one in said)
        return limit if began else max(limit, len(self._began[key, name]))

    def _appended(self, key: PartitionKey, first: int, records: Sequence[CloudEvent]) -> None:
        table = self._tables[key]
        if first != len(table) + 1:
            raise Violation(f"{key}: a hole or a repeated offset: {first} after {len(table)}")
        # The delayed records that were due when the stream was deleted.
        gone = max(0, self._forgotten - first)
        table.extend(record.id for record in records[:gone])
        if key not in self._declared and records[gone:]:
            raise Violation(f"{key}: records from {first + gone} on are written, and their stream is deleted")
        for record in records[gone:]:
            if record.data == POISON:
                self.poison.add(record.id)
            written_at = self._written_at[key].get(record.id)
            if written_at is not None:
                if self._clock[key] - written_at <= self._window(key):
                    raise Violation(f"{key}: the event {record.id} is there twice")
                self._repeated[key][record.id] += 1
            self._check_other_partitions(key, record.id)
            if self._now < self.not_before.get(record.id, 0):
                raise Violation(f"{key}: the event {record.id} is written before its time")
            self._written_at[key][record.id] = self._clock[key]
            table.append(record.id)

    def _check_other_partitions(self, key: PartitionKey, name: str) -> None:
        """An event that is published again after partitions were added is not written to another one."""
        other, life, clocks = self._elsewhere.get((key.stream, name), (key, 0, {}))
        if other != key and life == self._lives[other]:
            window = self._window(key)
            if all(self._clock[one] - clocks[one] <= window for one in (key, other)):
                raise Violation(f"{key}: the event {name} is there, and in {other}")
        clocks = {one: self._clock[one] for one in KEYS if one.stream == key.stream}
        self._elsewhere[key.stream, name] = key, self._lives[key], clocks

    def _window(self, key: PartitionKey) -> int:
        return self._declared[key].window_millis

    def is_poisoned(self, key: PartitionKey, delivery: Delivery) -> bool:
        """Whether no attempt of a delivery succeeds."""
        if isinstance(delivery, GroupDelivery):
            retry, (first, last) = self._retry(key, delivery, 0), self._ranges[key, delivery]
            has_end = retry.attempts and retry.dead_letter
            return bool(has_end) and not self.poison.isdisjoint(self._tables[key][first - 1 : last])
        if not self._most_attempts(key, delivery.pipeline, delivery.stage):
            # With the newest policy it might be tried for ever.
            return False
        return self._tables[key][delivery.instance - 1] in self.poison

    def stage(self, key: PartitionKey, delivery: StageDelivery) -> StagePlan:
        """The plan of a delivered stage."""
        found = self._plan(key, delivery.pipeline, delivery.instance).stage(delivery.stage)
        assert found is not None, delivery
        return found

    def _plan(self, key: PartitionKey, pipeline: str, instance: int) -> PipelinePlan:
        """The plan with which an instance began."""
        plans = self._plans[key, self._versions[key, pipeline, instance]].pipelines
        return next(plan for plan in plans if plan.name == pipeline)

    def _instance_began(self, key: PartitionKey, one: i.InstanceBegan) -> None:
        name, number = one.pipeline, one.instance
        began, ended, newest = self._began[key, name], self._ended[key, name], self._newest.get((key, name), (0, 0))
        life = self._life(key, name, one.version)
        if one.birth != life:
            raise Violation(f"{key}: instance {number} of {name} is of birth {one.birth}, and its plan is of {life}")
        if number in began:
            if self._life(key, name, self._versions[key, name, number]) == life or number not in ended:
                raise Violation(f"{key}: instance {number} of {name} began twice")
            # The pipeline was deleted and declared anew: this is an instance of another one.
            del began[number], ended[number]
            self._stored.pop((key, name, number), None)
            for tried in [tried for tried in self._tries if tried[:3] == (key, name, number)]:
                del self._tries[tried]
        if (life, number) < newest:
            raise Violation(f"{key}: instance {number} of {name} began after a later one")
        self._newest[key, name] = life, number
        began[number] = one.at
        self._versions[key, name, number] = one.version

    def _life(self, key: PartitionKey, name: str, version: int) -> int:
        """The version that declared the pipeline whose plan is of a version."""
        return max(born for born in self._births[key, name] if born <= version)

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
            plan = self._plan(key, one.pipeline, one.instance)
            lettered = [
                stage.name
                for stage in plan.stages
                if self._policy(key, one.pipeline, stage).dead_letter and f"stage {stage.name} " in one.reason
            ]
            self._letters[one.pipeline, key.partition, one.instance] += len(lettered)

    def _policy(self, key: PartitionKey, pipeline: str, stage: StagePlan) -> StagePlan:
        """The stage with its newest retry policy."""
        declared = self._declared[key].pipelines if key in self._declared else ()
        newest = next((plan.stage(stage.name) for plan in declared if plan.name == pipeline), None)
        return stage if newest is None else stage.under(newest.retry)

    def _most_attempts(self, key: PartitionKey, pipeline: str, stage: str) -> int:
        """The most deliveries that any version permits; 0 for no limit. A newer policy holds for older instances."""
        plans = (plan for (of, _), one in self._plans.items() if of == key for plan in one.pipelines)
        limits = [found.attempts for plan in plans if plan.name == pipeline and (found := plan.stage(stage))]
        return max(limits) if all(limits) else 0

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
        self._pointers[key, one.output, one.target] += 1
        self._pointed[key, one.output.delivery] += 1
        if self._pointers[key, one.output, one.target] > 1:
            raise Violation(f"{key}: the pointer of {one.output} is there twice")
        if one.reason:
            self._refused[key, one.output.delivery, one.target] += 1
            if one.output.place < 0:
                self._letters[one.output.delivery.pipeline, key.partition, one.output.delivery.instance] -= 1
        table = self._tables[one.target]
        records = self.attempts[key, one.output.delivery].records
        for offset in one.offsets:
            if one.output.place >= 0 and not (
                1 <= offset <= len(table) and records.get(table[offset - 1]) == one.target
            ):
                raise Violation(f"{key}: the pointer of {one.output} leads to another record")
            if (one.target, offset) in self._led_to:
                raise Violation(f"{key}: the pointer of {one.output} leads to the record of another output")
            self._led_to.add((one.target, offset))

    def _inputs_given(self, key: PartitionKey, one: i.DeliverInputs) -> None:
        delivery = one.delivery
        plan = self._plan(key, delivery.pipeline, delivery.instance).stage(delivery.stage)
        self._tries[key, *delivery[:3]] += 1
        most = self._most_attempts(key, delivery.pipeline, delivery.stage)
        if plan is None or (most and self._tries[key, *delivery[:3]] > most):
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
            stream, records = self.published[request]
            # The answer to delayed records has no offsets.
            places = [
                [(PartitionKey(stream, at), offset) for at, offset in written.places()] for written in one.written
            ]
            found = [[self._tables[at][offset - 1] for at, offset in some] for some in places]
            if found not in ([], [[record.id for record in records]]):
                raise Violation(f"{key}: a publisher is told the offsets of other records")
            if any(offset < self._life_from[at] for some in places for at, offset in some):
                raise Violation(f"{key}: a publisher is told the offsets of records of a deleted stream")
            life = self._lives[PartitionKey(stream, 0)]
            self._must_exist[stream].update({record.id: life for record in records})
        if request in self.acks:
            self._ack_answered(*self.acks[request], one)

    def must_be_there(self, stream: str, name: str) -> None:
        """An event that nobody is answered for has to be in a stream that is declared, as long as it is."""
        self._must_exist[stream][name] = self._lives[PartitionKey(stream, 0)]
        self.counts["events of the schedule"] += 1

    def _ack_answered(self, key: PartitionKey, delivery: Delivery, one: i.AnswerRequest) -> None:
        attempt = self.attempts[key, delivery]
        for written, (target, ids) in zip(one.written, attempt.statements, strict=True) if one.written else ():
            if written.reason:
                # The target's stream was deleted before the commit reached it.
                self._refused[key, delivery, target] += 1
                continue
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
        if group in self._changes.moved and group != TAIL:
            least, most = self._changes.moved[group]
            if not least <= cursor <= max(most, self.first[key] - 1):
                raise Violation(f"{key}: group {group} is moved to {cursor}, and not to {least} to {most}")
            self._cursors[key, group] = cursor
            return
        if group == NEWEST and (key, group) in self._begun_anew and (key, group) not in self._cursors:
            self._cursors[key, group] = cursor
            return
        if group == TAIL or (group == NEWEST and (key, group) not in self._cursors):
            # An ephemeral group may end and begin anew within a batch; the other one began at the end of the stream.
            first = PartitionKey(key.stream, 0)
            if group == NEWEST and key == first:
                self._known_at_birth[key.stream] = self._declared[key].partitions
            if group == NEWEST and key.partition >= self._known_at_birth.get(key.stream, key.partition + 1):
                # This partition was added while the group existed.
                if cursor != self.first[key] - 1:
                    raise Violation(f"{key}: the group {group} begins at {cursor} of a partition that was added")
                self.counts["groups that began in added partitions"] += 1
            self._cursors[key, group] = cursor
            return
        before = self._cursors[key, group]
        if before < cursor < self.first.get(key, 1):
            # Retention has removed the records behind the cursor.
            self._cursors[key, group] = before = cursor
            self.counts["cursors that retention moved"] += 1
        if cursor == before:
            return
        if cursor == before + 1 and (group, cursor) in self._changes.aside:
            self._cursors[key, group] = cursor
            return
        acked = delivery is not None and (key, delivery) in self.acks.values()
        if delivery is None or not acked or self._ranges.get((key, delivery)) != (before + 1, cursor):
            raise Violation(f"{key}: the cursor of {group} went from {before} to {cursor} without an ack of that range")
        self._cursors[key, group] = cursor
        self.group_accepted(key, delivery)

    def groups_are(self, key: PartitionKey, groups: Iterable[str]) -> None:
        """The groups of a key after a batch."""
        unknown = {*groups} & self._changes.deleted - self._changes.joined
        if unknown:
            raise Violation(f"{key}: groups {unknown} are deleted, and still there")
        for group in [group for of, group in self._cursors if of == key and group not in groups]:
            if group != TAIL:
                raise Violation(f"{key}: group {group} is forgotten")
            del self._cursors[key, group]

    def finish(self, tables: Mapping[PartitionKey, Sequence[CloudEvent]], leftovers: Sequence[str]) -> None:
        """Check the whole, when all is calm and done."""
        if leftovers:
            raise Violation(f"not done: {leftovers[:5]}")
        wanted: dict[PartitionKey, set[str]] = defaultdict(set)
        permitted: dict[PartitionKey, set[str]] = defaultdict(set)
        written: dict[str, set[str]] = defaultdict(set)
        for (key, delivery), attempt in self.attempts.items():
            records = [*attempt.records.items(), *((name, to) for to, names in attempt.statements for name in names)]
            for name, target in records if attempt.accepted else ():
                if target == GHOST:
                    raise Violation(f"{key}: {delivery} is done though a statement was refused")
                (permitted if self._refused[key, delivery, target] else wanted)[target].add(name)
        for key in KEYS:
            found = {record.id for record in tables.get(key, ()) if "failedoffset" not in dict(record.attributes)}
            written[key.stream] |= found
            missing = wanted[key] - found
            surplus = found - wanted[key] - permitted[key] - self.may_exist[key]
            if missing or surplus:
                raise Violation(f"{key}: missing {[*missing][:5]}, surplus {[*surplus][:5]}")
            self._check_instances(key, tables.get(key, ()))
        for stream, names in self._must_exist.items():
            life = self._lives[PartitionKey(stream, 0)]
            missing = {name for name, of in names.items() if of == life} - written[stream]
            if missing:
                raise Violation(f"{stream}: missing {[*missing][:5]}")
        self._check_letters(record for key in KEYS for record in tables.get(key, ()))

    def _check_letters(self, records: Iterable[CloudEvent]) -> None:
        found, of_groups = Counter[tuple[str, int, int]](), Counter[tuple[PartitionKey, str, int]]()
        for record in records:
            said = dict(record.attributes)
            if "failedpipeline" in said:
                found[said["failedpipeline"], int(said["failedpartition"]), int(said["failedoffset"])] += 1
            elif "failedgroup" in said:
                key = PartitionKey(said["failedstream"], int(said["failedpartition"]))
                of_groups[key, said["failedgroup"], int(said["failedoffset"])] += 1
        for name in of_groups.keys() | self.hands.aside.keys():
            # A record that was set aside again, because its group was moved back, may have one letter for all.
            most = self.hands.aside[name] - self._letters_refused[name]
            if not min(1, most) <= of_groups[name] <= most:
                raise Violation(f"{name} has {of_groups[name]} dead letters, and was set aside {most} times")
        if found != +self._letters:
            raise Violation(f"dead letters: missing {self._letters - found}, surplus {found - self._letters}")

    def _check_instances(self, key: PartitionKey, table: Sequence[CloudEvent]) -> None:
        for name in INPUT:
            if self._ended[key, name].keys() != self._began[key, name].keys():
                raise Violation(f"{key}: instances of {name} that never ended")
        for plan in self._declared[key].pipelines if key in self._declared else ():
            name = plan.name
            life = max(self._births[key, name])
            least, most = self._births[key, name][life]
            skipped = self._skipped[key, name]
            matching = {
                offset
                for offset, record in enumerate(table, start=1)
                if (name != FULFIL or record.type == TRIGGER) and offset not in skipped
            }
            began = {one for one in self._began[key, name] if self._versions[key, name, one] >= life}
            missing, surplus = {one for one in matching if one > most} - began, began - matching
            if missing or surplus or any(one <= least for one in began):
                raise Violation(f"{key}: records of {name} without an instance {missing}, and the reverse {surplus}")
        for (of, group), cursor in self._cursors.items():
            if of == key and cursor != len(table):
                raise Violation(f"{key}: group {group} has acked up to {cursor} of {len(table)}")
