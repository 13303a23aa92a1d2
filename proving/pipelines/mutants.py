"""Rules of the controller that are broken on purpose, one at a time, to test that the histories find each."""

from __future__ import annotations

import random
from collections.abc import Callable
from contextlib import AbstractContextManager, ExitStack
from typing import Any
from unittest import mock

from wallaroo_spark.pipelines.controller import controller, instances, stages
from wallaroo_spark.pipelines.controller.context import CallContext
from wallaroo_spark.pipelines.controller.groups import SubscriberGroups
from wallaroo_spark.pipelines.controller.instances import ActiveInstances
from wallaroo_spark.pipelines.controller.messages.carried import AbortStatement
from wallaroo_spark.pipelines.controller.messages.values import GroupDelivery
from wallaroo_spark.pipelines.controller.partition_log import PartitionLog
from wallaroo_spark.pipelines.controller.pipelines import PipelineRuns
from wallaroo_spark.pipelines.controller.states import DeliveryEvent, StatementState
from wallaroo_spark.pipelines.controller.stored.key_state import Instance, PipelineProgress
from wallaroo_spark.pipelines.controller.transactions import Transactions

Mutant = Callable[[], AbstractContextManager[Any]]


def appends_known_events() -> AbstractContextManager[Any]:
    """An event that is published again is written again."""
    append = PartitionLog.append

    def forgetful(self: PartitionLog, records: Any) -> tuple[int, ...]:
        with mock.patch.object(self._context.entries.seen, "get", return_value=None):
            return append(self, records)

    return mock.patch.object(PartitionLog, "append", forgetful)


def begins_instances_without_room() -> AbstractContextManager[Any]:
    """``maxParallel`` is ignored."""
    return mock.patch.object(PipelineProgress, "has_room", property(lambda self: True))


def passes_over_records_without_room() -> AbstractContextManager[Any]:
    """The cursor goes on though there was no room for an instance."""
    begin = ActiveInstances.begin

    def only_with_room(self: ActiveInstances, pipeline: PipelineProgress, number: int, root: Any) -> None:
        if pipeline.active < pipeline.plan.max_parallel:
            begin(self, pipeline, number, root)

    stack = ExitStack()
    stack.enter_context(begins_instances_without_room())
    stack.enter_context(mock.patch.object(ActiveInstances, "begin", only_with_room))
    return stack


def takes_repeated_messages() -> AbstractContextManager[Any]:
    """A message that the feed repeats counts again."""

    def every(self: Any, event: Any) -> None:
        self._head.received[event.source] = max(event.sequence, self._head.received.get(event.source, 0))
        self._arrived(event.source, event.message)

    return mock.patch.object(controller.KeyController, "_carried", every)


def takes_acks_of_earlier_deliveries() -> AbstractContextManager[Any]:
    """An ack counts, whichever delivery of its batch it names."""

    def find(self: SubscriberGroups, delivery: GroupDelivery) -> Any:
        group = self._groups.get(delivery.group)
        return group.open if group is not None else None

    def has(self: Any, member: str, delivery: Any, reply_to: Any) -> Any:
        return self._find(delivery)

    stack = ExitStack()
    stack.enter_context(mock.patch.object(SubscriberGroups, "find", find))
    stack.enter_context(mock.patch.object(controller.KeyController, "_has", has))
    return stack


def commits_before_all_is_applied() -> AbstractContextManager[Any]:
    """A transaction commits with its ack, though a statement may still be refused."""
    commit = Transactions._commit_if_applied

    def early(self: Transactions, delivery: Any, transaction: Any) -> bool:
        if transaction.acked:
            for statement in transaction.statements:
                statement.state = StatementState.APPLIED
        return commit(self, delivery, transaction)

    return mock.patch.object(Transactions, "_commit_if_applied", early)


def forgets_to_abort() -> AbstractContextManager[Any]:
    """The targets of a rejected transaction are not told."""
    carry = CallContext.carry

    def without_aborts(self: CallContext, target: Any, message: Any) -> None:
        if not isinstance(message, AbortStatement):
            carry(self, target, message)

    return mock.patch.object(CallContext, "carry", without_aborts)


def keeps_transactions_of_nacked_deliveries() -> AbstractContextManager[Any]:
    """A nack or a disconnect does not reject the transaction."""
    return mock.patch.object(Transactions, "give_up", return_value=None)


def moves_on_after_a_nack() -> AbstractContextManager[Any]:
    """A nacked batch of a group counts as done."""
    redeliver = controller.KeyController._redeliver

    def finish(self: Any, delivery: Any, event: DeliveryEvent, *rest: Any) -> None:
        if isinstance(delivery, GroupDelivery) and event is DeliveryEvent.NACKED:
            self._groups.finish(delivery, DeliveryEvent.ACKED)
        else:
            redeliver(self, delivery, event, *rest)

    return mock.patch.object(controller.KeyController, "_redeliver", finish)


def accepts_incomplete_acks() -> AbstractContextManager[Any]:
    """An ack without a required output counts."""
    return mock.patch.object(controller, "ack_problem", return_value="")


def begins_stages_too_early() -> AbstractContextManager[Any]:
    """A stage begins when its predecessors have begun."""
    return mock.patch.object(stages, "is_done", lambda instance, stage: stage in instance.stages)


def forgets_outputs_too_early() -> AbstractContextManager[Any]:
    """Outputs are forgotten with the next event of their instance."""

    def everything(plan: Any, instance: Instance) -> None:
        for progress in instance.stages.values():
            progress.output = None

    return mock.patch.object(instances, "release", everything)


def ends_before_its_pointers() -> AbstractContextManager[Any]:
    """An instance ends before the offsets of its stream outputs are known."""
    return mock.patch.object(Instance, "unplaced", property(lambda self: 0, lambda self, value: None))


def draws_members_by_chance() -> AbstractContextManager[Any]:
    """A random member is another one when the batch runs again."""
    chance = random.Random(1)
    return mock.patch.object(CallContext, "draw", lambda self, members, number: chance.choice(members))


def believes_in_dead_gateways() -> AbstractContextManager[Any]:
    """The members of a gateway's earlier generation stay."""
    return mock.patch.object(controller.KeyController, "_gateway_started", return_value=None)


def sleeps_through_its_timers() -> AbstractContextManager[Any]:
    """A delayed delivery is never due."""
    return mock.patch.object(controller.KeyController, "wake", return_value=None)


def ignores_read_records() -> AbstractContextManager[Any]:
    """Records behind a cursor are asked for, and the answer is dropped."""
    return mock.patch.object(PipelineRuns, "read", return_value=None)


def takes_members_only_for_the_newest_plan() -> AbstractContextManager[Any]:
    """A stage that only instances of an older plan have gets no members."""
    problem = PipelineRuns.problem

    def newest(self: PipelineRuns, event: Any) -> str:
        progress = self._pipelines.get(event.pipeline)
        if progress is not None and progress.plan.stage(event.stage) is None:
            return "there is no such stage"
        return problem(self, event)

    return mock.patch.object(PipelineRuns, "problem", newest)


MUTANTS: dict[str, Mutant] = {
    mutant.__name__: mutant
    for mutant in (
        appends_known_events,
        begins_instances_without_room,
        passes_over_records_without_room,
        takes_repeated_messages,
        takes_acks_of_earlier_deliveries,
        commits_before_all_is_applied,
        forgets_to_abort,
        keeps_transactions_of_nacked_deliveries,
        moves_on_after_a_nack,
        accepts_incomplete_acks,
        begins_stages_too_early,
        forgets_outputs_too_early,
        ends_before_its_pointers,
        draws_members_by_chance,
        believes_in_dead_gateways,
        sleeps_through_its_timers,
        ignores_read_records,
        takes_members_only_for_the_newest_plan,
    )
}
