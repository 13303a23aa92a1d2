"""``wallaroo-spark pipelines``: the declared pipelines, the history of their instances, and what an operator does to
one."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import click

from wallaroo_spark.cli.common import print_table
from wallaroo_spark.cli.durable.connecting import client_settings, gateway_options
from wallaroo_spark.cli.schema import app_option, existing, json_option, one_object, schema_store
from wallaroo_spark.errors import ConfigurationError, printable
from wallaroo_spark.texts import count

if TYPE_CHECKING:
    from wallaroo_spark.pipelines.schema.declarations import PipelineDeclaration


@click.group()
def pipelines() -> None:
    """Show the pipelines of an application and the history of their instances, cancel one, or take its work away."""


@pipelines.command(name="list", epilog="Example: wallaroo-spark pipelines list --app ./shop")
@app_option
@json_option
def list_pipelines(app: str, as_json: bool) -> None:
    """List the declared pipelines with their input streams and stages."""
    found = list(_declared(app))
    if as_json:
        click.echo(json.dumps({"pipelines": [_summary(one) for one in found]}))
        return
    if not found:
        click.echo("There are no pipelines.")
        return
    print_table(
        ("pipeline", "input", "triggers", "max parallel", "stages"),
        (
            (
                one.key.path,
                summary["input"],
                ", ".join(one.triggers) or "all",
                str(one.max_parallel),
                ", ".join(summary["stages"]),
            )
            for one, summary in ((one, _summary(one)) for one in found)
        ),
    )


@pipelines.command(epilog="Example: wallaroo-spark pipelines show shop/fulfil --app ./shop")
@click.argument("name")
@app_option
@json_option
def show(name: str, app: str, as_json: bool) -> None:
    """Show the stages of the pipeline NAME: when each runs, where it runs, and its stream outputs."""
    from wallaroo_spark.pipelines.schema.documents import to_document

    one = one_object(schema_store(existing(app)).newest(), "Pipeline", name)
    if as_json:
        click.echo(json.dumps(to_document(one, defaults=True)))
        return
    declared: Any = one
    summary = _summary(declared)
    click.echo(
        f"{one.key.path}: events of {summary['input']}, "
        f"at most {declared.max_parallel} instances at once in each partition"
    )
    rows = []
    for stage in declared.stages:
        before = [*stage.dependencies, *(f"{name} (no output)" for name in stage.after)]
        attempts = stage.retry.max_attempts
        rows.append(
            (
                stage.name,
                ", ".join(before) or "the event",
                f"in Spark: {stage.run}" if stage.run else "programs",
                ", ".join(stage.stream_outputs),
                "any number" if attempts is None else str(attempts),
            )
        )
    print_table(("stage", "runs after", "where", "stream outputs", "attempts"), rows)


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
def instances(name: str, app: str, limit: int, state: str | None, as_json: bool) -> None:
    """Show instances of the pipeline NAME with how long each stage took, from the history table.

    The table has a batch some seconds after its commit. It is read where the application's folder is a path of this
    machine; elsewhere, read it in Spark with read_instances of wallaroo_spark.streams.
    """
    from wallaroo_spark.cli.durable.instance_rows import newest_instances

    declared = one_object(schema_store(existing(app)).newest(), "Pipeline", name)
    found = newest_instances(_history(existing(app), declared.key.path))
    chosen = [one for one in found if state in (None, one.state)][:limit]
    if as_json:
        click.echo(json.dumps({"instances": [one.to_json() for one in chosen]}))
        return
    if not chosen:
        click.echo(f"The history has no such instances of {declared.key.path}.")
        return
    print_table(
        ("instance", "state", "began", "seconds", "stages", "stream outputs", "reason"),
        (
            (
                f"{one.partition}/{one.instance}",
                one.state,
                f"{one.began_at:%Y-%m-%d %H:%M:%S}" if one.began_at else "",
                "" if one.seconds is None else f"{one.seconds:.1f}",
                ", ".join(f"{stage} {took:.1f} s" for stage, took in one.stages.items()),
                ", ".join(one.outputs),
                one.reason,
            )
            for one in chosen
        ),
    )
    click.echo(f"{count(len(found), 'instance')} in the history.")


@pipelines.command(
    name="set-aside",
    epilog="Examples: wallaroo-spark pipelines set-aside --app ./shop --list · "
    "wallaroo-spark pipelines set-aside --app ./shop --to shop/letters",
)
@app_option
@click.option("--to", default="", metavar="STREAM", help="The stream that gets the events, as namespace/name.")
@click.option("--list", "only_list", is_flag=True, help="Show what has failed; change nothing.")
@json_option
def set_aside(app: str, to: str, only_list: bool, as_json: bool) -> None:
    """Set aside the events at which a task has failed (row-failed), so that the application can be started again.

    A dead-letter stream gets them at the next start: that of --to, or one that a pipeline declares for its input.
    Without one they are written to a file, which publish --cloudevents reads.
    """
    from wallaroo_spark.engine.failures.isolation import FailedRows
    from wallaroo_spark.engine.failures.isolation import set_aside as set_aside_all

    folder = existing(app)
    if only_list:
        notes = FailedRows(folder).all()
        if as_json:
            click.echo(json.dumps({"failed": [json.loads(one.to_json()) for one in notes]}))
            return
        for note in notes:
            click.echo(printable(f"{note}: {note.error}"))
        click.echo(f"{count(len(notes), 'failed row')}.")
        return
    found = set_aside_all(folder, to)
    if as_json:
        rows = [{**json.loads(one.row.to_json()), "events": one.events, "file": one.file} for one in found]
        click.echo(json.dumps({"set_aside": rows}))
        return
    for one in found:
        place = one.file or (f"{one.row.to}, at the next start" if one.events else "nowhere")
        click.echo(printable(f"Set aside: {one.row}; {count(one.events, 'event')} to {place}."))
    click.echo(f"{count(len(found), 'failed row')} set aside." if found else "No task has left a failed row.")


def _place(_: click.Context, parameter: click.Parameter, value: str) -> tuple[int, int]:
    """The partition and the number of an instance, as ``pipelines instances`` shows it."""
    partition, _slash, instance = value.partition("/")
    if not (partition.isdecimal() and instance.isdecimal()):
        raise click.BadParameter(
            f"{value!r} is no instance; give PARTITION/INSTANCE, such as 0/17, as instances shows it", param=parameter
        )
    return int(partition), int(instance)


_instance = click.argument("instance", callback=_place, metavar="PARTITION/INSTANCE")


@pipelines.command(
    name="take-away",
    epilog="Examples: wallaroo-spark pipelines take-away shop/fulfil 0/17 · "
    "wallaroo-spark pipelines take-away shop/fulfil 0/17 --stage charge --json",
)
@click.argument("pipeline")
@_instance
@click.option("--stage", default="", metavar="NAME", help="Only the delivery of this stage.")
@gateway_options
@json_option
def take_away(pipeline: str, instance: tuple[int, int], stage: str, as_json: bool, **given: Any) -> None:
    """Take the deliveries of an instance of PIPELINE away from the workers that have them; others are given them.

    A worker that had one is given no other in its place until it has ended its work; what it answers is dropped.
    """
    from wallaroo_spark.client import Client

    with Client(**client_settings(given)) as client:
        client.take_away(pipeline, *instance, stage)
    _done(pipeline, instance, as_json, "taken away", {"stage": stage} if stage else {})


@pipelines.command(epilog="Example: wallaroo-spark pipelines cancel shop/fulfil 0/17")
@click.argument("pipeline")
@_instance
@gateway_options
@json_option
def cancel(pipeline: str, instance: tuple[int, int], as_json: bool, **given: Any) -> None:
    """End an active instance of PIPELINE; its open deliveries are withdrawn."""
    from wallaroo_spark.client import Client

    with Client(**client_settings(given)) as client:
        client.cancel(pipeline, *instance)
    _done(pipeline, instance, as_json, "cancelled", {})


def _done(pipeline: str, instance: tuple[int, int], as_json: bool, done: str, more: dict[str, Any]) -> None:
    partition, number = instance
    if as_json:
        named = {"pipeline": pipeline, "partition": partition, "instance": number, **more}
        click.echo(json.dumps({**named, "done": done}))
    else:
        of = f"Stage {more['stage']} of instance" if more else "Instance"
        click.echo(f"{of} {partition}/{number} of {pipeline} is {done}.")


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
    from wallaroo_spark.pipelines.schema.applying import find
    from wallaroo_spark.pipelines.schema.declarations import PipelineDeclaration

    return [
        one
        for one in find(schema_store(existing(app)).newest(), "Pipeline", "")
        if isinstance(one, PipelineDeclaration)
    ]


def _summary(one: PipelineDeclaration) -> dict[str, Any]:
    from wallaroo_spark.pipelines.schema.names import stream_key

    return {
        "pipeline": one.key.path,
        "input": stream_key(one.input_stream, one.namespace).path,
        "triggers": list(one.triggers),
        "maxParallel": one.max_parallel,
        "stages": [stage.name for stage in one.stages],
    }
