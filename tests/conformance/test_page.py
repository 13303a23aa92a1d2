"""The page of the checks has the tables of the code, and each check names a section that there is."""

from __future__ import annotations

import re

import pytest

from proving.pages.conformance import PAGE, TABLES, with_checks
from tests.conftest import ROOT


def test_the_page_has_the_tables_of_the_code() -> None:
    text = (ROOT / "docs" / PAGE).read_text(encoding="utf-8")

    assert text == with_checks(text), "run: python -m proving.pages"
    with pytest.raises(ValueError, match="has no place for the checks of a connector"):
        with_checks("# Conformance\n")


@pytest.mark.parametrize("peer", TABLES)
def test_checks_have_names_of_their_own(peer: str) -> None:
    names = [one.name for one in TABLES[peer]]

    assert len(names) == len(set(names))
    assert all(one.does.endswith(".") for one in TABLES[peer])


def test_every_section_that_a_check_names_is_there() -> None:
    for page in {one.page for table in TABLES.values() for one in table}:
        path, _, anchor = page.partition("#")
        headings = re.findall(r"^#+ (.+)$", (ROOT / path).read_text(encoding="utf-8"), flags=re.MULTILINE)
        anchors = {re.sub(r"[^\w -]", "", heading).lower().replace(" ", "-") for heading in headings}
        assert anchor in anchors, page
