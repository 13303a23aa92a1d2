"""The YAML of the pages of pipelines is a schema as it stands there, a page at a time."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.conftest import ROOT
from tests.pages.reading import blocks_of
from wallaroo_spark.testing import FakeApplication

PAGES = sorted((ROOT / "docs" / "pipelines").glob("*.md"))


@pytest.mark.parametrize("page", PAGES, ids=[page.stem for page in PAGES])
def test_the_documents_of_a_page_are_a_schema(page: Path) -> None:
    # A page may have a file of ``receive`` too; those are no documents of a schema.
    documents = [block.text for block in blocks_of(page) if block.language == "yaml" and "kind:" in block.text]

    FakeApplication(*(f"{one}\n" for one in documents))


def test_there_are_such_documents() -> None:
    assert [block for page in PAGES for block in blocks_of(page) if block.language == "yaml"]
