"""The page of the settings that classes and functions take, written from their tables."""

from __future__ import annotations

from wallaroo_spark.connector import Backoff
from wallaroo_spark.connector.settings import ConnectorSettings
from wallaroo_spark.engine.application.settings import ApplicationSettings
from wallaroo_spark.settings import Kind, Row, plain, rows

HEAD = """\
# Settings

These are the arguments of classes and functions of the package. Each section shows a table of the code. From these
tables come the parameters with their types and limits, the docstrings, the flags of the command line, and this page
(`python -m proving.pages`). A value outside its limits is refused. The options
of a receiver are on [their own page](options.md), and the settings of sinks and topics on the pages [sinks](sinks.md),
[connector sinks](sinks/connector.md) and [topics](pubsub.md).

A setting marked *secret* is never shown; in place of its value it takes `env:NAME` or `file:PATH`. Times are seconds.
"""

TABLES: tuple[tuple[str, type], ...] = (
    ("`Connector` and `BlockingConnector`", ConnectorSettings),
    ("`Application`", ApplicationSettings),
    ("`Backoff`, the setting `retry` of a connector", Backoff),
)
"""Each table, with the classes that take its settings as arguments."""


def settings_page() -> str:
    """The whole page as Markdown."""
    return HEAD + "".join(f"\n## {title}\n\n{settings_table(table)}" for title, table in TABLES)


def settings_table(table: type, beside: type | None = None) -> str:
    """The rows of one table as a table of Markdown; with ``beside`` only those that are not in that table."""
    known = {_line(row) for row in rows(beside)} if beside else ()
    lines = "".join(f"{line}\n" for line in map(_line, rows(table)) if line not in known)
    return f"| setting | type | default | meaning |\n|---|---|---|---|\n{lines}"


def _line(row: Row) -> str:
    meaning = f"{row.help} *Secret.*" if row.secret else row.help
    return f"| `{row.name}` | {_type(row)} | {_default(row)} | {meaning} |"


def _type(row: Row) -> str:
    if row.choices:
        return " or ".join(f'`"{choice}"`' for choice in row.choices)
    limits = [f"at least {plain(row.minimum)}"] if row.minimum is not None else []
    limits += [f"at most {plain(row.maximum)}"] if row.maximum is not None else []
    unit = {Kind.BYTES: " (bytes)", Kind.SECONDS: " (seconds)"}.get(row.kind, "")
    annotation = row.annotation.replace("|", "\\|")
    return f"`{annotation}`{unit}" + (f", {', '.join(limits)}" if limits else "")


def _default(row: Row) -> str:
    if row.required:
        return "required"
    if row.kind is Kind.BYTES and row.default and row.default % (1 << 20) == 0:
        return f"`{row.default >> 20} << 20`"
    return f"`{row.default!r}`"
