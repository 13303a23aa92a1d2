"""``wallaroo-spark pipelines``: the declared pipelines, and the history of their instances."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import click

from wallaroo_spark.cli.common import count, debug_option, set_up_logging
from wallaroo_spark.cli.schema.application import app_option, json_option, need, one_object, schema_store
from wallaroo_spark.errors import ConfigurationError

if TYPE_CHECKING:
    from wallaroo_spark.pipelines.declarations import PipelineDeclaration

_FINE = "%Y-%m-%d %H:%M:%S"


@click.group(short_help="Show pipelines and the history of their instances.")
def pipelines() -> None:
    """Show the pipelines of an application, and the history of their instances."""


@pipelines.command(name="list", epilog="Example: wallaroo-spark pipelines list --app ./shop")
@app_option
@json_option
@debug_option
def list_pipelines(app: str, as_json: bool) -> None:
    """List the declared pipelines with their input streams and stages."""
    set_up_logging()
    found = list(_declared(app))
    if as_json:
        click.echo(json.dumps({"pipelines": [_summary(one) for one in found]}))
        return
    if not found:
        click.echo("There are no pipelines.")
        return
    from rich.table import Table

    table = Table(box=None)
    for column in ("pipeline", "input", "triggers", "max parallel", "stages"):
        table.add_column(column)
    for one in found:
        summary = _summary(one)
        table.add_row(
            one.key.path,
            summary["input"],
            ", ".join(one.triggers) or "all",
            str(one.max_parallel),
            ", ".join(summary["stages"]),
        )
    _print(table)


@pipelines.command(epilog="Example: wallaroo-spark pipelines show shop/fulfil --app ./shop")
@click.argument("name")
@app_option
@json_option
@debug_option
def show(name: str, app: str, as_json: bool) -> None:
    """Show the stages of the pipeline NAME: when each runs, where it runs, and its stream outputs."""
    from wallaroo_spark.pipelines.schema.documents import to_document

    set_up_logging()
    one = one_object(schema_store(app).newest(), "Pipeline", name)
    if as_json:
        click.echo(json.dumps(to_document(one, defaults=True)))
        return
    from rich.table import Table

    declared: Any = one
    summary = _summary(declared)
    click.echo(
        f"{one.key.path}: events of {summary['input']}, "
        f"at most {declared.max_parallel} instances at once in each partition"
    )
    table = Table(box=None)
    for column in ("stage", "runs after", "where", "stream outputs", "attempts"):
        table.add_column(column)
    for stage in declared.stages:
        before = [*stage.dependencies, *(f"{name} (no output)" for name in stage.after)]
        attempts = stage.retry.max_attempts
        table.add_row(
            stage.name,
            ", ".join(before) or "the event",
            f"in Spark: {stage.run}" if stage.run else "programs",
            ", ".join(stage.stream_outputs),
            "any number" if attempts is None else str(attempts),
        )
    _print(table)


@pipelines.command(
    epilog="Examples: wallaroo-spark pipelines instances shop/fulfil --app ./shop · "
    "wallaroo-spark pipelines instances shop/fulfil --app ./shop --state failed --json"
)
@click.argument("name")
@app_option
@click.option(
    "--limit", default=20, show_default=True, type=click.IntRange(1), help="Most instances, the newest first."
)
@click.option(
    "--state",
    default=None,
    type=click.Choice(["active", "done", "failed", "cancelled"]),
    help="Only instances in this state.",
)
@json_option
@debug_option
def instances(name: str, app: str, limit: int, state: str | None, as_json: bool) -> None:
    """Show instances of the pipeline NAME with how long each stage took, from the history table.

    The table has a batch some seconds after its commit. It is read where the application's folder is a path of this
    machine; elsewhere, read it in Spark with read_instances of wallaroo_spark.streams.
    """
    from wallaroo_spark.pipelines.instance_rows import newest_instances

    set_up_logging()
    declared = one_object(schema_store(app).newest(), "Pipeline", name)
    found = newest_instances(_history(need(app), declared.key.path))
    chosen = [one for one in found if state in (None, one.state)][:limit]
    if as_json:
        click.echo(json.dumps({"instances": [one.to_json() for one in chosen]}))
        return
    if not chosen:
        click.echo(f"The history has no such instances of {declared.key.path}.")
        return
    from rich.table import Table

    table = Table(box=None)
    for column in ("instance", "state", "began", "seconds", "stages", "stream outputs", "reason"):
        table.add_column(column)
    for one in chosen:
        seconds = one.seconds
        table.add_row(
            f"{one.partition}/{one.instance}",
            one.state,
            one.began_at.strftime(_FINE) if one.began_at else "",
            "" if seconds is None else f"{seconds:.1f}",
            ", ".join(f"{stage} {took:.1f} s" for stage, took in one.stages.items()),
            ", ".join(one.outputs),
            one.reason,
        )
    _print(table)
    click.echo(f"{count(len(found), 'instance')} in the history.")


def _history(app: str, pipeline: str) -> Iterator[dict[str, Any]]:
    """The rows of a pipeline in the history table."""
    from pathlib import Path

    from wallaroo_spark.streams.places import history_of

    folder = history_of(app.removeprefix("file://"))
    if "://" in folder:
        raise ConfigurationError(
            f"the history of {app} is not on this machine; read it in Spark with read_instances(spark, {app!r}) of "
            "wallaroo_spark.streams",
            code="history-elsewhere",
        )
    if not Path(folder).is_dir():
        return
    from pyarrow import dataset

    table = dataset.dataset(folder, format="parquet", exclude_invalid_files=False)
    wanted = dataset.field("pipeline") == pipeline
    for fragment in table.get_fragments(filter=wanted):
        # The application deletes files of the history when they have expired.
        with suppress(FileNotFoundError):
            yield from fragment.to_table(schema=table.schema, filter=wanted).to_pylist()


def _declared(app: str) -> Iterable[PipelineDeclaration]:
    from wallaroo_spark.pipelines.declarations import PipelineDeclaration
    from wallaroo_spark.pipelines.schema.applying import find

    return [one for one in find(schema_store(app).newest(), "Pipeline", "") if isinstance(one, PipelineDeclaration)]


def _summary(one: PipelineDeclaration) -> dict[str, Any]:
    from wallaroo_spark.pipelines.names import stream_key

    return {
        "pipeline": one.key.path,
        "input": stream_key(one.input_stream, one.namespace).path,
        "triggers": list(one.triggers),
        "maxParallel": one.max_parallel,
        "stages": [stage.name for stage in one.stages],
    }


def _print(table: Any) -> None:
    from wallaroo_spark.cli.status.sources import console

    console().print(table)
