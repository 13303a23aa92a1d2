"""``wallaroo-spark files``: the pages, configurations, dashboards and examples that come with the package."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Annotated

import click

import wallaroo_spark
from wallaroo_spark.cli.common import print_result
from wallaroo_spark.cli.verbs import Json, verb
from wallaroo_spark.errors import ConfigurationError
from wallaroo_spark.texts import count

FOLDERS = ("conf", "docs", "examples", "jobs")
"""Folders whose files come with the package, beside README.md; ``pyproject.toml`` puts them into the wheel."""
README = "README.md"
LEFT_OUT = ("docs/images/", "docs/performance/")
"""Folders of pictures and figures, which the wheel does not have."""


def home() -> Path:
    """Where the files are: in the installed package, or in the repository that it is run from."""
    package = Path(wallaroo_spark.__file__).resolve().parent
    return package / "share" if (package / "share").is_dir() else package.parent


def names() -> list[str]:
    """The names of all files, as errors and pages cite them."""
    folder = home()
    paths = [folder / README, *(path for name in FOLDERS for path in (folder / name).rglob("*"))]
    found = [str(path.relative_to(folder)) for path in paths if path.is_file()]
    return sorted(name for name in found if not name.startswith(LEFT_OUT) and "__pycache__" not in name)


@verb()
def files(
    wanted: Annotated[tuple[str, ...], "[NAME]..."] = (),
    *,
    target: Annotated[Path | None, "--to", click.Path(file_okay=False, path_type=Path)] = None,
    as_json: Json = False,
) -> None:
    """Show the files that come with the package and that its errors and pages name.

    Without NAME they are listed. NAME is a file or a folder: files are printed, or copied with --to, which keeps
    files that are there already.

    Options:
        --to: Copy the files below this folder.
        --json: Print the names of the files as one line of JSON.

    Examples:
        wallaroo-spark files
        wallaroo-spark files docs/sinks.md | less
        wallaroo-spark files examples/shop conf/grafana --to .
    """
    known = names()
    found = {name: [one for one in known if one == name or one.startswith(f"{name}/")] for name in map(_plain, wanted)}
    unknown = next((name for name, matching in found.items() if not matching), None)
    if unknown is not None:
        raise ConfigurationError(
            f"no file {unknown} comes with the package; wallaroo-spark files lists them", code="file-unknown"
        )
    chosen = [one for matching in found.values() for one in matching] if wanted else known
    if target is not None:
        copied = _copy(chosen, target)
        print_result(as_json, {"copied": copied}, f"Copied {count(len(copied), 'file')} to {target}.")
    elif as_json or not wanted:
        print_result(as_json, {"files": chosen}, "\n".join(known))
    else:
        for name in chosen:
            click.echo((home() / name).read_text(encoding="utf-8", errors="replace"), nl=False)


def _plain(name: str) -> str:
    """The name without the section that an error names."""
    return name.partition("#")[0].rstrip("/").removeprefix("./")


def _copy(chosen: list[str], target: Path) -> list[str]:
    """Copy files that are not there yet; returns their names."""
    copied = []
    for name in chosen:
        path = target / name
        if path.exists():
            click.echo(f"{path} is there already, and is kept.", err=True)
            continue
        path.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(home() / name, path)
        copied.append(name)
    return copied
