"""Counts, sizes, times and rates as texts for a person, and the hint for an unknown name."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Set
from datetime import UTC, datetime

SHOWN_NAMES = 12
"""The most names that a hint lists. A choice: a line stays readable."""
_UNITS = ("B", "KiB", "MiB", "GiB", "TiB")


def count(number: float, thing: str = "", things: str = "") -> str:
    """Format a number with the name of the counted thing: ``1 message``, ``1,200 messages``."""
    return f"{number:,.0f}" + (f" {thing if number == 1 else things or thing + 's'}" if thing else "")


def rate(number: float) -> str:
    """Format a number of things a second: ``0.5/s``, ``1,200/s``."""
    return f"{number:.1f}/s" if 0 < number < 10 else f"{number:,.0f}/s"


def size(number: float) -> str:
    """Format a number of bytes with a suitable unit: ``512 B``, ``1.5 MiB``."""
    unit = 0
    while number >= 1024 and unit < len(_UNITS) - 1:
        number /= 1024
        unit += 1
    return f"{number:.0f} {_UNITS[unit]}" if unit == 0 or number >= 100 else f"{number:.1f} {_UNITS[unit]}"


def duration(seconds: float) -> str:
    """Format seconds: ``40 ms``, ``0.4 s``, ``42 s``, ``3 min``, ``2 h``."""
    if 0 < seconds < 0.0995:
        return f"{seconds * 1000:.0f} ms"
    if seconds < 120:
        return f"{seconds:.1f} s" if seconds < 10 else f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 7200 else f"{seconds / 3600:.0f} h"


def clock(time: float) -> str:
    """Format seconds since 1970 as the time of the day, UTC."""
    return f"{datetime.fromtimestamp(time, UTC):%H:%M:%S}"


def day_and_clock(time: float) -> str:
    """Format seconds since 1970 as date and time, UTC."""
    return f"{datetime.fromtimestamp(time, UTC):%Y-%m-%d %H:%M:%S} UTC"


def nearest(given: str, known: Iterable[str]) -> str:
    """Return ``did you mean …?`` with the known name that is most like an unknown one; empty without such a name."""
    lower = {name.lower(): name for name in sorted(known)}
    near = difflib.get_close_matches(given.lower(), lower, n=1)
    return f"did you mean {lower[near[0]]}?" if near else ""


def hint(given: str, known: Iterable[str], things: str = "there are", none: str = "") -> str:
    """Return :func:`nearest`; or else the names that are known, introduced by ``things``, or ``none`` without any."""
    names = sorted(known) if isinstance(known, Set) else list(known)
    more = f" and {len(names) - SHOWN_NAMES} more" if len(names) > SHOWN_NAMES else ""
    listed = f"{things} {', '.join(names[:SHOWN_NAMES])}{more}" if names else none
    return nearest(given, names) or listed
