"""docs/cli.md is what the commands say of themselves."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

PAGE = Path(__file__).resolve().parents[2] / "docs" / "cli.md"


def test_the_page_is_current() -> None:
    # In a process of its own: a command keeps the help option of whoever has run it first.
    program = [sys.executable, "-m", "wallaroo_spark.cli.pages.commands"]
    made = subprocess.run(program, check=True, capture_output=True, text=True).stdout

    assert PAGE.read_text(encoding="utf-8") == made, "run python -m wallaroo_spark.cli.pages.commands > docs/cli.md"
