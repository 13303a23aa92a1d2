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

    def number(self, text: str) -> int:
        """The number of a value, which may be outside the range; -1 for an unknown name."""
        if text.isdecimal():
            return int(text)
        return self.first + self.names.index(text) if text in self.names else -1


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
_VALUE = r"[0-9]{1,4}|[a-z]{3}"
_PART = re.compile(rf"(?:\*|(?P<first>{_VALUE})(?:-(?P<last>{_VALUE}))?)(?:/(?P<step>[0-9]{{1,4}}))?")


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
    # A skipped time may fall on the next day of the zone, so the search begins a day earlier.
    begin = _day_of(after, there) - _DAY
    days = (begin + number * _DAY for number in range(_LONGEST_DAYS))
    return next((one for day in days for one in parsed.instants(day, there) if one > after), None)


def newest_time(cron: str, zone: str, after: int, until: int) -> int | None:
    """The last time behind ``after`` that is not behind ``until``; None without one."""
    parsed, there = _parsed(cron), zone_of(zone)
    begin, end = _day_of(after, there) - _DAY, _day_of(until, there) + _DAY
    days = (end - number * _DAY for number in range(min((end - begin).days, _LONGEST_DAYS) + 1))
    times = (one for day in days for one in reversed(parsed.instants(day, there)))
    return next((one for one in times if after < one <= until), None)


def _day_of(millis: int, zone: tzinfo) -> date:
    return datetime.fromtimestamp(millis / 1000, zone).date()


@cache
def _parsed(text: str) -> Cron:
    return parse_cron(text)


def _values(field: str, limits: _Range) -> Iterator[int]:
    for part in field.split(","):
        values = _part(part, limits)
        if not values:
            names = f", or {limits.names[0]} to {limits.names[-1]}" if limits.names else ""
            raise ValueError(
                f"{part!r} is no value of the {limits.title}; write *, a number from {limits.first} to {limits.last}"
                f"{names}, a range such as 1-5, a step such as */5, or a list of these with commas"
            )
        yield from values


def _part(text: str, limits: _Range) -> range:
    """The values of one part of a field; none for a text that is no such part."""
    found = _PART.fullmatch(text)
    step = 0 if found is None else int(found["step"] or 1)
    if found is None or not step:
        return range(0)
    first, last = limits.first, limits.last
    if found["first"]:
        first = limits.number(found["first"])
        last = limits.number(found["last"]) if found["last"] else last if found["step"] else first
    return range(first, last + 1, step) if limits.first <= first <= last <= limits.last else range(0)
