"""Groups of subscribers: one open batch for each group, delivered to a random member until it is acked.

Source: ``docs/pipelines/design.md#groups``.
"""

from __future__ import annotations

from collections.abc import Sequence

from wallaroo_spark.pipelines.controller.context import CallContext
from wallaroo_spark.pipelines.controller.messages import events
from wallaroo_spark.pipelines.controller.messages.instructions import DeliverRecords, EndSubscription, ReadRecords
from wallaroo_spark.pipelines.controller.messages.values import Failure, GroupDelivery, PartitionKey, dead_letter
from wallaroo_spark.pipelines.controller.states import DeliveryEvent, DeliveryState
from wallaroo_spark.pipelines.controller.stored.key_state import Group, Member, OpenDelivery, next_size

MOST_GROUPS = 1000
"""The most groups of a partition. A choice: they are a part of the head, which each batch reads and writes; a group
takes some 60 bytes beside its name, and those of the reason while its delivery fails."""


class SubscriberGroups:
    """The groups of a partition."""

    def __init__(self, context: CallContext) -> None:
        self._context = context
        self._groups = context.head.groups

    def problem(self, event: events.GroupJoined) -> str:
        """Why a member cannot join, with the remedy; empty when it can."""
        if not self._context.head.declared:
            return self._context.no_stream()
        if event.max_records < 1:
            return f"a delivery of at most {event.max_records} records is asked for; ask for 1 or more"
        group = self._groups.get(event.group)
        if group is not None and group.durable != event.durable:
            kinds = ("ephemeral", "durable")
            return f"group {event.group} is {kinds[group.durable]}; join it as such, or join a group of another name"
        if group is None and len(self._groups) >= MOST_GROUPS:
            return (
                f"{self._context.key} has {len(self._groups)} groups, which is the limit; delete those that nobody "
                "uses: wallaroo-spark groups list shows them, and wallaroo-spark groups delete deletes one"
            )
        return ""

    def joined(self, event: events.GroupJoined) -> None:
        """A member joins; the first one makes the group."""
        group = self._groups.get(event.group)
        if group is None:
            head = self._context.head
            cursor = max(event.start.cursor(head.last), head.first - 1)
            group = self._groups[event.group] = Group(event.durable, cursor)
            missing = range(event.partitions, head.partitions[-1])
            if event.durable and event.partitions and missing and self._context.key.partition == 0:
                # The member's gateway does not know them yet, and the member may be gone before it does.
                self._carry(missing, (event.group,))
        group.members.append(event.member)
        group.idle_since = 0
        gateway, generation, _ = event.reply_to
        self._context.head.members[event.member] = Member(gateway, generation, event.group, limit=event.max_records)

    def announce(self, added: range) -> None:
        """Partitions are added: each durable group of this one begins at their first records."""
        names = tuple(name for name, group in self._groups.items() if group.durable)
        if names:
            self._carry(added, names)

    def exist(self, names: Sequence[str]) -> None:
        """This partition was added while these durable groups existed."""
        for name in names:
            if name not in self._groups:
                self._groups[name] = Group(True, self._context.head.first - 1)

    def _carry(self, partitions: range, names: tuple[str, ...]) -> None:
        for partition in partitions:
            target = PartitionKey(self._context.key.stream, partition)
            self._context.carry(target, events.GroupsExist(self._context.head.version, names))

    def left(self, name: str, member: Member) -> GroupDelivery | None:
        """A member has left. Returns the delivery that it leaves open."""
        group = self._groups[member.group]
        group.members.remove(name)
        if not group.members:
            group.idle_since = self._context.now
        found = group.open
        if found is None or found.member != name or found.state is not DeliveryState.DELIVERED:
            return None
        return GroupDelivery(member.group, found.number)

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
            found.on(event)
            group = self._groups[delivery.group]
            took, records = self._context.now - found.began_at, group.last - group.first + 1
            group.size = next_size(records, group.size, took)
            group.cursor, group.open, group.missed, group.reason = max(group.cursor, group.last), None, 0, ""

    def redeliver(self, delivery: GroupDelivery, event: DeliveryEvent, delay: int, reason: str) -> None:
        """A delivery has not succeeded: it waits for a member again, after a delay, or was delivered often enough."""
        found = self.find(delivery)
        if found is None:
            return
        group, retry = self._groups[delivery.group], self._context.head.retry
        group.reason = reason
        several = group.first < group.last
        late = found.state is DeliveryState.DELIVERED and 0 < found.due <= self._context.now
        # A part of a batch that has failed so often shows at once whether the event that fails is in it.
        most = 1 if several and group.last <= group.failed_until else retry.attempts
        given_up = bool(retry.attempts and retry.dead_letter) and found.attempts >= most
        if several and (given_up or late):
            group.open = None
            if late:
                # As many would take too long again.
                group.size = (group.last - group.first + 1) // 2
            if given_up:
                # Only the event that fails is to be set aside: half of them are delivered, and so on until it is alone.
                group.failed_until = group.last
        elif given_up:
            found.on(DeliveryEvent.GIVEN_UP)
            self._context.emit(ReadRecords(delivery.group, group.first, 1))
        else:
            found.on(event)
            if found.state is DeliveryState.DELAYED:
                self._context.delay(delivery, found, delay)

    def read(self, event: events.RecordsRead) -> None:
        """The record of an event that a group could not process: it goes to the dead-letter stream."""
        group = self._groups.get(event.pipeline)
        found = group.open if group is not None else None
        if group is None or found is None or found.state is not DeliveryState.FAILED or group.first != event.asked:
            return
        retry, key = self._context.head.retry, self._context.key
        # Retention may have removed it meanwhile.
        if event.first == event.asked and event.records and retry.dead_letter:
            failure = Failure(group.reason, found.attempts, self._context.now, key, group.first, group=event.pipeline)
            letter = dead_letter(event.records[0], failure)
            message = events.AppendOutput(GroupDelivery(event.pipeline, found.number), (letter,))
            self._context.carry(retry.dead_letter_key(group.first), message)
        self.finish(GroupDelivery(event.pipeline, found.number), DeliveryEvent.SET_ASIDE)

    def letter_refused(self, delivery: GroupDelivery, reason: str) -> None:
        """The stream of a dead letter has refused it. The group goes on, and its gauges tell."""
        if (group := self._groups.get(delivery.group)) is not None:
            group.letters_refused += 1
            group.refused_reason = reason

    def timed(self) -> list[tuple[int, GroupDelivery]]:
        """The deliveries of members, each with the end of its time."""
        return [
            (group.open.due, GroupDelivery(name, group.open.number))
            for name, group in self._groups.items()
            if group.open is not None and group.open.state is DeliveryState.DELIVERED and group.open.due
        ]

    def changed(self, event: events.GroupChanged) -> None:
        """An operator changes a group that has no delivery with a member."""
        group = self._groups[event.group]
        match event.action:
            case events.GroupAction.PAUSE | events.GroupAction.RESUME:
                group.paused = event.action is events.GroupAction.PAUSE
            case events.GroupAction.MOVE:
                head = self._context.head
                group.cursor = max(event.start.cursor(head.last), head.first - 1)
                group.open, group.missed, group.failed_until = None, 0, 0
            case events.GroupAction.DELETE:
                for member in group.members:
                    del self._context.head.members[member]
                    self._context.emit(EndSubscription(member, "the group is deleted"))
                del self._groups[event.group]

    def deliver(self) -> None:
        """Deliver to every group that has records, a member and no delivery with it."""
        for name, group in self._groups.items():
            if group.paused or (group.open is not None and group.open.state is not DeliveryState.WAITING):
                continue
            # A member whose delivery was taken away is given no other one until it has settled it.
            if free := [one for one in group.members if not self._context.head.members[one].overdue]:
                self._deliver(name, group, free)

    def _deliver(self, name: str, group: Group, free: list[str]) -> None:
        context, head = self._context, self._context.head
        if group.open is not None and group.last < head.first:
            group.open = None
        if group.open is None and group.cursor + 1 < head.first:
            group.missed += head.first - 1 - group.cursor
            group.cursor = head.first - 1
        if group.open is None and group.cursor == head.last:
            return
        number = context.number_delivery()
        member = context.draw(free, number)
        if group.open is None:
            group.open = OpenDelivery(DeliveryState.WAITING, context.now)
            group.first = group.cursor + 1
            half = (group.failed_until - group.cursor + 1) // 2
            most = min(head.members[member].limit, group.size)
            group.last = min(head.last, group.cursor + (min(most, half) if half > 0 else most))
        found = group.open
        found.hand_over(number, member)
        missed = group.missed + max(0, head.first - group.first)
        timeout = head.retry.timeout
        found.due = context.due_in(timeout)
        context.emit(DeliverRecords(member, GroupDelivery(name, number), group.first, group.last, missed, timeout))
