"""The JSON of a status, in a schema with a version.

Message references and stream ids are decimal text, because many JSON readers round a u64. A reader ignores fields that
it does not know and takes the default of one that is missing, so a newer and an older program understand each other.
"""

from __future__ import annotations

import dataclasses
import functools
import types
from collections.abc import Mapping
from typing import Any, TypeVar, Union, get_args, get_origin, get_type_hints

from wallaroo_spark.observe.receiver import ReceiverStatus
from wallaroo_spark.references import Reference

SCHEMA = 1
"""The version of the schema. It grows when a field changes its meaning, not when one is added."""

R = TypeVar("R")
_REFERENCES = ("received", "planned", "committed")
_IDS = ("stream_id",)


def to_json(status: ReceiverStatus) -> dict[str, Any]:
    """The status as JSON-ready values, with the version of the schema as ``schema``."""
    return {"schema": SCHEMA, **record_to_json(status)}


def from_json(value: Mapping[str, Any]) -> ReceiverStatus:
    """The status from its JSON. Raises ValueError for another version of the schema, and for values of wrong types."""
    if value.get("schema") != SCHEMA:
        raise ValueError(f"schema is {value.get('schema')!r}, and this release reads schema {SCHEMA}")
    return record_from_json(ReceiverStatus, value)


def record_to_json(record: Any, *, sparse: bool = False) -> dict[str, Any]:
    """One record of the model as JSON-ready values; ``sparse``: without the fields that have their default."""
    fields = ((field, getattr(record, field.name)) for field in dataclasses.fields(record))
    return {
        field.name: _plain(field.name, value, sparse)
        for field, value in fields
        if not (sparse and value == field.default)
    }


def record_from_json(kind: type[R], value: Mapping[str, Any]) -> R:
    """One record of the model from its JSON. Raises ValueError for a value that is not an object, or lacks a field."""
    if not isinstance(value, Mapping):
        raise ValueError(f"{kind.__name__} is {value!r:.100}, and has to be an object")
    hints = _hints(kind)  # type: ignore[arg-type]  # mypy does not know that a type can be hashed
    given = {name: _value(name, hints[name], value[name]) for name in hints if name in value}
    try:
        return kind(**given)
    except TypeError as error:
        raise ValueError(f"{kind.__name__}: {error}") from None


def _plain(name: str, value: Any, sparse: bool = False) -> Any:
    if dataclasses.is_dataclass(value):
        return record_to_json(value, sparse=sparse)
    if isinstance(value, tuple):
        return [_plain("", part, sparse) for part in value]
    if isinstance(value, Mapping):
        return dict(value)
    if value is not None and (name in _REFERENCES or name in _IDS):
        return str(value)
    return value


def _value(name: str, hint: Any, value: Any) -> Any:
    if hint == Reference | None:
        return reference_of_text(value)
    if isinstance(hint, types.UnionType) or get_origin(hint) is Union:
        if value is None:
            return None
        (hint,) = (part for part in get_args(hint) if part is not type(None))
    if dataclasses.is_dataclass(hint) and isinstance(hint, type):
        return record_from_json(hint, value)
    if get_origin(hint) is tuple:
        return tuple(_value("", get_args(hint)[0], part) for part in value)
    if get_origin(hint) is Mapping:
        return dict(value)
    if name in _IDS:
        return int(value)
    if hint is float and isinstance(value, int) and not isinstance(value, bool):
        return float(value)
    if not isinstance(value, hint):
        raise ValueError(f"{name} is {value!r:.100}, and has to be {hint.__name__}")
    return value


def reference_of_text(value: Any) -> Reference | None:
    """A reference from its text: a message id in decimal digits, or the text of an ephemeral reference."""
    if value is None:
        return None
    text = str(value)
    return int(text) if text.isascii() and text.isdigit() else text


@functools.cache
def _hints(kind: type[Any]) -> dict[str, Any]:
    return get_type_hints(kind)
