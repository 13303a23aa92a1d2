"""The wheel has what errors, pages and the command line name, and the verb that shows it finds it.

The source archive has what builds that wheel again.
"""

from __future__ import annotations

import re
import subprocess
import sys
import tarfile
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
    "conf/databricks/databricks.yml",
    "conf/kubernetes/chart/values.yaml",
    "conf/grafana/",
    "conf/prometheus/",
    "jobs/check.py",
    "jobs/receive.py",
    "examples/shop/shop.yaml",
    "examples/shop/workers.py",
)


def build(source: Path, folder: Path, *targets: str) -> None:
    """Build the wheel and the source archive of a tree, or some of them, into a folder."""
    pytest.importorskip("hatchling", reason="./scripts/setup test installs hatchling, which builds the package")
    chosen = [word for target in targets for word in ("--target", target)]
    command = [sys.executable, "-m", "hatchling", "build", "--directory", str(folder), *chosen]
    ended = subprocess.run(command, cwd=source, capture_output=True, text=True, timeout=SECONDS, check=False)
    assert ended.returncode == 0, ended.stderr


def names_and_metadata(folder: Path) -> tuple[set[str], str]:
    """The names in the one wheel of a folder, and its metadata."""
    (built,) = folder.glob("*.whl")
    with zipfile.ZipFile(built) as archive:
        names = set(archive.namelist())
        (metadata,) = [name for name in names if name.endswith("/METADATA")]
        return names, archive.read(metadata).decode()


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the wheel and the source archive of this tree."""
    folder = tmp_path_factory.mktemp("built")
    build(ROOT, folder)
    return folder


@pytest.fixture(scope="module")
def wheel(built: Path) -> set[str]:
    """The names in the wheel of this tree."""
    return names_and_metadata(built)[0]


def test_the_source_archive_builds_the_same_wheel(built: Path, wheel: set[str], tmp_path: Path) -> None:
    (archive,) = built.glob("*.tar.gz")
    with tarfile.open(archive) as opened:
        opened.extractall(tmp_path, filter="data")
    (tree,) = tmp_path.iterdir()
    build(tree, tmp_path / "again", "wheel")

    assert names_and_metadata(tmp_path / "again")[0] == wheel
    assert {path.name for path in tree.iterdir()} >= {"CHANGELOG.md", "LICENSE", "scripts", "site", "tests", "proving"}


def test_links_are_made_from_the_address_and_there_are_none_without(built: Path, tmp_path: Path) -> None:
    project = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    (tmp_path / "wallaroo_spark").mkdir()
    (tmp_path / "wallaroo_spark" / "__init__.py").write_text('__version__ = "1.2.3"\n', encoding="utf-8")
    for name in ("hatch_build.py", "LICENSE", "README.md"):
        (tmp_path / name).write_text((ROOT / name).read_text(encoding="utf-8"), encoding="utf-8")
    (tmp_path / "pyproject.toml").write_text(
        project.replace('address = ""', 'address = "https://wallaroo.example/spark"'), encoding="utf-8"
    )
    build(tmp_path, tmp_path / "with-an-address", "wheel")
    metadata = names_and_metadata(tmp_path / "with-an-address")[1]

    assert "Project-URL" not in names_and_metadata(built)[1]
    assert "Version: 1.2.3\n" in metadata
    assert re.findall(r"Project-URL: Changelog, (.*)", metadata) == ["https://wallaroo.example/spark/CHANGELOG.md"]


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


def test_the_folder_of_copies_is_named_in_full(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)

    ended = CliRunner().invoke(cli, ["files", "jobs", "--to", "."])

    assert ended.output == f"Copied 2 files to {tmp_path}.\n"


def test_an_unknown_file_is_named() -> None:
    ended = CliRunner().invoke(cli, ["files", "docs/nothing.md"])

    assert ended.exit_code == 1
    assert "no file docs/nothing.md comes with the package; wallaroo-spark files lists them" in ended.output
