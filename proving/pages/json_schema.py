"""The JSON Schema of documents, for editors, and the tables of their fields; both from the declarations."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import MISSING
from typing import Any

from wallaroo_spark.pipelines.schema.declarations import KINDS, Permission, RetryPolicy, StageDeclaration, StartPoint
from wallaroo_spark.pipelines.schema.documents import nested_table
from wallaroo_spark.pipelines.schema.fields import ENTRY_KINDS, declared_rows
from wallaroo_spark.pipelines.schema.names import LONGEST_PATTERN, NAME_PATTERN
from wallaroo_spark.settings import Kind, Row, plain

FILE = "schema.json"
PAGE = "schema.md"
DURATION_PATTERN = r"[0-9]+(\.[0-9]+)? ?(ms|s|m|min|h|d)?"
PARTS: dict[type, str] = {
    StageDeclaration: "a stage",
    StartPoint: "startPoint",
    RetryPolicy: "retry",
    Permission: "a permission",
}
"""The tables within documents, with their titles on the page."""
_TEXTS: dict[Kind, dict[str, Any]] = {
    Kind.NAME: {"pattern": f"^{NAME_PATTERN}$"},
    Kind.STREAM: {"pattern": f"^({NAME_PATTERN}/)?{NAME_PATTERN}$"},
    Kind.EXCHANGE: {"pattern": f"^({NAME_PATTERN}/)?{NAME_PATTERN}$"},
    Kind.PATTERN: {"minLength": 1, "maxLength": LONGEST_PATTERN},
    Kind.FUNCTION: {"pattern": r"^[^:]+:[^:]+$"},
}
_BEGIN, _END = "<!-- fields of documents -->\n", "<!-- end of fields -->\n"


def json_schema() -> dict[str, Any]:
    """The schema of one document of any kind."""
    kinds = [_object(table, kind) for kind, table in KINDS.items()]
    return {
        "$schema": "http://json-schema.org/draft-07/schema#",
        "title": "A document of an application of wallaroo-spark",
        "type": "object",
        "required": ["kind"],
        "oneOf": kinds,
    }


def fields_text() -> str:
    """The tables of all fields as Markdown."""
    parts = [f"### {kind}\n\n{_summary(table)}\n\n{_fields(table)}" for kind, table in KINDS.items()]
    parts += [f"### Fields of {title}\n\n{_summary(table)}\n\n{_fields(table)}" for table, title in PARTS.items()]
    return "\n".join(parts)


def with_fields(page: str) -> str:
    """The text of the page with new tables. Raises ValueError unless the page has one place for them."""
    place = re.compile(f"{re.escape(_BEGIN)}.*?{re.escape(_END)}", re.DOTALL)
    if len(place.findall(page)) != 1:
        raise ValueError(f"the page has no place for the fields; write {_BEGIN!r} and {_END!r} once")
    return place.sub(lambda _: f"{_BEGIN}\n{fields_text()}\n{_END}", page)


def json_text() -> str:
    """The JSON Schema as the file has it."""
    return json.dumps(json_schema(), indent=2) + "\n"


def _object(table: type, kind: str = "") -> dict[str, Any]:
    rows = list(declared_rows(table))
    properties = {row.name: _property(table, row) for row in rows}
    required = [row.name for row in rows if row.default is MISSING]
    if kind:
        properties = {"kind": {"const": kind, "description": _summary(table)}, **properties}
        required = ["kind", *required]
    found: dict[str, Any] = {"type": "object", "additionalProperties": False, "properties": properties}
    if choice := getattr(table, "EXACTLY_ONE", ()):
        found["oneOf"] = [{"required": [name], "properties": {name: {"type": "string"}}} for name in choice]
    return {**found, "required": required} if required else found


def _property(table: type, row: Row) -> dict[str, Any]:
    found: dict[str, Any] = {"description": row.help, **_type(table, row)}
    # A value that is left out may also stand there without a value.
    if row.default is not MISSING:
        found = {"description": row.help, "anyOf": [_type(table, row), {"type": "null"}]}
    if isinstance(row.default, str | int | float) and not isinstance(row.default, bool) and row.default != "":
        found["default"] = row.default
    return found


def _type(table: type, row: Row) -> dict[str, Any]:
    inner = ENTRY_KINDS.get(row.kind)
    if inner is not None:
        items = _object(nested_table(table, row)) if inner is Kind.SECTION else _text(inner)
        limits = {"minItems": row.minimum, "maxItems": row.maximum}
        unique = {} if inner is Kind.SECTION else {"uniqueItems": True}
        return {"type": "array", "items": items, **unique, **_given(limits)}
    if row.kind is Kind.SECTION:
        return _object(nested_table(table, row))
    if row.choices:
        return {"type": "string", "enum": list(row.choices)}
    limits = _given({"minimum": row.minimum, "maximum": row.maximum})
    if row.kind is Kind.COUNT:
        return {"type": "integer", **limits}
    if row.kind is Kind.SECONDS:
        return {"anyOf": [{"type": "number", **limits}, {"type": "string", "pattern": f"^{DURATION_PATTERN}$"}]}
    return _text(row.kind)


def _text(kind: Kind) -> dict[str, Any]:
    return {"type": "string", **_TEXTS.get(kind, {})}


def _given(limits: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in limits.items() if value is not None}


def _summary(table: type) -> str:
    return (table.__doc__ or "").splitlines()[0]


def _fields(table: type) -> str:
    return "| field | value | default | meaning |\n|---|---|---|---|\n" + "".join(f"{line}\n" for line in _lines(table))


def _lines(table: type) -> Iterator[str]:
    for row in declared_rows(table):
        yield f"| `{row.name}` | {_value(row)} | {_default(row)} | {row.help} |"


def _value(row: Row) -> str:
    if row.choices:
        return " or ".join(f"`{choice}`" for choice in row.choices)
    shown = {Kind.NAMES: "a list of names", Kind.SECONDS: "seconds, or with a unit: `90s`, `12h`, `7d`"}
    limits = [f"at least {plain(row.minimum)}"] if row.minimum is not None else []
    limits += [f"at most {plain(row.maximum)}"] if row.maximum is not None else []
    return "; ".join([shown.get(row.kind, row.kind.value), *limits])


def _default(row: Row) -> str:
    if row.default is MISSING:
        return "required"
    if isinstance(row.default, float):
        return f"`{plain(row.default)}s`"
    return f"`{row.default}`" if isinstance(row.default, str | int) and row.default != "" else "none"
