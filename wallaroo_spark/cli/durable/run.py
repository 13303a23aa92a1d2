"""``wallaroo-spark run``: runs an application of durable streams until it ends or a signal arrives."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Annotated, Any

import click

from wallaroo_spark.cli.durable.schema import AppOptions
from wallaroo_spark.cli.receive.config import STREAM, ReceiveConfig, load
from wallaroo_spark.cli.sessions import WITH_UI, ended_with, session_for, ui_address
from wallaroo_spark.cli.signals import Signals, exit_after_interrupt, java_waits
from wallaroo_spark.cli.verbs import Json, options_of, verb
from wallaroo_spark.engine.application.settings import ApplicationSettings
from wallaroo_spark.pipelines.schema.applying import apply_files

POLL_SECONDS = 0.25
"""Interval of the checks for a signal and for the application's end. A choice: a person notices no such delay."""
STATUS_SECONDS = 1.0
"""Interval of the checks for changes that are printed. A choice: each check asks the registry."""
_URLS = {"registry": "Registry", "page": "Page", "ui": "Spark's UI"}


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
    folder = app.need()
    if any("=" not in one for one in conf):
        raise click.UsageError("--conf needs NAME=VALUE")
    spark_settings = (WITH_UI if ui else {}) | dict(one.split("=", 1) for one in conf)
    spark_settings |= {"spark.master": master} if master else {}
    loaded = [load(file, (f"sink.path={folder}", f"sink.format={STREAM}")) for file in receivers]
    view = RunView(show_registry, as_json)
    exit_after_interrupt(run_application(folder, files, spark_settings, settings, view, loaded))


class RunView:
    """Prints an application's run as lines for people, or the URLs and each change of the status as lines of JSON.

    ``show_registry`` also prints the registry's URL.
    """

    def __init__(self, show_registry: bool, as_json: bool) -> None:
        self._show_registry = show_registry
        self._as_json = as_json
        self._shown: dict[str, str] = {}

    def line(self, text: str) -> None:
        """A sentence on the run, for people."""
        if not self._as_json:
            click.echo(text)

    def started(self, registry: str, page: str, ui: str) -> None:
        """The application runs; ``registry`` is its URL. ``page`` and ``ui`` are the URLs of its page and of Spark's
        UI; empty: there is none.
        """
        urls = {"registry": registry if self._show_registry else "", "page": page, "ui": ui}
        shown = {name: url for name, url in urls.items() if url}
        if shown and self._as_json:
            click.echo(json.dumps(shown))
        for name, url in shown.items():
            self.line(f"{_URLS[name]}: {url}")

    def status(self, status: Mapping[str, Any]) -> None:
        """Print what is new in a status."""
        lines = status_lines(status)
        new = [line for subject, line in lines.items() if self._shown.get(subject) != line]
        if self._as_json and (new or lines.keys() != self._shown.keys()):
            click.echo(json.dumps(status))
        for line in new:
            self.line(line)
        self._shown = lines
        sys.stdout.flush()


def status_lines(status: Mapping[str, Any]) -> dict[str, str]:
    """A status as lines for people, by their subject."""
    gateways = status["gateways"]
    at = {one["gateway"]: f" at {one['address']}" if one["address"] else "" for one in gateways}
    lines = {one["gateway"]: f"Gateway {one['gateway']}: {one['state']}{at[one['gateway']]}" for one in gateways}
    return lines | {error: f"Error: {error}" for error in status["errors"]}


def run_application(
    folder: str,
    files: Sequence[str],
    spark_settings: Mapping[str, str],
    settings: Mapping[str, Any],
    view: RunView,
    receivers: Sequence[ReceiveConfig],
) -> signal.Signals | None:
    """Apply the documents of ``files``, and run the application in ``folder`` until it ends or a signal arrives.

    ``settings`` are arguments of :class:`Application`; ``receivers`` write to its streams. Returns the signal. Raises
    the error with which the application or the query of a receiver ended, and :class:`KeyboardInterrupt` after a signal
    before it runs.
    """
    from wallaroo_spark.engine.application.application import Application
    from wallaroo_spark.pipelines.schema.store import SchemaStore

    importable_here()
    with Signals() as signals:
        if files:
            view.line(f"Schema: {apply_files(SchemaStore(folder), files, time.time()).note}.")
        view.line("Starting Spark …")
        given = {name: value for one in receivers for name, value in one.spark.items()} | dict(spark_settings)
        slots = settings["gateways"] + 2 + sum(one.options.workers + 1 for one in receivers)
        session, ours = session_for("wallaroo application", given, slots)
        signals.install()
        view.line("Starting the gateways and the query …")
        with (
            ended_with(session, ours),
            java_waits(session, signals),
            Application(session, folder, **settings) as application,
            _receiving(session, receivers, application.registry_url, view) as queries,
        ):
            signals.gentle = True
            view.started(application.registry_url, application.page_address, ui_address(session))
            _watch(application, queries, signals, view)
            if signals.received is not None:
                view.line(f"Stopping ({signals.received.name}) …")
    view.line("Ended in good order.")
    return signals.received


def importable_here() -> None:
    """Let this process import modules of the current folder, as tasks on the same machine and ``python -m`` can."""
    here = os.getcwd()
    if here not in sys.path:
        sys.path.append(here)


@contextlib.contextmanager
def _receiving(
    session: Any, receivers: Sequence[ReceiveConfig], registry: str, view: RunView
) -> Iterator[Mapping[str, Any]]:
    """Run receivers and their queries, which are given by name; they end before the application."""
    from wallaroo_spark.cli.receive.running import start_query, stop_query
    from wallaroo_spark.receiver import Receiver

    queries = {}
    with contextlib.ExitStack() as running:
        for config in receivers:
            view.line(f"Starting the receiver {config.receiver} …")
            given = {"registry": registry, **config.given}
            receiver = running.enter_context(Receiver(session, config.receiver, **given))
            queries[config.receiver] = start_query(receiver, config)
            running.callback(stop_query, queries[config.receiver])
        yield queries


def _watch(application: Any, queries: Mapping[str, Any], signals: Signals, view: RunView) -> None:
    """Show changes until the application ends or a signal arrives. Raises the error of a receiver's query."""
    from wallaroo_spark.cli.receive.running import failed_query

    looked = float("-inf")
    while signals.received is None:
        if time.monotonic() - looked >= STATUS_SECONDS:
            looked = time.monotonic()
            view.status(application.status())
        # No Event.wait here: a signal's handler that interrupts it may raise while it holds its lock.
        if application.await_end(0):
            return
        for query in queries.values():
            if not query.isActive and (error := query.exception()) is not None:
                raise failed_query(error) from error
        time.sleep(POLL_SECONDS)
