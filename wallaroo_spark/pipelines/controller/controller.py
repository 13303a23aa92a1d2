"""The controller of a key: :class:`KeyController` takes the events of one batch and returns instructions.

It has no socket, clock, thread or file, and the same state, time and events give the same result. The parts, each built
on those before it:

- :mod:`.partition_log` -- records get offsets, once
- :mod:`.transactions` -- transactions of deliveries, and staged statements
- :mod:`.groups` -- groups of subscribers
- :mod:`.instances` -- active instances and their stages
- :mod:`.pipelines` -- pipelines move along the stream

Source: ``docs/pipelines/design.md``.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from wallaroo_spark.errors import PipelineError, bounded_reason
from wallaroo_spark.pipelines.controller.context import CallContext
from wallaroo_spark.pipelines.controller.groups import SubscriberGroups
from wallaroo_spark.pipelines.controller.instances import ActiveInstances, ack_problem
from wallaroo_spark.pipelines.controller.messages import events as e
from wallaroo_spark.pipelines.controller.messages import instructions, values
from wallaroo_spark.pipelines.controller.messages.plans import RetryPlan
from wallaroo_spark.pipelines.controller.partition_log import PartitionLog, records_problem
from wallaroo_spark.pipelines.controller.pipelines import PipelineRuns
from wallaroo_spark.pipelines.controller.states import DeliveryEvent, DeliveryState
from wallaroo_spark.pipelines.controller.stored.entries import Changes
from wallaroo_spark.pipelines.controller.stored.key_state import OpenDelivery
from wallaroo_spark.pipelines.controller.transactions import StagedStatements, Transactions

LONGEST_DELAY = 24 * 3600 * 1000
"""The most milliseconds that a nack may delay the next delivery. A choice: a day; every wait has an end."""
_LEFT = "the member has left, or its gateway has ended"
_OVERDUE = (
    "the delivery was taken away, because it was not settled within deliveryTimeout or an operator said so; its "
    "message is dropped. A member that works for longer extends its delivery"
)
_LATE = "the delivery is not open, or another member has it; its message is dropped"


class KeyController:
    """The controller of a key during one batch, for a shell that answers instructions within the batch.

    :meth:`handle` may be called again with the answers to its instructions. The entries stay decoded between the calls;
    :meth:`take_changes` returns the changes of all calls at the end, and :attr:`fresh` the records that they append.
    """

    def __init__(self, context: CallContext) -> None:
        self.context = context
        self._head = context.head
        self._log = PartitionLog(context)
        self._transactions = Transactions(context)
        self._staged = StagedStatements(context, self._log)
        self._groups = SubscriberGroups(context)
        self._instances = ActiveInstances(context, self._transactions)
        self._pipelines = PipelineRuns(context, self._instances)
        self.fresh_from, self.fresh = context.fresh_from, context.fresh
        """Offset of the first record of this batch, and its records."""
        self._handlers: Mapping[type, Callable[[Any], None]] = {
            e.RecordsPublished: self._log.published,
            e.RecordsDelayed: self._log.delayed,
            e.RecordsExpired: self._log.expired,
            e.RecordsRead: self._read,
            e.DeliveryAcked: self._acked,
            e.DeliveryNacked: self._nacked,
            e.DeliveryExtended: self._extended,
            e.DeliveriesTaken: self._taken,
            e.GroupJoined: self._group_joined,
            e.StageJoined: self._stage_joined,
            e.GroupChanged: self._group_changed,
            e.MemberLeft: self._left,
            e.GatewayStarted: self._gateway_started,
            e.TransactionBegun: self._begin,
            e.StatementAdded: self._add_statement,
            e.InstanceCancelled: self._pipelines.cancel,
            e.PartitionDeclared: self._declared,
            e.CarriedIn: self._carried,
        }

    def handle(self, events: Sequence[e.Event]) -> list[instructions.Instruction]:
        """Handle events. Returns the instructions of this call in order.

        Raises :class:`PipelineError` for an event that only a defect can cause; nothing of the batch may then be kept.
        """
        out: list[instructions.Instruction] = []
        self.context.out = out
        # What is due in a stream that is deleted is not written any more.
        declared = list(itertools.takewhile(lambda event: isinstance(event, e.PartitionDeclared), events))
        for event in declared:
            self.take(event)
        self.wake()
        for event in events[len(declared) :]:
            if not isinstance(event, e.CarriedIn):
                self._log.place_moved()
            self.take(event)
        self._log.place_moved()
        self.settle()
        return out

    def pause(self) -> None:
        """Ask for no more records in this batch. The timer wakes the key for the rest in a later batch."""
        self._pipelines.paused = True

    @property
    def armed(self) -> int | None:
        """The time at which the key is to be woken; None: not at all."""
        return self._head.armed

    def take_changes(self) -> Changes:
        """The changed entries. The controller must not be used afterwards."""
        return self.context.entries.take_changes()

    def wake(self) -> None:
        """Time has passed: delayed deliveries and records are due, and statements that found no room before."""
        now, head = self.context.now, self._head
        self._instances.set_aside()
        self._staged.append_committed()
        if head.armed is not None and head.armed <= now:
            head.armed = None
        later = []
        while head.delayed and head.delayed[0][0] <= now:
            due, delivery = head.delayed.pop(0)
            if isinstance(delivery, values.StageDelivery):
                self._instances.due(delivery)
                continue
            if isinstance(delivery, values.DelayedRecords):
                if not self._log.due(delivery):
                    later.append((due, delivery))
                continue
            found = self._groups.find(delivery)
            if found is not None and found.state is DeliveryState.DELAYED and found.due == due:
                found.on(DeliveryEvent.DUE)
        # They stay the first ones, in their order.
        head.delayed[:0] = later

    def settle(self) -> None:
        """Carry out all that has become possible."""
        self._time_out()
        self._pipelines.advance()
        self._groups.deliver()
        self._instances.deliver()
        # Records that are due and have found no room in this batch are appended by the next one.
        # The time of the next batch is later than that of this one.
        following = self.context.now + 1
        times = [max(self._head.delayed[0][0], following)] if self._head.delayed else []
        times += [following] if self._pipelines.held_up or self._head.committing else []
        times += [self._head.deadline] if self._head.deadline is not None else []
        due = min(times, default=None)
        if due != self._head.armed:
            self._head.armed = due
            self.context.emit(instructions.ArmTimer(due))

    def take(self, event: e.Event) -> None:
        """Handle one event."""
        self._handlers[type(event)](event)

    def _read(self, event: e.RecordsRead) -> None:
        # Only the name of a pipeline has a slash.
        part: PipelineRuns | SubscriberGroups = self._pipelines if "/" in event.pipeline else self._groups
        part.read(event)

    def _group_joined(self, event: e.GroupJoined) -> None:
        if self._may_join(event, self._groups.problem(event)):
            self._groups.joined(event)

    def _stage_joined(self, event: e.StageJoined) -> None:
        if self._may_join(event, self._pipelines.problem(event)):
            self._pipelines.joined(event)

    def _declared(self, event: e.PartitionDeclared) -> None:
        head = self._head
        if event.version <= head.version:
            return
        if event.plan is None or not head.declared:
            self._log.forget_records()
        was_declared = head.declared
        head.version, head.declared = event.version, event.plan is not None
        if event.plan is not None:
            head.window_millis, head.window_records = event.plan.window_millis, event.plan.window_records
            head.retry = event.plan.retry
            if not was_declared:
                head.born = head.raised = event.version
                head.partitions = [event.plan.partitions]
            elif event.plan.partitions > head.partitions[-1]:
                head.raised = event.version
                head.partitions.append(event.plan.partitions)
                self._groups.announce(range(head.partitions[-2], head.partitions[-1]))
                self._log.announce_ids()
        self._pipelines.declared(event.version, event.plan.pipelines if event.plan is not None else ())
        if event.plan is None:
            for name in [*head.members]:
                self._left(e.MemberLeft(name))
                self.context.emit(instructions.EndSubscription(name, "the stream is deleted"))
            for name, group in head.groups.items():
                if group.open is not None:
                    self._transactions.give_up(values.GroupDelivery(name, group.open.number), "the stream is deleted")
            head.groups.clear()
            self._log.forget_delayed()
            self._staged.forget_records()

    def _may_join(self, event: e.GroupJoined | e.StageJoined, problem: str) -> bool:
        """Answer a member that wants to join. Returns whether it may."""
        reply = event.reply_to
        if not problem and event.member in self._head.members:
            problem = f"there is a member {event.member} already; a member joins once"
        if not problem and reply.generation < self._head.gateways.get(reply.gateway, reply.generation):
            problem = f"gateway {reply.gateway} has started again since; connect to it again"
        if problem:
            self.context.refuse(reply, problem)
        else:
            self.context.answer(reply)
        return not problem

    def _left(self, event: e.MemberLeft) -> None:
        name = event.member
        member = self._head.members.get(name)
        if member is None:
            return
        if member.group:
            open_delivery = self._groups.left(name, member)
            left: list[values.Delivery] = [] if open_delivery is None else [open_delivery]
        else:
            self._pipelines.left(name, member)
            left = [*self._instances.held_by(name, member)]
        del self._head.members[name]
        for delivery in left:
            self._transactions.give_up(delivery, _LEFT)
            self._redeliver(delivery, DeliveryEvent.NACKED, 0, _LEFT)
        self._groups.end_if_unused(member.group)

    def _gateway_started(self, event: e.GatewayStarted) -> None:
        gateways = self._head.gateways
        gateways[event.gateway] = max(event.generation, gateways.get(event.gateway, event.generation))
        for name, member in [*self._head.members.items()]:
            if member.gateway == event.gateway and member.generation < event.generation:
                self._left(e.MemberLeft(name))

    def _find(self, delivery: values.Delivery) -> OpenDelivery | None:
        if isinstance(delivery, values.GroupDelivery):
            return self._groups.find(delivery)
        return self._instances.find(delivery)

    def _has(
        self, member: str, delivery: values.Delivery, reply_to: values.ReplyTo | None, *, settles: bool = False
    ) -> OpenDelivery | None:
        """The delivery, if this member has it now; else the member is warned. ``settles``: by an ack or a nack."""
        found = self._find(delivery)
        if found is not None and found.member == member and found.state is DeliveryState.DELIVERED:
            return found
        late = self._head.members.get(member)
        if late is not None and delivery.number in late.overdue:
            if settles:
                late.overdue.remove(delivery.number)
                late.open -= bool(late.stage)
            self.context.warn(reply_to, _OVERDUE)
            return None
        self.context.warn(reply_to, _LATE)
        return None

    def _acked(self, event: e.DeliveryAcked) -> None:
        found = self._has(event.member, event.delivery, event.reply_to, settles=True)
        if found is None:
            return
        if isinstance(event.delivery, values.StageDelivery):
            plan = self._instances.stage(event.delivery)
            if problem := ack_problem(plan, event) or self._instances.inputs_problem(event.delivery, event.output):
                self.context.refuse(event.reply_to, problem)
                # A function is called again in a later batch: the same turn would never end.
                delay = max(plan.retry.retry_delay(found.attempts), 1 if event.member == values.IN_SPARK else 0)
                self._give_back(event.delivery, found, delay, problem)
                return
        if self._transactions.get(event.delivery) is None:
            self.context.answer(event.reply_to)
            self._finish(event, DeliveryEvent.ACKED)
        elif self._transactions.ack(event):
            self._finish(event, DeliveryEvent.ACKED)
        else:
            found.on(DeliveryEvent.ACKED_EARLY)

    def _finish(self, ack: e.DeliveryAcked, event: DeliveryEvent) -> None:
        if isinstance(ack.delivery, values.GroupDelivery):
            self._groups.finish(ack.delivery, event)
        else:
            self._instances.finish(ack.delivery, event, ack.output, ack.stream_outputs)

    def _nacked(self, event: e.DeliveryNacked) -> None:
        found = self._has(event.member, event.delivery, event.reply_to, settles=True)
        if found is None:
            return
        self.context.answer(event.reply_to)
        delay = max(min(max(0, event.delay), LONGEST_DELAY), self._retry_delay(event.delivery, found))
        self._give_back(event.delivery, found, delay, event.reason)

    def _give_back(self, delivery: values.Delivery, found: OpenDelivery, delay: int, reason: str) -> None:
        """A delivery that a member has is nacked, by the member or in its place."""
        reason = bounded_reason(reason)
        self._transactions.give_up(delivery, reason or "the delivery is nacked")
        self._redeliver(delivery, DeliveryEvent.NACKED_WITH_DELAY if delay else DeliveryEvent.NACKED, delay, reason)

    def _redeliver(self, delivery: values.Delivery, event: DeliveryEvent, delay: int, reason: str) -> None:
        if isinstance(delivery, values.StageDelivery):
            self._instances.redeliver(delivery, event, delay, reason)
        else:
            self._groups.redeliver(delivery, event, delay, reason)

    def _retry(self, delivery: values.Delivery) -> RetryPlan:
        return self._instances.stage(delivery).retry if isinstance(delivery, values.StageDelivery) else self._head.retry

    def _retry_delay(self, delivery: values.Delivery, found: OpenDelivery) -> int:
        return self._retry(delivery).retry_delay(found.attempts)

    def _time_out(self) -> None:
        """Take away the deliveries whose time is over. The acks of this batch have been taken before."""
        head, now = self._head, self.context.now
        if head.deadline is None or head.deadline > now:
            return
        head.deadline = None
        timed: list[tuple[int, values.Delivery]] = [*self._groups.timed(), *self._instances.timed()]
        for due, delivery in timed:
            if due > now:
                self.context.expect(due)
            # The end of an earlier one may have ended its whole instance.
            elif self._find(delivery) is not None:
                timeout = self._retry(delivery).timeout
                # It may have no limit any more, by a newer declaration.
                limit = f"{timeout / 1000:g} s" if timeout else "its time"
                self._take_away(delivery, f"it was not settled within {limit} (deliveryTimeout), nor extended")

    def _take_away(self, delivery: values.Delivery, reason: str) -> None:
        """A delivery ends without its member, whose place it keeps: one that hangs is not given the next."""
        found = self._find(delivery)
        if found is None or found.state is not DeliveryState.DELIVERED:
            return
        name, number = found.member, found.number
        # As that of a member that has left, it comes again at once.
        self._give_back(delivery, found, 0, reason)
        member = self._head.members[name]
        member.overdue.append(number)
        member.open += bool(member.stage)
        self.context.emit(instructions.WithdrawDelivery(name, delivery, reason, True))

    def _extended(self, event: e.DeliveryExtended) -> None:
        found = self._has(event.member, event.delivery, None)
        if found is not None:
            # By the newest declaration, which may have no limit any more.
            found.due = self.context.due_in(self._retry(event.delivery).timeout)

    def _taken(self, event: e.DeliveriesTaken) -> None:
        taken: list[values.Delivery]
        if event.group:
            group = self._head.groups.get(event.group)
            taken = [values.GroupDelivery(event.group, group.open.number)] if group is not None and group.open else []
        else:
            taken = [*self._instances.taken(event)]
        with_members: list[values.Delivery] = [
            one for one in taken if (found := self._find(one)) and found.state is DeliveryState.DELIVERED
        ]
        if not with_members:
            what = f"group {event.group}" if event.group else f"instance {event.instance} of {event.pipeline}"
            self.context.refuse(event.reply_to, f"no member has a delivery of {what} on {self.context.key}")
            return
        self.context.answer(event.reply_to)
        for delivery in with_members:
            self._take_away(delivery, "an operator has taken it away")

    def _group_changed(self, event: e.GroupChanged) -> None:
        if event.group not in self._head.groups:
            text = f"there is no group {event.group} on {self.context.key}; wallaroo-spark groups list shows them"
            self.context.refuse(event.reply_to, text)
            return
        self.context.answer(event.reply_to)
        found = self._head.groups[event.group].open
        if found is not None and event.action in (e.GroupAction.MOVE, e.GroupAction.DELETE):
            delivery = values.GroupDelivery(event.group, found.number)
            reason = f"an operator has changed the group: {event.action}"
            self._transactions.give_up(delivery, reason)
            if found.state is DeliveryState.DELIVERED and event.action is e.GroupAction.MOVE:
                self.context.emit(instructions.WithdrawDelivery(found.member, delivery, reason))
        self._groups.changed(event)

    def _begin(self, event: e.TransactionBegun) -> None:
        if event.member == values.IN_SPARK or self._has(event.member, event.delivery, event.reply_to) is None:
            return
        if self._transactions.get(event.delivery) is not None:
            self.context.warn(event.reply_to, "the delivery has a transaction already; the message is dropped")
            return
        self._transactions.begin(event.delivery)
        self.context.answer(event.reply_to)

    def _add_statement(self, event: e.StatementAdded) -> None:
        found = self._has(event.member, event.delivery, event.reply_to)
        if found is None:
            return
        if self._transactions.get(event.delivery) is None:
            text = "the delivery has no transaction; begin one first; the statement is dropped"
            self.context.warn(event.reply_to, text)
            return
        if problem := records_problem(event.records):
            self.context.refuse(event.reply_to, f"{problem}; the transaction is rolled back")
            delay = self._retry_delay(event.delivery, found)
            self._give_back(event.delivery, found, delay, f"a statement is not valid: {problem}")
            return
        self._transactions.add(event)

    def _carried(self, event: e.CarriedIn) -> None:
        """A message of another key; a repeated one is dropped, a missing one is an error."""
        expected = self._head.received.get(event.source, 0) + 1
        if event.sequence < expected:
            return
        if event.sequence > expected:
            raise PipelineError(
                f"{self.context.key}: message {event.sequence} of {event.source} arrives, and {expected} is the next; "
                "the messages between them are lost",
                expected=expected,
                sequence=event.sequence,
            )
        self._head.received[event.source] = event.sequence
        self._arrived(event.source, event.message)

    def _arrived(self, source: values.PartitionKey, message: e.Carried) -> None:
        match message:
            case e.AppendOutput():
                self._append_output(source, message)
            case e.ApplyStatement():
                self._staged.apply(source, message)
            case e.CommitStatement():
                self._staged.commit(source, message)
            case e.AbortStatement():
                self._staged.abort(source, message)
            case e.OutputRefused(values.GroupDelivery() as delivery, reason):
                self._groups.letter_refused(delivery, reason)
            case e.OutputAppended(values.OutputId()) | e.OutputRefused():
                self._instances.placed(source, message)
            case e.StatementApplied():
                self._commit_early_ack(message)
            case e.StatementRefused():
                self._refused(message)
            case e.StatementAppended():
                self._transactions.appended(message)
            case e.GroupsExist() if self._is_of_this_life(message.version):
                self._groups.exist(message.groups)
            case e.IdsMoved() if self._is_of_this_life(message.version):
                self._log.ids_moved(source.partition, message)
            case e.RecordsMoved():
                self._log.moved(message)

    def _is_of_this_life(self, version: int) -> bool:
        """Whether a message about added partitions is of the stream that is declared now."""
        return self._head.declared and version >= self._head.born

    def _append_output(self, source: values.PartitionKey, message: e.AppendOutput) -> None:
        if not self._head.declared:
            self.context.carry(source, e.OutputRefused(message.output, self.context.no_stream()))
            return
        written = self._log.append(message.records)
        self.context.carry(source, e.OutputAppended(message.output, written.offsets, written.partitions))

    def _refused(self, message: e.StatementRefused) -> None:
        delivery = message.statement.delivery
        if not self._transactions.refused(message):
            return
        found = self._find(delivery)
        if found is not None and found.state is DeliveryState.DELIVERED:
            # The member may have the answers to all of its messages, and so no other way to hear it.
            reason = f"its transaction is rolled back: {message.reason}"
            self.context.emit(instructions.WithdrawDelivery(found.member, delivery, reason))
        if found is not None:
            delay = self._retry_delay(delivery, found)
            rejected = DeliveryEvent.TRANSACTION_REJECTED_WITH_DELAY if delay else DeliveryEvent.TRANSACTION_REJECTED
            self._redeliver(delivery, rejected, delay, bounded_reason(message.reason))

    def _commit_early_ack(self, message: e.StatementApplied) -> None:
        delivery = message.statement.delivery
        transaction = self._transactions.get(delivery)
        if self._transactions.applied(message) and transaction is not None:
            ack = e.DeliveryAcked(transaction.acked_by, "", delivery, transaction.output, transaction.stream_outputs)
            if self._find(delivery) is not None:
                self._finish(ack, DeliveryEvent.TRANSACTION_COMMITTED)
