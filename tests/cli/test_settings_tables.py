"""The tables of settings on the pages are those of the code."""

from __future__ import annotations

from typing import Any

import pytest

from proving.pages.settings import settings_table
from proving.pages.settings_tables import TABLES, with_tables
from tests.conftest import ROOT
from wallaroo_spark.settings import rows

EVERY = [table for tables in TABLES.values() for table in tables.values()]


@pytest.mark.parametrize("page", TABLES)
def test_a_page_has_the_tables_of_the_code(page: str) -> None:
    text = (ROOT / "docs" / page).read_text(encoding="utf-8")

    assert text == with_tables(page, text), "run: python -m proving.pages"


@pytest.mark.parametrize("table", EVERY, ids=lambda table: table.__name__)
def test_every_setting_is_explained_in_its_line(table: Any) -> None:
    shown = settings_table(table)

    assert all(row.help.endswith(".") and f"\n| `{row.name}` |" in shown for row in rows(table))
    assert shown.count("\n") == 2 + len(list(rows(table)))


def test_a_page_without_a_place_for_a_table_is_refused() -> None:
    with pytest.raises(ValueError, match="has 0 places for the settings of"):
        with_tables("sinks.md", "# Sinks\n")
