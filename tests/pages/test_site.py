"""The documentation as a site: ``site/`` and ``scripts/site``."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.conftest import ROOT


def test_every_page_has_a_place_in_the_site() -> None:
    index = (ROOT / "site" / "index.md").read_text(encoding="utf-8")
    pages = {
        path.relative_to(ROOT).with_suffix("").as_posix()
        for path in (ROOT / "docs").rglob("*.md")
        # The index lists these by a pattern.
        if path.parent.name != "decisions"
    }

    assert {page for page in pages if f"\n../{page}\n" not in index} == set()


@pytest.mark.long
def test_the_site_is_built_without_a_warning_and_is_read_without_a_network(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "sphinx", "--quiet", "--fail-on-warning", "-c", "site", ".", str(tmp_path)]
    built = subprocess.run(command, check=False, cwd=ROOT, capture_output=True, text=True, timeout=280)

    assert (built.returncode, built.stderr) == (0, "")
    assert "memoryBudget" in (tmp_path / "docs" / "options.html").read_text(encoding="utf-8")
    assert (tmp_path / "searchindex.js").stat().st_size > 100_000
    fetched = [
        page.name
        for page in tmp_path.rglob("*.html")
        if 'src="http' in (text := page.read_text(encoding="utf-8")) or 'rel="stylesheet" href="http' in text
    ]
    assert fetched == []
