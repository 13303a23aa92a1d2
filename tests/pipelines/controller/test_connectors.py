"""Connector streams: each message once by its reference, the newest opening alone, and bounded state."""

from __future__ import annotations

import pytest

from tests.pipelines.controller.one_key import Key, record, reply
from wallaroo_spark.pipelines.controller import connectors
from wallaroo_spark.pipelines.controller.messages import events as e
from wallaroo_spark.pipelines.controller.messages import instructions as i
from wallaroo_spark.pipelines.controller.stored.entries import KeyEntries

NAME = "shop/orders:till-7"
DAY = 24 * 3600 * 1000


def opened(request: int, gateway: str = "g0", name: str = NAME, instance: str = "till") -> e.ConnectorOpened:
    return e.ConnectorOpened(reply(request, gateway=gateway), instance, name, 77)


def sent(*ids: int, opening: int = 1, gateway: str = "g0", name: str = NAME, **fields: object) -> e.MessagesSent:
    made = e.MessagesSent(
        reply(opening + 1000, gateway=gateway),
        opening,
        "till",
        name,
        ids[-1] if ids else None,
        ids,
        tuple(record(id) for id in ids),
    )
    return made._replace(**fields)  # type: ignore[arg-type]  # fields of the event


def position(key: Key) -> i.ConnectorPosition:
    (found,) = key.one(i.AnswerRequest).positions
    return found


def ids(key: Key) -> list[int]:
    return [int(one.id) for one in key.log]


def test_a_new_connector_stream_has_no_reference() -> None:
    key = Key()
    key.do(opened(1))
    assert key.said == [i.AnswerRequest(reply(1, gateway="g0"), (), (i.ConnectorPosition(NAME, 77, None),))]


def test_messages_are_appended_in_order_and_answered() -> None:
    key = Key()
    key.do(opened(1), sent(0, 3, 4), sent(9))
    assert ids(key) == [0, 3, 4, 9]
    assert [one.reply_to.request for one in key.of(i.AnswerRequest)] == [1, 1001, 1001]


def test_messages_at_or_below_the_reference_are_dropped_and_answered() -> None:
    key = Key()
    key.declare(window_records=0, window_millis=0)
    key.do(opened(1), sent(1, 2, 3))
    key.do(opened(2))
    assert position(key).reference == 3
    key.do(sent(1, 2, opening=2))
    assert key.one(i.AnswerRequest)
    key.do(sent(2, 3, 4, opening=2))
    assert ids(key) == [1, 2, 3, 4]


def test_only_the_newest_opening_is_applied() -> None:
    key = Key()
    key.do(opened(1), sent(1, 2))
    key.do(opened(1, "g1"), sent(3, 4), sent(3, gateway="g1"))
    assert [one.reply_to.gateway for one in key.of(i.WarnClient)] == ["g0"]
    key.do(sent(3, 4), sent(4, 5, gateway="g1"))
    assert ids(key) == [1, 2, 3, 4, 5]
    assert key.one(i.AnswerRequest).reply_to.gateway == "g1"


def test_an_opening_of_an_earlier_generation_of_the_gateway_is_another_opening() -> None:
    key = Key()
    key.do(opened(1))
    key.do(sent(1, reply_to=reply(1001, generation=2, gateway="g0")))
    assert key.one(i.WarnClient)
    assert not key.log


def test_streams_of_other_names_and_instances_are_other_streams() -> None:
    key = Key()
    key.do(opened(1), opened(2, name="shop/orders"), opened(3, instance="other"))
    key.do(sent(5), sent(2, opening=2, name="shop/orders"), sent(1, opening=3, instance="other"))
    assert ids(key) == [5, 2, 1]

    key.do(e.ConnectorAsked(reply(9), "till"))
    assert key.one(i.AnswerRequest).positions == (
        i.ConnectorPosition(NAME, 77, 5),
        i.ConnectorPosition("shop/orders", 77, 2),
    )
    key.do(e.ConnectorAsked(reply(9), "nobody"))
    assert key.one(i.AnswerRequest).positions == ()


def test_a_message_without_a_record_moves_the_reference() -> None:
    key = Key()
    key.do(opened(1), sent(1, last=7))
    key.do(opened(2))
    assert position(key).reference == 7


def test_the_end_of_a_stream_without_messages_is_answered_and_keeps_the_reference() -> None:
    key = Key()
    key.do(opened(1), sent(1), sent(ended=True))
    assert len(key.of(i.AnswerRequest)) == 3
    key.do(opened(2))
    assert position(key).reference == 1


def test_an_event_that_was_published_before_is_not_written_again() -> None:
    key = Key()
    key.publish(record(2))
    key.do(opened(1), sent(1, 2, 3))
    assert ids(key) == [2, 1, 3]


def test_a_stream_that_is_not_declared_is_refused() -> None:
    key = Key(declared=False)
    key.do(opened(1))
    assert "there is no stream shop/orders" in key.one(i.RefuseRequest).reason

    key = Key()
    key.do(opened(1))
    key.do(e.PartitionDeclared(9, None), sent(1))
    assert "there is no stream shop/orders" in key.one(i.RefuseRequest).reason
    assert not key.log


def test_an_ended_stream_is_forgotten_after_the_kept_days() -> None:
    key = Key()
    key.do(opened(1), sent(1, ended=True))
    key.now += connectors.KEPT_DAYS * DAY
    key.do(opened(2, name="shop/orders"))
    assert key.head.connector_streams == 2

    key.now += 2 * DAY
    key.do(opened(3))
    assert position(key).reference is None
    assert key.head.connector_streams == 2


def test_a_stream_that_was_opened_again_is_not_forgotten() -> None:
    key = Key()
    key.do(opened(1), sent(1, ended=True))
    key.do(opened(2))
    key.now += (connectors.KEPT_DAYS + 2) * DAY
    key.do(opened(3))
    assert position(key).reference == 1
    assert [*KeyEntries(key.stored).ended_connectors.all_keys()] == []


def test_the_number_of_streams_is_limited(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connectors, "MOST_STREAMS", 2)
    key = Key()
    key.do(opened(1, name="a"), opened(2, name="b"))
    key.do(opened(3, name="c"))
    assert "2 connector streams, which is the limit" in key.one(i.RefuseRequest).reason
    key.do(opened(4, name="a"))
    assert position(key).name == "a"
