"""``docs/errors.md`` is the page that the table of codes makes."""

from __future__ import annotations

from proving.pages.errors import errors_page
from tests.conftest import ROOT


def test_the_page_of_errors_is_the_one_the_table_makes() -> None:
    written = (ROOT / "docs" / "errors.md").read_text(encoding="utf-8")

    assert written == errors_page(), "run: python -m proving.pages"
