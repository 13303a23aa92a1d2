"""Every delivery ends: acked, nacked, withdrawn or timed out; and what a group cannot process is set aside."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.pipelines.controller.one_key import BEGINNING, LATEST, REPLY, Key, record, start_at
from wallaroo_spark.errors import ConfigurationError
from wallaroo_spark.pipelines.controller.groups import MOST_GROUPS
from wallaroo_spark.pipelines.controller.messages import events as e
from wallaroo_spark.pipelines.controller.messages import instructions as i
from wallaroo_spark.pipelines.controller.messages.plans import PipelinePlan, RetryPlan, StagePlan
from wallaroo_spark.pipelines.controller.messages.values import GroupDelivery, PartitionKey
from wallaroo_spark.pipelines.controller.stored.key_state import QUICK_MILLIS, SLOW_MILLIS
from wallaroo_spark.pipelines.schema.declarations import RetryPolicy, StreamDeclaration

NAME = "shop/work"
DEAD = PartitionKey("shop/dead", 0)


def pipeline(**changes: Any) -> PipelinePlan:
    return PipelinePlan(NAME, (StagePlan("work", given_root=True, **changes),), start=BEGINNING)


def working(concurrency: int = 1, **changes: Any) -> Key:
    """A stage with one member, anna, who has the delivery of the first instance."""
    key = Key(pipeline(**changes))
    key.serve("anna", "work", concurrency, NAME)
    key.publish(record(1), record(2))
    return key


def stage_delivery(key: Key) -> i.DeliverInputs:
    return key.one(i.DeliverInputs)


def group_of(**retry: Any) -> Key:
    key = Key()
    key.declare(retry=RetryPlan(**retry))
    return key


def batch(key: Key) -> tuple[int, int]:
    one = key.one(i.DeliverRecords)
    return one.first, one.last


def test_stages_of_one_instance_that_are_late_at_once_fail_it_once() -> None:
    stages = (StagePlan(name, given_root=True, attempts=1, timeout=1_000) for name in ("pack", "weigh"))
    key = Key(PipelinePlan(NAME, tuple(stages), start=BEGINNING))
    key.serve("anna", "pack", 1, NAME)
    key.serve("bert", "weigh", 1, NAME)
    key.publish(record(1))

    key.at(key.now + 1_000)

    assert key.one(i.InstanceEnded).outcome is i.Outcome.FAILED
    assert {one.member for one in key.of(i.WithdrawDelivery)} == {"anna", "bert"}
    assert key.active == []


def test_the_work_of_a_member_that_hangs_goes_to_another_one_and_its_place_stays_taken() -> None:
    key = working(timeout=1_000)
    hung = stage_delivery(key)
    assert hung.timeout == 1_000
    key.at(key.now + 999)
    assert not key.of(i.WithdrawDelivery)
    assert key.head.armed == key.now + 1

    key.at(key.now + 1)
    withdrawn = key.one(i.WithdrawDelivery)
    assert (withdrawn.member, withdrawn.delivery, withdrawn.timed_out) == ("anna", hung.delivery, True)
    assert "1 s (deliveryTimeout)" in withdrawn.reason
    assert key.one(i.DeliveryFailed).attempts == 1
    assert not key.of(i.DeliverInputs), "anna, who hangs, gets nothing"

    key.serve("berta", "work", 10, NAME)
    assert {one.member for one in key.of(i.DeliverInputs)} == {"berta"}
    assert {one.delivery.instance for one in key.of(i.DeliverInputs)} == {1, 2}
    again = next(one for one in key.of(i.DeliverInputs) if one.delivery.instance == 1)
    key.ack("anna", hung.delivery)
    assert "deliveryTimeout" in key.one(i.WarnClient).text
    assert not key.of(i.StoreOutput)
    key.leave("berta")
    assert {one.member for one in key.of(i.DeliverInputs)} == {"anna"}, "she has settled it, and takes part again"
    assert again.delivery.number != hung.delivery.number


def test_a_member_that_extends_its_delivery_keeps_it() -> None:
    key = working(timeout=1_000)
    delivery = stage_delivery(key).delivery
    for _ in range(5):
        key.now += 900
        key.do(e.DeliveryExtended("anna", delivery))
        assert not key.of(i.WithdrawDelivery)
    key.ack("anna", delivery)
    assert key.one(i.InstanceEnded).outcome is i.Outcome.DONE


def test_a_delivery_that_is_extended_has_the_limit_of_the_newest_declaration() -> None:
    key = working(timeout=1_000)
    delivery = stage_delivery(key).delivery
    key.declare(pipeline())
    key.do(e.DeliveryExtended("anna", delivery))
    key.at(key.now + 1_000)
    assert not key.of(i.WithdrawDelivery)
    assert key.head.armed is None

    key.declare(pipeline(timeout=500))
    key.do(e.DeliveryExtended("anna", delivery))
    key.declare(pipeline())
    key.at(key.now + 500)
    assert "within its time" in key.one(i.WithdrawDelivery).reason


def test_an_ack_in_the_batch_in_which_the_time_is_over_is_in_time() -> None:
    key = working(timeout=1_000)
    delivery = stage_delivery(key).delivery
    key.now += 5_000
    key.ack("anna", delivery)
    assert key.one(i.StoreOutput)
    assert not key.of(i.WithdrawDelivery)


def test_a_delivery_that_times_out_counts_as_an_attempt() -> None:
    key = working(timeout=1_000, attempts=2, dead_letter="shop/dead")
    key.do(e.InstanceCancelled(REPLY, NAME, 2))
    key.at(key.now + 1_000)
    key.serve("berta", "work", 1, NAME)
    key.at(key.now + 1_000)
    assert "did not succeed in 2 deliveries" in key.one(i.InstanceEnded).reason
    (letter,) = letters(key)
    assert "deliveryTimeout" in dict(letter.attributes)["failedreason"]


def letters(key: Key) -> tuple[Any, ...]:
    message = key.one(i.CarryOut).message
    assert isinstance(message, e.AppendOutput)
    return message.records


def test_a_quiet_key_is_woken_once_after_the_last_delivery_and_then_not_any_more() -> None:
    key = working(timeout=1_000, concurrency=5)
    for one in key.of(i.DeliverInputs):
        key.ack("anna", one.delivery)
    key.at(key.now + 1_000)
    assert key.head.armed is None
    assert key.head.deadline is None


def test_an_operator_takes_a_delivery_away() -> None:
    key = working(timeout=1_000)
    key.do(e.DeliveriesTaken(REPLY, pipeline=NAME, instance=1, stage="work"))
    assert key.one(i.AnswerRequest)
    assert key.one(i.WithdrawDelivery).reason == "an operator has taken it away"
    key.do(e.DeliveriesTaken(REPLY, pipeline=NAME, instance=1))
    assert "no member has a delivery of instance 1" in key.one(i.RefuseRequest).reason


def test_a_newer_retry_policy_holds_for_an_instance_that_has_begun() -> None:
    key = working(delay=1_000, longest_delay=1_000)
    key.nack("anna", stage_delivery(key).delivery)
    key.declare(pipeline(attempts=2, dead_letter="shop/dead"))
    key.at(key.now + 1_000)
    first = (
        next(one for one in key.of(i.DeliverInputs) if one.delivery.instance == 1) if key.of(i.DeliverInputs) else None
    )
    if first is None:
        # Anna has the delivery of the second instance meanwhile.
        key.serve("berta", "work", 1, NAME)
        first = stage_delivery(key)
    key.nack(first.member, first.delivery, reason="no stock")
    assert (key.one(i.InstanceEnded).instance, key.one(i.InstanceEnded).outcome) == (1, i.Outcome.FAILED)
    (letter,) = letters(key)
    assert letter.data == record(1).data


def test_a_group_waits_longer_after_each_nack() -> None:
    key = group_of(delay=100, longest_delay=150)
    key.publish(record(1), record(2))
    key.join("anna", max_records=2)
    for delay in (100, 150, 150):
        key.nack("anna", key.one(i.DeliverRecords).delivery, reason="no")
        assert not key.of(i.DeliverRecords)
        assert key.head.armed == key.now + delay
        key.at(key.now + delay)
    assert batch(key) == (1, 2)
    key.leave("anna")
    key.join("berta")
    assert batch(key) == (1, 2), "a member that leaves needs no pause"
    assert key.head.groups["billing"].reason
    key.ack("berta", key.one(i.DeliverRecords).delivery)
    assert not key.head.groups["billing"].reason, "it would be in the head of every batch"


def test_only_the_poisoned_event_of_a_batch_is_set_aside() -> None:
    key = group_of(attempts=2, dead_letter="shop/dead")
    key.publish(*(record(number) for number in range(1, 10)))
    key.join("anna", max_records=6)
    for expected in ((1, 6), (1, 6), (1, 3)):
        assert batch(key) == expected
        key.nack("anna", key.one(i.DeliverRecords).delivery, reason="poison")
    assert batch(key) == (1, 2)
    key.nack("anna", key.one(i.DeliverRecords).delivery, reason="poison")
    key.ack("anna", key.one(i.DeliverRecords).delivery)
    assert batch(key) == (2, 2)
    key.nack("anna", key.one(i.DeliverRecords).delivery, reason="poison")
    assert batch(key) == (2, 2)
    key.nack("anna", key.one(i.DeliverRecords).delivery, reason="still poison")

    (letter,) = letters(key)
    assert (letter.id, letter.data) == ("2:billing@shop/orders:0/2", record(2).data)
    said = dict(letter.attributes)
    assert (said["failedgroup"], said["failedreason"], said["failedattempts"]) == ("billing", "still poison", "2")
    assert (said["failedstream"], said["failedoffset"]) == ("shop/orders", "2")
    assert "failedpipeline" not in said
    assert batch(key) == (3, 8)
    message = key.one(i.CarryOut).message
    assert isinstance(message, e.AppendOutput)
    got = key.one(i.DeliverRecords).delivery
    key.carried(e.OutputAppended(message.output, (1,)), DEAD)
    key.ack("anna", got)
    assert batch(key) == (9, 9)


def test_a_batch_that_takes_too_long_comes_in_halves() -> None:
    key = group_of(timeout=1_000)
    key.publish(*(record(number) for number in range(1, 11)))
    key.join("anna", max_records=10)
    for expected in ((1, 10), (1, 5)):
        assert batch(key) == expected
        late = key.one(i.DeliverRecords).delivery
        key.at(key.now + 1_000)
        key.nack("anna", late)
    for expected in ((1, 2), (3, 6), (7, 10)):
        assert batch(key) == expected
        key.ack("anna", key.one(i.DeliverRecords).delivery)


def test_a_group_is_given_more_at_once_while_it_is_quick_and_less_when_it_is_slow() -> None:
    key = group_of()
    key.publish(*(record(number) for number in range(1, 1_001)))
    key.join("anna", max_records=250)
    for expected, took in (((1, 100), QUICK_MILLIS), ((101, 300), 0), ((301, 550), QUICK_MILLIS + 1)):
        assert batch(key) == expected
        delivery = key.one(i.DeliverRecords).delivery
        key.at(key.now + took)
        key.ack("anna", delivery)
    for expected in ((551, 800), (801, 925), (926, 987)):
        assert batch(key) == expected
        delivery = key.one(i.DeliverRecords).delivery
        key.at(key.now + SLOW_MILLIS + 1)
        key.ack("anna", delivery)


@given(st.integers(1, 1_000), st.integers(1, 3))
def test_one_event_is_found_in_a_large_batch_with_few_deliveries(poison: int, attempts: int) -> None:
    key = group_of(attempts=attempts, dead_letter="shop/dead")
    key.publish(*(record(number) for number in range(1, 1_001)))
    key.join("anna", max_records=1_000)
    acked: list[int] = []
    deliveries = 0
    while key.of(i.DeliverRecords):
        deliveries += 1
        (first, last), delivery = batch(key), key.one(i.DeliverRecords).delivery
        if first <= poison <= last:
            key.nack("anna", delivery, reason="poison")
        else:
            acked += range(first, last + 1)
            key.ack("anna", delivery)

    assert acked == [number for number in range(1, 1_001) if number != poison]
    assert key.head.groups["billing"].cursor == 1_000
    assert deliveries <= 2 * attempts + 2 * 10


def test_one_event_in_two_streams_has_two_dead_letters() -> None:
    names = set()
    for stream in ("shop/orders", "shop/copies"):
        key = Key(key=PartitionKey(stream, 0))
        key.declare(retry=RetryPlan(attempts=1, dead_letter="shop/dead"))
        key.publish(record(1))
        key.join("anna")
        key.nack("anna", key.one(i.DeliverRecords).delivery, reason="poison")
        names |= {letter.id for letter in letters(key)}
    assert len(names) == 2


def test_a_group_whose_dead_letter_is_refused_goes_on_and_remembers_why() -> None:
    key = group_of(attempts=1, dead_letter="shop/dead")
    key.publish(record(1), record(2))
    key.join("anna", max_records=1)
    key.nack("anna", key.one(i.DeliverRecords).delivery, reason="poison")
    assert batch(key) == (2, 2)
    message = key.one(i.CarryOut).message
    assert isinstance(message, e.AppendOutput)

    key.carried(e.OutputRefused(message.output, "there is no stream shop/dead"), DEAD)

    group = key.head.groups["billing"]
    assert (group.letters_refused, group.refused_reason) == (1, "there is no stream shop/dead")
    key.do(e.GroupChanged(REPLY, group="billing", action=e.GroupAction.DELETE))
    key.carried(e.OutputRefused(message.output, "there is no stream shop/dead"), DEAD)


def test_an_event_that_retention_has_removed_meanwhile_needs_no_dead_letter() -> None:
    key = group_of(attempts=1, dead_letter="shop/dead")
    key.publish(record(1), record(2))
    key.join("anna")
    delivery = key.one(i.DeliverRecords).delivery
    key.do(e.RecordsExpired(2), e.DeliveryNacked(REPLY, "anna", delivery, 0, "no"))
    assert not key.of(i.CarryOut)
    assert batch(key) == (2, 2)


def test_the_batch_of_a_member_that_hangs_goes_to_another_one() -> None:
    key = group_of(timeout=1_000)
    key.publish(record(1))
    key.join("anna")
    hung = key.one(i.DeliverRecords)
    key.at(key.now + 1_000)
    assert key.one(i.WithdrawDelivery).timed_out
    assert not key.of(i.DeliverRecords)
    key.join("berta")
    assert (key.one(i.DeliverRecords).member, batch(key)) == ("berta", (1, 1))
    key.ack("anna", hung.delivery)
    assert "deliveryTimeout" in key.one(i.WarnClient).text
    key.do(e.DeliveriesTaken(REPLY, "billing"))
    assert key.one(i.WithdrawDelivery).member == "berta"
    assert key.one(i.DeliverRecords).member == "anna"


def change(key: Key, action: e.GroupAction, start: Any = BEGINNING, group: str = "billing") -> None:
    key.do(e.GroupChanged(REPLY, group, action, start))


def test_a_group_is_moved_paused_resumed_and_deleted() -> None:
    key = Key()
    key.publish(*(record(number) for number in range(1, 6)))
    key.join("anna")
    first = key.one(i.DeliverRecords).delivery
    change(key, e.GroupAction.MOVE, start_at(4))
    assert key.one(i.WithdrawDelivery).delivery == first
    assert batch(key) == (4, 4)
    change(key, e.GroupAction.PAUSE)
    key.ack("anna", GroupDelivery("billing", key.head.deliveries))
    assert not key.of(i.DeliverRecords)
    change(key, e.GroupAction.RESUME)
    assert batch(key) == (5, 5)
    change(key, e.GroupAction.DELETE)
    assert key.one(i.EndSubscription).member == "anna"
    assert not key.head.groups
    assert not key.head.members
    change(key, e.GroupAction.DELETE)
    assert "there is no group billing" in key.one(i.RefuseRequest).reason
    key.join("berta", start=LATEST)
    assert not key.of(i.DeliverRecords)


def test_the_number_of_groups_has_a_limit_which_bounds_the_state() -> None:
    key = Key()
    key.do(*(e.GroupJoined(REPLY, f"m{number}", f"g{number}") for number in range(MOST_GROUPS)))
    assert len(key.head.groups) == MOST_GROUPS
    key.join("one-more", "another")
    assert "delete those that nobody uses" in key.one(i.RefuseRequest).reason
    key.do(*(e.MemberLeft(f"m{number}") for number in range(MOST_GROUPS)))
    assert key.head.groups["g0"].idle_since == key.now
    assert sum(len(value) for name, value in key.stored.items() if name[:1] == b"h") < 100 * MOST_GROUPS


def test_a_stream_that_sets_events_aside_says_where() -> None:
    with pytest.raises(ConfigurationError, match="deadLetterStream is missing"):
        StreamDeclaration(name="orders", namespace="shop", retry=RetryPolicy(max_attempts=3))
