"""``wallaroo-spark receive`` and ``validate``: run the receiver and the query of a YAML file, or check the file."""

from __future__ import annotations

import dataclasses
import json
import sys
from pathlib import Path
from typing import Annotated, Any

import click

from wallaroo_spark.cli.common import exit_unless
from wallaroo_spark.cli.receive.config import load, problems
from wallaroo_spark.cli.sessions import WITH_UI
from wallaroo_spark.cli.signals import exit_after_interrupt
from wallaroo_spark.cli.verbs import Json, Number, verb
from wallaroo_spark.texts import count

SAMPLE = Path(__file__).with_name("sample.yaml")
"""The sample that ``--sample`` prints; conf/receive.yaml in the repository is the same text."""

Overrides = Annotated[tuple[str, ...], "--set"]
"""Values that override those of the YAML file."""


def _print_sample(context: click.Context, _: click.Parameter, wanted: bool) -> None:
    if wanted and not context.resilient_parsing:
        click.echo(SAMPLE.read_text(encoding="utf-8"), nl=False)
        context.exit()


@click.option(
    "--sample",
    is_flag=True,
    is_eager=True,
    expose_value=False,
    callback=_print_sample,
    help="Print a sample of CONFIG, with comments, and end.",
)
@verb()
def receive(
    config: Annotated[str, click.Path(dir_okay=False)],
    *,
    overrides: Overrides = (),
    ui: bool = False,
    show_registry: bool = False,
    every: Annotated[float, Number(min=0.1)] = 10.0,
    plain: bool = False,
    spark_log: Annotated[str, click.Path(dir_okay=False, writable=True)] = "",
    report: Annotated[str, click.Path(dir_okay=False, writable=True)] = "",
    as_json: Json = False,
) -> None:
    """Run the receiver and the query of the YAML file CONFIG, until the program is interrupted.

    --sample prints a sample of it, and wallaroo-spark validate checks it. Relative paths are relative to the working
    directory. Without spark-submit, Spark runs on this machine, with a task slot for each worker and two more. SIGTERM
    and Ctrl-C stop the query, then the receiver; the exit status is 0 after SIGTERM and 130 after Ctrl-C. The next
    start continues from the checkpoint.

    Options:
        --set NAME=VALUE: Override a value of the file: an option, checkpoint, sink.path, trigger.availableNow, spark.…
            Repeatable.
        --ui: Start Spark's UI, without links that end jobs: on loopback where Spark runs on this machine, else on
            every interface of the driver.
        --show-registry: Print the registry's URL, with its password if it has one.
        --every: Seconds between lines where there is no terminal.
        --plain: Print lines instead of a live table, also on a terminal.
        --spark-log: File for Spark's own messages. By default standard error, or with a live table a new temporary
            file.
        --report: File for a report of the run, one HTML page, written when it ends; the same as the option report.
        --json: Print lines of JSON, each with its event, also on a terminal.

    Examples:
        wallaroo-spark receive --sample > orders.yaml
        wallaroo-spark receive orders.yaml --set port=7200
        wallaroo-spark receive orders.yaml --json
    """
    from rich.console import Console

    from wallaroo_spark.cli.receive import running
    from wallaroo_spark.cli.receive.view import LiveView, PlainView

    loaded = load(config, (*overrides, f"report={report}") if report else overrides)
    if ui:
        loaded = dataclasses.replace(loaded, spark={**WITH_UI, **loaded.spark})
    console = Console()
    live = not (as_json or plain) and console.is_terminal and sys.stdout.isatty()
    log = spark_log or (running.new_spark_log(loaded.receiver) if live else "")
    try:
        with LiveView(console, log) if live else PlainView(every, as_json) as view:
            stopped_by = running.receive(loaded, view, show_registry=show_registry, spark_log=log)
    except Exception:
        if live:
            click.echo(f"Spark's own messages are in {log}.", err=True)
        raise
    exit_after_interrupt(stopped_by)


@verb()
def validate(
    config: Annotated[str, click.Path(dir_okay=False)], *, overrides: Overrides = (), as_json: Json = False
) -> None:
    """Check the YAML file CONFIG as receive would read it, without Spark and without a registry.

    Every problem is printed with its line, also secrets whose variable or file is missing. The exit status is 0 when
    there is none, and 1 otherwise. wallaroo-spark receive --sample prints a file to begin with.

    Options:
        --set NAME=VALUE: Override a value of the file, as receive does. Repeatable.
        --json: Print one line of JSON: file, valid and problems.

    Examples:
        wallaroo-spark validate orders.yaml
        wallaroo-spark validate orders.yaml --set workers=4 --json
    """
    found, errors = problems(config, overrides)
    if as_json:
        shown: list[dict[str, Any]] = []
        for error in errors:
            place = {"line": error.fields.get("line"), "name": error.fields.get("option")}
            shown.append({**place, "problem": error.message, "code": error.code})
        click.echo(json.dumps({"file": config, "valid": found is not None, "problems": shown}))
    elif found is not None:
        workers = count(found.options.workers, "worker")
        sink = f"{found.sink.format} into {found.sink.path}" if found.sink.path else found.sink.format
        click.echo(f"{config} is valid: receiver {found.receiver!r}, {workers}, {sink}.")
    else:
        for error in errors:
            click.echo(error.message)
        click.echo(f"{config}: {count(len(errors), 'problem')}.", err=True)
    exit_unless(found is not None)
