"""Records of a partition: offsets without holes, each event once, whole batches or nothing."""

from __future__ import annotations

import pytest

from tests.pipelines.controller.one_key import ORDERS, Key, record, reply
from wallaroo_spark.pipelines.controller.context import KeyEntries
from wallaroo_spark.pipelines.controller.messages import events as e
from wallaroo_spark.pipelines.controller.messages import instructions as i
from wallaroo_spark.pipelines.controller.messages.values import Durability
from wallaroo_spark.pipelines.controller.partition_log import LONGEST_WAIT
from wallaroo_spark.pipelines.schema.cloud_event import CloudEvent


def offsets(key: Key) -> tuple[int, ...]:
    (written,) = key.one(i.AnswerRequest).written
    assert written.target == ORDERS
    return written.offsets


def test_offsets_start_at_1_and_have_no_holes() -> None:
    key = Key()
    key.publish(record(1), record(2))
    assert offsets(key) == (1, 2)

    key.publish(record(3))
    assert offsets(key) == (3,)
    assert key.fresh == [record(3)]
    assert key.log == [record(1), record(2), record(3)]


def test_an_event_that_is_published_again_keeps_its_offset() -> None:
    key = Key()
    key.publish(record(1), record(2))
    key.publish(record(2), record(3), record(3))

    assert offsets(key) == (2, 3, 3)
    assert key.log == [record(1), record(2), record(3)]


def test_events_of_other_sources_are_other_events() -> None:
    key = Key()
    key.publish(CloudEvent("a", "bc", "t"), CloudEvent("ab", "c", "t"), CloudEvent("a", "b", "t"))

    assert offsets(key) == (1, 2, 3)


def test_an_event_is_remembered_within_the_window_of_time() -> None:
    key = Key()
    key.declare(window_millis=1_000)
    key.publish(record(1))
    key.now += 1_000
    key.publish(record(1))
    assert offsets(key) == (1,)

    key.now += 1
    key.publish(record(1))
    assert offsets(key) == (2,)


def test_an_application_that_was_down_remembers_the_events_of_before() -> None:
    key = Key()
    key.declare(window_millis=3_000)
    key.publish(record(1))
    key.now += 3_600_000
    key.publish(record(1))
    assert offsets(key) == (1,)

    for number in (2, 3):
        key.now += 1_000
        key.publish(record(number))
    key.now += 1_000
    key.publish(record(1))
    assert offsets(key) == (4,)


def test_an_event_is_remembered_within_the_window_of_records() -> None:
    key = Key()
    key.declare(window_records=2)
    for number in (1, 2, 3):
        key.publish(record(number))
    key.publish(record(1))
    assert offsets(key) == (4,)
    key.publish(record(3))
    assert offsets(key) == (3,)


@pytest.mark.parametrize(
    ("records", "problem"),
    [
        ((), "the batch is empty; publish at least one record"),
        ((record(1), CloudEvent("", "s", "t")), "record 1 has no id; CloudEvents 1.0 requires id, source and type"),
        ((CloudEvent("1", "", "t"),), "record 0 has no source; CloudEvents 1.0 requires id, source and type"),
        ((CloudEvent("1", "s", ""),), "record 0 has no type; CloudEvents 1.0 requires id, source and type"),
    ],
)
def test_a_batch_that_is_not_valid_is_refused_as_a_whole(records: tuple[CloudEvent, ...], problem: str) -> None:
    key = Key()
    key.publish(*records)

    assert key.said == [i.RefuseRequest(reply(1), problem)]
    assert key.head.last == 0


def test_a_stream_that_is_not_declared_takes_no_records() -> None:
    key = Key(declared=False)
    key.publish(record(1))

    assert key.said == [i.RefuseRequest(reply(1), "there is no stream shop/orders with a partition 0")]


def test_a_publisher_that_was_answered_by_its_gateway_is_not_answered_again() -> None:
    key = Key()
    key.do(e.RecordsPublished(reply(1), (record(1),), Durability.RECEIVED))

    assert (key.said, key.fresh) == ([], [record(1)])


def test_offsets_do_not_come_back_after_retention_or_deletion() -> None:
    key = Key()
    key.publish(record(1), record(2))
    key.do(e.RecordsExpired(3))
    key.do(e.PartitionDeclared(8, None))
    key.version = 8
    key.declare()
    key.publish(record(3))

    assert offsets(key) == (3,)


def test_a_stream_of_the_name_of_a_deleted_one_has_none_of_its_records() -> None:
    key = Key()
    key.publish(record(1), record(2))
    key.do(e.PartitionDeclared(8, None))
    assert key.one(i.ForgetRecords) == i.ForgetRecords(3)
    key.version = 8
    key.declare()
    assert key.of(i.ForgetRecords) == []
    key.publish(record(2))
    key.join("m")

    assert key.log == [record(1), record(2), record(2)]
    given = key.one(i.DeliverRecords)
    assert (given.first, given.last, given.missed) == (3, 3, 0)


def test_records_that_were_written_while_a_stream_was_deleted_are_forgotten_when_one_of_its_name_is_declared() -> None:
    key = Key()
    key.publish(record(1))
    key.do(e.PartitionDeclared(8, None))
    # As a release left it that kept the records of a deleted stream.
    head = KeyEntries(key.stored)
    head.head.first = 1
    key.stored.update({name: value for name, value in head.take_changes().items() if value is not None})
    key.version = 8
    key.declare()

    assert key.one(i.ForgetRecords) == i.ForgetRecords(2)
    assert key.head.first == 2


def test_a_deleted_stream_without_records_has_nothing_to_forget() -> None:
    key = Key()
    key.do(e.PartitionDeclared(8, None))

    assert key.of(i.ForgetRecords) == []


def test_retention_does_not_go_back_nor_beyond_the_last_record() -> None:
    key = Key()
    key.publish(record(1), record(2))
    key.do(e.RecordsExpired(2))
    key.do(e.RecordsExpired(1))
    assert key.head.first == 2
    key.do(e.RecordsExpired(100))
    assert key.head.first == 3


def delayed(*records: CloudEvent, due: int, request: int = 1) -> e.RecordsDelayed:
    return e.RecordsDelayed(reply(request), records, due)


def test_delayed_records_are_appended_when_their_time_has_come_in_the_order_of_their_times() -> None:
    key = Key()
    key.do(delayed(record(1), record(2), due=key.now + 100))
    assert key.one(i.AnswerRequest).written == ()
    assert key.one(i.ArmTimer).at == key.now + 100
    key.do(delayed(record(3), due=key.now + 50), delayed(record(4), due=key.now))
    assert key.log == [record(4)]
    key.now += 60
    key.publish(record(5))
    assert key.log == [record(4), record(3), record(5)]
    key.now += 40
    key.do()
    assert key.log == [record(4), record(3), record(5), record(1), record(2)]
    assert key.head.armed is None


def test_delayed_records_that_are_due_together_are_appended_by_several_batches(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("wallaroo_spark.pipelines.controller.partition_log.DUE_BYTES", 2_000)
    key = Key()
    large = [CloudEvent(str(n), "s", "t", None, (("note", "x" * 900),)) for n in range(20)]
    key.do(*(delayed(one, due=key.now + 10 + n // 10) for n, one in enumerate(large)))
    key.join("anna")
    key.now += 50
    batches = 0
    while len(key.log) < 20:
        before = len(key.log)
        # Further records find their place among them.
        key.publish(record(f"more-{batches}"), request=50 + batches) if batches < 2 else key.do()
        batches += 1
        assert len(key.log) - before <= 3
        if key.head.delayed:
            assert key.head.armed == key.now + 1
        key.now += 1
    while key.head.delayed:
        key.do()
        key.now += 1
    assert [one for one in key.log if one in large] == large
    assert key.head.armed is None


def test_delayed_records_are_known_by_source_and_id_when_they_are_appended() -> None:
    key = Key()
    key.do(delayed(record(1), due=key.now + 10), delayed(record(1), record(2), due=key.now + 10))
    key.publish(record(2))
    key.now += 10
    key.do()
    assert key.log == [record(2), record(1)]


def test_delayed_records_wait_beside_a_delayed_delivery() -> None:
    key = Key()
    key.join("anna")
    key.publish(record(1))
    delivery = key.one(i.DeliverRecords).delivery
    key.do(e.DeliveryNacked(reply(2), "anna", delivery, 10), delayed(record(2), due=key.now + 10))
    key.now += 10
    key.do()
    assert key.log == [record(1), record(2)]
    assert key.one(i.DeliverRecords).last == 1


def test_a_delay_that_is_too_long_and_too_many_of_them_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    key = Key()
    key.do(delayed(record(1), due=key.now + LONGEST_WAIT + 1))
    assert "30 days" in key.one(i.RefuseRequest).reason
    key.do(delayed(due=key.now + 1))
    assert "empty" in key.one(i.RefuseRequest).reason
    monkeypatch.setattr("wallaroo_spark.pipelines.controller.partition_log.MOST_DELAYED", 1)
    key.do(delayed(record(1), due=key.now + 1), delayed(record(2), due=key.now + 1))
    assert "limit" in key.one(i.RefuseRequest).reason


def test_delayed_records_of_a_deleted_stream_are_forgotten() -> None:
    key = Key()
    key.do(delayed(record(1), due=key.now + 10))
    key.do(e.PartitionDeclared(9, None))
    assert key.one(i.ArmTimer).at is None
    key.now += 10
    key.do()
    assert key.log == []
