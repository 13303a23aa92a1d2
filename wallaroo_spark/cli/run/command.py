"""``wallaroo-spark run``: runs an application of durable streams."""

from __future__ import annotations

import signal
from typing import Any

import click

from wallaroo_spark.cli.common import INTERRUPTED, debug_option, set_up_logging
from wallaroo_spark.cli.schema.application import app_option, json_option, need
from wallaroo_spark.cli.setting_flags import setting_flag
from wallaroo_spark.engine.application.settings import ApplicationSettings

FLAGS = (
    "name",
    "registry",
    "gateways",
    "host",
    "port",
    "advertise",
    "tls_certificate",
    "tls_key",
    "tls_ca",
    "connector_port",
    "connector_advertise",
    "lease_seconds",
    "max_rows",
    "state_partitions",
    "keep",
    "move_seconds",
    "retention_seconds",
    "history_seconds",
    "delta",
    "status_page",
    "status_page_token",
    "log_level",
    "log_format",
)
"""The settings that have a flag."""


def _flags(command: Any) -> Any:
    for attribute in reversed(FLAGS):
        command = setting_flag(ApplicationSettings, attribute)(command)
    return command


@click.command(
    short_help="Run an application of durable streams: its gateways and its query.",
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
@click.option("--master", default="", metavar="URL", help="Spark's master; without it, Spark runs on this machine.")
@click.option(
    "--conf", multiple=True, metavar="NAME=VALUE", help="A setting of Spark: spark.executor.memory=4g. Repeatable."
)
@click.option("--show-registry", is_flag=True, help="Print the registry's URL, with its password if it has one.")
@_flags
@json_option
@debug_option
def run(
    app: str,
    files: tuple[str, ...],
    master: str,
    conf: tuple[str, ...],
    show_registry: bool,
    as_json: bool,
    **settings: Any,
) -> None:
    """Run the application in a folder until the program is interrupted: clients connect to its gateways.

    The output has a line for each gateway that begins or ceases to serve, and for each error; with --json it has the
    status as one line of JSON after each of these changes. SIGTERM and Ctrl-C end
    the gateways, then the query; the exit status is 0 after SIGTERM and 130 after Ctrl-C. The next start continues
    where this one ended. Without spark-submit and --master, Spark runs on this machine, with a task slot for each
    gateway and two more.
    """
    from wallaroo_spark.cli.run.running import JsonRunView, RunView, run_application

    folder = need(app)
    if any("=" not in one for one in conf):
        raise click.UsageError("--conf needs NAME=VALUE")
    spark_settings = dict(one.split("=", 1) for one in conf) | ({"spark.master": master} if master else {})
    set_up_logging()
    view = JsonRunView(show_registry) if as_json else RunView(show_registry)
    stopped_by = run_application(folder, files, spark_settings, settings, view)
    if stopped_by == signal.SIGINT:
        raise click.exceptions.Exit(INTERRUPTED)
