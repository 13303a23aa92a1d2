"""``docs/architecture.md`` draws the rooms as they are: its table of imports is the one that a test enforces."""

from __future__ import annotations

import re

from tests.conftest import ROOT
from tests.test_imports import EVERYBODY, MAY_IMPORT
from wallaroo_spark.steps import Step

PAGE = ROOT / "docs" / "architecture.md"
TEXT = PAGE.read_text(encoding="utf-8")
PACKAGE = ROOT / "wallaroo_spark"


def section(heading: str) -> str:
    return TEXT.split(f"\n## {heading}\n")[1].split("\n## ")[0]


def drawn() -> dict[str, set[str]]:
    """Room → what it may import, as the page says."""
    rows = [
        [cell.strip() for cell in line.strip("|").split("|")] for line in section(ROOMS).splitlines() if "|" in line
    ]
    table = [row for row in rows if row[0].startswith("`")]
    return {row[0].strip("`/").replace("__init__.py", ""): set(re.findall(r"`([\w.]+)`", row[3])) for row in table}


ROOMS = "Rooms, and who may import whom"


def test_the_table_of_rooms_is_the_one_that_imports_are_held_to() -> None:
    rooms = [room for room in MAY_IMPORT if room not in EVERYBODY and room not in LATER]
    wanted = {room: {name.rstrip("*") for name in MAY_IMPORT[room]} - {""} for room in rooms}

    assert drawn() == wanted


LATER = ("pipelines",)
"""Rooms that the table of imports has a row for before there is anything in them."""


def test_the_page_names_what_everybody_may_import() -> None:
    assert set(re.findall(r"`(\w+)`", section(ROOMS).split("may also")[1].split("|")[0])) == set(EVERYBODY)


def test_every_folder_of_the_package_is_a_room_of_the_page() -> None:
    folders = {path.name for path in PACKAGE.iterdir() if path.is_dir() and (path / "__init__.py").exists()}

    assert folders <= drawn().keys()


def test_every_step_of_a_message_s_way_is_on_the_page() -> None:
    assert [step.name for step in Step if step.name not in section("A message's way")] == []
