"""Rules of the controller that are broken on purpose, one at a time, to test that the histories find each."""

from __future__ import annotations

import random
from collections.abc import Callable
from contextlib import AbstractContextManager, ExitStack
from typing import Any
from unittest import mock

from wallaroo_spark.engine.operator import functions
from wallaroo_spark.engine.source import plan as source_plan
from wallaroo_spark.pipelines.controller import controller, instances
from wallaroo_spark.pipelines.controller.context import CallContext
from wallaroo_spark.pipelines.controller.groups import SubscriberGroups
from wallaroo_spark.pipelines.controller.instances import ActiveInstances
from wallaroo_spark.pipelines.controller.messages.events import AbortStatement, GroupAction
from wallaroo_spark.pipelines.controller.messages.values import GroupDelivery
from wallaroo_spark.pipelines.controller.partition_log import PartitionLog
from wallaroo_spark.pipelines.controller.pipelines import PipelineRuns
from wallaroo_spark.pipelines.controller.states import DeliveryEvent, StatementState
from wallaroo_spark.pipelines.controller.stored.key_state import Instance, OpenDelivery, PipelineProgress
from wallaroo_spark.pipelines.controller.stored.seen_ids import SeenCache, SeenIds
from wallaroo_spark.pipelines.controller.transactions import Transactions

Mutant = Callable[[], AbstractContextManager[Any]]


def appends_known_events() -> AbstractContextManager[Any]:
    """An event that is published again is written again."""
    append = PartitionLog.append

    def forgetful(self: PartitionLog, records: Any) -> Any:
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

    def has(self: Any, member: str, delivery: Any, reply_to: Any, *, settles: bool = False) -> Any:
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
    return mock.patch.object(instances, "is_done", lambda instance, stage: stage in instance.stages)


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


def believes_stale_ids() -> AbstractContextManager[Any]:
    """A process takes the ids that it keeps for those of the state, also those of a batch that was lost."""

    def take(self: SeenCache, key: Any, trace: bytes) -> Any:
        found = self._kept.pop(key, None)
        return None if found is None else found[1]

    return mock.patch.object(SeenCache, "take", take)


def forgets_the_rest_of_a_turn() -> AbstractContextManager[Any]:
    """No timer wakes a key whose turn ended at its limit."""
    ignored = property(lambda self: False, lambda self, value: None)
    return mock.patch.object(PipelineRuns, "held_up", ignored, create=True)


def asks_for_expired_records() -> AbstractContextManager[Any]:
    """A pipeline does not pass over the records that retention has removed."""
    return mock.patch.object(PipelineRuns, "_skip", return_value=None)


def delivers_expired_records() -> AbstractContextManager[Any]:
    """A group is given records that retention has removed."""
    deliver = SubscriberGroups._deliver

    def all_of_them(self: SubscriberGroups, name: str, group: Any, free: list[str]) -> None:
        head = self._context.head
        first, head.first = head.first, 1
        deliver(self, name, group, free)
        head.first = first

    return mock.patch.object(SubscriberGroups, "_deliver", all_of_them)


def forgets_plans_in_use() -> AbstractContextManager[Any]:
    """Active instances end with the newest plan."""

    def newest(self: PipelineRuns, version: int, plans: Any) -> None:
        for plan in plans:
            progress = self._pipelines.get(plan.name)
            if progress is not None:
                progress.plans = dict.fromkeys(progress.plans, plan._replace(start=None))
        declared(self, version, plans)

    declared = PipelineRuns.declared
    return mock.patch.object(PipelineRuns, "declared", newest)


def keeps_the_room_of_cancelled_instances() -> AbstractContextManager[Any]:
    """The member of a delivery that is withdrawn gets no other one in its place."""
    end = ActiveInstances.end

    def greedy(self: ActiveInstances, *arguments: Any) -> None:
        with mock.patch.object(ActiveInstances, "_give_back", return_value=None):
            end(self, *arguments)

    return mock.patch.object(ActiveInstances, "end", greedy)


def tries_for_ever() -> AbstractContextManager[Any]:
    """The deliveries are not counted."""
    hand_over = OpenDelivery.hand_over

    def first(self: OpenDelivery, number: int, member: str) -> None:
        hand_over(self, number, member)
        self.attempts = 1

    return mock.patch.object(OpenDelivery, "hand_over", first)


def drops_dead_letters() -> AbstractContextManager[Any]:
    """The root event of a failed instance goes nowhere."""
    fail = ActiveInstances._fail

    def silent(self: ActiveInstances, delivery: Any, instance: Any, plan: Any, why: str) -> None:
        fail(self, delivery, instance, plan._replace(dead_letter=""), why)

    return mock.patch.object(ActiveInstances, "_fail", silent)


def writes_delayed_records_early() -> AbstractContextManager[Any]:
    """Delayed records are written at once."""
    delayed = PartitionLog.delayed
    return mock.patch.object(PartitionLog, "delayed", lambda self, event: delayed(self, event._replace(due=0)))


def waits_for_the_time_before_the_clock_was_set_back() -> AbstractContextManager[Any]:
    """No timer is due until the clock is at the time of the newest offset again."""
    due = source_plan._timer_due
    return mock.patch.object(source_plan, "_timer_due", lambda time, inputs: inputs.now >= time and due(time, inputs))


def forgets_ids_within_the_window() -> AbstractContextManager[Any]:
    """Ids are forgotten as soon as time has passed."""
    forget = SeenIds.forget

    def one_more(self: SeenIds, now: int) -> None:
        forget(self, now)
        self._head.seen_clock += self._head.window_millis

    return mock.patch.object(SeenIds, "forget", one_more)


def names_outputs_as_an_earlier_pipeline_did() -> AbstractContextManager[Any]:
    """The events of a function have the same ids after its pipeline was deleted and declared anew."""
    event = functions._event

    def unborn(delivery: Any, *rest: Any) -> Any:
        return event(delivery._replace(birth=0), *rest)

    return mock.patch.object(functions, "_event", unborn)


def keeps_instances_of_deleted_pipelines() -> AbstractContextManager[Any]:
    """The instances of a deleted pipeline are not ended."""
    return mock.patch.object(ActiveInstances, "end_all", return_value=None)


def remembers_ids_of_deleted_streams() -> AbstractContextManager[Any]:
    """An event of a deleted stream is known to the one that is declared anew."""
    return mock.patch.object(SeenIds, "clear", return_value=None)


def forgets_a_durable_group() -> AbstractContextManager[Any]:
    """A durable group ends with its last member, too."""

    def end_if_unused(self: SubscriberGroups, name: str) -> None:
        group = self._groups.get(name)
        if group is not None and not group.members:
            del self._groups[name]

    return mock.patch.object(SubscriberGroups, "end_if_unused", end_if_unused)


def keeps_ids_from_added_partitions() -> AbstractContextManager[Any]:
    """A partition that is added does not hear which events the others have."""
    return mock.patch.object(PartitionLog, "announce_ids", return_value=None)


def keeps_groups_from_added_partitions() -> AbstractContextManager[Any]:
    """A partition that is added does not hear of the durable groups."""
    return mock.patch.object(SubscriberGroups, "announce", return_value=None)


def places_records_of_late_gateways_at_once() -> AbstractContextManager[Any]:
    """A request that was divided among fewer partitions is written where it came to."""
    return mock.patch.object(PartitionLog, "_is_outdated", return_value=False)


def _without(kind: type, name: str, unwanted: Callable[..., bool]) -> AbstractContextManager[Any]:
    """A method of ``kind`` does nothing where its arguments are unwanted."""
    method = getattr(kind, name)

    def sometimes(self: Any, *arguments: Any) -> Any:
        return None if unwanted(*arguments) else method(self, *arguments)

    return mock.patch.object(kind, name, sometimes)


def waits_for_members_that_hang() -> AbstractContextManager[Any]:
    """``deliveryTimeout`` is ignored."""
    return _without(controller.KeyController, "_time_out", lambda: True)


def hears_no_extension() -> AbstractContextManager[Any]:
    """A member that works for longer is not heard."""
    return _without(controller.KeyController, "_extended", lambda event: True)


def keeps_the_limit_of_an_older_declaration() -> AbstractContextManager[Any]:
    """A delivery that is extended keeps its limit where the newest declaration has none."""
    extended = controller.KeyController._extended

    def only_with_a_limit(self: Any, event: Any) -> None:
        if self._find(event.delivery) is not None and self._retry(event.delivery).timeout:
            extended(self, event)

    return mock.patch.object(controller.KeyController, "_extended", only_with_a_limit)


def gives_more_to_members_that_hang() -> AbstractContextManager[Any]:
    """A member from which a delivery was taken away gets the next one."""
    take_away = controller.KeyController._take_away

    def forgiving(self: Any, delivery: Any, reason: str) -> None:
        member = self._find(delivery).member
        take_away(self, delivery, reason)
        found = self._head.members[member]
        found.open -= bool(found.stage) * len(found.overdue)
        found.overdue.clear()

    return mock.patch.object(controller.KeyController, "_take_away", forgiving)


def takes_nothing_away() -> AbstractContextManager[Any]:
    """An operator is told that deliveries are taken away, and they are not."""
    unwanted = "an operator has taken it away"
    return _without(controller.KeyController, "_take_away", lambda delivery, reason: reason == unwanted)


def redelivers_at_once() -> AbstractContextManager[Any]:
    """There is no pause after a nack."""
    return mock.patch.object(controller.KeyController, "_retry_delay", return_value=0)


def sets_whole_batches_aside() -> AbstractContextManager[Any]:
    """The events of a batch that fails are not delivered alone."""
    redeliver = SubscriberGroups.redeliver

    def whole(self: SubscriberGroups, delivery: Any, *rest: Any) -> None:
        group, retry = self._groups[delivery.group], self._context.head.retry
        if retry.dead_letter and group.open is not None and 0 < retry.attempts <= group.open.attempts:
            group.first = group.last
        redeliver(self, delivery, *rest)

    return mock.patch.object(SubscriberGroups, "redeliver", whole)


def gives_up_a_batch_too_early() -> AbstractContextManager[Any]:
    """An event of a group is set aside one delivery too early."""
    redeliver = SubscriberGroups.redeliver

    def early(self: SubscriberGroups, delivery: Any, *rest: Any) -> None:
        found = self.find(delivery)
        if found is not None:
            found.attempts += 1
        redeliver(self, delivery, *rest)

    return mock.patch.object(SubscriberGroups, "redeliver", early)


def delivers_poison_for_ever() -> AbstractContextManager[Any]:
    """The deliveries of a group's batch are not counted."""
    redeliver = SubscriberGroups.redeliver

    def first(self: SubscriberGroups, delivery: Any, *rest: Any) -> None:
        found = self.find(delivery)
        if found is not None:
            found.attempts = 0
        redeliver(self, delivery, *rest)

    return mock.patch.object(SubscriberGroups, "redeliver", first)


def drops_the_dead_letters_of_groups() -> AbstractContextManager[Any]:
    """An event that a group could not process goes nowhere."""
    read = SubscriberGroups.read
    return mock.patch.object(SubscriberGroups, "read", lambda self, event: read(self, event._replace(records=())))


def _ignores(action: GroupAction) -> AbstractContextManager[Any]:
    return _without(SubscriberGroups, "changed", lambda event: event.action is action)


def delivers_to_paused_groups() -> AbstractContextManager[Any]:
    """A group that is paused goes on."""
    return _ignores(GroupAction.PAUSE)


def resumes_no_group() -> AbstractContextManager[Any]:
    """A group that is paused is paused for ever."""
    return _ignores(GroupAction.RESUME)


def leaves_moved_groups_where_they_are() -> AbstractContextManager[Any]:
    """A group that is moved goes on where it was."""
    return _ignores(GroupAction.MOVE)


def moves_groups_to_another_record() -> AbstractContextManager[Any]:
    """A group that is moved goes on behind the record to which it is moved."""
    changed = SubscriberGroups.changed

    def one_more(self: SubscriberGroups, event: Any) -> None:
        changed(self, event)
        if event.action is GroupAction.MOVE:
            group = self._groups[event.group]
            group.cursor = min(group.cursor + 1, self._context.head.last)

    return mock.patch.object(SubscriberGroups, "changed", one_more)


def keeps_deleted_groups() -> AbstractContextManager[Any]:
    """A group that is deleted stays."""
    return _ignores(GroupAction.DELETE)


def tells_no_member_of_a_deleted_group() -> AbstractContextManager[Any]:
    """The members of a group that is deleted wait for ever."""
    return _without(CallContext, "emit", lambda one: "the group is deleted" in getattr(one, "reason", ""))


def counts_the_times_before_a_schedule_was_declared() -> AbstractContextManager[Any]:
    """A schedule that is new has the times since the batch before."""
    return mock.patch.object(source_plan, "_since", lambda key, version, start, end: start.time)


def begins_schedules_anew_with_each_version() -> AbstractContextManager[Any]:
    """The times of a schedule before the newest version of anything are missed."""
    since = source_plan._since

    def newest(key: Any, version: Any, start: Any, end: Any) -> int:
        found = since(key, version, start, end)
        return found if end.schema == start.schema else max(found, round(version(end.schema).applied_at * 1000))

    return mock.patch.object(source_plan, "_since", newest)


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
        believes_stale_ids,
        forgets_the_rest_of_a_turn,
        asks_for_expired_records,
        delivers_expired_records,
        forgets_plans_in_use,
        keeps_the_room_of_cancelled_instances,
        tries_for_ever,
        drops_dead_letters,
        writes_delayed_records_early,
        waits_for_the_time_before_the_clock_was_set_back,
        forgets_ids_within_the_window,
        names_outputs_as_an_earlier_pipeline_did,
        keeps_instances_of_deleted_pipelines,
        remembers_ids_of_deleted_streams,
        forgets_a_durable_group,
        keeps_ids_from_added_partitions,
        keeps_groups_from_added_partitions,
        places_records_of_late_gateways_at_once,
        waits_for_members_that_hang,
        hears_no_extension,
        keeps_the_limit_of_an_older_declaration,
        gives_more_to_members_that_hang,
        takes_nothing_away,
        redelivers_at_once,
        sets_whole_batches_aside,
        gives_up_a_batch_too_early,
        delivers_poison_for_ever,
        drops_the_dead_letters_of_groups,
        delivers_to_paused_groups,
        resumes_no_group,
        leaves_moved_groups_where_they_are,
        moves_groups_to_another_record,
        keeps_deleted_groups,
        tells_no_member_of_a_deleted_group,
        counts_the_times_before_a_schedule_was_declared,
        begins_schedules_anew_with_each_version,
    )
}
