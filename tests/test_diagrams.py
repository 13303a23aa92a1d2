"""The state diagrams of the documentation are those of the tables."""

from __future__ import annotations

from pathlib import Path

import pytest

from proving.pages.session import session_page
from proving.pages.states import aqueduct_diagrams, sink_diagrams, states_page
from wallaroo_spark.protocol import REVISIONS

DOCS = Path(__file__).resolve().parents[1] / "docs"
PAGE = DOCS / "states.md"


def test_the_page_agrees_with_the_tables() -> None:
    written = PAGE.read_text(encoding="utf-8")
    assert written == states_page(), "run: python -m proving.pages"


def test_the_session_that_is_drawn_is_that_of_codecs_and_tables() -> None:
    assert (DOCS / "start" / "session.md").read_text(encoding="utf-8") == session_page(), "run: python -m proving.pages"


def test_every_transition_of_every_revision_is_drawn() -> None:
    page = states_page()
    for revision in REVISIONS.values():
        section = page.split(f"## Streams of {revision.name}\n")[1].split("## ")[0]
        for state, row in revision.streams.items():
            for event, target in row.items():
                arrow = f"{state.replace('-', '_')} --> {target.replace('-', '_')}: "
                assert any(line.strip().startswith(arrow) and str(event) in line for line in section.splitlines())


@pytest.mark.parametrize(("name", "diagram"), sink_diagrams().items(), ids=sink_diagrams())
def test_the_page_of_sinks_has_the_diagrams_of_the_tables(name: str, diagram: str) -> None:
    written = (DOCS / "sinks/connector.md").read_text(encoding="utf-8")

    again = "run python -m proving.pages sinks, and put it into docs/sinks/connector.md"
    assert diagram in written, f"{name}: {again}"


@pytest.mark.parametrize(("name", "diagram"), aqueduct_diagrams().items(), ids=aqueduct_diagrams())
def test_the_page_of_aqueduct_has_the_diagrams_of_the_tables(name: str, diagram: str) -> None:
    written = (DOCS / "aqueduct" / "protocol.md").read_text(encoding="utf-8")

    assert diagram in written, f"{name}: run python -m proving.pages aqueduct, and put it into the page"
