"""The differences between two versions of a schema, and those that a living object cannot take.

The functions are pure. Source: ``docs/pipelines/schema.md#changes-of-a-living-application``.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from wallaroo_spark.pipelines.schema.declarations import PipelineDeclaration, StreamDeclaration, TokenDeclaration
from wallaroo_spark.pipelines.schema.documents import to_document
from wallaroo_spark.pipelines.schema.names import ObjectKey
from wallaroo_spark.pipelines.schema.validation import Schema

CREATED, CHANGED, UNCHANGED, DELETED = "created", "changed", "unchanged", "deleted"
_ABSENT = object()


@dataclass(frozen=True)
class FieldChange:
    """One field of an object, before and after."""

    path: str
    """The field: ``partitions``, ``stages[ship].after``."""
    before: Any
    """The plain value before; None when there was none."""
    after: Any
    """The plain value after; None when there is none."""


@dataclass(frozen=True)
class ObjectChange:
    """One object in two versions of a schema."""

    key: ObjectKey
    action: str
    """``created``, ``changed``, ``unchanged`` or ``deleted``."""
    fields: tuple[FieldChange, ...] = ()
    """The fields that differ; all fields of a created or a deleted object."""

    def to_json(self) -> dict[str, Any]:
        """The change as plain values."""
        fields = [{"field": one.path, "before": one.before, "after": one.after} for one in self.fields]
        return {**self.key._asdict(), "action": self.action, "fields": fields}


def compare(before: Schema, after: Schema, keys: Iterable[ObjectKey]) -> list[ObjectChange]:
    """Return the change of each of the objects ``keys``."""
    return [_change(key, before, after) for key in dict.fromkeys(keys)]


def refusals(before: Schema, after: Schema) -> Iterator[tuple[ObjectKey, str, str]]:
    """The changes that a living object cannot take: the object, the field, and the reason with the remedy."""
    for key, old in before.items():
        new = after.get(key)
        if isinstance(old, StreamDeclaration) and isinstance(new, StreamDeclaration):
            if new.partitions < old.partitions:
                yield (
                    key,
                    "partitions",
                    f"partitions of {key} would go from {old.partitions} to {new.partitions}, and the records of the "
                    f"removed partitions would be lost; leave {old.partitions} or more, or declare a new stream",
                )
        elif isinstance(old, PipelineDeclaration) and isinstance(new, PipelineDeclaration):
            before_key, after_key = old.input_key, new.input_key
            if before_key != after_key:
                text = (
                    f"inputStream of {key} would go from {before_key.path} to {after_key.path}, and instances are "
                    "numbered by its offsets; declare a pipeline of another name"
                )
                yield key, "inputStream", text


def has_tokens(schema: Schema) -> bool:
    """Whether clients need a token: they do as soon as one Token is declared."""
    return any(key.kind == TokenDeclaration.kind for key in schema)


def access_note(before: Schema, after: Schema) -> str:
    """What a new version changes for all clients: a clause on the first or the last Token; empty for other changes."""
    if has_tokens(before) == has_tokens(after):
        return ""
    if has_tokens(before):
        return "it has no Token any more: everybody who reaches a gateway may do everything"
    return (
        "it has the first Token: gateways refuse every client without a token from now on, those that are connected "
        "too; wallaroo-spark token create makes one"
    )


def _change(key: ObjectKey, before: Schema, after: Schema) -> ObjectChange:
    # The fields with their defaults are of interest only where both versions have the object.
    both = key in before and key in after
    old, new = (to_document(one[key], defaults=both) if key in one else {} for one in (before, after))
    fields = tuple(_fields("", old, new))
    if both:
        return ObjectChange(key, CHANGED if fields else UNCHANGED, fields)
    return ObjectChange(key, CREATED if new else DELETED, fields)


def _fields(path: str, old: Any, new: Any) -> Iterator[FieldChange]:
    """The differences of two plain values; entries with a name are compared by it, other lists as a whole."""
    if isinstance(old, dict) and isinstance(new, dict):
        for name in dict.fromkeys([*old, *new]):
            inner = f"{path}.{name}" if path else name
            yield from _fields(inner, old.get(name, _ABSENT), new.get(name, _ABSENT))
    elif _named(old) and _named(new):
        olds, news = ({entry["name"]: entry for entry in entries} for entries in (old, new))
        for name in dict.fromkeys([*olds, *news]):
            yield from _fields(f"{path}[{name}]", olds.get(name, _ABSENT), news.get(name, _ABSENT))
    elif old != new:
        yield FieldChange(path, *(None if value is _ABSENT else value for value in (old, new)))


def _named(entries: Any) -> bool:
    """Whether a value is a list of mappings with distinct names, as stages are."""
    if not isinstance(entries, list) or not all(isinstance(entry, dict) and "access" not in entry for entry in entries):
        return False
    names = [entry.get("name") for entry in entries]
    return None not in names and len(set(names)) == len(names)
