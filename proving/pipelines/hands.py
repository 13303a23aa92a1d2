"""Which member has which delivery, and since when: what a judge follows of members, time limits and operators."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable
from dataclasses import dataclass, field

from proving.pipelines.batches import Turn
from proving.pipelines.shop import TAIL
from proving.simulator.engine.core import Violation
from wallaroo_spark.pipelines.controller.messages import events as e
from wallaroo_spark.pipelines.controller.messages import instructions as i
from wallaroo_spark.pipelines.controller.messages.events import AppendOutput
from wallaroo_spark.pipelines.controller.messages.plans import RetryPlan
from wallaroo_spark.pipelines.controller.messages.values import (
    Delivery,
    GroupDelivery,
    PartitionKey,
    ReplyTo,
    StageDelivery,
)

Place = tuple[object, ...]
Policy = Callable[[PartitionKey, Delivery, int], RetryPlan]
"""The treatment of a delivery of a key; for that of a stage with the version that its instance began with."""


@dataclass
class Hold:
    """A delivery that a member has not settled."""

    member: str
    """Which member has it, by name."""
    due: int
    """When its time is over; 0 for never."""
    late: bool = False
    """Whether it was taken away from the member."""


@dataclass
class Hands:
    """The members of one key, and what they have."""

    members: dict[str, e.GroupJoined | e.StageJoined] = field(default_factory=dict)
    """Name → how it has joined."""
    holds: dict[Delivery, Hold] = field(default_factory=dict)
    """The deliveries that were not settled."""
    acks: Counter[str] = field(default_factory=Counter)
    """Member → its acks."""
    paused: set[str] = field(default_factory=set)
    """The groups that an operator has paused."""
    tries: Counter[Place] = field(default_factory=Counter)
    """How often the stage of an instance, or a range of a group, was delivered."""
    rests: dict[Place, int] = field(default_factory=dict)
    """Before which time it must not be delivered again, because it was nacked."""
    versions: dict[Place, int] = field(default_factory=dict)
    """The version of the schema with which each instance began."""
    ranges: dict[str, tuple[int, int]] = field(default_factory=dict)
    """Group → the range that was delivered last."""


@dataclass
class Changes:
    """What a turn has done to the groups of its key."""

    deleted: set[str] = field(default_factory=set)
    """The groups that an operator has deleted."""
    joined: set[str] = field(default_factory=set)
    """The groups that got a member after that, or of which another partition has told."""
    moved: dict[str, tuple[int, int]] = field(default_factory=dict)
    """Group → the least and the greatest cursor with which it goes on."""
    aside: set[tuple[str, int]] = field(default_factory=set)
    """Group and offset of the records that were set aside."""


class AllHands:
    """The members of all keys."""

    def __init__(self, policy: Policy) -> None:
        self._policy = policy
        self._of: dict[PartitionKey, Hands] = defaultdict(Hands)
        self.aside: Counter[tuple[PartitionKey, str, int]] = Counter()
        """How often each record was set aside by each group."""
        self.letters: dict[tuple[PartitionKey, GroupDelivery], int] = {}
        """The delivery with which each was set aside → its offset."""
        self.counts: Counter[str] = Counter()

    def held(self, *, without_limit: bool = False) -> list[tuple[PartitionKey, Delivery]]:
        """The deliveries that members have; ``without_limit``: only those whose time never ends."""
        found = [(key, name, hold) for key, hands in self._of.items() for name, hold in hands.holds.items()]
        return [(key, name) for key, name, hold in found if not hold.late and not (without_limit and hold.due)]

    def see(self, turn: Turn, length: int) -> Changes:
        """Follow a committed turn; ``length`` is that of the table before it."""
        return _Look(self, self._of[turn.key], self._policy, turn, length).changes


class _Look:
    """One turn of one key."""

    def __init__(self, all_hands: AllHands, hands: Hands, policy: Policy, turn: Turn, length: int) -> None:
        self._all, self._hands, self._policy = all_hands, hands, policy
        self._key, self._now = turn.key, turn.now
        self._length = length + len(turn.fresh)
        self._length_before = length
        self._answered = {one.reply_to.request for one in turn.said if isinstance(one, i.AnswerRequest)}
        self._taken: set[Delivery] = set()
        self._settled: set[Delivery] = set()
        self._ending: set[str] = set()
        self.changes = Changes()
        # What was due once may be delivered later also when the clock was set back meanwhile.
        hands.rests = {place: due for place, due in hands.rests.items() if due > turn.now}
        for event in turn.events:
            self._event(event)
        for one in turn.said:
            self._instruction(one)
        for delivery, hold in hands.holds.items():
            if not hold.late and 0 < hold.due <= self._now:
                self._wrong(f"{delivery} is still with {hold.member}, whose time was over at {hold.due}")
        if self._taken - self._settled:
            self._wrong(f"an operator is told that these are taken away, and they are not: {self._taken}")
        if self._ending:
            self._wrong(f"groups are deleted, and their members are not told: {self._ending}")

    def _wrong(self, text: str) -> None:
        raise Violation(f"{self._key}: {text} (at {self._now})")

    def _is_answered(self, reply_to: ReplyTo | None) -> bool:
        return reply_to is not None and reply_to.request in self._answered

    def _event(self, event: e.Event) -> None:
        hands = self._hands
        match event:
            case e.PartitionDeclared():
                if event.plan is None:
                    hands.paused.clear()
            case e.GroupJoined() | e.StageJoined():
                if self._is_answered(event.reply_to):
                    hands.members[event.member] = event
                    if isinstance(event, e.GroupJoined):
                        self.changes.joined.add(event.group)
            case e.MemberLeft():
                self._gone(event.member)
            case e.GatewayStarted():
                for name, joined in [*hands.members.items()]:
                    reply = joined.reply_to
                    if reply.gateway == event.gateway and reply.generation < event.generation:
                        self._gone(name)
            case e.DeliveryAcked() | e.DeliveryNacked():
                self._settle(event)
            case e.DeliveryExtended():
                hold = hands.holds.get(event.delivery)
                if hold is not None and hold.member == event.member and not hold.late:
                    timeout = self._retry(event.delivery).timeout
                    hold.due = self._now + timeout if timeout else 0
                    self._all.counts["extensions"] += 1
            case e.DeliveriesTaken():
                if self._is_answered(event.reply_to):
                    self._take(event)
            case e.GroupChanged():
                if self._is_answered(event.reply_to):
                    self._change(event)
            case e.CarriedIn():
                self.changes.joined.update(getattr(event.message, "groups", ()))

    def _gone(self, member: str) -> None:
        """A member is there no more."""
        self._hands.members.pop(member, None)
        self._ending.discard(member)
        for delivery in [one for one, hold in self._hands.holds.items() if hold.member == member]:
            del self._hands.holds[delivery]
            self._settled.add(delivery)

    def _settle(self, event: e.DeliveryAcked | e.DeliveryNacked) -> None:
        hands, delivery = self._hands, event.delivery
        hold = hands.holds.get(delivery)
        if hold is None or hold.member != event.member:
            return
        del hands.holds[delivery]
        self._settled.add(delivery)
        hands.acks[event.member] += isinstance(event, e.DeliveryAcked)
        # A nack is not answered when the delivery was withdrawn earlier in the same batch.
        if isinstance(event, e.DeliveryNacked) and not hold.late and self._is_answered(event.reply_to):
            place = self._place(delivery)
            delay = max(event.delay, self._retry(delivery).retry_delay(hands.tries[place]))
            # What has no delay may also be delivered once the clock was set back.
            if delay:
                hands.rests[place] = self._now + delay

    def _retry(self, delivery: Delivery) -> RetryPlan:
        version = 0
        if isinstance(delivery, StageDelivery):
            version = self._hands.versions[delivery.pipeline, delivery.instance, delivery.birth]
        return self._policy(self._key, delivery, version)

    def _place(self, delivery: Delivery) -> Place:
        if isinstance(delivery, StageDelivery):
            return delivery.pipeline, delivery.instance, delivery.stage, delivery.birth
        return delivery.group, *self._hands.ranges[delivery.group]

    def _take(self, event: e.DeliveriesTaken) -> None:
        for delivery, hold in self._hands.holds.items():
            wanted = (
                delivery.group == event.group
                if isinstance(delivery, GroupDelivery)
                else delivery[:2] == (event.pipeline, event.instance) and event.stage in ("", delivery.stage)
            )
            if wanted and not hold.late:
                hold.late = True
                self._taken.add(delivery)

    def _change(self, event: e.GroupChanged) -> None:
        hands, changes, group = self._hands, self.changes, event.group
        self._all.counts[f"group {event.action}"] += 1
        match event.action:
            case e.GroupAction.PAUSE:
                hands.paused.add(group)
            case e.GroupAction.RESUME:
                hands.paused.discard(group)
            case e.GroupAction.MOVE:
                # The records of this turn may have come before it, or behind it.
                changes.moved[group] = (event.start.cursor(self._length_before), event.start.cursor(self._length))
                self._forget(group)
            case e.GroupAction.DELETE:
                hands.paused.discard(group)
                changes.moved.pop(group, None)
                changes.joined.discard(group)
                changes.deleted.add(group)
                self._forget(group)
                self._ending |= {
                    name
                    for name, joined in hands.members.items()
                    if isinstance(joined, e.GroupJoined) and joined.group == group
                }

    def _forget(self, group: str) -> None:
        """What a group has begins anew."""
        hands = self._hands
        hands.ranges.pop(group, None)
        for delivery, hold in [*hands.holds.items()]:
            # A late one keeps the place of its member.
            if isinstance(delivery, GroupDelivery) and delivery.group == group and not hold.late:
                del hands.holds[delivery]
                self._settled.add(delivery)
        for counted in (hands.tries, hands.rests):
            for place in [place for place in counted if place[0] == group]:
                del counted[place]

    def _instruction(self, one: i.Instruction) -> None:
        hands = self._hands
        match one:
            case i.EndSubscription():
                self._gone(one.member)
            case i.WithdrawDelivery() if one.timed_out:
                self._taken_away(one)
            case i.WithdrawDelivery():
                hands.holds.pop(one.delivery, None)
                self._settled.add(one.delivery)
            case i.InstanceBegan():
                hands.versions[one.pipeline, one.instance, one.birth] = one.version
            case i.DeliverRecords() | i.DeliverInputs():
                self._given(one)
            case i.CarryOut(message=AppendOutput(output=GroupDelivery() as delivery)):
                self._set_aside(one.target, delivery)

    def _taken_away(self, one: i.WithdrawDelivery) -> None:
        hold = self._hands.holds.get(one.delivery)
        if one.delivery in self._taken:
            self._all.counts["deliveries taken by an operator"] += 1
        elif hold is None or hold.late or hold.member != one.member:
            self._wrong(f"{one} of a delivery that the member does not have")
        elif not 0 < hold.due <= self._now:
            self._wrong(f"{one} before its time is over at {hold.due}")
        else:
            self._all.counts["deliveries taken at their time limit"] += 1
        if hold is not None:
            hold.late = True
        self._taken.discard(one.delivery)

    def _given(self, one: i.DeliverRecords | i.DeliverInputs) -> None:
        hands, delivery = self._hands, one.delivery
        joined = hands.members.get(one.member)
        if joined is None:
            self._wrong(f"{one} to a member that is not there")
        had = [name for name, hold in hands.holds.items() if hold.member == one.member]
        most = 1
        if isinstance(joined, e.StageJoined):
            # A window is doubled once all that it had was acked.
            most = max(joined.concurrency, 2 * hands.acks[one.member])
            self._all.counts["deliveries ahead"] += len(had) >= joined.concurrency
        if len(had) >= most:
            self._wrong(f"{one} to a member that has {had}")
        if isinstance(one, i.DeliverRecords):
            if one.delivery.group in hands.paused and one.delivery.group != TAIL:
                self._wrong(f"{one}, and the group is paused")
            before = hands.ranges.get(one.delivery.group)
            hands.ranges[one.delivery.group] = one.first, one.last
            if before != (one.first, one.last):
                hands.tries.pop(self._place(delivery), None)
                hands.rests.pop(self._place(delivery), None)
        place = self._place(delivery)
        if self._now < hands.rests.pop(place, 0):
            self._wrong(f"{one} before the delay of its nack is over")
        hands.tries[place] += 1
        timeout = self._retry(delivery).timeout
        if one.timeout != timeout:
            self._wrong(f"{one}, and its policy has {timeout} ms")
        hands.holds[delivery] = Hold(one.member, self._now + timeout if timeout else 0)

    def _set_aside(self, target: PartitionKey, delivery: GroupDelivery) -> None:
        """A group has given up a record."""
        first, last = self._hands.ranges.get(delivery.group, (0, 0))
        policy, tries = self._retry(delivery), self._hands.tries[self._place(delivery)]
        if first != last or not 0 < policy.attempts <= tries or target.stream != policy.dead_letter:
            self._wrong(f"{delivery} with {first} to {last} is set aside after {tries} deliveries, by {policy}")
        self._all.aside[self._key, delivery.group, first] += 1
        self._all.letters[self._key, delivery] = first
        self.changes.aside.add((delivery.group, first))
        self._all.counts["records set aside by groups"] += 1
