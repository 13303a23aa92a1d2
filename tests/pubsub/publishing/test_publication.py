"""A publisher's state: snapshots, the messages after them, and refused subscribers."""

from __future__ import annotations

from typing import Any

import pytest

from wallaroo_spark.errors import PubSubError
from wallaroo_spark.pubsub.messages import VERSION, Closed, Snapshot, SubscriberHello, Update, Why
from wallaroo_spark.pubsub.publishing.publication import BatchPart, Outgoing, Publication
from wallaroo_spark.pubsub.times import GREATEST_INTEGER, Time

HELLO = SubscriberHello(VERSION, "sesame", "totals", 0, "board")


def publication(**settings: Any) -> Publication:
    return Publication("totals", 0, "query-1", **({"cookie": "sesame"} | settings))


def part(*times: Time, size: int = 1) -> BatchPart:
    return BatchPart(times, size, times)


def hello(**fields: Any) -> SubscriberHello:
    return SubscriberHello(**(vars(HELLO) | fields))


def taken(machine: Publication, session: str) -> list[Outgoing]:
    found = []
    while (item := machine.take(session)) is not None:
        found.append(item)
    machine.validate()
    return found


def moved(before: Time, after: Time) -> Update:
    return Update(((before, -1), (after, 1)))


def test_a_subscriber_is_sent_a_snapshot_and_then_whole_batches() -> None:
    machine = publication()
    machine.join("a", HELLO)

    assert taken(machine, "a") == [Snapshot((0,), ())]
    assert machine.committed(0, [part(0), part(0)]) == ["a"]
    assert taken(machine, "a") == [part(0), part(0), moved(0, 1)]
    machine.committed(1)
    assert taken(machine, "a") == [moved(1, 2)]


def test_a_late_subscriber_gets_the_upper_frontier_and_no_old_rows() -> None:
    machine = publication()
    machine.committed(0, [part(0)])
    machine.committed(1)
    machine.join("a", HELLO)

    assert taken(machine, "a") == [Snapshot((2,), (0,))]
    assert (machine.newest, machine.lower, machine.upper, machine.subscribers) == (1, (2,), (0,), 1)


def test_in_product_time_the_frontier_is_the_least_time_of_a_batch() -> None:
    machine = publication(product=True)
    machine.committed(4, [part((4, 0), (4, 7))])
    machine.committed(5, [part((5, 2))])
    machine.join("a", HELLO)

    assert taken(machine, "a") == [Snapshot(((6, 0),), ((4, 7), (5, 2)))]


def test_a_commit_that_is_told_twice_or_out_of_turn_is_passed_over() -> None:
    machine = publication()
    machine.join("a", HELLO)
    machine.committed(3, [part(3)])
    assert machine.committed(3, [part(3)]) == machine.committed(1, [part(1)]) == []

    assert taken(machine, "a") == [Snapshot((0,), ()), part(3), moved(0, 4)]


def test_a_subscriber_that_returns_is_sent_the_missed_batches() -> None:
    machine = publication()
    machine.begin(5, 2, {batch: [part(batch)] for batch in (2, 4, 5)})
    machine.join("a", hello(resume=(3,), identity="query-1"))

    assert taken(machine, "a") == [Snapshot((3,), ()), part(4), moved(3, 5), part(5), moved(5, 6)]


def test_a_subscriber_that_is_ahead_of_the_publisher_waits() -> None:
    machine = publication()
    machine.begin(4)
    machine.join("a", hello(resume=(6,)))

    assert taken(machine, "a") == [Snapshot((6,), ())]
    machine.committed(5, [part(5)])
    assert taken(machine, "a") == []
    machine.committed(6, [part(6)])
    assert taken(machine, "a") == [part(6), moved(6, 7)]


def test_resuming_from_a_batch_that_is_no_longer_retained_is_refused() -> None:
    machine = publication(retain=3)
    for batch in range(10):
        machine.committed(batch, [part(batch)])
    machine.join("a", hello(resume=(6,)))
    machine.join("b", hello(resume=(7,)))

    assert machine.oldest == 7
    (closed,) = taken(machine, "a")
    assert isinstance(closed, Closed)
    assert closed.why is Why.NOT_KEPT
    assert "retains the batches from 7 on, and batch 6 is needed" in closed.reason
    assert taken(machine, "b")[0] == Snapshot((7,), ())


def test_batches_that_a_predecessor_sent_and_did_not_keep_count_as_sent() -> None:
    machine = publication(product=True)
    machine.begin(9, 8)
    machine.join("a", HELLO)

    assert taken(machine, "a") == [Snapshot(((10, 0),), ((7, GREATEST_INTEGER),))]


@pytest.mark.parametrize(
    ("fields", "why", "says"),
    [
        ({"version": "2"}, Why.REFUSED, "version '2' is not supported"),
        ({"cookie": "open"}, Why.REFUSED, "the cookie is not the one"),
        ({"cookie": ""}, Why.REFUSED, "the cookie is not the one"),
        ({"cookie": "\udc80"}, Why.REFUSED, "the cookie is not the one"),
        ({"topic": "others"}, Why.LATER, "not partition 0 of 'others'"),
        ({"partition": 1}, Why.LATER, "partition 0 of topic 'totals' is served here, not partition 1"),
        ({"identity": "query-0"}, Why.REFUSED, "has a new history"),
        ({"resume": ((3, 0),)}, Why.REFUSED, "has no epoch that begins at"),
        ({"resume": (None,)}, Why.REFUSED, "has no epoch that begins at"),
        ({"resume": (-1,)}, Why.NOT_KEPT, "batch -1 is needed"),
    ],
)
def test_a_hello_that_does_not_fit_is_refused_with_the_reason(fields: dict[str, Any], why: Why, says: str) -> None:
    machine = publication()
    machine.join("a", hello(**fields))

    (closed,) = taken(machine, "a")

    assert isinstance(closed, Closed)
    assert closed.why is why
    assert says in closed.reason
    assert "open" not in closed.reason
    assert "sesame" not in closed.reason
    assert machine.subscribers == 0


def test_nothing_is_told_of_a_topic_before_the_cookie_is_right() -> None:
    machine = publication()
    machine.join("a", hello(cookie="x", topic="others", partition=9))

    (closed,) = taken(machine, "a")

    assert isinstance(closed, Closed)
    assert "totals" not in closed.reason


def test_a_full_publisher_asks_to_come_later() -> None:
    machine = publication(max_subscribers=1)
    machine.join("a", HELLO)
    machine.join("b", HELLO)

    (closed,) = taken(machine, "b")
    assert isinstance(closed, Closed)
    assert closed.why is Why.LATER
    machine.left("b")
    machine.left("a")
    machine.join("c", HELLO)
    assert taken(machine, "c") == [Snapshot((0,), ())]


def test_a_slow_subscriber_is_cut_off_with_the_reason_and_the_others_are_not() -> None:
    machine = publication(max_subscriber_bytes=100)
    for session in ("slow", "quick"):
        machine.join(session, HELLO)
        machine.take(session)
    for batch in range(3):
        machine.committed(batch, [part(batch, size=60)])
        assert taken(machine, "quick") == [part(batch, size=60), moved(batch, batch + 1)]

    closed = machine.closing("slow")
    assert closed is not None
    assert closed.why is Why.SLOW
    assert "120 bytes wait for it, and 100 may" in closed.reason
    assert taken(machine, "slow") == [closed]
    assert machine.closing("quick") is None
    assert machine.subscribers == 1


def test_a_batch_that_is_larger_than_the_limit_is_let_through() -> None:
    machine = publication(max_subscriber_bytes=100)
    machine.join("a", HELLO)
    for batch in range(2):
        machine.committed(batch, [part(batch, size=1000)])
    assert machine.closing("a") is None


def test_batches_from_before_a_subscriber_joined_do_not_make_it_slow() -> None:
    machine = publication(max_subscriber_bytes=100)
    machine.begin(4, 0, {batch: [part(batch, size=90)] for batch in range(5)})
    machine.join("a", hello(resume=(0,)))
    for batch in range(5, 6):
        machine.committed(batch, [part(batch, size=90)])
    assert machine.closing("a") is None


def test_a_subscriber_whose_next_batch_is_not_retained_is_too_slow() -> None:
    machine = publication(retain=2)
    machine.join("a", HELLO)
    for batch in range(3):
        machine.committed(batch)

    (closed,) = taken(machine, "a")
    assert isinstance(closed, Closed)
    assert closed.why is Why.SLOW
    assert "3 batches behind, and 2 are retained" in closed.reason


def test_an_end_comes_behind_everything_that_is_committed() -> None:
    machine = publication()
    machine.join("a", HELLO)
    machine.committed(0, [part(0)])
    assert machine.end(Why.ENDED, "the topic has ended") == ["a"]
    machine.join("b", HELLO)

    assert taken(machine, "a") == [Snapshot((0,), ()), part(0), moved(0, 1), Closed(Why.ENDED, "the topic has ended")]
    assert taken(machine, "b") == [Closed(Why.ENDED, "the topic has ended")]
    assert machine.take("nobody") is None


def test_times_of_another_shape_or_batch_are_not_published() -> None:
    for times in (((1, 0),), (2,)):
        machine = publication()
        with pytest.raises(PubSubError, match="publish a topic with an epoch column always or never"):
            machine.committed(1, [part(*times)])
        assert machine.newest is None


def test_a_publisher_begins_once() -> None:
    machine = publication()
    machine.committed(0)
    with pytest.raises(PubSubError, match="has begun"):
        machine.begin(3)
