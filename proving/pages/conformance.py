"""The tables of ``docs/conformance.md``, written from those of the checks; comments mark where each begins and ends."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from wallaroo_spark.conformance import connectors, gateways, workers
from wallaroo_spark.conformance.checks import Check

PAGE = "conformance.md"
TABLES: dict[str, Sequence[Check[Any]]] = {
    "connector": connectors.CHECKS,
    "worker": workers.CHECKS,
    "gateway": gateways.CHECKS,
}
"""The tables, by the peer that they check."""


def with_checks(text: str) -> str:
    """The text of the page with new tables. Raises ValueError unless the page has one place for each."""
    for peer, checks in TABLES.items():
        begin, end = f"<!-- checks of a {peer} -->\n", "<!-- end of checks -->\n"
        before, found, rest = text.partition(begin)
        _, ended, after = rest.partition(end)
        if not (found and ended):
            raise ValueError(f"{PAGE} has no place for the checks of a {peer}; write {begin!r} and {end!r}")
        text = f"{before}{begin}\n{_table(checks)}\n{end}{after}"
    return text


def _table(checks: Sequence[Check[Any]]) -> str:
    lines = "".join(f"| `{one.name}` | {_does(one)} | {_link(one.page)} |\n" for one in checks)
    return f"| check | what is done and expected | section |\n|---|---|---|\n{lines}"


def _does(check: Check[Any]) -> str:
    return f"{check.does} ({', '.join(check.revisions)})" if check.revisions else check.does


def _link(page: str) -> str:
    title = re.sub("-", " ", page.partition("#")[2]).capitalize()
    return f"[{title}]({page.removeprefix('docs/')})"
