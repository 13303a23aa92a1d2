"""Figures as texts for a person. Pure."""

from __future__ import annotations

from datetime import UTC, datetime


def clock(time: float) -> str:
    """A time since 1970 as time of the day, UTC."""
    return f"{datetime.fromtimestamp(time, UTC):%H:%M:%S}"


def day_and_clock(time: float) -> str:
    """A time since 1970 as date and time, UTC."""
    return f"{datetime.fromtimestamp(time, UTC):%Y-%m-%d %H:%M:%S} UTC"


def seconds(value: float) -> str:
    """A duration."""
    if value < 0.0995:
        return f"{value * 1000:.0f} ms"
    if value < 60:
        return f"{value:.1f} s"
    if value < 3600:
        return f"{value // 60:.0f} min {value % 60:.0f} s"
    return f"{value // 3600:.0f} h {value % 3600 // 60:.0f} min"


def count(value: float) -> str:
    """A number of things."""
    return f"{value:,.0f}"


def rate(value: float) -> str:
    """A number of things a second."""
    return f"{value:.1f}/s" if 0 < value < 10 else f"{value:,.0f}/s"


def size(value: float) -> str:
    """A number of bytes."""
    for unit, factor in (("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10)):
        if value >= factor:
            return f"{value / factor:.1f} {unit}"
    return f"{value:.0f} B"
