"""The controller of a key: ``handle`` takes the events of one batch and returns instructions.

It has no socket, clock, thread or file, and the same state, time and events give the same result. The parts, each built
on those before it:

- :mod:`.partition_log` -- records get offsets, once
- :mod:`.connectors` -- streams of connectors, each message once
- :mod:`.transactions` -- transactions of deliveries, and staged statements
- :mod:`.groups` -- groups of subscribers
- :mod:`.instances` -- active instances, with :mod:`.stages`
- :mod:`.pipelines` -- pipelines move along the stream

Source: ``docs/pipelines/design.md``.
"""

from __future__ import annotations

from bisect import insort
from collections.abc import Sequence

from wallaroo_spark.errors import PipelineError
from wallaroo_spark.pipelines.controller.connectors import ConnectorStreams
from wallaroo_spark.pipelines.controller.context import CallContext, next_state
from wallaroo_spark.pipelines.controller.groups import SubscriberGroups
from wallaroo_spark.pipelines.controller.instances import ActiveInstances
from wallaroo_spark.pipelines.controller.messages import carried as c
from wallaroo_spark.pipelines.controller.messages import events as e
from wallaroo_spark.pipelines.controller.messages.instructions import ArmTimer, EndSubscription, Instruction
from wallaroo_spark.pipelines.controller.messages.values import (
    IN_SPARK,
    CloudEvent,
    DelayedRecords,
    Delivery,
    GroupDelivery,
    PartitionKey,
    ReplyTo,
    StageDelivery,
)
from wallaroo_spark.pipelines.controller.partition_log import PartitionLog, records_problem
from wallaroo_spark.pipelines.controller.pipelines import PipelineRuns
from wallaroo_spark.pipelines.controller.stages import ack_problem
from wallaroo_spark.pipelines.controller.states import DELIVERY, DeliveryEvent, DeliveryState
from wallaroo_spark.pipelines.controller.stored.entries import Changes, Stored
from wallaroo_spark.pipelines.controller.stored.key_state import OpenDelivery
from wallaroo_spark.pipelines.controller.stored.seen_ids import SeenCache
from wallaroo_spark.pipelines.controller.transactions import StagedStatements, Transactions

LONGEST_DELAY = 24 * 3600 * 1000
"""The most milliseconds that a nack may delay the next delivery. A choice: a day; every wait has an end."""
_LATE = "the delivery is not open, or another member has it; its message is dropped"


def handle(key: PartitionKey, now: int, stored: Stored, events: Sequence[e.Event]) -> tuple[list[Instruction], Changes]:
    """Handle the events of a key in one batch. Returns the instructions in order, and the changed entries.

    ``now`` is the time of the batch in milliseconds since 1970 UTC; it does not decrease. Raises :class:`PipelineError`
    for an event that only a defect can cause; nothing of the batch may then be kept.
    """
    controller = KeyController(key, now, stored)
    return controller.handle(events), controller.take_changes()


class KeyController:
    """The controller of a key during one batch, for a shell that answers instructions within the batch.

    :meth:`handle` may be called again with the answers to its instructions. The entries stay decoded between the calls,
    and :meth:`take_changes` returns the changes of all calls at the end.
    """

    def __init__(self, key: PartitionKey, now: int, stored: Stored, cache: SeenCache | None = None) -> None:
        self.context = context = CallContext(key, now, stored, cache)
        self._head = context.head
        self._log = PartitionLog(context)
        self._connectors = ConnectorStreams(context, self._log)
        self._transactions = Transactions(context)
        self._staged = StagedStatements(context, self._log)
        self._groups = SubscriberGroups(context)
        self._instances = ActiveInstances(context, self._transactions)
        self._pipelines = PipelineRuns(context, self._instances)

    def handle(self, events: Sequence[e.Event]) -> list[Instruction]:
        """Handle events. Returns the instructions of this call in order."""
        out: list[Instruction] = []
        self.context.out = out
        self.wake()
        for event in events:
            self.take(event)
        self.settle()
        return out

    def pause(self) -> None:
        """Ask for no more records in this batch. The timer wakes the key for the rest in a later batch."""
        self._pipelines.paused = True

    @property
    def armed(self) -> int | None:
        """The time at which the key is to be woken; None: not at all."""
        return self._head.armed

    @property
    def fresh_from(self) -> int:
        """Offset of the first record of this batch."""
        return self.context.fresh_from

    @property
    def fresh(self) -> Sequence[CloudEvent]:
        """The records of this batch."""
        return self.context.fresh

    def take_changes(self) -> Changes:
        """The changed entries. The controller must not be used afterwards."""
        return self.context.entries.take_changes()

    def wake(self) -> None:
        """Time has passed: delayed deliveries and records are due."""
        now, head = self.context.now, self._head
        if head.armed is not None and head.armed <= now:
            head.armed = None
        while head.delayed and head.delayed[0][0] <= now:
            due, delivery = head.delayed.pop(0)
            if isinstance(delivery, StageDelivery):
                self._instances.due(delivery)
                continue
            if isinstance(delivery, DelayedRecords):
                self._log.due(delivery)
                continue
            found = self._groups.find(delivery)
            if found is not None and found.state is DeliveryState.DELAYED and found.due == due:
                found.state = next_state(DELIVERY, found.state, DeliveryEvent.DUE)

    def settle(self) -> None:
        """Carry out all that has become possible."""
        self._pipelines.advance()
        self._groups.deliver()
        self._instances.deliver()
        due = self._head.delayed[0][0] if self._head.delayed else None
        if self._pipelines.held_up:
            # The time of the next batch is later than that of this one.
            due = self.context.now + 1 if due is None else min(due, self.context.now + 1)
        if due != self._head.armed:
            self._head.armed = due
            self.context.say(ArmTimer(due))

    def take(self, event: e.Event) -> None:
        """Handle one event."""
        match event:
            case e.RecordsPublished():
                self._log.published(event)
            case e.RecordsDelayed():
                self._log.delayed(event)
            case e.MessagesSent():
                self._connectors.sent(event)
            case e.ConnectorOpened():
                self._connectors.opened(event)
            case e.ConnectorAsked():
                self._connectors.asked(event)
            case e.DeliveryAcked():
                self._acked(event)
            case e.DeliveryNacked():
                self._nacked(event)
            case e.CarriedIn():
                self._carried(event)
            case e.RecordsRead():
                self._pipelines.read(event)
            case e.GroupJoined():
                if self._may_join(event, self._groups.problem(event)):
                    self._groups.joined(event)
            case e.StageJoined():
                if self._may_join(event, self._pipelines.problem(event)):
                    self._pipelines.joined(event)
            case e.MemberLeft():
                self._left(event.member)
            case e.GatewayStarted():
                self._gateway_started(event)
            case e.TransactionBegun():
                self._begin(event)
            case e.StatementAdded():
                self._add_statement(event)
            case e.InstanceCancelled():
                self._pipelines.cancel(event)
            case e.RecordsExpired():
                self._log.expired(event)
            case e.PartitionDeclared():
                self._declared(event)

    def _declared(self, event: e.PartitionDeclared) -> None:
        head = self._head
        if event.version <= head.version:
            return
        if event.plan is None or not head.declared:
            self._log.forget_records()
        head.version, head.declared = event.version, event.plan is not None
        if event.plan is not None:
            head.window_millis, head.window_records = event.plan.window_millis, event.plan.window_records
        self._pipelines.declared(event.version, event.plan.pipelines if event.plan is not None else ())
        if event.plan is None:
            for name in [*head.members]:
                self._left(name)
                self.context.say(EndSubscription(name, "the stream is deleted"))
            for name, group in head.groups.items():
                if group.open is not None:
                    self._transactions.give_up(GroupDelivery(name, group.open.number), "the stream is deleted")
            head.groups.clear()
            self._log.forget_delayed()

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

    def _left(self, name: str) -> None:
        member = self._head.members.get(name)
        if member is None:
            return
        if member.group:
            open_delivery = self._groups.left(name, member)
            left: list[Delivery] = [] if open_delivery is None else [open_delivery]
        else:
            self._pipelines.left(name, member)
            left = [*self._instances.held_by(name, member)]
        del self._head.members[name]
        for delivery in left:
            self._transactions.give_up(delivery, "the member has left")
            self._redeliver(delivery, DeliveryEvent.NACKED)
        self._groups.end_if_unused(member.group)

    def _gateway_started(self, event: e.GatewayStarted) -> None:
        gateways = self._head.gateways
        gateways[event.gateway] = max(event.generation, gateways.get(event.gateway, event.generation))
        for name, member in [*self._head.members.items()]:
            if member.gateway == event.gateway and member.generation < event.generation:
                self._left(name)

    def _find(self, delivery: Delivery) -> OpenDelivery | None:
        if isinstance(delivery, GroupDelivery):
            return self._groups.find(delivery)
        return self._instances.find(delivery)

    def _has(self, member: str, delivery: Delivery, reply_to: ReplyTo | None) -> OpenDelivery | None:
        """The delivery, if this member has it now; else the member is warned."""
        found = self._find(delivery)
        if found is not None and found.member == member and found.state is DeliveryState.DELIVERED:
            return found
        self.context.warn(reply_to, _LATE)
        return None

    def _acked(self, event: e.DeliveryAcked) -> None:
        found = self._has(event.member, event.delivery, event.reply_to)
        if found is None:
            return
        if isinstance(event.delivery, StageDelivery):
            plan = self._instances.stage(event.delivery)
            if problem := ack_problem(plan, event):
                self.context.refuse(event.reply_to, problem)
                self._give_back(event.delivery, found, plan.retry_delay(found.attempts), problem)
                return
        if self._transactions.get(event.delivery) is None:
            self.context.answer(event.reply_to)
            self._finish(event, DeliveryEvent.ACKED)
        elif self._transactions.ack(event):
            self._finish(event, DeliveryEvent.ACKED)
        else:
            found.state = next_state(DELIVERY, found.state, DeliveryEvent.ACKED_EARLY)

    def _finish(self, ack: e.DeliveryAcked, event: DeliveryEvent) -> None:
        if isinstance(ack.delivery, GroupDelivery):
            self._groups.finish(ack.delivery, event)
        else:
            self._instances.finish(ack.delivery, event, ack.output, ack.stream_outputs)

    def _nacked(self, event: e.DeliveryNacked) -> None:
        found = self._has(event.member, event.delivery, event.reply_to)
        if found is None:
            return
        self.context.answer(event.reply_to)
        delay = min(max(0, event.delay), LONGEST_DELAY)
        if isinstance(event.delivery, StageDelivery):
            delay = max(delay, self._instances.stage(event.delivery).retry_delay(found.attempts))
        self._give_back(event.delivery, found, delay, event.reason)

    def _give_back(self, delivery: Delivery, found: OpenDelivery, delay: int, reason: str) -> None:
        """A delivery that a member has is nacked, by the member or in its place."""
        self._transactions.give_up(delivery, reason or "the delivery is nacked")
        self._redeliver(delivery, DeliveryEvent.NACKED_WITH_DELAY if delay else DeliveryEvent.NACKED, delay, reason)

    def _redeliver(self, delivery: Delivery, event: DeliveryEvent, delay: int = 0, reason: str = "") -> None:
        if isinstance(delivery, StageDelivery):
            self._instances.redeliver(delivery, event, delay, reason)
            return
        found = self._groups.find(delivery)
        if found is not None:
            found.state = next_state(DELIVERY, found.state, event)
            if found.state is DeliveryState.DELAYED:
                found.due = self.context.now + delay
                insort(self._head.delayed, (found.due, delivery))

    def _begin(self, event: e.TransactionBegun) -> None:
        if event.member == IN_SPARK or self._has(event.member, event.delivery, event.reply_to) is None:
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
            self._give_back(event.delivery, found, 0, f"a statement is not valid: {problem}")
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

    def _arrived(self, source: PartitionKey, message: c.Carried) -> None:
        match message:
            case c.AppendOutput():
                self._append_output(source, message)
            case c.ApplyStatement():
                self._staged.apply(source, message)
            case c.CommitStatement():
                self._staged.commit(source, message)
            case c.AbortStatement():
                self._staged.abort(source, message)
            case c.OutputAppended() | c.OutputRefused():
                self._instances.placed(source, message)
            case c.StatementApplied():
                self._commit_early_ack(message)
            case c.StatementRefused():
                if self._transactions.refused(message):
                    self._redeliver(message.statement.delivery, DeliveryEvent.TRANSACTION_REJECTED)
            case c.StatementAppended():
                self._transactions.appended(message)

    def _append_output(self, source: PartitionKey, message: c.AppendOutput) -> None:
        if not self._head.declared:
            reason = f"there is no stream {self.context.key.stream} with a partition {self.context.key.partition}"
            self.context.carry(source, c.OutputRefused(message.output, reason))
            return
        self.context.carry(source, c.OutputAppended(message.output, self._log.append(message.records)))

    def _commit_early_ack(self, message: c.StatementApplied) -> None:
        delivery = message.statement.delivery
        transaction = self._transactions.get(delivery)
        if self._transactions.applied(message) and transaction is not None:
            ack = e.DeliveryAcked(transaction.acked_by, "", delivery, transaction.output, transaction.stream_outputs)
            if self._find(delivery) is not None:
                self._finish(ack, DeliveryEvent.TRANSACTION_COMMITTED)
