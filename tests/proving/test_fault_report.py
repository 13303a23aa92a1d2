"""``./scripts/report``: its parts are those of the page, their commands are known, and a failure is told."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from proving import report
from proving.report import PARTS, Part, main
from tests.conftest import ROOT

PAGE = ROOT / "docs" / "reliability" / "report.md"


def test_the_page_has_a_row_for_each_part() -> None:
    rows = re.findall(r"^\| `(\w+)` \|", PAGE.read_text(encoding="utf-8"), re.MULTILINE)

    assert rows == [part.name for part in PARTS]


@pytest.mark.parametrize("part", PARTS, ids=lambda part: part.name)
def test_the_program_of_a_part_knows_its_arguments(part: Part) -> None:
    _, _, module, *arguments = part.words(minutes=1, seed=7)
    if module == "pytest":
        assert [word for word in arguments if "/" in word and not (ROOT / word).is_dir()] == []
    else:
        program = (ROOT / module.replace(".", "/") / "__main__.py").read_text(encoding="utf-8")
        assert [word for word in arguments if word.startswith("-") and f'"{word}"' not in program] == []


def test_a_broken_promise_is_in_the_table_and_in_the_exit_status(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "broken.py").write_text("import sys\nprint('seed', *sys.argv[1:], '| lost 1')\nsys.exit(3)\n")
    (tmp_path / "sound.py").write_text("print('nothing is lost')\n")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    parts = (Part("one", "a", "sound"), Part("two", "b", "broken {seed} {seeds}", 50), Part("three", "c", "sound"))
    monkeypatch.setattr(report, "PARTS", parts)

    assert main(["--minutes", "2", "--seed", "9"]) == 1
    table = (tmp_path / "build" / "report" / "report.md").read_text(encoding="utf-8")
    rows = [line.split(" | ") for line in table.splitlines() if line.startswith("| ")][1:]
    assert [row[3] for row in rows] == ["kept", "BROKEN (exit status 3)", "kept"]
    assert rows[1][2] == "`broken 9 100`"
    assert rows[1][5] == "seed 9 100 / lost 1 |"
    assert main(["--only", "one,three"]) == 0
    assert "report.md has the table" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--only", "histories,nothing"], "there is no part 'nothing'; they are histories, doors, "),
        (["--minutes", "0"], "--minutes is 0; it is 1 or more"),
    ],
    ids=["unknown", "zero"],
)
def test_wrong_arguments_are_refused(arguments: list[str], said: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="2"):
        main(arguments)
    assert said in " ".join(capsys.readouterr().err.split())
