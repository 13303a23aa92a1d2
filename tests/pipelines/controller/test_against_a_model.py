"""One key against a model that is as simple as the promises: sets, dictionaries and one loop."""

from __future__ import annotations

from dataclasses import dataclass, field

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from tests.pipelines.controller.one_key import BEGINNING, LATEST, REPLY, Key, record, start_at
from wallaroo_spark.pipelines.controller.messages import events as e
from wallaroo_spark.pipelines.controller.messages import instructions as i
from wallaroo_spark.pipelines.controller.messages.plans import PipelinePlan, StagePlan
from wallaroo_spark.pipelines.controller.messages.values import GroupDelivery, StageDelivery

NAME = "shop/fulfil"
MOST_PARALLEL = 2
PLAN = PipelinePlan(NAME, (StagePlan("work", given_root=True),), ("order.*",), MOST_PARALLEL, BEGINNING)
GROUPS = {"billing": True, "live": False}
"""Name → whether it is durable."""
KINDS = ("order.new", "order", "order.new.v2", "other.new")
MATCHING = {"order.new"}


@dataclass
class ModelGroup:
    """A group as its promises describe it."""

    cursor: int
    """The last acked offset."""
    members: dict[str, int] = field(default_factory=dict)
    """Member → the most records of a delivery."""
    batch: tuple[int, int] | None = None
    """The batch that is not acked."""
    holder: tuple[str, GroupDelivery] | None = None
    """Who has it."""
    due: int = 0
    """When it may be delivered again."""


class OneKey(RuleBasedStateMachine):
    """Calls the controller and the model alike."""

    def __init__(self) -> None:
        super().__init__()
        self.key = Key(PLAN)
        self.key.serve("worker", "work", 100)
        self.kinds: list[str] = []
        self.offsets: dict[str, int] = {}
        self.first = 1
        self.groups: dict[str, ModelGroup] = {}
        self.names = 0
        self.cursor = 0
        self.active: set[int] = set()
        self.begun: list[int] = []
        self.work: dict[int, StageDelivery] = {}

    @initialize()
    def begin(self) -> None:
        """Both groups have members, so that there are deliveries from the start."""
        for group in [*GROUPS, *GROUPS]:
            self.join(group, BEGINNING, 1)

    @rule(names=st.lists(st.tuples(st.integers(1, 30), st.sampled_from(KINDS)), min_size=1, max_size=4))
    def publish(self, names: list[tuple[int, str]]) -> None:
        """Records, some of which are known."""
        records = tuple(record(f"{number}-{kind}", kind) for number, kind in names)
        for one in records:
            if one.id not in self.offsets:
                self.kinds.append(one.type)
                self.offsets[one.id] = len(self.kinds)
        self.key.publish(*records)
        (written,) = self.key.one(i.AnswerRequest).written
        assert written.offsets == tuple(self.offsets[one.id] for one in records)
        self._follow()

    @rule(
        group=st.sampled_from([*GROUPS]),
        start=st.one_of(st.sampled_from([BEGINNING, LATEST]), st.integers(0, 20).map(start_at)),
        limit=st.integers(1, 3),
    )
    def join(self, group: str, start: object, limit: int) -> None:
        """A member joins; the first one makes the group."""
        self.names += 1
        name, last = f"{group}-{self.names}", len(self.kinds)
        wanted = {"beginning": 0, "latest": last, "offset": max(0, (start.offset or 0) - 1)}[start.location]  # type: ignore[attr-defined]  # a StartPoint
        found = self.groups.setdefault(group, ModelGroup(max(min(wanted, last), self.first - 1)))
        found.members[name] = limit
        self.key.join(name, group, durable=GROUPS[group], start=start, max_records=limit)
        self._follow()

    def _holders(self) -> list[str]:
        return [name for name, group in self.groups.items() if group.holder]

    @precondition(lambda self: self._holders())
    @rule(data=st.data())
    def ack(self, data: st.DataObject) -> None:
        """The holder of a batch acks it."""
        group = self.groups[data.draw(st.sampled_from(self._holders()))]
        assert group.holder
        assert group.batch
        member, delivery = group.holder
        group.cursor, group.batch, group.holder = group.batch[1], None, None
        self.key.ack(member, delivery)
        self._follow()
        self.key.ack(member, delivery)
        assert self.key.one(i.WarnClient)

    @precondition(lambda self: self._holders())
    @rule(data=st.data(), delay=st.sampled_from([0, 0, 500]))
    def nack(self, data: st.DataObject, delay: int) -> None:
        """The holder of a batch nacks it."""
        group = self.groups[data.draw(st.sampled_from(self._holders()))]
        assert group.holder
        member, delivery = group.holder
        group.holder, group.due = None, self.key.now + delay
        self.key.nack(member, delivery, delay)
        self._follow()

    @precondition(lambda self: any(group.members for group in self.groups.values()))
    @rule(data=st.data())
    def leave(self, data: st.DataObject) -> None:
        """A member leaves."""
        places = [(name, member) for name, group in self.groups.items() for member in group.members]
        name, member = data.draw(st.sampled_from(places))
        group = self.groups[name]
        del group.members[member]
        if group.holder and group.holder[0] == member:
            group.holder, group.due = None, 0
        if not group.members and not GROUPS[name]:
            del self.groups[name]
        self.key.leave(member)
        self._follow()

    @rule(millis=st.sampled_from([1, 499, 500]))
    def wait(self, millis: int) -> None:
        """Time passes."""
        self.key.at(self.key.now + millis)
        self._follow()

    @rule(share=st.floats(0, 1))
    def expire(self, share: float) -> None:
        """Retention removes records."""
        self.first = max(self.first, 1 + int(share * len(self.kinds)))
        self.key.do(e.RecordsExpired(self.first))
        self._follow()

    @precondition(lambda self: self.work)
    @rule(data=st.data(), end=st.sampled_from(["ack", "nack", "cancel"]))
    def end_work(self, data: st.DataObject, end: str) -> None:
        """The stage of an instance is acked or nacked, or the instance is cancelled."""
        number = data.draw(st.sampled_from(sorted(self.work)))
        delivery = self.work.pop(number)
        if end != "nack":
            self.active.discard(number)
        if end == "ack":
            self.key.ack("worker", delivery)
        elif end == "nack":
            self.key.nack("worker", delivery)
        else:
            self.key.do(e.InstanceCancelled(REPLY, NAME, number))
        self._follow()

    def _follow(self) -> None:
        """Compare the instructions of a call with the model."""
        for one in self.key.of(i.DeliverRecords):
            self._delivered(self.groups[one.delivery.group], one)
        self._advance()
        began = [one.instance for one in self.key.of(i.InstanceBegan)]
        assert began == self.begun
        self.begun = []
        for given in self.key.of(i.DeliverInputs):
            assert given.root is not None
            assert self.offsets[given.root.id] == given.delivery.instance
            self.work[given.delivery.instance] = given.delivery

    def _delivered(self, group: ModelGroup, one: i.DeliverRecords) -> None:
        assert group.holder is None
        assert self.key.now >= group.due
        missed = max(self.first - 1 - group.cursor, 0)
        if group.batch is None or group.batch[1] < self.first:
            begin = group.cursor + 1 + missed
            group.batch = (begin, min(begin + group.members[one.member] - 1, len(self.kinds)))
        assert (one.first, one.last) == group.batch
        assert one.missed == missed
        group.holder = (one.member, one.delivery)
        assert one.member in group.members

    def _advance(self) -> None:
        while self.cursor < len(self.kinds):
            self.cursor = max(self.cursor, self.first - 1)
            if self.cursor == len(self.kinds):
                return
            if self.kinds[self.cursor] in MATCHING:
                if len(self.active) == MOST_PARALLEL:
                    return
                self.active.add(self.cursor + 1)
                self.begun.append(self.cursor + 1)
            self.cursor += 1

    @invariant()
    def active_instances_are_those_of_the_model(self) -> None:
        """And never more than maxParallel."""
        assert self.key.active == [(NAME, number) for number in sorted(self.active)]
        assert self.work.keys() == self.active
        assert len(self.active) <= MOST_PARALLEL

    @invariant()
    def nothing_waits_that_can_be_delivered(self) -> None:
        """A group with a member has its next batch, unless that is delayed."""
        assert self.key.head.groups.keys() == self.groups.keys()
        for group in self.groups.values():
            waits = group.batch is not None and self.key.now < group.due
            ready = max(group.cursor, self.first - 1) < len(self.kinds)
            assert group.holder or waits or not (group.members and ready)


TestOneKey = OneKey.TestCase
TestOneKey.settings = settings(max_examples=30, stateful_step_count=40, deadline=None)
