"""When a run under ``Trigger.AvailableNow`` has everything, and where it ends: without a clock, Spark or workers."""

from __future__ import annotations

from typing import Any

import pytest

from wallaroo_spark.options import Options
from wallaroo_spark.source.available_now import AvailableNow


def run_of(now: float = 100.0, **given: Any) -> AvailableNow:
    return AvailableNow(Options(quiet_seconds=5.0, available_now_timeout=60.0, **given), now=now)


def last_seen(at: float, *, streams: int = 1, still_open: int = 1) -> dict[str, Any]:
    return {"at": at, "streams": streams, "open": still_open}


def test_connectors_that_are_still_to_come_are_given_a_moment() -> None:
    run = run_of()

    assert not run.quiet({}, {}, now=104.9)
    assert run.quiet({}, {}, now=105.0)


def test_a_named_instance_is_waited_for_until_it_was_seen_and_the_moment_does_not_count() -> None:
    run = run_of(instances=("shop-1", "shop-2"))
    ended = last_seen(100.0, still_open=0)

    assert not run.quiet({"shop-1": ended}, {}, now=150.0)
    assert run.quiet({"shop-1": ended, "shop-2": ended}, {}, now=100.1)


def test_a_connector_is_quiet_once_it_has_been_idle_for_so_long_while_no_batch_ran() -> None:
    run = run_of()
    seen = {"shop-1": last_seen(100.0)}

    assert not run.quiet(seen, {"shop-1": {"idle": 30.0}}, now=130.0), "no time without a batch has passed"
    run.nothing_to_read(now=130.0)
    run.nothing_to_read(now=133.0)
    assert not run.quiet(seen, {"shop-1": {"idle": 34.9}}, now=134.9)
    assert not run.quiet(seen, {"shop-1": {"idle": 4.9}}, now=135.0)
    assert run.quiet(seen, {"shop-1": {"idle": 35.0}}, now=135.0)


def test_a_batch_or_a_connector_that_waits_for_its_acknowledgement_starts_the_wait_again() -> None:
    run = run_of()
    seen = {"shop-1": last_seen(100.0)}
    run.nothing_to_read(now=110.0)
    run.busy()
    run.nothing_to_read(now=114.0)

    assert not run.quiet(seen, {}, now=118.9)
    assert run.quiet(seen, {}, now=119.0)


def test_a_connector_that_is_gone_is_idle_since_it_was_last_seen() -> None:
    run = run_of()
    run.nothing_to_read(now=100.0)

    assert not run.quiet({"shop-1": last_seen(103.0)}, {}, now=107.9)
    assert run.quiet({"shop-1": last_seen(103.0)}, {}, now=108.0)


def test_a_connector_that_has_ended_all_of_its_streams_is_quiet_and_one_that_has_opened_none_is_not() -> None:
    run = run_of()

    assert run.quiet({"shop-1": last_seen(106.0, still_open=0)}, {"shop-1": {"idle": 0.0}}, now=106.0)
    assert not run.quiet({"shop-1": last_seen(106.0, streams=0, still_open=0)}, {"shop-1": {"idle": 0.0}}, now=106.0)


def test_a_clock_that_began_at_zero_is_a_time_like_any_other() -> None:
    run = run_of(now=-5.0)
    run.nothing_to_read(now=0.0)
    run.nothing_to_read(now=4.0)

    assert run.quiet({"shop-1": last_seen(-5.0)}, {}, now=5.0)


def test_a_run_is_late_when_its_time_is_over() -> None:
    run = run_of()

    assert not run.late(now=160.0)
    assert run.late(now=160.1)


def test_without_a_target_a_batch_ends_where_its_plan_does() -> None:
    run = run_of()

    assert run.target is None
    assert run.within_target({"a": {"1": 5}}, {"a": {"1": 9}, "b": {"2": 3}}) == {"a": {"1": 9}, "b": {"2": 3}}


@pytest.mark.parametrize(("message_ids", "end"), [("increasing", 7), ("opaque", 20)])
def test_a_batch_goes_no_further_than_the_target(message_ids: str, end: int) -> None:
    run = run_of(message_ids=message_ids)
    run.target = {"a": {"1": 20}}

    assert run.within_target({"a": {"1": 5}}, {"a": {"1": 7}}) == {"a": {"1": end}}
    assert run.within_target({"a": {"1": 5}}, {"a": {"1": 25}}) == {"a": {"1": 20}}


def test_streams_at_the_target_and_streams_that_began_after_it_stay_where_they_are() -> None:
    run = run_of()
    run.target = {"a": {"1": 20, "2": "e:0:1:4"}}
    start: dict[str, dict[str, int | str]] = {"a": {"1": 20, "2": "e:0:1:2"}}

    ends = run.within_target(start, {"a": {"1": 30, "2": "e:0:1:9", "3": 1}, "b": {"7": 2}})

    assert ends == {"a": {"2": "e:0:1:4"}}
