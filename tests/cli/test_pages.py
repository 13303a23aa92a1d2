"""docs/cli.md is what the commands say of themselves."""

from __future__ import annotations

from pathlib import Path

from wallaroo_spark.cli.pages import cli_page

PAGE = Path(__file__).resolve().parents[2] / "docs" / "cli.md"


def test_the_page_is_current() -> None:
    assert PAGE.read_text(encoding="utf-8") == cli_page(), "run python -m wallaroo_spark.cli.pages > docs/cli.md"
