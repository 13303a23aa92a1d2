"""The wheel has what errors, pages and the command line name, and the verb that shows it finds it."""

from __future__ import annotations

import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
from click.testing import CliRunner

from tests.conftest import ROOT
from tests.waiting import SECONDS
from wallaroo_spark.cli import explain
from wallaroo_spark.cli.main import cli
from wallaroo_spark.codes import GROUPS

SHARE = "wallaroo_spark/share/"
NEEDED = (
    "conf/receive.yaml",
    "conf/kubernetes.conf",
    "conf/grafana/",
    "conf/prometheus/",
    "jobs/receive.py",
    "examples/shop/shop.yaml",
    "examples/shop/workers.py",
)


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> set[str]:
    """The names in the wheel of this tree."""
    pytest.importorskip("hatchling", reason="./scripts/setup test installs hatchling, which builds the wheel")
    folder = tmp_path_factory.mktemp("wheel")
    ended = subprocess.run(
        [sys.executable, "-m", "pip", "wheel", "--no-deps", "--no-build-isolation", "-q", "-w", str(folder), str(ROOT)],
        capture_output=True, text=True, timeout=SECONDS, check=False,
    )  # fmt: skip
    assert ended.returncode == 0, ended.stderr
    (built,) = folder.glob("*.whl")
    with zipfile.ZipFile(built) as archive:
        return set(archive.namelist())


def test_the_wheel_has_the_files_that_the_repository_shows(wheel: set[str]) -> None:
    assert {name.removeprefix(SHARE) for name in wheel if name.startswith(SHARE)} == set(explain.names())
    assert [needed for needed in NEEDED if not any(name.startswith(SHARE + needed) for name in wheel)] == []


def test_the_wheel_has_the_data_of_the_package_and_nothing_else(wheel: set[str]) -> None:
    tracked = subprocess.run(
        ["git", "ls-files", "wallaroo_spark", "pyspark_wallaroo"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=SECONDS,
        check=True,
    ).stdout.splitlines()

    assert set(tracked) <= wheel
    assert {name.partition("/")[0].partition("-")[0] for name in wheel} == {"wallaroo_spark", "pyspark_wallaroo"}


def test_every_page_that_an_error_names_comes_with_the_package() -> None:
    pages = {entry.page.partition("#")[0] for group in GROUPS.values() for entry in group.entries}

    assert pages <= set(explain.names())


def test_files_are_listed_shown_and_copied(tmp_path: Path) -> None:
    def run(*arguments: str) -> str:
        ended = CliRunner().invoke(cli, ["files", *arguments])
        assert ended.exit_code == 0, ended.output
        return ended.output

    assert run().splitlines() == explain.names()
    assert run("conf/receive.yaml#section") == (ROOT / "conf/receive.yaml").read_text(encoding="utf-8")
    assert run("./examples/shop/", "--to", str(tmp_path)).startswith("Copied ")
    assert (tmp_path / "examples/shop/shop.yaml").read_bytes() == (ROOT / "examples/shop/shop.yaml").read_bytes()
    (tmp_path / "examples/shop/shop.yaml").write_text("mine", encoding="utf-8")
    again = run("examples/shop/shop.yaml", "--to", str(tmp_path))
    assert again.splitlines() == [
        f"{tmp_path}/examples/shop/shop.yaml is there already, and is kept.",
        f"Copied 0 files to {tmp_path}.",
    ]


def test_an_unknown_file_is_named() -> None:
    ended = CliRunner().invoke(cli, ["files", "docs/nothing.md"])

    assert ended.exit_code == 1
    assert "no file docs/nothing.md comes with the package; wallaroo-spark files lists them" in ended.output
