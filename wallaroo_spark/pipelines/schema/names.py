"""Names of declared objects, and the keys by which one object is known in an application.

Source: ``docs/pipelines/schema.md#names``.
"""

from __future__ import annotations

import re
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
