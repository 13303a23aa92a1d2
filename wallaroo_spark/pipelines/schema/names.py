"""Names of declared objects, the keys by which one object is known in an application, and patterns over types.

The parts of a type and of a pattern are divided by dots. A pattern matches the whole type. ``*`` stands for exactly one
part, and ``>`` at the end for one part or more. Without patterns every type matches.

Source: ``docs/pipelines/schema.md#names`` and ``docs/pipelines/schema.md#triggers``.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from functools import lru_cache
from typing import NamedTuple

LONGEST_NAME = 100
"""The most characters of a name."""
NAME_PATTERN = rf"(?!.*\.\.)[A-Za-z0-9_-](?:[A-Za-z0-9_.-]{{0,{LONGEST_NAME - 2}}}[A-Za-z0-9_-])?"
"""The names that are permitted, as a regular expression that JavaScript and Python read alike."""
ROOT_EVENT = "root_event"
"""The name by which a stage depends on the event that started its instance; no stage has this name."""

_NAME = re.compile(NAME_PATTERN)
_STRANGE = re.compile(r"[^A-Za-z0-9_.-]")


class ObjectKey(NamedTuple):
    """The key of a declared object."""

    kind: str
    """The kind, as in a document: ``Stream``, ``Pipeline``, …"""
    namespace: str
    """The namespace; empty for a Namespace and a Token, which stand in none."""
    name: str

    @property
    def path(self) -> str:
        """The name with its namespace: ``shop/orders``."""
        return f"{self.namespace}/{self.name}" if self.namespace else self.name

    def __str__(self) -> str:
        return f"{self.kind} {self.path}"


def name_problem(text: str) -> str:
    """Return why a text is no name, with the remedy; empty for a name."""
    if _NAME.fullmatch(text):
        return ""
    shown = repr(text if len(text) <= LONGEST_NAME else text[: LONGEST_NAME - 3] + "...")
    if not text:
        return "the name is empty; give 1 to 100 letters, digits, '-', '_' or '.'"
    if len(text) > LONGEST_NAME:
        return f"the name {shown} has {len(text)} characters, and {LONGEST_NAME} are permitted; shorten it"
    if strange := _STRANGE.search(text):
        return f"the name {shown} has {strange[0]!r}; use letters (A to Z), digits, '-', '_' and '.'"
    if ".." in text:
        return f"the name {shown} has two dots in a row; remove one of them"
    return f"the name {shown} begins or ends with a dot; remove it"


def stream_key(text: str, namespace: str) -> ObjectKey:
    """Return the key of the stream that a field of an object in ``namespace`` names: ``orders`` or ``shop/orders``."""
    return object_key("Stream", text, namespace)


def object_key(kind: str, text: str, namespace: str) -> ObjectKey:
    """Return the key of the object of a kind that a field of an object in ``namespace`` names, as streams are named."""
    given, slash, name = text.rpartition("/")
    return ObjectKey(kind, given if slash else namespace, name)


def object_name_problem(text: str) -> str:
    """Return why a text names no object, with the remedy; empty for a name with or without its namespace."""
    namespace, slash, name = text.rpartition("/")
    return (name_problem(namespace) if slash else "") or name_problem(name)


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
