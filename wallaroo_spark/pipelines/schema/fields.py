"""The fields of declarations: their rows, their public names, and the check of one value."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from typing import Any

from wallaroo_spark import settings
from wallaroo_spark.errors import ConfigurationError
from wallaroo_spark.options import public_name
from wallaroo_spark.pipelines.schema.cron import cron_problem, zone_name_problem
from wallaroo_spark.pipelines.schema.names import name_problem, object_name_problem, pattern_problem
from wallaroo_spark.settings import Kind, Row
from wallaroo_spark.texts import hint


class Checked:
    """A base of tables that checks each value when an object is made. Raises :class:`ConfigurationError`."""

    def __post_init__(self) -> None:
        for one in declared_rows(type(self)):
            if problem := value_problem(one, getattr(self, one.attribute)):
                raise invalid(one.name, f"{one.name}: {problem}")
        self._check_combination()

    def _check_combination(self) -> None:
        """Raise :func:`invalid` for values that do not go together."""


def invalid(field: str, problem: str) -> ConfigurationError:
    """The error of a declaration with a wrong field, or with fields that do not go together."""
    return ConfigurationError(problem, code="schema-invalid", field=field)


def declared_rows(table: type) -> Iterator[Row]:
    """The rows of a declaration, with the names that documents use."""
    for one in settings.rows(table):
        yield dataclasses.replace(one, name=public_name(one.attribute))


def value_problem(row: Row, value: Any) -> str:
    """Return why a value is not one of a field, with the remedy; empty for a value that is.

    The value is of the field's type; a value of another type is a problem too.
    """
    if value is None and row.optional:
        return ""
    if row.kind in _TEXT_PROBLEMS and isinstance(value, str):
        return text_problem(row.kind, value) if value or row.required else ""
    if row.kind in ENTRY_KINDS:
        return _list_problem(row, value)
    if row.choices and isinstance(value, str) and value not in row.choices:
        return f"{value!r} is not known; {hint(value, row.choices)}"
    if isinstance(value, bool) and row.kind is not Kind.FLAG:
        return f"{value!r} is not {row.kind.value}"
    try:
        settings.check(row, value, row.name)
    except ConfigurationError as error:
        return error.message.removeprefix(f"{row.name}: ")
    return ""


def text_problem(kind: Kind, text: str) -> str:
    """Return why a text is not one of a kind of texts, with the remedy; empty for a text that is."""
    check = _TEXT_PROBLEMS.get(kind)
    return check(text) if check is not None else ""


def function_problem(text: str) -> str:
    """Return why a text names no function, with the remedy; empty for ``module:function``."""
    module, colon, function = text.partition(":")
    if colon and all(part.isidentifier() for part in (*module.split("."), *function.split("."))):
        return ""
    return f"{text!r} names no function; write module:function, such as shop.stock:reserve"


_TEXT_PROBLEMS = {
    Kind.NAME: name_problem,
    Kind.STREAM: object_name_problem,
    Kind.EXCHANGE: object_name_problem,
    Kind.PATTERN: pattern_problem,
    Kind.FUNCTION: function_problem,
    Kind.CRON: cron_problem,
    Kind.ZONE: zone_name_problem,
}
ENTRY_KINDS = {
    Kind.NAMES: Kind.NAME,
    Kind.STREAMS: Kind.STREAM,
    Kind.PATTERNS: Kind.PATTERN,
    Kind.SECTIONS: Kind.SECTION,
}
"""Kind of a list → kind of its entries."""


def _list_problem(row: Row, value: Any) -> str:
    if not isinstance(value, tuple):
        return f"{value!r} is not a list"
    if row.minimum is not None and len(value) < row.minimum:
        return f"there is none; give {settings.plain(row.minimum)} or more"
    if row.maximum is not None and len(value) > row.maximum:
        return f"there are {len(value)}, and {settings.plain(row.maximum)} are permitted; leave some out"
    inner = ENTRY_KINDS[row.kind]
    if inner is Kind.SECTION:
        return ""
    return next((problem for text in value if (problem := text_problem(inner, text))), "")
