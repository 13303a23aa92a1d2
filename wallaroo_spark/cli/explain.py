"""``wallaroo-spark explain``: the cause and the cure of a code, or of a pasted message.

``wallaroo-spark files``: the pages, configurations, dashboards and examples that come with the package.
"""

from __future__ import annotations

import dataclasses
import shutil
import sys
import textwrap
from collections.abc import Iterable
from pathlib import Path
from typing import Annotated, Any

import click

import wallaroo_spark
from wallaroo_spark.cli.common import exit_unless, print_result
from wallaroo_spark.cli.verbs import Json, verb
from wallaroo_spark.codes import GROUPS, CodeEntry, CodesFound, search
from wallaroo_spark.errors import ConfigurationError
from wallaroo_spark.texts import count

WIDTH = 100
"""The longest line of an explanation. A choice: the help of the commands has the same."""
LONGEST_INPUT = 1 << 20
"""The most characters that are read from standard input. A choice that bounds memory; a log is pasted in part."""


@verb()
def explain(text: tuple[str, ...] = (), *, as_json: Json = False) -> None:
    """Explain an error: its cause, and what to do.

    TEXT is a code, a whole message that ends with one, or the name of an alert; - reads it from standard input.
    Without TEXT all codes are listed by subject. When nothing has this code, the most similar ones are shown and the
    exit status is 1.

    Options:
        --json: Print one line of JSON.

    Examples:
        wallaroo-spark explain cannot-listen
        wallaroo-spark explain "cannot listen on 127.0.0.1:4040: in use; … [cannot-listen]"
        wallaroo-spark explain WallarooWorkersDie
        wallaroo-spark receive orders.yaml 2>&1 | wallaroo-spark explain -
    """
    given = sys.stdin.read(LONGEST_INPUT) if text == ("-",) else " ".join(text)
    if not given.strip() and not text:
        groups = [{"title": group.title, "codes": _rows(group.entries)} for group in GROUPS.values()]
        print_result(as_json, {"groups": groups}, _list())
        return
    found = search(given)
    if as_json or found.named:
        values = {"codes": _rows(found.named), "nearest": _rows(found.nearest)}
        print_result(as_json, values, "\n\n".join(_explained(entry) for entry in found.named))
    exit_unless(bool(found.named), "" if as_json else _suggested(found))


def _rows(entries: Iterable[CodeEntry]) -> list[dict[str, Any]]:
    return [dataclasses.asdict(entry) for entry in entries]


def _list() -> str:
    groups = ["\n".join([group.title, *(_line(entry) for entry in group.entries)]) for group in GROUPS.values()]
    return "\n\n".join(groups)


def _line(entry: CodeEntry) -> str:
    return _filled(entry.title, f"  {entry.code:<28} ")


def _explained(entry: CodeEntry) -> str:
    cure = entry.cure or "Nothing; this is a healthy state."
    parts = {"Cause:": entry.cause, "What to do:": cure, "More:": f"wallaroo-spark files {entry.page}"}
    lines = [entry.code, _filled(entry.title, "  ")]
    return "\n".join([*lines, *(_filled(text, f"  {name:<12} ") for name, text in parts.items())])


def _filled(text: str, head: str) -> str:
    """The text as lines, with ``head`` in front of the first one and as many spaces in front of the others."""
    return textwrap.fill(
        text,
        WIDTH,
        initial_indent=head,
        subsequent_indent=" " * len(head),
        break_long_words=False,
        break_on_hyphens=False,
    )


def _suggested(found: CodesFound) -> str:
    if not found.nearest:
        return "No code is known for this; wallaroo-spark explain lists all codes."
    lines = [_line(entry) for entry in found.nearest]
    return "\n".join(["No code is named in this; these are the most similar ones:", *lines])


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
        print_result(as_json, {"copied": copied}, f"Copied {count(len(copied), 'file')} to {target.resolve()}.")
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
