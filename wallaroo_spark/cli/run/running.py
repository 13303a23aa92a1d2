"""Runs an application until it ends or a signal arrives."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import click

from wallaroo_spark.cli.receive.config import ReceiveConfig
from wallaroo_spark.cli.receive.running import failed_query, start_query
from wallaroo_spark.cli.sessions import ended_with, session_for, ui_address
from wallaroo_spark.cli.signals import Signals, java_waits
from wallaroo_spark.engine.application.application import Application
from wallaroo_spark.pipelines.schema.applying import apply_files
from wallaroo_spark.pipelines.schema.store import SchemaStore

POLL_SECONDS = 0.25
"""Interval of the checks for a signal and for the application's end. A choice: a person notices no such delay."""
STATUS_SECONDS = 1.0
"""Interval of the checks for changes that are printed. A choice: each check asks the registry."""


class RunView:
    """Prints an application's run as lines for people; ``show_registry`` also prints the registry's URL."""

    def __init__(self, show_registry: bool) -> None:
        self._show_registry = show_registry
        self._shown: dict[str, str] = {}

    def line(self, text: str) -> None:
        """A sentence on the run."""
        click.echo(text)

    def started(self, registry: str, page: str, ui: str) -> None:
        """The application runs; ``registry`` is its URL. ``page`` and ``ui`` are the URLs of its page and of Spark's
        UI; empty: there is none.
        """
        urls = {"registry": registry if self._show_registry else "", "page": page, "ui": ui}
        if shown := {name: url for name, url in urls.items() if url}:
            self.urls(shown)

    def urls(self, urls: Mapping[str, str]) -> None:
        """Print the URLs that there are."""
        names = {"registry": "Registry", "page": "Page", "ui": "Spark's UI"}
        for name, url in urls.items():
            self.line(f"{names[name]}: {url}")

    def status(self, status: Mapping[str, Any]) -> None:
        """Print what is new in a status."""
        lines = status_lines(status)
        new = [line for subject, line in lines.items() if self._shown.get(subject) != line]
        if new or lines.keys() != self._shown.keys():
            self.changed(status, new)
        self._shown = lines
        sys.stdout.flush()

    def changed(self, status: Mapping[str, Any], new: Sequence[str]) -> None:
        """The status has changed; ``new`` are the lines that are new in it."""
        for line in new:
            self.line(line)


class JsonRunView(RunView):
    """Prints the URLs and each change of the status as lines of JSON."""

    def line(self, text: str) -> None:
        """Print nothing."""

    def urls(self, urls: Mapping[str, str]) -> None:
        """Print the URLs that there are."""
        click.echo(json.dumps(urls))

    def changed(self, status: Mapping[str, Any], new: Sequence[str]) -> None:
        """Print the status."""
        click.echo(json.dumps(status))


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
    receivers: Sequence[ReceiveConfig] = (),
) -> signal.Signals | None:
    """Apply the documents of ``files``, and run the application in ``folder`` until it ends or a signal arrives.

    ``settings`` are arguments of :class:`Application`; ``receivers`` write to its streams. Returns the signal. Raises
    the error with which the application or the query of a receiver ended, and :class:`KeyboardInterrupt` after a signal
    before it runs.
    """
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
    from wallaroo_spark.receiver import Receiver

    queries = {}
    with contextlib.ExitStack() as running:
        for config in receivers:
            view.line(f"Starting the receiver {config.receiver} …")
            given = {"registry": registry, **config.given}
            receiver = running.enter_context(Receiver(session, config.receiver, **given))
            queries[config.receiver] = start_query(receiver, config)
            running.callback(_stop, queries[config.receiver])
        yield queries


def _stop(query: Any) -> None:
    with contextlib.suppress(Exception):
        query.stop()


def _watch(application: Application, queries: Mapping[str, Any], signals: Signals, view: RunView) -> None:
    """Show changes until the application ends or a signal arrives. Raises the error of a receiver's query."""
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
