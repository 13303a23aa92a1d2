"""The reference page of the options, written from their table."""

from __future__ import annotations

from typing import Any

from wallaroo_spark.options import table
from wallaroo_spark.settings import Kind, Row, plain

HEAD = """\
# Options

The DataSource, the YAML file of `wallaroo-spark receive` and the command line take the same options under the same
names; upper and lower case make no difference. This page is generated from the table in `wallaroo_spark/options.py`
by `python -m proving.pages`.

An option marked *secret* is never printed. Its value can also be `env:NAME`, which stands for an environment variable,
or `file:PATH`, which stands for the content of a file; a newline at the file's end is not part of the secret.

| option | value | default | meaning |
|---|---|---|---|
"""

_MEBIBYTE = 1 << 20


def options_page() -> str:
    """The whole page as Markdown: a head, then a table with one line for each option, in the order of the code."""
    return HEAD + "".join(f"{_line(row)}\n" for row in table())


def _line(row: Row) -> str:
    help_ = row.help.replace("|", "\\|")
    meaning = f"{help_} *Secret.*" if row.secret else help_
    return f"| `{row.name}` | {_value(row)} | {_default(row)} | {meaning} |"


def _value(row: Row) -> str:
    if row.choices:
        return " or ".join(f"`{choice}`" for choice in row.choices)
    if row.minimum is None:
        return row.kind.value
    return f"{row.kind.value}; at least {_number(row, row.minimum)}"


def _default(row: Row) -> str:
    if row.default is None or row.default in ("", ()):
        return "none"
    if isinstance(row.default, bool):
        return f"`{str(row.default).lower()}`"
    return f"`{_number(row, row.default)}`"


def _number(row: Row, value: Any) -> str:
    """A value in the unit in which a person would write it."""
    if row.kind is Kind.BYTES and value >= _MEBIBYTE and value % _MEBIBYTE == 0:
        return f"{int(value) >> 20}m"
    if row.kind is Kind.BYTES and value >= 1 << 10 and value % (1 << 10) == 0:
        return f"{int(value) >> 10}k"
    if row.kind is Kind.SECONDS:
        return f"{plain(value)}s"
    return plain(value) if isinstance(value, float) else str(value)
