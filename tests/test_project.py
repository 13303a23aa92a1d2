"""The files for contributors: licence, change log, guide and hooks agree with this tree."""

from __future__ import annotations

import hashlib
import re
import shlex
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import yaml

import wallaroo_spark
from tests.waiting import SECONDS

ROOT = Path(__file__).resolve().parents[1]
APACHE_2 = "cfc7749b96f63bd31c3c42b5c471bf756814053e847c10f3eb003417bc523d30"
"""SHA-256 of the licence as the Apache Software Foundation publishes it."""
PLACE = re.compile(
    r"\b(?:wallaroo_spark|tests|docs|scripts|conf|jobs|examples)/[\w./-]*\w|\b(?:pyproject\.toml|CHANGELOG\.md|README\.md)"
)


def project() -> dict[str, Any]:
    found: dict[str, Any] = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    return found


def hooks() -> list[dict[str, Any]]:
    configuration = yaml.safe_load((ROOT / ".pre-commit-config.yaml").read_text(encoding="utf-8"))
    return [hook for repository in configuration["repos"] for hook in repository["hooks"]]


def test_the_licence_is_the_one_that_the_package_names() -> None:
    assert project()["license"] == "Apache-2.0"
    assert project()["license-files"] == ["LICENSE"]
    assert hashlib.sha256((ROOT / "LICENSE").read_bytes()).hexdigest() == APACHE_2


def test_the_package_says_what_it_is() -> None:
    assert "Typing :: Typed" in project()["classifiers"]
    assert (ROOT / "wallaroo_spark" / "py.typed").exists()


def test_the_changelog_tells_what_is_to_come() -> None:
    versions = re.findall(r"^## (.+)$", (ROOT / "CHANGELOG.md").read_text(encoding="utf-8"), flags=re.MULTILINE)

    assert versions[0] == "Unreleased"


def test_the_version_is_declared_in_one_place() -> None:
    """Samples that must name it have the same one."""
    named = {
        str(path.relative_to(ROOT)): versions
        for path in sorted([ROOT / "pyproject.toml", *(ROOT / "conf").rglob("*.*"), *(ROOT / "site").glob("*.*")])
        if (versions := set(re.findall(r"wallaroo[-_]spark[:=-]+(\d+\.\d+\.\d+)", path.read_text(encoding="utf-8"))))
    }

    assert project()["dynamic"] == ["version", "urls"]
    assert {version for versions in named.values() for version in versions} <= {wallaroo_spark.__version__}, named


def test_every_file_that_the_guide_names_is_there() -> None:
    text = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    named = {place for place in PLACE.findall(text) if place != "tests/vectors/NAME.json"}

    assert named
    assert sorted(place for place in named if not (ROOT / place).exists()) == []


def test_every_module_that_the_guide_has_run_is_there() -> None:
    text = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    modules = set(re.findall(r"python -m ((?:wallaroo_spark|proving)[\w.]+)", text))

    assert modules
    folders = [ROOT / name.replace(".", "/") for name in modules]
    assert [one for one in folders if not one.with_suffix(".py").exists() and not (one / "__main__.py").exists()] == []


def test_hooks_run_only_the_installed_programs() -> None:
    assert {hook["id"] for hook in hooks()} == {"ruff-format", "ruff-check", "mypy"}
    for hook in hooks():
        program, *_ = shlex.split(hook["entry"])
        assert hook["language"] == "system"
        assert program.startswith(".venv/bin/")
        assert (Path(sys.prefix) / program.removeprefix(".venv/")).exists()


def test_the_hooks_for_files_are_content_with_a_file_of_this_tree() -> None:
    for hook in hooks():
        if not hook.get("pass_filenames", True):
            continue  # The same command as ./scripts/test runs, over all files.
        program, *arguments = shlex.split(hook["entry"])
        command = [str(Path(sys.prefix) / program.removeprefix(".venv/")), *arguments, "tests/test_project.py"]
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False, timeout=SECONDS)
        assert done.returncode == 0, done.stdout + done.stderr
