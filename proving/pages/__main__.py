"""Write all generated pages anew: ``python -m proving.pages``; ``sinks`` and ``aqueduct`` print their diagrams."""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from pathlib import Path

from proving.pages.commands import cli_page
from proving.pages.conformance import PAGE as CONFORMANCE
from proving.pages.conformance import with_checks
from proving.pages.dashboard import FILE as DASHBOARD
from proving.pages.dashboard import dashboard
from proving.pages.errors import errors_page
from proving.pages.json_schema import FILE, PAGE, json_text, with_fields
from proving.pages.metrics import metrics_page
from proving.pages.options import options_page
from proving.pages.session import session_page
from proving.pages.settings import settings_page
from proving.pages.settings_tables import TABLES, with_tables
from proving.pages.states import aqueduct_diagrams, sink_diagrams, states_page

DOCS = Path(__file__).resolve().parents[2] / "docs"
PAGES = {
    "cli.md": cli_page,
    "errors.md": errors_page,
    "metrics.md": metrics_page,
    "options.md": options_page,
    "settings.md": settings_page,
    "start/session.md": session_page,
    "states.md": states_page,
    f"pipelines/{FILE}": json_text,
    f"../conf/grafana/{DASHBOARD}": dashboard,
}


def main() -> None:
    """Write the pages, and the tables within the others."""
    for page, make in PAGES.items():
        (DOCS / page).write_text(make(), encoding="utf-8")
    within: dict[str, Callable[[str], str]] = {page: functools.partial(with_tables, page) for page in TABLES}
    for page, fill in {**within, f"pipelines/{PAGE}": with_fields, CONFORMANCE: with_checks}.items():
        path = DOCS / page
        path.write_text(fill(path.read_text(encoding="utf-8")), encoding="utf-8")


if __name__ == "__main__":
    printed = {"sinks": sink_diagrams, "aqueduct": aqueduct_diagrams}
    if sys.argv[1:]:
        sys.stdout.write("\n".join(printed[sys.argv[1]]().values()))
    else:
        main()
