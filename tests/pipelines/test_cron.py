"""Five fields of cron: read, refused with a reason, and their times in a zone that changes its clock."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from wallaroo_spark.pipelines.schema.cron import (
    cron_problem,
    newest_time,
    next_time,
    parse_cron,
    zone_name_problem,
    zone_problem,
)


def at(text: str) -> int:
    """Milliseconds of a time in UTC, or with the offset that the text has."""
    moment = datetime.fromisoformat(text)
    return int((moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp()) * 1000


def times(cron: str, zone: str, after: str, count: int) -> list[str]:
    """The next times behind ``after``, in UTC."""
    found, moment = [], at(after)
    for _ in range(count):
        following = next_time(cron, zone, moment)
        assert following is not None
        found.append(datetime.fromtimestamp(following / 1000, UTC).strftime("%m-%d %H:%M"))
        moment = following
    return found


@pytest.mark.parametrize(
    ("cron", "expected"),
    [
        ("*/20 * * * *", ["01-01 00:20", "01-01 00:40", "01-01 01:00"]),
        ("5/20 0,12 * * *", ["01-01 00:05", "01-01 00:25", "01-01 00:45"]),
        ("30 6 * * mon-fri", ["01-01 06:30", "01-02 06:30", "01-05 06:30"]),
        ("0 0 1 jan,jul *", ["07-01 00:00", "01-01 00:00", "07-01 00:00"]),
        ("0 0 * * 7", ["01-04 00:00", "01-11 00:00", "01-18 00:00"]),
        ("0 0 13 * fri", ["01-02 00:00", "01-09 00:00", "01-13 00:00"]),
        ("0 0 */10 * *", ["01-11 00:00", "01-21 00:00", "01-31 00:00"]),
        ("0 0 * * */3", ["01-03 00:00", "01-04 00:00", "01-07 00:00"]),
        ("0 0 29 2 *", ["02-29 00:00", "02-29 00:00", "02-29 00:00"]),
    ],
)
def test_the_times_of_five_fields(cron: str, expected: list[str]) -> None:
    """2026 begins on a Thursday."""
    assert times(cron, "UTC", "2026-01-01T00:00:00", 3) == expected


@pytest.mark.parametrize(
    ("step", "same"),
    [
        ("0 0 */10 * fri", "0 0 1-31/10 * fri"),
        ("0 0 13 * */3", "0 0 13 * 0-6/3"),
        ("0 0 */10 * */3", "0 0 1,11,21,31 * 0,3,6"),
        ("0 0 */1 * fri", "0 0 * * fri"),
        ("0 0 *,5 * fri", "0 0 * * fri"),
    ],
)
def test_a_step_restricts_a_day_as_the_same_range_does(step: str, same: str) -> None:
    assert times(step, "UTC", "2026-01-01T00:00:00", 40) == times(same, "UTC", "2026-01-01T00:00:00", 40)


def test_a_name_may_be_that_of_a_zone_that_another_machine_knows() -> None:
    assert zone_name_problem("Mars/Olympus") == ""
    assert "UTC or Europe/Berlin" in zone_problem("Mars/Olympus")
    for name in ("", "Mars Olympus", "../etc/passwd", "/etc", "a" * 101):
        assert zone_name_problem(name)


def test_a_skipped_time_comes_later_and_a_repeated_one_once() -> None:
    """Berlin goes from 02:00 to 03:00 on March 29, and back from 03:00 to 02:00 on October 25."""
    daily = ("30 2 * * *", "Europe/Berlin")
    assert times(*daily, "2026-03-28T00:00:00", 3) == ["03-28 01:30", "03-29 01:30", "03-30 00:30"]
    assert times(*daily, "2026-10-24T12:00:00", 2) == ["10-25 00:30", "10-26 01:30"]


def test_a_schedule_of_every_hour_follows_the_real_time() -> None:
    hourly = ("30 * * * *", "Europe/Berlin")
    assert times(*hourly, "2026-03-28T23:59:00", 3) == ["03-29 00:30", "03-29 01:30", "03-29 02:30"]
    assert times(*hourly, "2026-10-24T23:59:00", 3) == ["10-25 00:30", "10-25 01:30", "10-25 02:30"]


def test_of_missed_times_the_newest_is_found() -> None:
    daily = ("0 6 * * *", "UTC")
    assert newest_time(*daily, at("2026-01-01T06:00:00"), at("2026-01-09T05:59:59")) == at("2026-01-08T06:00:00")
    assert newest_time(*daily, at("2026-01-01T06:00:00"), at("2026-01-02T05:59:59")) is None
    assert newest_time(*daily, 0, at("2026-01-02T06:00:00")) == at("2026-01-02T06:00:00")


@settings(max_examples=60, deadline=None)
@given(
    st.sampled_from(["*/7 * * * *", "30 2 * * *", "0 */5 * * sun", "15 0 1,15 * *"]),
    st.sampled_from(["UTC", "Europe/Berlin", "America/New_York"]),
    st.integers(0, 365 * 24 * 60),
    st.integers(1, 3 * 24 * 60),
)
def test_the_newest_time_is_the_last_of_the_next_ones(cron: str, zone: str, begin: int, minutes: int) -> None:
    after = at("2026-01-01T00:00:00") + begin * 60_000
    until = after + int(timedelta(minutes=minutes).total_seconds()) * 1000
    last, moment = None, after
    while (following := next_time(cron, zone, moment)) is not None and following <= until:
        last = moment = following
    assert newest_time(cron, zone, after, until) == last


@pytest.mark.parametrize(
    ("cron", "part"),
    [
        ("* * * *", "four|4 fields"),
        ("60 * * * *", "'60' is no value of the minute"),
        ("* 24 * * *", "'24' is no value of the hour"),
        ("* * 0 * *", "no value of the day of the month"),
        ("* * * 13 *", "jan to dec"),
        ("* * * * mond", "no value of the day of the week"),
        ("5-1 * * * *", "'5-1' is no value"),
        ("*/0 * * * *", "no value of the minute"),
        ("1,,2 * * * *", "no value of the minute"),
        ("@daily", "1 fields"),
        ("0 0 30 2 *", "names no day that exists"),
    ],
)
def test_a_text_that_is_no_schedule_is_refused(cron: str, part: str) -> None:
    with pytest.raises(ValueError, match=part):
        parse_cron(cron)
    assert cron_problem(cron)


def test_a_zone_has_to_exist() -> None:
    assert (zone_problem("UTC"), zone_problem("Europe/Berlin")) == ("", "")
    for name in ("Mars/Base", "", "../etc", "Europe"):
        assert "is not a time zone" in zone_problem(name)
