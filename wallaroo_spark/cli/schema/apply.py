"""``wallaroo-spark apply`` and ``delete``: change the schema of an application, all or nothing."""

from __future__ import annotations

import json
import time
from datetime import datetime
from typing import TYPE_CHECKING

import click

from wallaroo_spark.cli.common import debug_option, set_up_logging
from wallaroo_spark.cli.schema.application import (
    app_option,
    dry_run_option,
    json_option,
    one_object,
    schema_store,
    show_changes,
)
from wallaroo_spark.errors import ConfigurationError

if TYPE_CHECKING:
    from wallaroo_spark.pipelines.schema.applying import ApplyResult


@click.command(
    short_help="Apply YAML documents to the schema of an application.",
    epilog="Examples: wallaroo-spark apply shop.yaml --app ./shop --dry-run · "
    'wallaroo-spark apply *.yaml --app ./shop --branch main --timestamp "$(git log -1 --format=%ct)"',
)
@click.argument("files", nargs=-1, required=True, metavar="FILE...")
@app_option
@dry_run_option
@click.option("--branch", default="", metavar="NAME", help="Name of the documents' branch; needs --timestamp.")
@click.option(
    "--timestamp",
    default="",
    metavar="TIME",
    help="Time of the documents, in seconds since 1970 or as 2026-01-31T12:00:00+00:00.",
)
@json_option
@debug_option
def apply(files: tuple[str, ...], app: str, dry_run: bool, branch: str, timestamp: str, as_json: bool) -> None:
    """Check the documents of FILE... as a whole and apply all of them, or none; - stands for standard input.

    All problems are shown at once, with file, line and column. Documents that change nothing write nothing, and a
    branch that is not newer than its last is not applied; both end with status 0. An application that runs takes
    the new version over within a second.
    """
    from wallaroo_spark.pipelines.schema.applying import Branch, apply_files

    if bool(branch) != bool(timestamp):
        raise click.UsageError("give --branch and --timestamp together")
    set_up_logging()
    store = schema_store(app)
    chosen = Branch(branch, _seconds(timestamp)) if branch else None
    try:
        result = apply_files(store, files, time.time(), branch=chosen, dry_run=dry_run)
    except ConfigurationError as error:
        if not as_json or "problems" not in error.fields:
            raise
        click.echo(json.dumps({"written": False, "problems": error.fields["problems"]}))
        raise click.exceptions.Exit(1) from error
    _show(result, as_json)


@click.command(
    short_help="Delete objects of an application's schema.",
    epilog="Example: wallaroo-spark delete stream shop/returns shop/refunds --app ./shop",
)
@click.argument("kind")
@click.argument("names", nargs=-1, required=True, metavar="NAME...")
@app_option
@dry_run_option
@json_option
@debug_option
def delete(kind: str, names: tuple[str, ...], app: str, dry_run: bool, as_json: bool) -> None:
    """Delete the objects NAME... of a KIND (such as stream), all of them or none.

    A name may have its namespace in front: shop/orders. An object that another one needs is not deleted.
    """
    from wallaroo_spark.pipelines.schema.applying import delete_objects, kind_of

    set_up_logging()
    store = schema_store(app)
    stored = store.newest()
    keys = [one_object(stored, kind_of(kind), name).key for name in dict.fromkeys(names)]
    _show(delete_objects(store, list(dict.fromkeys(keys)), time.time(), dry_run=dry_run), as_json)


def _show(result: ApplyResult, as_json: bool) -> None:
    if as_json:
        click.echo(json.dumps(result.to_json()))
        return
    show_changes(result.changes)
    click.echo(f"{result.note[0].upper()}{result.note[1:]}.")


def _seconds(text: str) -> float:
    """Return a time in seconds since 1970 UTC."""
    try:
        return float(text)
    except ValueError:
        pass
    try:
        found = datetime.fromisoformat(text)
    except ValueError:
        found = None
    if found is None or found.tzinfo is None:
        raise click.BadParameter(
            f"{text!r} is no time; give seconds since 1970, or a time with its zone as 2026-01-31T12:00:00+00:00",
            param_hint="--timestamp",
        )
    return found.timestamp()
