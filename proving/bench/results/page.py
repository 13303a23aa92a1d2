"""Refreshes the pages of ``docs/`` that have figures of the bench, and their pictures, from a run.

The pages have blocks ``<!-- bench: NAME -->`` … ``<!-- end -->``; NAME is a section, ``goals``,
``cores`` or ``machine``. Their text is written anew; everything else on a page stays. The figures are kept beside the
pictures, so the pages can be written again after a change of a table or a picture.
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

from proving.bench.results.goals import GOALS, goals_of, goals_table
from proving.bench.results.pictures import draw_all
from proving.bench.results.report import cores_busy, section

DOCS = Path(__file__).resolve().parents[3] / "docs"
PAGES = (DOCS / "performance.md", DOCS / "bench.md", DOCS / "many-workers.md")
PICTURES = DOCS / "performance"
FIGURES = PICTURES / "bench.json"
_BLOCK = re.compile(r"<!-- bench: ([\w-]+) -->\n.*?<!-- end -->", re.DOTALL)


def refresh(found: dict[str, Any]) -> None:
    """Write the pages, their pictures and their figures. ``found`` is the content of a bench.json."""
    texts = {page: written(page.read_text(encoding="utf-8"), found) for page in PAGES}
    for old in PICTURES.glob("*.png"):
        old.unlink()
    draw_all(found["sections"], PICTURES)
    FIGURES.write_text(json.dumps(found) + "\n", encoding="utf-8")
    for page, text in texts.items():
        page.write_text(text, encoding="utf-8")


def written(page: str, found: dict[str, Any]) -> str:
    """A page with the blocks of this run."""
    return _BLOCK.sub(lambda one: f"<!-- bench: {one[1]} -->\n{_block(one[1], found)}\n<!-- end -->", page)


def _block(name: str, found: dict[str, Any]) -> str:
    results = found["sections"]
    if name == "machine":
        return _machine(found)
    if name == "goals":
        return goals_table(goals_of(results))
    if name == "cores":
        return cores_busy(results)
    return section(results, name) or f"This run has no figures of the section `{name}`."


def _machine(found: dict[str, Any]) -> str:
    machine, figures = found["machine"], goals_of(found["sections"])
    verdicts = [goal.says(figures[goal.key]) for goal in GOALS]
    counts = ", ".join(f"{verdicts.count(one)} {one}" for one in ("aim met", "met", "missed", "not measured"))
    return (
        f"One run of {machine['when']}: {found['seconds'] / 60:.0f} minutes on {machine['cores']} virtual cores "
        f"({machine['processor']}, Python {machine['python']}), load average {machine['load_average'][0]:.1f} when it "
        f"began. Of {len(GOALS)} goals: {counts}." + (f" {found['note']}" if "note" in found else "")
    )
