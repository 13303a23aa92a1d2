"""scripts/package refuses what it cannot pack. ``python -m proving.yarn`` packs an environment and runs it."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from tests.conftest import ROOT
from tests.waiting import SECONDS

SCRIPT = ROOT / "scripts" / "package"


def package(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run the script in a folder."""
    command = [str(SCRIPT), *arguments]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False, timeout=SECONDS)


@pytest.mark.parametrize(
    ("arguments", "status", "told"),
    [
        (["--pyhton", "python3"], 2, "unknown option '--pyhton'; see --help"),
        (["--with"], 2, "--with needs a value"),
        (["--python", "/nowhere/python"], 1, "/nowhere/python is no Python 3.11 or newer"),
    ],
)
def test_what_cannot_be_packed_is_refused(tmp_path: Path, arguments: list[str], status: int, told: str) -> None:
    ended = package(tmp_path, *arguments)

    assert ended.returncode == status
    assert f"package: {told}" in ended.stderr
    assert list(tmp_path.iterdir()) == []


def test_a_python_that_is_too_old_is_refused(tmp_path: Path) -> None:
    old = tmp_path / "python"
    # It answers the question for the version as an old one does.
    old.write_text("#!/bin/sh\nexit 1\n")
    old.chmod(0o755)

    ended = package(tmp_path, "--python", str(old))

    assert ended.returncode == 1
    assert f"package: {old} is no Python 3.11 or newer" in ended.stderr
