"""Times of a schedule: five fields as cron has them, in a time zone. Pure.

Source: ``docs/pipelines/schema.md#schedules``.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from datetime import UTC, date, datetime, time, timedelta, tzinfo
from functools import cache
from typing import NamedTuple
from zoneinfo import ZoneInfo

_MONTHS = ("jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec")
_WEEKDAYS = ("sun", "mon", "tue", "wed", "thu", "fri", "sat")


class _Range(NamedTuple):
    """The values of one field."""

    title: str
    """Name of the field, for messages."""
    first: int
    """The least value."""
    last: int
    """The greatest value."""
    names: tuple[str, ...] = ()
    """Names of the values, from the least one on."""


_FIELDS = (
    _Range("minute", 0, 59),
    _Range("hour", 0, 23),
    _Range("day of the month", 1, 31),
    _Range("month", 1, 12, _MONTHS),
    _Range("day of the week", 0, 7, _WEEKDAYS),
)
_LONGEST_DAYS = 366 * 9
"""The most days that are searched. The 29th of February is at most eight years away."""
_DAY = timedelta(days=1)
_ZONE = re.compile(r"(?!.{101})[A-Za-z0-9_+-]+(/[A-Za-z0-9_+-]+)*")
"""A name of a time zone."""
_STEP = re.compile(r"(.+?)(?:/([0-9]{1,4}))?")
_SPAN = re.compile(r"([0-9]{1,4}|[a-z]{3})(?:-([0-9]{1,4}|[a-z]{3}))?")


class Cron(NamedTuple):
    """The times of five fields. A day matches by day and weekday; if both are restricted, by one of them."""

    minutes: frozenset[int]
    """Minutes of the hour."""
    hours: frozenset[int]
    """Hours of the day."""
    days: frozenset[int]
    """Days of the month."""
    months: frozenset[int]
    """Months of the year, from 1."""
    weekdays: frozenset[int]
    """Days of the week; 0 is Sunday."""
    any_day: bool
    """Whether the day of the month is not restricted: ``*``."""
    any_weekday: bool
    """Whether the day of the week is not restricted: ``*``."""

    def matches(self, day: date) -> bool:
        """Whether there are times on a day."""
        if day.month not in self.months:
            return False
        by_day, by_weekday = day.day in self.days, day.isoweekday() % 7 in self.weekdays
        return by_day and by_weekday if self.any_day or self.any_weekday else by_day or by_weekday

    def instants(self, day: date, zone: tzinfo) -> list[int]:
        """The times of a day of the zone, sorted, in milliseconds since 1970 UTC.

        A time that the zone skips comes as much later as it skips. A time that the zone has twice counts once, except
        when every hour matches.
        """
        if not self.matches(day):
            return []
        midnight, next_midnight = (datetime.combine(one, time(), zone) for one in (day, day + _DAY))
        if midnight.utcoffset() == next_midnight.utcoffset():
            begin = int(midnight.timestamp()) * 1000
            return sorted(begin + (hour * 60 + minute) * 60_000 for hour in self.hours for minute in self.minutes)
        twice = (0, 1) if len(self.hours) == 24 else (0,)
        local = (
            datetime.combine(day, time(hour, minute, fold=fold), zone)
            for hour in self.hours
            for minute in self.minutes
            for fold in twice
        )
        return sorted({int(one.timestamp()) * 1000 for one in local})


def parse_cron(text: str) -> Cron:
    """Read five fields: minute, hour, day, month, weekday. Raises ValueError with the problem and the remedy."""
    fields = text.lower().split()
    if len(fields) != len(_FIELDS):
        raise ValueError(
            f"{text!r} has {len(fields)} fields, and a schedule has five: minute, hour, day of the month, month, day "
            "of the week, such as 0 6 * * mon-fri"
        )
    minutes, hours, days, months, weekdays = (
        frozenset(_values(field, limits)) for field, limits in zip(fields, _FIELDS, strict=True)
    )
    found = Cron(
        minutes,
        hours,
        days,
        months,
        frozenset(weekday % 7 for weekday in weekdays),
        _is_any(fields[2]),
        _is_any(fields[4]),
    )
    if not any(found.matches(date(2000, 1, 1) + number * _DAY) for number in range(_LONGEST_DAYS)):
        raise ValueError(f"{text!r} names no day that exists; correct the day of the month or the month")
    return found


def _is_any(field: str) -> bool:
    """Whether a field has every value by a star. A step restricts it: ``*/10`` is another way to write ``1-31/10``."""
    return not {"*", "*/1"}.isdisjoint(field.split(","))


def cron_problem(text: str) -> str:
    """Return why a text is no schedule, with the remedy; empty for one that is."""
    try:
        parse_cron(text)
    except ValueError as error:
        return str(error)
    return ""


def zone_of(name: str) -> tzinfo:
    """The time zone of a name. Raises ValueError for an unknown one."""
    if name == "UTC":
        return UTC
    try:
        return ZoneInfo(name)
    except (OSError, ValueError, LookupError):
        # ZoneInfoNotFoundError is a LookupError; names that are no paths and names of folders raise the others.
        raise ValueError(
            f"{name!r} is not a time zone of this machine; give a name such as UTC or Europe/Berlin"
        ) from None


def zone_name_problem(text: str) -> str:
    """Return why a text cannot be the name of a time zone; empty for one that may be known to another machine."""
    if _ZONE.fullmatch(text):
        return ""
    return f"{text!r} is not the name of a time zone; give a name such as UTC or Europe/Berlin"


def zone_problem(name: str) -> str:
    """Return why a text is no time zone of this machine, with the remedy; empty for one that is."""
    try:
        zone_of(name)
    except ValueError as error:
        return str(error)
    return ""


def next_time(cron: str, zone: str, after: int) -> int | None:
    """The first time behind ``after``; None when there is none within nine years. In milliseconds since 1970 UTC."""
    parsed, there = _parsed(cron), zone_of(zone)
    return next((one for one in _forwards(parsed, there, after) if one > after), None)


def newest_time(cron: str, zone: str, after: int, until: int) -> int | None:
    """The last time behind ``after`` that is not behind ``until``; None without one."""
    parsed, there = _parsed(cron), zone_of(zone)
    return next((one for one in _backwards(parsed, there, after, until) if after < one <= until), None)


@cache
def _parsed(text: str) -> Cron:
    return parse_cron(text)


def _forwards(cron: Cron, zone: tzinfo, after: int) -> Iterator[int]:
    # A skipped time may fall on the next day of the zone, so the search begins a day earlier.
    day = datetime.fromtimestamp(after / 1000, zone).date() - _DAY
    for _ in range(_LONGEST_DAYS):
        yield from cron.instants(day, zone)
        day += _DAY


def _backwards(cron: Cron, zone: tzinfo, after: int, until: int) -> Iterator[int]:
    day = datetime.fromtimestamp(until / 1000, zone).date() + _DAY
    first = max(datetime.fromtimestamp(after / 1000, zone).date() - _DAY, day - _LONGEST_DAYS * _DAY)
    while day >= first:
        yield from reversed(cron.instants(day, zone))
        day -= _DAY


def _values(field: str, limits: _Range) -> Iterator[int]:
    for part in field.split(","):
        stepped = _STEP.fullmatch(part)
        step = int(stepped[2]) if stepped is not None and stepped[2] else 1
        span = stepped[1] if stepped is not None else ""
        if not step or stepped is None:
            raise _not_a_value(part, limits)
        if span == "*":
            first, last = limits.first, limits.last
        else:
            found = _SPAN.fullmatch(span)
            if found is None:
                raise _not_a_value(part, limits)
            first = _number(found[1], part, limits)
            last = _number(found[2], part, limits) if found[2] else limits.last if stepped[2] else first
        if first > last:
            raise _not_a_value(part, limits)
        yield from range(first, last + 1, step)


def _number(text: str, part: str, limits: _Range) -> int:
    if text.isdecimal():
        value = int(text)
    elif text in limits.names:
        value = limits.first + limits.names.index(text)
    else:
        raise _not_a_value(part, limits)
    if not limits.first <= value <= limits.last:
        raise _not_a_value(part, limits)
    return value


def _not_a_value(part: str, limits: _Range) -> ValueError:
    names = f", or {limits.names[0]} to {limits.names[-1]}" if limits.names else ""
    return ValueError(
        f"{part!r} is no value of the {limits.title}; write *, a number from {limits.first} to {limits.last}{names}, a "
        "range such as 1-5, a step such as */5, or a list of these with commas"
    )
