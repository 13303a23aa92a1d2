"""Makes flags of the rows of a table of settings: default, choices, limits and help come from the row."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import click

from wallaroo_spark.settings import Kind, Row, rows


def setting_flag(table: type, attribute: str, flag: str = "", **attributes: Any) -> Callable[[Any], Any]:
    """Return a click option for one setting of a table.

    ``flag`` is the name of the flag if it differs from that of the setting; ``attributes`` are arguments of
    ``click.option`` that differ from the row.
    """
    row = next(row for row in rows(table) if row.attribute == attribute)
    from_row: dict[str, Any] = {"help": row.help, "type": _type(row)}
    if not row.required:
        from_row["default"] = row.default
        from_row["show_default"] = row.default not in (None, "")
    if row.kind is Kind.FLAG:
        from_row = {"help": row.help, "is_flag": True, "default": row.default}
    return click.option(flag or f"--{attribute.replace('_', '-')}", **{**from_row, **attributes})


def _type(row: Row) -> click.ParamType[Any]:
    if row.choices:
        return click.Choice(row.choices)
    if row.kind in (Kind.COUNT, Kind.BYTES):
        least, most = (None if limit is None else int(limit) for limit in (row.minimum, row.maximum))
        return click.IntRange(least, most)
    if row.kind in (Kind.SECONDS, Kind.NUMBER):
        return click.FloatRange(row.minimum, row.maximum)
    return click.STRING
