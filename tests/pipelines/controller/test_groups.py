"""Groups: one open batch, redelivered until it is acked; start points; retention; gateways."""

from __future__ import annotations

import pytest

from tests.pipelines.controller.one_key import BEGINNING, LATEST, REPLY, Key, record, reply, start_at
from wallaroo_spark.pipelines.controller.messages import events as e
from wallaroo_spark.pipelines.controller.messages import instructions as i
from wallaroo_spark.pipelines.controller.messages.values import GroupDelivery
from wallaroo_spark.pipelines.schema.declarations import StartPoint


def filled(count: int = 5) -> Key:
    key = Key()
    key.publish(*(record(number) for number in range(1, count + 1)))
    return key


def delivered(key: Key) -> i.DeliverRecords:
    return key.one(i.DeliverRecords)


def test_a_group_has_one_open_batch_and_goes_on_with_the_ack() -> None:
    key = filled()
    key.join("anna", max_records=2)
    first = delivered(key)
    assert (first.member, first.first, first.last) == ("anna", 1, 2)

    key.publish(record(6))
    assert not key.of(i.DeliverRecords)

    key.ack("anna", first.delivery)
    assert key.said[0] == i.AnswerRequest(REPLY)
    assert (delivered(key).first, delivered(key).last) == (3, 4)


def test_a_batch_may_have_fewer_records_than_the_member_takes() -> None:
    key = filled(1)
    key.join("anna", max_records=10)
    assert (delivered(key).first, delivered(key).last) == (1, 1)


def test_records_wait_for_a_member_and_members_for_records() -> None:
    key = Key()
    key.join("anna")
    assert not key.of(i.DeliverRecords)
    key.publish(record(1))
    key.ack("anna", delivered(key).delivery)
    key.leave("anna")
    key.publish(record(2))
    assert not key.of(i.DeliverRecords)
    key.join("berta")
    assert delivered(key).first == 2


def test_a_nack_delivers_the_same_batch_again() -> None:
    key = filled()
    key.join("anna", max_records=2)
    first = delivered(key)
    key.publish(record(6))
    key.join("berta", max_records=5)
    key.nack("anna", first.delivery)

    again = delivered(key)
    assert (again.first, again.last) == (1, 2)
    assert again.delivery != first.delivery


def test_a_nack_may_have_a_delay() -> None:
    key = filled()
    key.join("anna")
    key.nack("anna", delivered(key).delivery, delay=500)
    assert not key.of(i.DeliverRecords)
    assert key.one(i.ArmTimer).at == key.now + 500

    key.at(key.now + 499)
    assert not key.said
    key.at(key.now + 1)
    assert delivered(key).first == 1
    assert not key.of(i.ArmTimer)


def test_the_batch_of_a_member_that_leaves_goes_to_another() -> None:
    key = filled()
    key.join("anna")
    key.join("berta")
    key.leave("anna")
    key.leave("berta")
    assert not key.of(i.DeliverRecords)
    key.join("carla")
    assert (delivered(key).member, delivered(key).first) == ("carla", 1)


def test_deliveries_are_shared_among_the_members_at_random() -> None:
    key = filled(60)
    for member in ("anna", "berta", "carla"):
        key.join(member)
        if key.of(i.DeliverRecords):
            got = delivered(key)
    seen = set()
    for _ in range(50):
        key.ack(got.member, got.delivery)
        got = delivered(key)
        seen.add(got.member)
    assert seen == {"anna", "berta", "carla"}


def test_an_ack_of_an_earlier_delivery_or_of_another_member_is_dropped_with_a_warning() -> None:
    key = filled()
    key.join("anna")
    first = delivered(key)
    key.ack("berta", first.delivery)
    assert key.one(i.WarnClient)
    key.nack("anna", first.delivery)
    again = delivered(key)
    key.ack("anna", first.delivery)
    assert key.one(i.WarnClient)
    key.ack("anna", again.delivery)
    assert delivered(key).first == 2
    key.ack("anna", again.delivery)
    assert key.one(i.WarnClient)
    key.nack("anna", GroupDelivery("none", 1))
    assert key.one(i.WarnClient)


@pytest.mark.parametrize(
    ("start", "cursor"),
    [(start_at(50), 49), (start_at(0), 0), (start_at(1), 0), (start_at(500), 100), (LATEST, 100), (BEGINNING, 0)],
)
def test_start_points(start: StartPoint, cursor: int) -> None:
    key = filled(100)
    key.join("anna", start=start)

    assert key.head.groups["billing"].cursor == cursor


def test_a_durable_group_that_exists_ignores_the_start_point() -> None:
    key = filled(10)
    key.join("anna", max_records=4)
    key.ack("anna", delivered(key).delivery)
    key.leave("anna")
    key.join("berta", start=LATEST)

    assert delivered(key).first == 5


def test_an_ephemeral_group_ends_with_its_last_member() -> None:
    key = filled(10)
    key.join("anna", durable=False, start=start_at(5))
    assert delivered(key).first == 5
    key.leave("anna")
    assert not key.head.groups
    key.join("berta", durable=False, start=start_at(8))
    assert delivered(key).first == 8


def test_a_group_is_durable_or_ephemeral_for_all_its_members() -> None:
    key = Key()
    key.join("anna", durable=False)
    key.join("berta", durable=True)

    assert "group billing is ephemeral" in key.one(i.RefuseRequest).reason
    assert [*key.head.members] == ["anna"]


def test_joins_that_cannot_work_are_refused() -> None:
    key = Key()
    key.join("anna", max_records=0)
    assert "ask for 1 or more" in key.one(i.RefuseRequest).reason
    key.join("anna")
    key.join("anna")
    assert "a member joins once" in key.one(i.RefuseRequest).reason
    other = Key(declared=False)
    other.join("anna")
    assert "there is no stream" in other.one(i.RefuseRequest).reason


def test_a_new_generation_of_a_gateway_ends_the_members_of_the_earlier() -> None:
    key = filled()
    key.join("anna")
    key.do(e.GroupJoined(reply(1, gateway="gateway-1"), "berta", "billing"))
    key.do(e.GatewayStarted("gateway-0", 2))
    assert [*key.head.members] == ["berta"]
    assert key.head.groups["billing"].open is not None
    assert key.head.groups["billing"].open.member == "berta"

    key.do(e.GroupJoined(reply(2, generation=1), "zombie", "billing"))
    assert "has started again" in key.one(i.RefuseRequest).reason
    key.do(e.GroupJoined(reply(2, generation=2), "anna-2", "billing"))
    assert key.one(i.AnswerRequest)
    key.do(e.GatewayStarted("gateway-0", 1))
    assert [*key.head.members] == ["berta", "anna-2"]


def test_a_group_behind_the_retention_is_told_how_many_records_it_missed() -> None:
    key = filled(10)
    key.join("anna", max_records=2)
    key.do(e.RecordsExpired(8))
    key.ack("anna", GroupDelivery("billing", 1))
    told = delivered(key)
    assert (told.first, told.last, told.missed) == (8, 9, 5)

    key.nack("anna", told.delivery)
    assert delivered(key).missed == 5
    key.ack("anna", delivered(key).delivery)
    assert (delivered(key).first, delivered(key).missed) == (10, 0)


def test_an_open_batch_of_which_nothing_is_left_is_not_delivered_again() -> None:
    key = filled(10)
    key.join("anna", max_records=3)
    key.do(e.RecordsExpired(3))
    key.nack("anna", delivered_number(key))
    partly = delivered(key)
    assert (partly.first, partly.last, partly.missed) == (1, 3, 2)
    key.do(e.RecordsExpired(6))
    key.nack("anna", partly.delivery)
    assert (delivered(key).first, delivered(key).last, delivered(key).missed) == (6, 8, 5)


def delivered_number(key: Key) -> GroupDelivery:
    group = key.head.groups["billing"]
    assert group.open is not None
    return GroupDelivery("billing", group.open.number)


def test_a_new_group_at_the_beginning_misses_nothing() -> None:
    key = filled(10)
    key.do(e.RecordsExpired(8))
    key.join("anna")

    assert (delivered(key).first, delivered(key).missed) == (8, 0)


def test_a_deleted_stream_ends_its_groups() -> None:
    key = filled()
    key.join("anna")
    key.do(e.PartitionDeclared(9, None))

    assert key.one(i.EndSubscription).member == "anna"
    assert not key.head.groups
    assert not key.head.members
