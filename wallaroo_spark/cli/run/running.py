"""Runs an application until it ends or a signal arrives."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import sys
import time
from collections.abc import Mapping, Sequence
from typing import Any

import click

from wallaroo_spark.cli.receive.running import session_for
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

    def started(self, registry: str, page: str) -> None:
        """The application runs; ``registry`` is its URL, ``page`` that of its page (empty: it has none)."""
        if self._show_registry:
            self.line(f"Registry: {registry}")
        if page:
            self.line(f"Page: {page}")

    def status(self, status: Mapping[str, Any]) -> None:
        """Print the lines that are new in a status."""
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
    """Prints each change of the status as one line of JSON."""

    def line(self, text: str) -> None:
        """Print nothing."""

    def started(self, registry: str, page: str) -> None:
        """Print the URLs of the page, and of the registry if it is to be shown."""
        shown = {"registry": registry} if self._show_registry else {}
        if page:
            shown["page"] = page
        if shown:
            click.echo(json.dumps(shown))

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
) -> signal.Signals | None:
    """Apply the documents of ``files``, and run the application in ``folder`` until it ends or a signal arrives.

    ``settings`` are arguments of :class:`Application`. Returns the signal. Raises the error with which the application
    ended, and :class:`KeyboardInterrupt` after a signal before it runs.
    """
    importable_here()
    with Signals() as signals:
        if files:
            view.line(f"Schema: {apply_files(SchemaStore(folder), files, time.time()).note}.")
        view.line("Starting Spark …")
        try:
            session, ours = session_for("wallaroo application", spark_settings, settings["gateways"] + 2)
            signals.install()
            view.line("Starting the gateways and the query …")
            try:
                with java_waits(session, signals), Application(session, folder, **settings) as application:
                    signals.gentle = True
                    view.started(application.registry_url, application.page_address)
                    _watch(application, signals, view)
                    if signals.received is not None:
                        view.line(f"Stopping ({signal.Signals(signals.received).name}) …")
            finally:
                if ours:
                    with contextlib.suppress(Exception):
                        session.stop()
        except KeyboardInterrupt:
            if signals.received != signal.SIGTERM:
                raise
    view.line("Ended in good order.")
    return None if signals.received is None else signal.Signals(signals.received)


def importable_here() -> None:
    """Let this process import modules of the current folder, as tasks on the same machine and ``python -m`` can."""
    here = os.getcwd()
    if here not in sys.path:
        sys.path.append(here)


def _watch(application: Application, signals: Signals, view: RunView) -> None:
    """Show changes until the application ends or a signal arrives."""
    looked = float("-inf")
    while signals.received is None:
        if time.monotonic() - looked >= STATUS_SECONDS:
            looked = time.monotonic()
            view.status(application.status())
        # No Event.wait here: a signal's handler that interrupts it may raise while it holds its lock.
        if application.await_end(0):
            return
        time.sleep(POLL_SECONDS)
