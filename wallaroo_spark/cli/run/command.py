"""``wallaroo-spark run``: runs an application of durable streams."""

from __future__ import annotations

import signal
from typing import Any

import click

from wallaroo_spark.cli.common import INTERRUPTED
from wallaroo_spark.cli.defaults import setting_flag
from wallaroo_spark.cli.schema import app_option, json_option, need
from wallaroo_spark.cli.sessions import WITH_UI, ui_option
from wallaroo_spark.engine.application.settings import ApplicationSettings
from wallaroo_spark.settings import rows

_NO_FLAG = ("spark", "folder", "schema")
"""The settings that have options of another form."""


def _flags(command: Any) -> Any:
    for row in reversed(list(rows(ApplicationSettings))):
        if row.attribute not in _NO_FLAG:
            command = setting_flag(ApplicationSettings, row.attribute)(command)
    return command


@click.command(
    epilog="Example: wallaroo-spark run --app ./shop --schema shop.yaml --port 7300",
)
@app_option
@click.option(
    "--schema",
    "files",
    multiple=True,
    metavar="FILE",
    help="YAML documents to apply before the start, as apply does; - is standard input. Repeatable.",
)
@click.option(
    "--receive",
    "receivers",
    multiple=True,
    metavar="FILE",
    type=click.Path(dir_okay=False),
    help="Also run the receiver of a YAML file of `receive`, whose sink is a stream of this application. Repeatable.",
)
@click.option("--master", default="", metavar="URL", help="Spark's master; without it, Spark runs on this machine.")
@click.option(
    "--conf", multiple=True, metavar="NAME=VALUE", help="A setting of Spark: spark.executor.memory=4g. Repeatable."
)
@ui_option
@click.option("--show-registry", is_flag=True, help="Print the registry's URL, with its password if it has one.")
@_flags
@json_option
def run(
    app: str,
    files: tuple[str, ...],
    receivers: tuple[str, ...],
    master: str,
    conf: tuple[str, ...],
    ui: bool,
    show_registry: bool,
    as_json: bool,
    **settings: Any,
) -> None:
    """Run the application in a folder until the program is interrupted: clients connect to its gateways.

    The output has a line for each gateway that begins or ceases to serve, and for each error; with --json it has the
    status as one line of JSON after each of these changes. SIGTERM and Ctrl-C end
    the gateways, then the query; the exit status is 0 after SIGTERM and 130 after Ctrl-C. The next start continues
    where this one ended. Without spark-submit and --master, Spark runs on this machine, with a task slot for each
    gateway and worker, two more, and one for each receiver; everything listens on loopback, and there is no UI of
    Spark without --ui.
    """
    from wallaroo_spark.cli.receive.config import STREAM, load
    from wallaroo_spark.cli.run.running import JsonRunView, RunView, run_application

    folder = need(app)
    if any("=" not in one for one in conf):
        raise click.UsageError("--conf needs NAME=VALUE")
    spark_settings = (WITH_UI if ui else {}) | dict(one.split("=", 1) for one in conf)
    spark_settings |= {"spark.master": master} if master else {}
    view = JsonRunView(show_registry) if as_json else RunView(show_registry)
    loaded = [load(file, (f"sink.path={folder}", f"sink.format={STREAM}")) for file in receivers]
    stopped_by = run_application(folder, files, spark_settings, settings, view, loaded)
    if stopped_by == signal.SIGINT:
        raise click.exceptions.Exit(INTERRUPTED)
