"""The wheel on the newer versions of Python: it installs, and the tests of some rooms pass with it."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.conftest import ROOT
from tests.pages.wheel import build, environment
from tests.waiting import SECONDS

VERSIONS = ("3.12", "3.13")
EXTRAS = "cli,client,pubsub,pipelines,embedded"
FOR_TESTS = ("hypothesis", "psutil", "pytest", "pytest-asyncio", "pytest-timeout", "trustme")
CHECKED = ("tests/columnar", "tests/transport", "tests/client", "tests/protocol/test_revisions.py")
INSTALL_SECONDS = 900


def interpreter(version: str) -> str | None:
    """A Python of this version that runs, on the PATH or among those of a version manager; None without one."""
    managed = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv")).glob(f"versions/{version}.*/bin/python")
    for found in filter(None, (shutil.which(f"python{version}"), *map(str, managed))):
        asked = subprocess.run(
            [found, "-c", "import ensurepip, venv"], check=False, capture_output=True, timeout=SECONDS
        )
        if asked.returncode == 0:
            return found
    return None


@pytest.mark.long
@pytest.mark.timeout(2 * INSTALL_SECONDS)
@pytest.mark.parametrize("version", VERSIONS)
def test_the_wheel_is_installed_and_rooms_pass_their_tests(version: str, tmp_path: Path) -> None:
    python = interpreter(version)
    if python is None:
        pytest.skip(f"no Python {version} with its venv module is on this machine")
    programs = tmp_path / "environment" / "bin"
    packages = [f"wallaroo-spark[{EXTRAS}] @ {build(tmp_path / 'wheel').as_uri()}", *FOR_TESTS]
    for command in (
        [python, "-m", "venv", str(programs.parent)],
        [str(programs / "python"), "-m", "pip", "--disable-pip-version-check", "install", "--quiet", *packages],
    ):
        ended = subprocess.run(command, check=False, capture_output=True, text=True, timeout=INSTALL_SECONDS)
        assert ended.returncode == 0, ended.stderr
    # The tests, and the pages that some read, without the package: what they import is the wheel.
    for folder in ("tests", "proving", "docs"):
        shutil.copytree(ROOT / folder, tmp_path / folder, ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(ROOT / "pyproject.toml", tmp_path)

    run = [str(programs / "python"), "-m", "pytest", "-q", "-m", "not spark and not cluster", *CHECKED]
    ended = subprocess.run(
        run,
        cwd=tmp_path,
        env=environment(programs),
        check=False,
        capture_output=True,
        text=True,
        timeout=INSTALL_SECONDS,
    )
    sys.stdout.write(f"Python {version}: {ended.stdout.splitlines()[-1]}\n")

    assert ended.returncode == 0, ended.stdout[-5000:]
