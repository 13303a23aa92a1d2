"""``wallaroo-spark get`` and ``describe``: the schema of an application."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import click

from wallaroo_spark.cli.common import count, debug_option, set_up_logging
from wallaroo_spark.cli.schema.application import (
    app_option,
    json_option,
    one_object,
    schema_store,
    shown_seconds,
    shown_time,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from rich.table import Table

    from wallaroo_spark.pipelines.declarations import Declaration
    from wallaroo_spark.pipelines.schema.store import StoredSchema

version_option = click.option(
    "--schema-version", default=0, metavar="N", type=click.IntRange(0), help="A former version of the schema."
)


@click.command(
    short_help="List the objects of an application's schema.",
    epilog="Examples: wallaroo-spark get all --app ./shop · wallaroo-spark get pipelines --app ./shop --json",
)
@click.argument("kind")
@click.argument("name", default="")
@app_option
@version_option
@json_option
@debug_option
def get(kind: str, name: str, app: str, schema_version: int, as_json: bool) -> None:
    """List the objects of a KIND (namespace, stream, pipeline, exchange, endpoint, schedule, token, or all).

    With NAME, only those of that name.

    The exit status is 0 also when there are none, and 1 when NAME is given and there is none.
    """
    from wallaroo_spark.pipelines.declarations import KINDS
    from wallaroo_spark.pipelines.schema.applying import find, kind_of
    from wallaroo_spark.pipelines.schema.documents import to_document

    set_up_logging()
    kinds = list(KINDS) if kind.lower() == "all" else [kind_of(kind)]
    stored = _stored(app, schema_version)
    found = [one for chosen in kinds for one in find(stored, chosen, name)]
    if as_json:
        documents = [to_document(one, defaults=True) for one in found]
        click.echo(json.dumps({"version": stored.version, "objects": documents}))
    elif not found:
        click.echo(f"The schema has version {stored.version}, and no such object.")
    else:
        from wallaroo_spark.cli.status.sources import console

        console().print(_table(found))
    if name and not found:
        raise click.exceptions.Exit(1)


@click.command(
    short_help="Show one object of an application's schema in full.",
    epilog="Example: wallaroo-spark describe pipeline shop/fulfil --app ./shop",
)
@click.argument("kind")
@click.argument("name")
@app_option
@version_option
@json_option
@debug_option
def describe(kind: str, name: str, app: str, schema_version: int, as_json: bool) -> None:
    """Show the object NAME of a KIND with all its fields, and what follows from them.

    The output is a YAML document, which apply takes; the facts stand in comments.
    """
    import yaml

    from wallaroo_spark.pipelines.schema.applying import kind_of
    from wallaroo_spark.pipelines.schema.documents import to_document

    set_up_logging()
    stored = _stored(app, schema_version)
    found = one_object(stored, kind_of(kind), name)
    facts = facts_of(found, stored)
    document = to_document(found, defaults=True)
    if as_json:
        click.echo(json.dumps({"version": stored.version, "object": document, "facts": facts}))
        return
    click.echo(f"# version {stored.version} of the schema, applied {shown_time(stored.applied_at)}")
    for fact in facts:
        click.echo(f"# {fact}")
    click.echo(yaml.safe_dump(_without_none(document), sort_keys=False, allow_unicode=True), nl=False)


def facts_of(one: Declaration, stored: StoredSchema) -> list[str]:
    """Sentences on an object that follow from its fields and from the other objects."""
    from wallaroo_spark.pipelines.declarations import PipelineDeclaration, StreamDeclaration

    pipelines = [other for other in stored.objects.values() if isinstance(other, PipelineDeclaration)]
    if isinstance(one, StreamDeclaration):
        readers = [other.key.path for other in pipelines if other.input_key == one.key]
        writers = [
            f"{other.key.path} ({stage.name})"
            for other in pipelines
            for stage in other.stages
            if one.key in other.stream_output_keys(stage)
        ]
        return [
            f"read by the pipelines {', '.join(readers)}" if readers else "read by no pipeline",
            f"written by the stages {', '.join(writers)}" if writers else "written by no stage",
        ]
    if not isinstance(one, PipelineDeclaration):
        return []
    stream = stored.objects.get(one.input_key)
    partitions = stream.partitions if isinstance(stream, StreamDeclaration) else 0
    required = [stage.name for stage in one.stages if one.output_required(stage)]
    return [
        f"at most {one.max_parallel * partitions:,} active instances: {one.max_parallel:,} for each of "
        f"{count(partitions, 'partition')} of {one.input_key.path}",
        f"runs in this order: {' → '.join(', '.join(tier) for tier in tiers(one.stages))}",
        f"an ack needs an output from: {', '.join(required) or 'no stage'}",
    ]


def tiers(stages: Sequence[Any]) -> list[list[str]]:
    """The names of stages by their distance from the entry of a pipeline; the stages have no cycle."""
    done: set[str] = set()
    found: list[list[str]] = []
    while tier := [one.name for one in stages if one.name not in done and one.predecessors <= done]:
        found.append(tier)
        done |= set(tier)
    return found


def _stored(app: str, version: int) -> StoredSchema:
    store = schema_store(app)
    return store.version(version) if version else store.newest()


def _without_none(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _without_none(inner) for name, inner in value.items() if inner is not None}
    return [_without_none(inner) for inner in value] if isinstance(value, list) else value


def _columns() -> dict[str, dict[str, Callable[[Any], str]]]:
    """The columns of each kind's table, beside its name."""
    return {
        "Stream": {
            "partitions": lambda one: count(one.partitions),
            "kept": lambda one: shown_seconds(one.ttl, "for ever"),
        },
        "Pipeline": {
            "input": lambda one: one.input_key.path,
            "triggers": lambda one: ", ".join(one.triggers) or "every record",
            "stages": lambda one: count(len(one.stages)),
            "max parallel": lambda one: count(one.max_parallel),
        },
        "Endpoint": {"input": lambda one: one.input, "output": lambda one: one.output},
        "Schedule": {"target": lambda one: str(one.target_key), "times": lambda one: f"{one.cron} {one.time_zone}"},
        "Token": {
            "permissions": lambda one: count(len(one.permissions)),
            "valid": lambda one: shown_seconds(one.ttl, "until revoked"),
        },
    }


def _table(found: Sequence[Declaration]) -> Table:
    from rich.table import Table

    kinds = {one.kind for one in found}
    columns = _columns().get(next(iter(kinds)), {}) if len(kinds) == 1 else {}
    table = Table(box=None, pad_edge=False, header_style="bold", show_edge=False, padding=(0, 1))
    for title in ("kind", "name", *columns, "description"):
        table.add_column(title, overflow="fold")
    for one in found:
        cells = [shown(one) for shown in columns.values()]
        table.add_row(one.kind, one.key.path, *cells, one.description)
    return table
