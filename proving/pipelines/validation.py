"""The invariants of a key's stored state; every test of the controller, and every simulated history, checks them."""

from __future__ import annotations

from collections import Counter

from wallaroo_spark.pipelines.controller.context import KeyEntries
from wallaroo_spark.pipelines.controller.instances import all_done, ready_stages
from wallaroo_spark.pipelines.controller.messages.values import IN_SPARK, DelayedRecords, GroupDelivery, StageDelivery
from wallaroo_spark.pipelines.controller.states import DeliveryState, StatementState, TxState
from wallaroo_spark.pipelines.controller.stored.key_state import Head

_HELD = (DeliveryState.DELIVERED, DeliveryState.COMMITTING)


def validate(entries: KeyEntries) -> None:
    """Check the state between two calls. Reads all entries, so it is for tests."""
    head = entries.head
    assert 1 <= head.first <= head.last + 1, head
    assert head.delayed == sorted(head.delayed), head.delayed
    # A timer is also armed for a pipeline that was held up by the end of a turn.
    held_up = [one for one in head.pipelines.values() if one.cursor < head.last and one.has_room and not one.reading]
    assert head.armed is None or head.delayed or held_up or head.committing or head.deadline is not None, head
    assert not (head.delayed or head.committing) or head.armed is not None, head
    # Records that are due may wait for room in a later batch.
    first = next((due for due, one in head.delayed if not isinstance(one, DelayedRecords)), None)
    assert first is None or (head.armed is not None and head.armed <= first), head
    assert head.deadline is None or (head.armed is not None and head.armed <= head.deadline), head
    delayed = [one.number for _, one in head.delayed if isinstance(one, DelayedRecords)]
    assert sorted(delayed) == sorted(entries.delayed.all_keys()), head.delayed
    open_deliveries = _check_groups(head) + _check_instances(head, entries)
    _check_transactions(head, entries, open_deliveries)
    _check_seen(head, entries)


def _check_groups(head: Head) -> Counter[object]:
    found: Counter[object] = Counter()
    for name, group in head.groups.items():
        assert group.durable or group.members, name
        assert 0 <= group.cursor <= head.last, group
        assert all(head.members[member].group == name for member in group.members), group
        if group.open is not None:
            assert group.first <= group.last <= head.last, group
            assert group.first > group.cursor, group
            found[GroupDelivery(name, group.open.number)] += 1
            if group.open.state is DeliveryState.DELIVERED:
                assert group.open.member in group.members, group
    return found


def _check_instances(head: Head, entries: KeyEntries) -> Counter[object]:
    found: Counter[object] = Counter()
    users: Counter[tuple[str, int]] = Counter()
    held: Counter[str] = Counter()
    waiting: Counter[tuple[str, str, int]] = Counter()
    for name, number in entries.instances.all_keys():
        instance = entries.instances.get((name, number))
        assert instance is not None
        pipeline = head.pipelines[name]
        plan = pipeline.plans[instance.version]
        users[name, instance.version] += 1
        assert number <= pipeline.cursor, (name, number)
        assert not list(ready_stages(plan, instance)), (name, number)
        assert instance.unplaced or not all_done(plan, instance), (name, number)
        for stage, progress in instance.stages.items():
            if progress.open.state in _HELD:
                held[progress.open.member] += 1
                found[StageDelivery(name, number, stage, progress.open.number, pipeline.birth)] += 1
            if progress.open.state is DeliveryState.DELIVERED and progress.open.member != IN_SPARK:
                assert progress.open.member in head.members, progress
            if progress.open.state is DeliveryState.WAITING:
                assert entries.waiting.get((name, stage, progress.open.place)) == number, progress
                waiting[name, stage, number] += 1
    for name, pipeline in head.pipelines.items():
        assert {**pipeline.users} == {version: count for (of, version), count in users.items() if of == name}, name
        assert pipeline.users.keys() <= pipeline.plans.keys(), name
        assert 0 <= pipeline.cursor <= head.last, name
    for member, one in head.members.items():
        assert not one.stage or one.open == held[member] + len(one.overdue), one
        assert 0 <= one.left <= one.most, one
    places = [*entries.waiting.all_keys()]
    assert len(places) == waiting.total(), (waiting, places)
    for name, stage, place in places:
        queue = head.pipelines[name].queues[stage]
        assert queue.head <= place < queue.tail, (name, stage, place)
    return found


def _check_transactions(head: Head, entries: KeyEntries, open_deliveries: Counter[object]) -> None:
    assert head.transactions == len([*entries.transactions.all_keys()]), head
    for delivery in entries.transactions.all_keys():
        transaction = entries.transactions.get(delivery)
        assert transaction is not None
        states = {statement.state for statement in transaction.statements}
        assert transaction.state is not TxState.REJECTED, delivery
        if transaction.state is TxState.COMMITTED:
            assert states <= {StatementState.APPLIED, StatementState.COMMITTED}, delivery
            assert StatementState.APPLIED in states, delivery
        else:
            assert states <= {StatementState.PENDING, StatementState.APPLIED}, delivery
            assert not transaction.acked or StatementState.PENDING in states, delivery
            assert open_deliveries[delivery] or isinstance(delivery, GroupDelivery), delivery


def _check_seen(head: Head, entries: KeyEntries) -> None:
    offsets = [offset for _, _, offset in entries.seen.all()]
    assert sorted(offsets) == list(range(head.seen_from, head.last + 1)), (head.seen_from, offsets)
