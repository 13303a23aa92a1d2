"""docs/cli.md is the help of the commands."""

from __future__ import annotations

import subprocess
import sys

from tests.conftest import ROOT


def test_the_page_is_current() -> None:
    # In a process of its own, because a command keeps the help option of the first program that has run it.
    program = [sys.executable, "-c", "from proving.pages.commands import cli_page; print(cli_page(), end='')"]
    made = subprocess.run(program, check=True, capture_output=True, text=True, cwd=ROOT).stdout

    assert (ROOT / "docs" / "cli.md").read_text(encoding="utf-8") == made, "run: python -m proving.pages"
