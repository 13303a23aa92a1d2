"""Flags of verbs that are rows of a table of settings: their default, choices, limits and help come from the row."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import click

from wallaroo_spark.settings import Kind, Row, rows


def setting_flag(table: type, attribute: str, flag: str = "", **attributes: Any) -> Callable[[Any], Any]:
    """A click option for one setting; ``flag`` if it is not named as the setting, ``attributes`` where it differs."""
    row = next(row for row in rows(table) if row.attribute == attribute)
    found: dict[str, Any] = {"help": row.help, "type": _type(row)}
    if not row.required:
        found["default"] = row.default
        found["show_default"] = row.default not in (None, "")
    return click.option(flag or f"--{attribute.replace('_', '-')}", **{**found, **attributes})


def _type(row: Row) -> click.ParamType[Any]:
    if row.choices:
        return click.Choice(row.choices)
    if row.kind in (Kind.COUNT, Kind.BYTES):
        least, most = (None if limit is None else int(limit) for limit in (row.minimum, row.maximum))
        return click.IntRange(least, most)
    if row.kind in (Kind.SECONDS, Kind.NUMBER):
        return click.FloatRange(row.minimum, row.maximum)
    return click.STRING
