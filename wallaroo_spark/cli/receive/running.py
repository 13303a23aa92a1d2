"""Runs a receiver and its query from a configuration: what ``wallaroo-spark receive`` and jobs/receive.py share."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import signal
import tempfile
import threading
import time
from collections.abc import Mapping
from typing import Any

from pyspark.sql.streaming.listener import StreamingQueryListener

from wallaroo_spark.cli.receive.config import DELTA, STREAM, ReceiveConfig
from wallaroo_spark.cli.receive.view import PlainView, QuerySnapshot
from wallaroo_spark.cli.sessions import ended_with, refusal, session_for, standard_error_to, ui_address
from wallaroo_spark.cli.signals import Signals, java_waits
from wallaroo_spark.errors import WallarooError, split_code
from wallaroo_spark.observe.receiver import ReceiverStatus
from wallaroo_spark.options import read_value
from wallaroo_spark.runtime import job_errors
from wallaroo_spark.settings import rows as settings_rows
from wallaroo_spark.sinks.settings import DeltaSettings, StreamSettings

POLL_SECONDS = 0.25
"""Interval of the checks for a signal and for the query's end. A choice: a person notices no such delay."""
LAST_PROGRESS_SECONDS = 5.0
"""The longest wait for the last progress report of an ended query, which Spark sends in a thread of its own.

A choice: it bounds the end of the program; without the report the last count may be too small.
"""


def receive(
    config: ReceiveConfig, view: PlainView, *, show_registry: bool = False, spark_log: str = ""
) -> signal.Signals | None:
    """Run the receiver and its query until the query ends or a signal arrives; returns that signal.

    ``spark_log`` is a file for the standard error of Spark's Java process and of the workers; empty: it is not
    redirected. A file gets the workers' lines from info on, unless the option ``logLevel`` says otherwise. Raises
    :class:`WallarooError` when the query fails or cannot start, and :class:`KeyboardInterrupt` after a signal before
    the query runs, and after a second signal.
    """
    if spark_log:
        config = dataclasses.replace(config, given={"logLevel": "info", **config.given})
    with Signals() as signals:
        view.starting(config)
        with standard_error_to(spark_log):
            session, ours = open_session(config, quiet=not spark_log)
        signals.install()
        with ended_with(session, ours), java_waits(session, signals):
            _run(config, session, view, signals, show_registry)
    return signals.received


def open_session(config: ReceiveConfig, *, quiet: bool = True) -> tuple[Any, bool]:
    """The SparkSession of a receiver, and whether it was made here; see :func:`session_for`.

    In local mode it has task slots for the workers and two more.
    """
    return session_for(f"wallaroo receiver {config.receiver}", config.spark, config.options.workers + 2, quiet=quiet)


def batch_writer(config: ReceiveConfig) -> Any:
    """The writer of a receiver's rows to a sink of this package; None for a format of Spark's.

    Raises :class:`ConfigurationError`.
    """
    from wallaroo_spark import sinks

    given, path = config.sink.options, config.sink.path
    if config.sink.format == STREAM:
        return sinks.stream(path, checkpoint=config.checkpoint, **_values(StreamSettings, given))
    if config.sink.format == DELTA:
        values = _values(DeltaSettings, {"name": config.receiver, **given})
        return sinks.delta(path, checkpoint=config.checkpoint, **values)
    return None


def _values(settings: type, given: Mapping[str, str]) -> dict[str, Any]:
    table = {row.name: row for row in settings_rows(settings)}
    return {name: read_value(table[name], text) for name, text in given.items()}


def start_query(receiver: Any, config: ReceiveConfig) -> Any:
    """Start the query of a started receiver. Raises :class:`ConfigurationError` when Spark refuses it."""
    sink = config.sink
    remedy = "check select, sink and trigger"
    with refusal("Spark refuses the query", remedy, code="query-refused", receiver=config.receiver):
        rows = receiver.stream()
        if config.select:
            rows = rows.selectExpr(*config.select)
        writer = rows.writeStream
        if (ours := batch_writer(config)) is not None:
            writer = writer.foreachBatch(ours)
        else:
            writer = writer.format(sink.format).outputMode(sink.mode).options(**sink.options)
            if sink.path:
                writer = writer.option("path", sink.path)
        if config.trigger:
            writer = writer.trigger(**config.trigger)
        return receiver.start_query(writer.queryName(config.receiver), checkpoint=config.checkpoint)


def _run(config: ReceiveConfig, session: Any, view: PlainView, signals: Signals, show_registry: bool) -> None:
    from wallaroo_spark.receiver import Receiver

    with Receiver(session, config.receiver, **config.given) as receiver:
        tally = _Tally(session)
        try:
            view.serving(config)
            query = start_query(receiver, config)
            tally.began = time.monotonic()
            signals.gentle = True
            begun = receiver.status(most=0)
            addresses = [slot.address for slot in begun.slots if slot.answers]
            registry = receiver.registry_url if show_registry else ""
            view.listening(config, addresses, registry, receiver.page_address, ui_address(session), begun.doors)
            _watch(receiver, query, tally, view, signals)
            if signals.received is not None:
                view.stopping(signals.received.name)
                stop_query(query)
            tally.wait(LAST_PROGRESS_SECONDS)
            last = tally.snapshot(receiver.status(most=0))
        finally:
            tally.close()
    view.ended(last)


def stop_query(query: Any) -> None:
    """Stop a query, which may have ended already."""
    with contextlib.suppress(Exception):
        query.stop()


def _watch(receiver: Any, query: Any, tally: _Tally, view: PlainView, signals: Signals) -> None:
    """Wait until the query ends or a signal arrives. Raises :class:`WallarooError` when the query failed."""
    shown = 0.0
    while signals.received is None:
        if time.monotonic() - shown >= 1.0:
            view.show(tally.snapshot(receiver.status(most=0)))
            shown = time.monotonic()
        try:
            if query.awaitTermination(POLL_SECONDS):
                return
        except Exception as error:
            if signals.received is not None or _spark_is_gone(error):
                # The Java process was killed, or ended before its hook could wait.
                return
            raise failed_query(error) from error


class _Tally(StreamingQueryListener):
    """Counts the rows and batches that the query has committed, from Spark's progress reports."""

    def __init__(self, session: Any) -> None:
        self.rows = 0
        self.batches = 0
        self.began = time.monotonic()
        self._ended = threading.Event()
        self._session = session
        session.streams.addListener(self)

    def onQueryStarted(self, event: Any) -> None:
        """Do nothing: the counts are 0."""

    def onQueryProgress(self, event: Any) -> None:
        """Count a batch."""
        self.rows += event.progress.numInputRows
        self.batches += 1

    def onQueryTerminated(self, event: Any) -> None:
        """No more reports come."""
        self._ended.set()

    def snapshot(self, status: ReceiverStatus) -> QuerySnapshot:
        """Return the counts now, with a receiver's status."""
        return QuerySnapshot(status, self.rows, self.batches, time.monotonic() - self.began)

    def wait(self, seconds: float) -> None:
        """Wait for at most ``seconds`` until Spark has reported the query's end, after its last progress report."""
        until = time.monotonic() + seconds
        while not self._ended.is_set() and time.monotonic() < until:
            # Event.wait is not used, because a signal handler that interrupts it may raise while it holds its lock.
            time.sleep(0.02)

    def close(self) -> None:
        """Stop counting."""
        with contextlib.suppress(Exception):
            self._session.streams.removeListener(self)


def new_spark_log(receiver: str) -> str:
    """Create an empty temporary file for Spark's messages of one run; return its path."""
    handle, path = tempfile.mkstemp(prefix=f"wallaroo-{receiver}-", suffix=".log")
    os.close(handle)
    return path


def failed_query(error: Exception) -> WallarooError:
    """Return the error for a failed query: with this package's own message if there is one, else Spark's reason."""
    reason, code = split_code(job_errors.in_short(error))
    remedy = "; correct that and start it again: it continues from its checkpoint"
    return WallarooError(f"the query failed: {reason.rstrip('.')}{'' if code else remedy}", code=code or "query-failed")


def _spark_is_gone(error: Exception) -> bool:
    """Whether the error says that the Java process has ended."""
    return isinstance(error, ConnectionError) or type(error).__name__ == "Py4JNetworkError"
