"""``wallaroo-spark receive``: runs the receiver and the query of a YAML file."""

from __future__ import annotations

import dataclasses
import signal
import sys
from pathlib import Path

import click

from wallaroo_spark.cli.common import INTERRUPTED
from wallaroo_spark.cli.sessions import WITH_UI, ui_option

SAMPLE = Path(__file__).with_name("sample.yaml")
"""The sample that ``--sample`` prints; conf/receive.yaml in the repository is the same text."""

overrides_option = click.option(
    "--set",
    "overrides",
    metavar="NAME=VALUE",
    multiple=True,
    help="Override a value of the file: an option, checkpoint, sink.path, trigger.availableNow, spark.… Repeatable.",
)


def _print_sample(context: click.Context, _: click.Parameter, wanted: bool) -> None:
    if wanted and not context.resilient_parsing:
        click.echo(SAMPLE.read_text(encoding="utf-8"), nl=False)
        context.exit()


@click.command(
    epilog="Examples: wallaroo-spark receive --sample > orders.yaml · "
    "wallaroo-spark receive orders.yaml --set port=7200 · wallaroo-spark receive orders.yaml --json",
)
@click.argument("config", type=click.Path(dir_okay=False))
@overrides_option
@click.option(
    "--sample",
    is_flag=True,
    is_eager=True,
    expose_value=False,
    callback=_print_sample,
    help="Print a sample of CONFIG, with comments, and end.",
)
@ui_option
@click.option("--show-registry", is_flag=True, help="Print the registry's URL, with its password if it has one.")
@click.option("--every", default=10.0, show_default=True, help="Seconds between lines where there is no terminal.")
@click.option("--plain", is_flag=True, help="Print lines instead of a live table, also on a terminal.")
@click.option("--json", "as_json", is_flag=True, help="Print lines of JSON, each with its event, also on a terminal.")
@click.option(
    "--spark-log",
    type=click.Path(dir_okay=False, writable=True),
    help="File for Spark's own messages. By default standard error, or with a live table a new temporary file.",
)
@click.option(
    "--report",
    type=click.Path(dir_okay=False, writable=True),
    help="File for a report of the run, one HTML page, written when it ends; the same as the option report.",
)
def receive(
    config: str,
    overrides: tuple[str, ...],
    ui: bool,
    show_registry: bool,
    every: float,
    plain: bool,
    as_json: bool,
    spark_log: str | None,
    report: str | None,
) -> None:
    """Run the receiver and the query of the YAML file CONFIG, until the program is interrupted.

    --sample prints a sample of it, and wallaroo-spark validate checks it. Relative paths are relative to the working
    directory. Without spark-submit, Spark runs on this machine, with a task slot for each worker and two more. SIGTERM
    and Ctrl-C stop the query, then the receiver; the exit status is 0 after SIGTERM and 130 after Ctrl-C. The next
    start continues from the checkpoint.
    """
    from rich.console import Console

    from wallaroo_spark.cli.receive import running
    from wallaroo_spark.cli.receive.config import load
    from wallaroo_spark.cli.receive.view import JsonView, LiveView, PlainView

    loaded = load(config, (*overrides, f"report={report}") if report else overrides)
    if ui:
        loaded = dataclasses.replace(loaded, spark={**WITH_UI, **loaded.spark})
    console = Console()
    if as_json or plain or not (console.is_terminal and sys.stdout.isatty()):
        with JsonView(every) if as_json else PlainView(every) as lines:
            stopped_by = running.receive(loaded, lines, show_registry=show_registry, spark_log=spark_log or "")
    else:
        log = spark_log or running.new_spark_log(loaded.receiver)
        try:
            with LiveView(console, log) as live:
                stopped_by = running.receive(loaded, live, show_registry=show_registry, spark_log=log)
        except Exception:
            click.echo(f"Spark's own messages are in {log}.", err=True)
            raise
    if stopped_by == signal.SIGINT:
        raise click.exceptions.Exit(INTERRUPTED)
