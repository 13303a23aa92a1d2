"""How much a group or a member is given at once: it follows the time that acks take. Pure.

Source: ``docs/pipelines/design.md#windows``.
"""

from __future__ import annotations

QUICK_MILLIS = 5_000
"""What is acked within this time may be twice as much next. A choice."""
SLOW_MILLIS = 20_000
"""What takes longer is to be half as much next: what a member loses by its death is delivered again. A choice."""


def next_size(given: int, most: int, took: int) -> int:
    """The most that may be given next, after ``given`` of at most ``most`` were acked within ``took`` milliseconds."""
    if took > SLOW_MILLIS:
        return max(1, given // 2)
    return 2 * most if took <= QUICK_MILLIS and given == most else most
