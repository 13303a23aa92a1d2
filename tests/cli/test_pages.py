"""docs/cli.md is the help of the commands."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

PAGE = Path(__file__).resolve().parents[2] / "docs" / "cli.md"


def test_the_page_is_current() -> None:
    # In a process of its own, because a command keeps the help option of the first program that has run it.
    program = [sys.executable, "-m", "wallaroo_spark.cli.pages.commands"]
    made = subprocess.run(program, check=True, capture_output=True, text=True).stdout

    assert PAGE.read_text(encoding="utf-8") == made, "run python -m wallaroo_spark.cli.pages.commands > docs/cli.md"
