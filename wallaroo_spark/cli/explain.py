"""``wallaroo-spark explain``: the cause and the cure of a code, or of a pasted message."""

from __future__ import annotations

import dataclasses
import json
import sys
import textwrap
from collections.abc import Iterable
from typing import Any

import click

from wallaroo_spark.cli.common import print_result
from wallaroo_spark.cli.verbs import Json, verb
from wallaroo_spark.codes import GROUPS, CodeEntry, CodesFound, search

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
    if as_json:
        click.echo(json.dumps({"codes": _rows(found.named), "nearest": _rows(found.nearest)}))
    elif found.named:
        click.echo("\n\n".join(_explained(entry) for entry in found.named))
    else:
        click.echo(_suggested(found), err=True)
    if not found.named:
        raise click.exceptions.Exit(1)


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
