"""``wallaroo-spark pipelines``: the declared pipelines, the history of their instances, and what an operator does to
one."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Annotated, Any

import click

from wallaroo_spark.cli.common import Columns, console, print_result, print_rows, table_of
from wallaroo_spark.cli.durable.events import GatewayOptions
from wallaroo_spark.cli.durable.schema import AppOptions, one_object
from wallaroo_spark.cli.verbs import Json, verb
from wallaroo_spark.errors import ConfigurationError, printable
from wallaroo_spark.pipelines.schema.declarations import PipelineDeclaration
from wallaroo_spark.pipelines.schema.documents import to_document
from wallaroo_spark.texts import count


@click.group()
def pipelines() -> None:
    """Show the pipelines of an application and the history of their instances, cancel one, or take its work away."""


@verb(pipelines, "list")
def list_pipelines(*, app: AppOptions, as_json: Json = False) -> None:
    """List the declared pipelines with their input streams and stages.

    Options:
        --json: Print one line of JSON.

    Examples:
        wallaroo-spark pipelines list --app ./shop
    """
    found = [one for one in app.stored().objects.values() if isinstance(one, PipelineDeclaration)]
    columns: Columns[PipelineDeclaration] = {
        "pipeline": lambda one: one.key.path,
        "input": lambda one: one.input_key.path,
        "triggers": lambda one: ", ".join(one.triggers) or "all",
        "max parallel": lambda one: str(one.max_parallel),
        "stages": lambda one: ", ".join(stage.name for stage in one.stages),
    }
    values = [
        {
            "pipeline": one.key.path,
            "input": one.input_key.path,
            "triggers": list(one.triggers),
            "maxParallel": one.max_parallel,
            "stages": [stage.name for stage in one.stages],
        }
        for one in found
    ]
    print_rows(as_json, {"pipelines": values}, columns, found, "There are no pipelines.")


@verb(pipelines)
def show(name: str, *, app: AppOptions, as_json: Json = False) -> None:
    """Show the stages of the pipeline NAME: when each runs, where it runs, and its stream outputs.

    Options:
        --json: Print one line of JSON.

    Examples:
        wallaroo-spark pipelines show shop/fulfil --app ./shop
    """
    one: Any = one_object(app.stored(), "Pipeline", name)
    head = f"{one.key.path}: events of {one.input_key.path}, "
    head += f"at most {one.max_parallel} instances at once in each partition"
    print_result(as_json, to_document(one, defaults=True), head)
    if as_json:
        return
    columns: Columns[Any] = {
        "stage": lambda stage: stage.name,
        "runs after": lambda stage: (
            ", ".join([*stage.dependencies, *(f"{name} (no output)" for name in stage.after)]) or "the event"
        ),
        "where": lambda stage: f"in Spark: {stage.run}" if stage.run else "programs",
        "stream outputs": lambda stage: ", ".join(stage.stream_outputs),
        "attempts": lambda stage: "any number" if stage.retry.max_attempts is None else str(stage.retry.max_attempts),
    }
    console().print(table_of(columns, one.stages))


@verb(pipelines)
def instances(
    name: str,
    *,
    app: AppOptions,
    limit: Annotated[int, click.IntRange(1)] = 20,
    state: Annotated[str | None, click.Choice(["active", "done", "failed", "cancelled"])] = None,
    as_json: Json = False,
) -> None:
    """Show instances of the pipeline NAME with how long each stage took, from the history table.

    The table has a batch some seconds after its commit. It is read where the application's folder is a path of this
    machine; elsewhere, read it in Spark with read_instances of wallaroo_spark.streams.

    Options:
        --limit: Most instances, the newest first.
        --state: Only instances in this state.
        --json: Print one line of JSON.

    Examples:
        wallaroo-spark pipelines instances shop/fulfil --app ./shop
        wallaroo-spark pipelines instances shop/fulfil --app ./shop --state failed --json
    """
    declared = one_object(app.stored(), "Pipeline", name)
    found = newest_instances(_history(app.app, declared.key.path))
    chosen = [one for one in found if state in (None, one.state)][:limit]
    columns: Columns[InstanceSummary] = {
        "instance": lambda one: f"{one.partition}/{one.instance}",
        "state": lambda one: one.state,
        "began": lambda one: f"{one.began_at:%Y-%m-%d %H:%M:%S}",
        "seconds": lambda one: "" if one.seconds is None else f"{one.seconds:.1f}",
        "stages": lambda one: ", ".join(f"{stage} {took:.1f} s" for stage, took in one.stages.items()),
        "stream outputs": lambda one: ", ".join(one.outputs),
        "reason": lambda one: one.reason,
    }
    values = {"instances": [one.to_json() for one in chosen]}
    print_rows(as_json, values, columns, chosen, f"The history has no such instances of {declared.key.path}.")
    if chosen and not as_json:
        click.echo(f"{count(len(found), 'instance')} in the history.")


@verb(pipelines)
def set_aside(
    *, app: AppOptions, to: str = "", only_list: Annotated[bool, "--list"] = False, as_json: Json = False
) -> None:
    """Set aside the events at which a task has failed (row-failed), so that the application can be started again.

    A dead-letter stream gets them at the next start: that of --to, or one that a pipeline declares for its input.
    Without one they are written to a file, which publish --cloudevents reads.

    Options:
        --to STREAM: The stream that gets the events, as namespace/name.
        --list: Show what has failed; change nothing.
        --json: Print one line of JSON.

    Examples:
        wallaroo-spark pipelines set-aside --app ./shop --list
        wallaroo-spark pipelines set-aside --app ./shop --to shop/letters
    """
    from wallaroo_spark.engine.isolation import FailedRows
    from wallaroo_spark.engine.isolation import set_aside as set_aside_all

    folder = app.existing()
    if only_list:
        notes = FailedRows(folder).all()
        lines = [printable(f"{note}: {note.error}") for note in notes]
        lines.append(f"{count(len(notes), 'failed row')}.")
        print_result(as_json, {"failed": [json.loads(one.to_json()) for one in notes]}, "\n".join(lines))
        return
    found = set_aside_all(folder, to)
    lines = []
    for one in found:
        place = one.file or (f"{one.row.to}, at the next start" if one.events else "nowhere")
        lines.append(printable(f"Set aside: {one.row}; {count(one.events, 'event')} to {place}."))
    lines.append(f"{count(len(found), 'failed row')} set aside." if found else "No task has left a failed row.")
    rows = [{**json.loads(one.row.to_json()), "events": one.events, "file": one.file} for one in found]
    print_result(as_json, {"set_aside": rows}, "\n".join(lines))


class _Instance(click.ParamType[tuple[int, int]]):
    """The partition and the number of an instance, as ``pipelines instances`` shows it."""

    name = "instance"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> tuple[int, int]:
        partition, _slash, instance = value.partition("/")
        if not (partition.isdecimal() and instance.isdecimal()):
            self.fail(
                f"{value!r} is no instance; give PARTITION/INSTANCE, such as 0/17, as instances shows it", param, ctx
            )
        return int(partition), int(instance)


Instance = Annotated[Any, _Instance(), "PARTITION/INSTANCE"]


@verb(pipelines)
def take_away(
    pipeline: str, instance: Instance, *, stage: str = "", gateways: GatewayOptions, as_json: Json = False
) -> None:
    """Take the deliveries of an instance of PIPELINE away from the workers that have them; others are given them.

    A worker that had one is given no other in its place until it has ended its work; what it answers is dropped.

    Options:
        --stage NAME: Only the delivery of this stage.
        --json: Print one line of JSON.

    Examples:
        wallaroo-spark pipelines take-away shop/fulfil 0/17
        wallaroo-spark pipelines take-away shop/fulfil 0/17 --stage charge --json
    """
    with gateways.client() as client:
        client.take_away(pipeline, instance[0], instance[1], stage)
    _done(pipeline, instance, as_json, "taken away", stage)


@verb(pipelines)
def cancel(pipeline: str, instance: Instance, *, gateways: GatewayOptions, as_json: Json = False) -> None:
    """End an active instance of PIPELINE; its open deliveries are withdrawn.

    Options:
        --json: Print one line of JSON.

    Examples:
        wallaroo-spark pipelines cancel shop/fulfil 0/17
    """
    with gateways.client() as client:
        client.cancel(pipeline, instance[0], instance[1])
    _done(pipeline, instance, as_json, "cancelled")


def _done(pipeline: str, instance: tuple[int, int], as_json: bool, done: str, stage: str = "") -> None:
    partition, number = instance
    named = {"pipeline": pipeline, "partition": partition, "instance": number, **({"stage": stage} if stage else {})}
    of = f"Stage {stage} of instance" if stage else "Instance"
    print_result(as_json, {**named, "done": done}, f"{of} {partition}/{number} of {pipeline} is {done}.")


def _history(app: str, pipeline: str) -> Iterator[dict[str, Any]]:
    """The rows of a pipeline in the history table."""
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


ACTIVE = "active"
"""The state of an instance that has not ended."""


@dataclass
class InstanceSummary:
    """One instance of a pipeline."""

    partition: int
    """Partition of the input stream."""
    instance: int
    """Its number: the offset of the event that began it."""
    birth: int = 0
    """Version of the schema with which its pipeline was declared first; another after it was declared anew."""
    state: str = ACTIVE
    """``active``, or its outcome."""
    began_at: datetime | None = None
    """When it began; None where the history lacks that row, because it has expired."""
    ended_at: datetime | None = None
    """When it ended; None for an active one."""
    reason: str = ""
    """Why it failed or was cancelled; for an active one, why its last delivery failed, if one did."""
    stages: dict[str, float] = field(default_factory=dict)
    """Stage → seconds from its beginning to its ack, in the order of the acks."""
    outputs: list[str] = field(default_factory=list)
    """The places of its stream outputs, as ``stream/partition:offset``."""

    @property
    def seconds(self) -> float | None:
        """How long it took; None for an active one."""
        if self.began_at is None or self.ended_at is None:
            return None
        return (self.ended_at - self.began_at).total_seconds()

    def to_json(self) -> dict[str, Any]:
        """The instance as values that JSON has."""
        times = {"beganAt": self.began_at, "endedAt": self.ended_at}
        shown = {name: time.isoformat() if time else None for name, time in times.items()}
        others = {name: value for name, value in vars(self).items() if name not in ("began_at", "ended_at")}
        return {**others, **shown, "seconds": self.seconds}


def newest_instances(rows: Iterable[Mapping[str, Any]]) -> list[InstanceSummary]:
    """The instances of one pipeline, those that began last first; without those whose first rows have expired."""
    found: dict[tuple[int, int, int], InstanceSummary] = {}
    for row in sorted(rows, key=lambda row: row["at"]):
        if row["kind"] == "skipped":
            continue
        key = (row["partition"], row["instance"], row["birth"])
        one = found.setdefault(key, InstanceSummary(*key))
        _add(one, row)
    whole = [(one.began_at.timestamp(), one) for one in found.values() if one.began_at is not None]
    return [one for _, one in sorted(whole, key=lambda pair: (-pair[0], -pair[1].instance))]


def _add(one: InstanceSummary, row: Mapping[str, Any]) -> None:
    match row["kind"]:
        case "began":
            one.began_at = row["at"]
        case "output":
            one.stages[row["stage"]] = (row["at"] - row["began_at"]).total_seconds()
        case "nacked" if one.state == ACTIVE:
            text = row["reason"] or "nacked"
            one.reason = f"delivery {row['attempts']} of stage {row['stage']} has failed: {text}"
        case "pointer":
            where = f"{row['target_stream']}/{row['target_partition']}"
            one.outputs += [f"{where}:{offset}" for offset in row["offsets"] or ()]
        case "ended":
            one.ended_at = row["at"]
            one.state = row["outcome"]
            one.reason = row["reason"] or ""
