"""``docs/architecture.md`` draws the rooms as they are: its table of imports is the one that a test enforces.

``python -m tests.test_architecture`` writes the last column of the page's table, and the drawing, anew.
"""

from __future__ import annotations

import ast
import re
from collections import Counter, defaultdict
from pathlib import Path

from tests.conftest import ROOT
from tests.test_imports import EVERYBODY, FILES, MAY_IMPORT, files, relative
from wallaroo_spark.steps import Step

PAGE = ROOT / "docs" / "architecture.md"
PACKAGE = ROOT / "wallaroo_spark"
ROOMS = "Rooms, and who may import whom"
DOZEN = 12


def section(heading: str) -> str:
    return PAGE.read_text(encoding="utf-8").split(f"\n## {heading}\n")[1].split("\n## ")[0]


def rows() -> dict[str, list[str]]:
    """Room → the cells of its row, as the page has them."""
    lines = [
        [cell.strip() for cell in line.strip("|").split("|")] for line in section(ROOMS).splitlines() if "|" in line
    ]
    return {row[0].strip("`/").replace("__init__.py", ""): row for row in lines if row[0].startswith("`")}


def may_import() -> dict[str, str]:
    """Room → the text of the last column."""
    rooms = [room for room in MAY_IMPORT if room not in EVERYBODY]
    names = {room: [f"`{name.rstrip('*')}`" for name in MAY_IMPORT[room] if name != "*"] for room in rooms}
    return {room: ", ".join(names[room]) or ("anything" if MAY_IMPORT[room] else "nothing") for room in rooms}


def arrows() -> set[tuple[str, str]]:
    """Room → room that it may import, without those arrows that others imply."""
    rooms = {room for room in MAY_IMPORT if room and room not in EVERYBODY}
    found = {(room, name.split(".")[0]) for room in rooms for name in MAY_IMPORT[room]}

    def reached(start: str, without: tuple[str, str]) -> set[str]:
        seen, waiting = set[str](), [start]
        while waiting:
            at = waiting.pop()
            targets = {end for begin, end in found if begin == at and (begin, end) != without} - seen
            seen |= targets
            waiting += targets
        return seen

    return {(begin, end) for begin, end in found if end not in reached(begin, (begin, end))}


def drawing() -> str:
    """The rooms and their arrows as a diagram."""
    lines = [f"    {begin} --> {end}" for begin, end in sorted(arrows())]
    return "\n".join(["```mermaid", "flowchart TD", *lines, "```"])


def test_the_drawing_of_rooms_is_made_from_the_same_table() -> None:
    assert drawing() in section(ROOMS), "run: python -m tests.test_architecture"


def test_the_table_of_rooms_is_the_one_that_imports_are_held_to() -> None:
    assert {room: row[-1] for room, row in rows().items()} == may_import(), "run: python -m tests.test_architecture"


def test_the_page_names_the_modules_that_every_room_may_import() -> None:
    assert set(re.findall(r"`(\w+)`", section(ROOMS).split("may also")[1].split(".")[0])) == set(EVERYBODY)


def test_every_folder_of_the_package_is_a_room_of_the_page() -> None:
    folders = {path.name for path in PACKAGE.iterdir() if path.is_dir() and (path / "__init__.py").exists()}

    assert folders - set(EVERYBODY) <= rows().keys()


def test_every_step_of_a_message_s_way_is_on_the_page() -> None:
    assert [step.name for step in Step if step.name not in section("A message's way")] == []


def test_a_class_has_a_name_of_its_own_in_the_whole_package() -> None:
    found: dict[str, list[str]] = defaultdict(list)
    for path in FILES:
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.ClassDef):
                found[node.name].append(f"{relative(path)}:{node.lineno}")

    assert {name: places for name, places in found.items() if len(places) > 1} == {}


def test_a_room_has_no_more_than_a_dozen_files_at_one_level() -> None:
    folders = Counter(path.parent for of in ("wallaroo_spark", "proving") for path in files(of) if not bare(path))

    assert {str(folder.relative_to(ROOT)): count for folder, count in folders.items() if count > DOZEN} == {}


def bare(path: Path) -> bool:
    """Whether a file only makes its folder a package."""
    return path.name == "__init__.py" and len(ast.parse(path.read_text(encoding="utf-8")).body) <= 1


def main() -> None:
    """Write the last column of the page's table."""
    text = PAGE.read_text(encoding="utf-8")
    known = rows()
    for room, names in may_import().items():
        shown = f"`{room}/`" if room else "`__init__.py`"
        row = known.get(room, [shown, "", "", ""])
        line = f"| {' | '.join([*row[:-1], names])} |"
        if room in known:
            text = re.sub(rf"^\| {re.escape(shown)} \|.*$", lambda _, line=line: line, text, flags=re.MULTILINE)
        else:
            text = text.replace("\n| `cli/` |", f"\n{line}\n| `cli/` |")
    before, rooms = text.split(f"\n## {ROOMS}\n")
    rooms = re.sub(r"```mermaid\nflowchart TD\n.*?```", lambda _: drawing(), rooms, count=1, flags=re.DOTALL)
    PAGE.write_text(f"{before}\n## {ROOMS}\n{rooms}", encoding="utf-8")


if __name__ == "__main__":
    main()
