"""Patterns over the type of an event, which decide whether a record starts an instance of a pipeline.

The parts of a type and of a pattern are divided by dots. A pattern matches the whole type. ``*`` stands for exactly one
part, and ``>`` at the end for one part or more. Without patterns every type matches. Source:
``docs/pipelines/schema.md#triggers``.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from functools import lru_cache

ONE_PART = "*"
REST = ">"
LONGEST_PATTERN = 255
"""The most characters of a pattern. A choice: event types are short texts such as ``shop.order.created``."""
_KEPT = 1024
"""The lists of patterns whose compiled form is kept. More than one application has pipelines."""


def matches(patterns: Iterable[str], event_type: str) -> bool:
    """Whether one of the patterns matches the type of an event; True without patterns.

    The patterns must be valid (:func:`pattern_problem`).
    """
    chosen = tuple(patterns)
    return not chosen or _compiled(chosen).fullmatch(event_type) is not None


def shared_pattern(one: str, other: str) -> str:
    """Return the pattern of the types that both patterns match; empty if no type does."""
    left, right = one.split("."), other.split(".")
    shared: list[str] = []
    for place, (first, second) in enumerate(zip(left, right, strict=False)):
        if REST in (first, second):
            return ".".join([*shared, *(right if first == REST else left)[place:]])
        if first != second and ONE_PART not in (first, second):
            return ""
        shared.append(second if first == ONE_PART else first)
    return ".".join(shared) if len(left) == len(right) else ""


def pattern_problem(pattern: str) -> str:
    """Return why a text is no pattern, with the remedy; empty for a pattern."""
    if not pattern:
        return "the pattern is empty; leave it out, and every type matches"
    if len(pattern) > LONGEST_PATTERN:
        return f"the pattern has {len(pattern)} characters, and {LONGEST_PATTERN} are permitted; shorten it"
    if not pattern.isprintable() or " " in pattern:
        return f"the pattern {pattern!r} has a space or a character that cannot be printed; remove it"
    parts = pattern.split(".")
    for place, part in enumerate(parts):
        if not part:
            return f"the pattern {pattern!r} has an empty part; remove the superfluous dot"
        if part == REST and place < len(parts) - 1:
            return f"the pattern {pattern!r} goes on after '>', which stands for the whole rest; use '*' for one part"
        if len(part) > 1 and (ONE_PART in part or REST in part):
            return (
                f"the pattern {pattern!r} has the part {part!r}, and '*' and '>' stand for whole parts; write the part "
                "out, or '*' alone in its place"
            )
    return ""


@lru_cache(maxsize=_KEPT)
def _compiled(patterns: tuple[str, ...]) -> re.Pattern[str]:
    return re.compile("|".join(_expression(pattern) for pattern in patterns), re.DOTALL)


def _expression(pattern: str) -> str:
    shown = {ONE_PART: r"[^.]*", REST: r".*"}
    return r"\.".join(shown.get(part) or re.escape(part) for part in pattern.split("."))
