"""scripts/release: its refusals, what it tries, and what it leaves behind.

The script is copied into a repository of its own with a toy package; git, the build and the environment are real.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.waiting import SECONDS

SCRIPTS = Path(__file__).resolve().parents[2] / "scripts"
PROJECT = """
[build-system]
requires = ["hatchling"]
build-backend = "hatchling.build"
[project]
name = "wallaroo-spark"
dynamic = ["version"]
requires-python = ">=3.11"
[project.scripts]
wallaroo-spark = "wallaroo_spark:main"
[tool.hatch.version]
path = "wallaroo_spark/__init__.py"
"""
PACKAGE = """
__version__ = "0.2.0"


def main() -> None:
    print(f"wallaroo-spark, version {__version__}")
"""
CHANGES = "# Changelog\n\n## Unreleased\n\n- Later.\n\n## 0.2.0 (2026-12-01)\n\n# - Streams.\n\n## 0.1.0\n\n- Older.\n"
COMMITTER = {"GIT_COMMITTER_NAME": "somebody", "GIT_COMMITTER_EMAIL": "somebody@example.org"}
IGNORED = ".venv\nbuild/\ndist/\n"


@dataclass(frozen=True)
class Repository:
    """A repository that can be released, with programs that note that they were called."""

    root: Path

    def git(self, *arguments: str) -> str:
        who = ("-c", "user.name=somebody", "-c", "user.email=somebody@example.org")
        command = ["git", *who, *arguments]
        return subprocess.run(
            command, cwd=self.root, check=True, capture_output=True, text=True, timeout=SECONDS
        ).stdout

    def write(self, name: str, text: str, mode: int = 0o644) -> None:
        path = self.root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
        path.chmod(mode)

    def commit(self) -> None:
        self.git("add", "--all")
        self.git("commit", "--quiet", "--message", "a change")

    def release(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        environment = {
            **os.environ,
            "PATH": f"{self.root.parent / 'programs'}{os.pathsep}{os.environ['PATH']}",
            "NOTES": str(self.root.parent / "notes"),
            **COMMITTER,
        }
        command = [str(self.root / "scripts" / "release"), *arguments]
        return subprocess.run(command, env=environment, check=False, capture_output=True, text=True, timeout=SECONDS)

    def notes(self) -> list[str]:
        path = self.root.parent / "notes"
        return path.read_text(encoding="utf-8").splitlines() if path.exists() else []


@pytest.fixture
def repository(tmp_path: Path) -> Repository:
    pytest.importorskip("hatchling", reason="./scripts/setup test installs hatchling, which builds the wheel")
    found = Repository(tmp_path / "repository")
    for script in ("release", "environment.sh"):
        (found.root / "scripts").mkdir(parents=True, exist_ok=True)
        shutil.copy(SCRIPTS / script, found.root / "scripts" / script)
    for name, note in (("scripts/setup", "setup"), ("scripts/test", "test"), ("../programs/docker", "docker")):
        found.write(name, f'#!/usr/bin/env bash\necho "{note} $*" >>"$NOTES"\n', mode=0o755)
    found.write("pyproject.toml", PROJECT)
    found.write("wallaroo_spark/__init__.py", PACKAGE)
    found.write("CHANGELOG.md", CHANGES)
    found.write(".gitignore", IGNORED)
    (found.root / ".venv").symlink_to(sys.prefix)
    found.git("init", "--quiet")
    found.commit()
    return found


def test_a_dry_run_builds_and_changes_nothing(repository: Repository) -> None:
    ended = repository.release()

    assert ended.returncode == 0, ended.stderr
    assert "0.2.0 can be released" in ended.stdout
    assert "build no image, because the repository has no Dockerfile" in ended.stdout
    assert repository.git("tag", "--list") == repository.git("status", "--porcelain") == ""
    assert not (repository.root / "dist").exists()
    assert repository.notes() == ["setup test"]


def test_a_release_is_tested_built_and_tagged_with_its_changes(repository: Repository) -> None:
    repository.write("deploy/Dockerfile", "FROM scratch\n")
    repository.commit()

    ended = repository.release("--tag")

    assert ended.returncode == 0, ended.stderr
    assert sorted(path.name for path in (repository.root / "dist").iterdir()) == [
        "wallaroo_spark-0.2.0-py3-none-any.whl",
        "wallaroo_spark-0.2.0.tar.gz",
    ]
    assert repository.notes() == [
        "test ",
        "docker info",
        "docker build --tag wallaroo-spark:0.2.0 --file deploy/Dockerfile"
        " --build-arg WHEEL=dist/wallaroo_spark-0.2.0-py3-none-any.whl .",
    ]
    text = repository.git("tag", "--list", "v0.2.0", "--format", "%(contents)")
    assert text.split() == ["wallaroo-spark", "0.2.0", "#", "-", "Streams."]
    assert repository.git("rev-parse", "v0.2.0^{commit}") == repository.git("rev-parse", "HEAD")
    again = repository.release("--tag")
    assert again.returncode == 1
    assert "there is a tag v0.2.0 already" in again.stderr


@pytest.mark.parametrize(
    ("name", "old", "new", "said"),
    [
        ("CHANGELOG.md", "## 0.2.0 (2026-12-01)", "## 0.2.01", "CHANGELOG.md says nothing about 0.2.0; write"),
        ("CHANGELOG.md", "# - Streams.\n", "", "CHANGELOG.md says nothing about 0.2.0; write"),
        ("wallaroo_spark/__init__.py", "0.2.0", "two", "is 'two'; write it as 1.2.3"),
        ("wallaroo_spark/__init__.py", "__version__ =", "__version__=", "is ''; write it as 1.2.3"),
    ],
)
def test_what_is_no_release_is_refused_with_the_remedy(
    repository: Repository, name: str, old: str, new: str, said: str
) -> None:
    text = (repository.root / name).read_text(encoding="utf-8")
    repository.write(name, text.replace(old, new))
    dirty = repository.release("--tag")
    repository.commit()
    clean = repository.release("--tag")

    assert (dirty.returncode, clean.returncode) == (1, 1)
    assert f"    M {name}" in dirty.stderr or f"     M {name}" in dirty.stderr
    assert "these files are not committed" in dirty.stderr
    assert "not committed" not in clean.stderr
    assert said in dirty.stderr
    assert said in clean.stderr
    assert repository.notes() == []


def test_a_tag_that_nobody_can_sign_is_refused_before_the_tests(
    repository: Repository, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("GIT_COMMITTER_NAME", "GIT_COMMITTER_EMAIL"):
        monkeypatch.setitem(COMMITTER, name, "")
    repository.git("config", "user.useConfigOnly", "true")

    ended = repository.release("--tag")

    assert ended.returncode == 1
    assert "git does not know who makes the tag" in ended.stderr
    assert repository.notes() == []


def test_a_chart_that_names_another_image_is_refused(repository: Repository) -> None:
    values = "conf/kubernetes/chart/values.yaml"
    repository.write(values, "image:\n  tag: 0.1.0\n")
    repository.commit()
    other = repository.release()
    repository.write(values, "image:\n  tag: 0.2.0\n")
    repository.commit()

    assert other.returncode == 1
    assert f"{values} names an image of another version; write 'tag: 0.2.0' there." in other.stderr
    assert repository.release().returncode == 0


def test_a_release_whose_tests_fail_leaves_nothing(repository: Repository) -> None:
    repository.write("scripts/test", "#!/usr/bin/env bash\nexit 3\n", mode=0o755)
    repository.commit()

    ended = repository.release("--tag")

    assert ended.returncode == 3
    assert repository.git("tag", "--list") == ""
    assert not (repository.root / "dist").exists()


def test_help_and_an_unknown_argument(repository: Repository) -> None:
    assert "--dry-run" in repository.release("--help").stdout
    wrong = repository.release("--publish")
    assert (wrong.returncode, wrong.stderr) == (2, "release: unknown argument '--publish'; it is --dry-run or --tag.\n")
