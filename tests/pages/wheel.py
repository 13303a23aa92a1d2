"""The package as its users have it: the wheel of this tree in an environment of its own."""

from __future__ import annotations

import os
import subprocess
import sys
import sysconfig
from pathlib import Path

from tests.conftest import ROOT
from tests.waiting import SECONDS

OF_THE_TESTS = ("PYTHONPATH", "PYSPARK_PYTHON", "SPARK_SUBMIT_OPTS", "SPARK_DAEMON_JAVA_OPTS")
"""Variables that ``tests/conftest.py`` sets, and a reader does not have."""


def build(folder: Path) -> Path:
    """Build the wheel of this tree into a folder; returns its path."""
    command = [sys.executable, "-m", "hatchling", "build", "--directory", str(folder), "--target", "wheel"]
    subprocess.run(command, cwd=ROOT, check=True, capture_output=True, timeout=SECONDS)
    (wheel,) = folder.glob("*.whl")
    return wheel


def installed(folder: Path) -> Path:
    """A new environment with the wheel of this tree; returns its folder of programs.

    Its dependencies are those of this Python's environment; this package is not taken from there.
    """
    wheel = build(folder / "wheel")
    programs = folder / "environment" / "bin"
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "--python", str(programs / "python")]
    for command in (
        [sys.executable, "-m", "venv", "--without-pip", str(programs.parent)],
        [*pip, "install", "--quiet", "--no-deps", str(wheel)],
    ):
        subprocess.run(command, check=True, capture_output=True, timeout=SECONDS)
    (packages,) = programs.parent.glob("lib/python*/site-packages")
    (packages / "dependencies.pth").write_text(sysconfig.get_path("purelib"), encoding="utf-8")
    return programs


def environment(programs: Path) -> dict[str, str]:
    """The variables of a shell in which the environment is active, and which knows nothing of this tree.

    Behind its own programs come those of its dependencies, such as spark-submit.
    """
    kept = {name: value for name, value in os.environ.items() if name not in OF_THE_TESTS}
    path = os.pathsep.join([str(programs), sysconfig.get_path("scripts"), kept["PATH"]])
    return kept | {"PATH": path, "VIRTUAL_ENV": str(programs.parent)}
