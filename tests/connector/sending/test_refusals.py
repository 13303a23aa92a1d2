"""When a refused NOTIFY is sent again, and when its stream is given up; without a clock."""

from __future__ import annotations

import pytest

from wallaroo_spark.connector.backoff import Backoff
from wallaroo_spark.connector.sending.stream_references import Refusals
from wallaroo_spark.errors import RemoteProtocolError


def refusals(give_up_after: float = 100.0) -> Refusals:
    return Refusals("a", 7, Backoff(initial=1.0, maximum=10.0, give_up_after=give_up_after))


def test_each_refusal_in_a_row_waits_longer() -> None:
    found = refusals()
    assert [found.refused(now) for now in (0.0, 1.0, 3.0, 7.0, 15.0)] == [1.0, 2.0, 4.0, 8.0, 10.0]


def test_an_accepted_notify_and_a_new_session_begin_again() -> None:
    found = refusals(give_up_after=5.0)
    assert [found.refused(now) for now in (0.0, 1.0)] == [1.0, 2.0]
    found.clear()
    assert found.refused(6.0) == 1.0
    assert found.count == 1


def test_no_wait_is_longer_than_the_time_that_is_left() -> None:
    found = refusals(give_up_after=2.5)
    assert [found.refused(now) for now in (0.0, 1.0)] == [1.0, 1.5]
    with pytest.raises(RemoteProtocolError, match=r"stream 'a' \(id 7\) was refused 3 times in 2\.5 seconds"):
        found.refused(2.5)


def test_a_number_of_attempts_ends_them_too() -> None:
    found = Refusals("a", 7, Backoff(initial=1.0, attempts=2))
    assert found.refused(0.0) == 1.0
    with pytest.raises(RemoteProtocolError, match="was refused 2 times"):
        found.refused(1.0)
