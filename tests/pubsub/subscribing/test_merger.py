"""A subscriber's state, over all partitions of a topic."""

from __future__ import annotations

import pytest

from wallaroo_spark.errors import ConfigurationError, PubSubError, RemoteProtocolError
from wallaroo_spark.pubsub.messages import Data, Snapshot, Update
from wallaroo_spark.pubsub.subscribing.merger import Delivered, MergedItem, Merger
from wallaroo_spark.pubsub.times import Frontier, Time


def data(time: Time, payload: bytes = b"x") -> Data:
    return Data(time, payload)


def update(before: Time, after: Time) -> Update:
    return Update(((before, -1), (after, 1)))


def moved(before: Time, after: Time) -> Frontier:
    return Frontier((after,), ((before, -1), (after, 1)))


def fed(merger: Merger, *messages: tuple[int, Snapshot | Update | Data]) -> list[MergedItem]:
    found = []
    for partition, message in messages:
        found += merger.received(partition, message)
        merger.validate()
    return found


def test_an_epoch_is_held_back_until_every_partition_has_passed_it() -> None:
    merger = Merger(2)
    assert fed(merger, (0, Snapshot((5,), (4,))), (1, Snapshot((5,), (4,)))) == [Frontier((5,), ((5, 1),))]

    assert fed(merger, (1, data(5, b"b")), (0, data(5, b"a")), (1, update(5, 6)), (1, data(6, b"d"))) == []
    assert fed(merger, (0, update(5, 6))) == [Delivered(5, 0, b"a"), Delivered(5, 1, b"b"), moved(5, 6)]
    assert merger.held_bytes == 1


def test_an_epoch_that_one_publisher_had_begun_is_dropped_from_all() -> None:
    merger = Merger(2)
    fed(merger, (0, Snapshot((7,), (6,))), (1, Snapshot((5,), (4,))))
    assert (merger.frontier, merger._filter.elements) == ((5,), (6,))

    assert fed(merger, (1, data(5)), (1, update(5, 6)), (1, data(6))) == [moved(5, 6)]
    assert fed(merger, (1, update(6, 7))) == [moved(6, 7)]
    assert merger._filter.elements == ()
    assert fed(merger, (1, data(7, b"y")), (0, update(7, 8)), (1, update(7, 8)))[0] == Delivered(7, 1, b"y")


def test_nothing_is_yielded_before_every_snapshot_is_there() -> None:
    merger = Merger(2)

    assert fed(merger, (0, Snapshot((5,), (4,))), (0, data(5)), (0, update(5, 6)), (0, data(6, b"y"))) == []
    assert merger.frontier is None
    # The other publisher has sent 5 already, so the rows of 5 from the first one are only a part.
    assert fed(merger, (1, Snapshot((6,), (5,)))) == [Frontier((6,), ((6, 1),))]
    assert fed(merger, (0, update(6, 7)), (1, update(6, 7))) == [Delivered(6, 0, b"y"), moved(6, 7)]


def test_times_of_a_product_come_in_an_order_that_fits_theirs() -> None:
    merger = Merger(1)
    fed(merger, (0, Snapshot(((1, 0),), ((0, 3),))))

    items = fed(merger, (0, data((1, 2))), (0, data((1, 0))), (0, update((1, 0), (2, 0))))

    assert [item.time for item in items if isinstance(item, Delivered)] == [(1, 0), (1, 2)]


def test_a_time_beside_the_filter_is_seen() -> None:
    """(5, 4) is not at or before (5, 3) or (6, 1): nobody has sent anything of it."""
    merger = Merger(2)
    fed(merger, (0, Snapshot(((6, 0),), ((5, 3),))), (1, Snapshot(((5, 0),), ())))

    items = fed(merger, (1, data((5, 2))), (1, data((5, 4))), (1, update((5, 0), (6, 0))))

    assert [item.time for item in items if isinstance(item, Delivered)] == [(5, 4)]


def test_a_connection_that_is_back_goes_on_with_the_unfinished_epoch() -> None:
    merger = Merger(2)
    fed(merger, (0, Snapshot((1,), ())), (1, Snapshot((1,), ())), (0, data(1, b"a")), (0, update(1, 2)))
    fed(merger, (0, data(2, b"b")))
    assert merger.resumes_at(0) == (2,)

    merger.lost(0)
    merger.validate()
    items = fed(merger, (0, Snapshot((2,), (1,))), (0, data(2, b"b")), (0, data(2, b"c")), (0, update(2, 3)))
    assert items == []

    assert fed(merger, (1, update(1, 2)), (1, update(2, 3))) == [
        Delivered(1, 0, b"a"), moved(1, 2), Delivered(2, 0, b"b"), Delivered(2, 0, b"c"), moved(2, 3),
    ]  # fmt: skip


def test_without_atomicity_everything_comes_at_once_and_once() -> None:
    merger = Merger(2, atomic=False)

    assert fed(merger, (0, Snapshot((5,), (9,))), (0, data(5, b"a"))) == [Delivered(5, 0, b"a")]
    merger.lost(0)
    merger.lost(0)
    assert fed(merger, (0, Snapshot((5,), ())), (0, data(5, b"a")), (0, data(5, b"b"))) == [Delivered(5, 0, b"b")]
    merger.lost(0)
    assert fed(merger, (0, Snapshot((5,), ())), (0, data(5, b"a"))) == []
    merger.lost(0)
    assert fed(merger, (0, Snapshot((5,), ())), (0, data(5)), (0, data(5)), (0, data(5, b"c"))) == [
        Delivered(5, 0, b"c")
    ]


def test_a_coarser_filter_drops_more() -> None:
    for atomic in (True, False):
        merger = Merger(1, atomic=atomic, beyond=(6,))
        items = fed(merger, (0, Snapshot((5,), (4,))))
        for time in (5, 6, 7):
            items += fed(merger, (0, data(time)), (0, update(time, time + 1)))
        assert [item.time for item in items if isinstance(item, Delivered)] == [7]


def test_a_new_subscription_goes_on_where_another_one_was() -> None:
    merger = Merger(2, resume=(4,))
    assert merger.resumes_at(0) == merger.resumes_at(1) == (4,)
    fed(merger, (0, Snapshot((4,), (3,))), (1, Snapshot((4,), (3,))))

    items = fed(merger, (0, data(4)), (0, update(4, 5)), (1, update(4, 5)))

    assert items == [Delivered(4, 0, b"x"), moved(4, 5)]


def test_partitions_that_others_wait_for_are_read_whatever_is_held() -> None:
    merger = Merger(2, max_held_bytes=3)
    fed(merger, (0, Snapshot((1,), ())))
    fed(merger, *((0, data(1, b"abcd")), (0, update(1, 2))))
    assert (merger.may_read(0), merger.may_read(1)) == (False, True)

    fed(merger, (1, Snapshot((1,), ())))
    assert (merger.may_read(0), merger.may_read(1)) == (False, True)
    fed(merger, (1, data(1, b"efgh")), (1, update(1, 2)))
    assert (merger.may_read(0), merger.may_read(1)) == (True, True)


def test_the_topic_is_finished_when_every_publisher_has_said_so() -> None:
    merger = Merger(2)
    fed(merger, (0, Snapshot((1,), ())), (1, Snapshot((1,), ())))
    merger.ended(0)
    assert not merger.finished
    merger.ended(1)
    assert merger.finished


S = Snapshot((5,), (4,))


@pytest.mark.parametrize(
    ("messages", "says"),
    [
        ([data(5)], "sends data before its snapshot"),
        ([update(5, 6)], "sends a frontier update before its snapshot"),
        ([S, S], "a second snapshot"),
        ([S, data(4)], "sends data at 4, which it completed"),
        ([S, update(4, 5)], "breaks its frontier"),
        ([S, update(5, 3)], "moves its frontier back"),
        ([S, data((5, 0))], "times of one shape"),
        ([Snapshot((5,), ((4, 0),))], "times of one shape"),
    ],
)
def test_a_publishers_protocol_violation_is_named(messages: list[Snapshot | Update | Data], says: str) -> None:
    merger = Merger(1)

    with pytest.raises(RemoteProtocolError, match=says):
        fed(merger, *((0, message) for message in messages))


def test_a_publisher_that_does_not_go_on_where_it_was_asked_is_refused() -> None:
    merger = Merger(1)
    fed(merger, (0, S))
    merger.lost(0)

    with pytest.raises(RemoteProtocolError, match=r"was asked to resume from 5 and begins at \(7,\)"):
        fed(merger, (0, Snapshot((7,), (6,))))


def test_invalid_arguments_are_refused() -> None:
    with pytest.raises(ConfigurationError, match="has at least 1 partition"):
        Merger(0)
    with pytest.raises(ConfigurationError, match="different shapes"):
        Merger(1, beyond=(1,), resume=((1, 0),))
    merger = Merger(1)
    fed(merger, (0, Snapshot(((0, 1), (1, 0)), ())))
    with pytest.raises(PubSubError, match="and a hello has one time"):
        merger.resumes_at(0)
