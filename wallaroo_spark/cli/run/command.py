"""``wallaroo-spark run``: runs an application of durable streams."""

from __future__ import annotations

import signal
from typing import Annotated, Any

import click

from wallaroo_spark.cli.common import INTERRUPTED
from wallaroo_spark.cli.schema import AppOptions
from wallaroo_spark.cli.sessions import WITH_UI
from wallaroo_spark.cli.verbs import Json, options_of, verb
from wallaroo_spark.engine.application.settings import ApplicationSettings


@verb()
def run(
    *,
    app: AppOptions,
    files: Annotated[tuple[str, ...], "--schema"] = (),
    receivers: Annotated[tuple[str, ...], "--receive", click.Path(dir_okay=False)] = (),
    master: str = "",
    conf: tuple[str, ...] = (),
    ui: bool = False,
    show_registry: bool = False,
    as_json: Json = False,
    **settings: Annotated[Any, options_of(ApplicationSettings, "spark", "folder", "schema")],
) -> None:
    """Run the application in a folder until the program is interrupted: clients connect to its gateways.

    The output has a line for each gateway that begins or ceases to serve, and for each error; with --json it has the
    status as one line of JSON after each of these changes. SIGTERM and Ctrl-C end
    the gateways, then the query; the exit status is 0 after SIGTERM and 130 after Ctrl-C. The next start continues
    where this one ended. Without spark-submit and --master, Spark runs on this machine, with a task slot for each
    gateway and worker, two more, and one for each receiver; everything listens on loopback, and there is no UI of
    Spark without --ui.

    Options:
        --schema FILE: YAML documents to apply before the start, as apply does; - is standard input. Repeatable.
        --receive FILE: Also run the receiver of a YAML file of `receive`, whose sink is a stream of this application.
            Repeatable.
        --master URL: Spark's master; without it, Spark runs on this machine.
        --conf NAME=VALUE: A setting of Spark: spark.executor.memory=4g. Repeatable.
        --ui: Start Spark's UI, without links that end jobs: on loopback where Spark runs on this machine, else on
            every interface of the driver.
        --show-registry: Print the registry's URL, with its password if it has one.
        --json: Print one line of JSON.

    Examples:
        wallaroo-spark run --app ./shop --schema shop.yaml --port 7300
    """
    from wallaroo_spark.cli.receive.config import STREAM, load
    from wallaroo_spark.cli.run.running import JsonRunView, RunView, run_application

    folder = app.need()
    if any("=" not in one for one in conf):
        raise click.UsageError("--conf needs NAME=VALUE")
    spark_settings = (WITH_UI if ui else {}) | dict(one.split("=", 1) for one in conf)
    spark_settings |= {"spark.master": master} if master else {}
    view = JsonRunView(show_registry) if as_json else RunView(show_registry)
    loaded = [load(file, (f"sink.path={folder}", f"sink.format={STREAM}")) for file in receivers]
    stopped_by = run_application(folder, files, spark_settings, settings, view, loaded)
    if stopped_by == signal.SIGINT:
        raise click.exceptions.Exit(INTERRUPTED)
