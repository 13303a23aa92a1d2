"""Groups of subscribers: one open batch for each group, delivered to a random member until it is acked.

Source: ``docs/pipelines/design.md#groups``.
"""

from __future__ import annotations

from wallaroo_spark.pipelines.controller.context import CallContext, next_state
from wallaroo_spark.pipelines.controller.messages.events import GroupJoined
from wallaroo_spark.pipelines.controller.messages.instructions import DeliverRecords
from wallaroo_spark.pipelines.controller.messages.values import GroupDelivery
from wallaroo_spark.pipelines.controller.states import DELIVERY, DeliveryEvent, DeliveryState
from wallaroo_spark.pipelines.controller.stored.key_state import Group, Member, OpenDelivery


class SubscriberGroups:
    """The groups of a partition."""

    def __init__(self, context: CallContext) -> None:
        self._context = context
        self._groups = context.head.groups

    def problem(self, event: GroupJoined) -> str:
        """Why a member cannot join, with the way out; empty when it can."""
        if not self._context.head.declared:
            return f"there is no stream {self._context.key.stream} with a partition {self._context.key.partition}"
        if event.max_records < 1:
            return f"a delivery of at most {event.max_records} records is asked for; ask for 1 or more"
        group = self._groups.get(event.group)
        if group is not None and group.durable != event.durable:
            kinds = ("ephemeral", "durable")
            return f"group {event.group} is {kinds[group.durable]}; join it as such, or join a group of another name"
        return ""

    def joined(self, event: GroupJoined) -> None:
        """A member joins; the first one makes the group."""
        group = self._groups.get(event.group)
        if group is None:
            head = self._context.head
            cursor = max(event.start.cursor(head.last), head.first - 1)
            group = self._groups[event.group] = Group(event.durable, cursor)
        group.members.append(event.member)
        reply = event.reply_to
        self._context.head.members[event.member] = Member(
            reply.gateway, reply.generation, event.group, limit=event.max_records
        )

    def left(self, name: str, member: Member) -> GroupDelivery | None:
        """A member has left. Returns the delivery that it leaves open."""
        group = self._groups[member.group]
        group.members.remove(name)
        left = None
        if group.open is not None and group.open.member == name and group.open.state is DeliveryState.DELIVERED:
            left = GroupDelivery(member.group, group.open.number)
        return left

    def end_if_unused(self, name: str) -> None:
        """An ephemeral group ends with its last member."""
        group = self._groups.get(name)
        if group is not None and not group.durable and not group.members:
            del self._groups[name]

    def find(self, delivery: GroupDelivery) -> OpenDelivery | None:
        """The open delivery of this name, None without one."""
        group = self._groups.get(delivery.group)
        found = group.open if group is not None else None
        return found if found is not None and found.number == delivery.number else None

    def finish(self, delivery: GroupDelivery, event: DeliveryEvent) -> None:
        """The records of a delivery are done; the cursor moves behind them."""
        found = self.find(delivery)
        if found is not None:
            next_state(DELIVERY, found.state, event)
            group = self._groups[delivery.group]
            group.cursor, group.open, group.missed = max(group.cursor, group.last), None, 0

    def deliver(self) -> None:
        """Deliver to every group that has records, a member and no delivery with it."""
        for name, group in self._groups.items():
            if group.members and (group.open is None or group.open.state is DeliveryState.WAITING):
                self._deliver(name, group)

    def _deliver(self, name: str, group: Group) -> None:
        context, head = self._context, self._context.head
        if group.open is not None and group.last < head.first:
            group.open = None
        if group.open is None and group.cursor + 1 < head.first:
            group.missed += head.first - 1 - group.cursor
            group.cursor = head.first - 1
        if group.open is None and group.cursor == head.last:
            return
        number = context.number_delivery()
        member = context.draw(group.members, number)
        if group.open is None:
            group.open = OpenDelivery(DeliveryState.WAITING, context.now)
            group.first = group.cursor + 1
            group.last = min(head.last, group.cursor + head.members[member].limit)
        found = group.open
        found.state = next_state(DELIVERY, found.state, DeliveryEvent.MEMBER_CHOSEN)
        found.number, found.member, found.attempts = number, member, found.attempts + 1
        missed = group.missed + max(0, head.first - group.first)
        context.say(DeliverRecords(member, GroupDelivery(name, number), group.first, group.last, missed))
