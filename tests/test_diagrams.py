"""The state diagrams of the documentation are those of the tables."""

from __future__ import annotations

from pathlib import Path

from wallaroo_spark.cli.diagrams import states_page
from wallaroo_spark.protocol import REVISIONS

PAGE = Path(__file__).resolve().parents[1] / "docs" / "states.md"


def test_the_page_is_what_the_tables_say() -> None:
    written = PAGE.read_text(encoding="utf-8")
    assert written == states_page(), "run: python -m wallaroo_spark.cli.diagrams > docs/states.md"


def test_every_transition_of_every_revision_is_drawn() -> None:
    page = states_page()
    for revision in REVISIONS.values():
        section = page.split(f"## Streams of {revision.name}\n")[1].split("## ")[0]
        for state, row in revision.streams.items():
            for event, target in row.items():
                arrow = f"{state.replace('-', '_')} --> {target.replace('-', '_')}: "
                assert any(line.strip().startswith(arrow) and str(event) in line for line in section.splitlines())
