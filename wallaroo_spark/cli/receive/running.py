"""Runs a receiver and its query from a configuration: what ``wallaroo-spark receive`` and jobs/receive.py share."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import re
import signal
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from wallaroo_spark.cli.receive.config import ReceiveConfig
from wallaroo_spark.cli.signals import Signals, java_waits
from wallaroo_spark.errors import ConfigurationError, WallarooError, split_code
from wallaroo_spark.status.older import as_before

POLL_SECONDS = 0.25
"""Interval of the checks for a signal and for the query's end. A choice: a person notices no such delay."""
LAST_PROGRESS_SECONDS = 5.0
"""The longest wait for the last progress report of an ended query, which Spark sends in a thread of its own.

A choice: it bounds the end of the program; without the report the last count may be too small.
"""

_OURS = re.compile(r"^(?:[\w.]+: )?wallaroo_spark\.errors\.\w+: (.+)$", re.MULTILINE)
_JAVA_CLASS = re.compile(r"^: (?:[\w$]+\.)+[\w$]+: ")
_LONGEST = 500


@dataclass(frozen=True)
class QuerySnapshot:
    """The state of a receiver and its query at one moment, for display."""

    status: dict[str, Any]
    """The receiver's status, as :func:`wallaroo_spark.status.older.as_before` returns it."""
    rows: int
    """Rows that the query has read."""
    batches: int
    """Batches that the query has committed."""
    seconds: float
    """Seconds since the query started."""


class QueryView(Protocol):
    """Shows a person the state of a receiver and its query. Each method reports one change."""

    def starting(self, config: ReceiveConfig) -> None:
        """Spark and the workers are being started."""

    def listening(self, config: ReceiveConfig, addresses: list[str], registry: str, page: str) -> None:
        """Connectors may connect.

        ``registry`` is a URL to show, which may contain a password, and ``page`` the URL of the status page; empty:
        there is none to show.
        """

    def show(self, snapshot: QuerySnapshot) -> None:
        """A new state, about once a second."""

    def stopping(self, why: str) -> None:
        """The query is being stopped."""

    def ended(self, snapshot: QuerySnapshot) -> None:
        """The query and the workers have ended without an error."""


def receive(
    config: ReceiveConfig, view: QueryView, *, show_registry: bool = False, spark_log: str = ""
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
        try:
            with _standard_error_to(spark_log):
                session, ours = open_session(config)
            signals.install()
            try:
                with java_waits(session, signals):
                    _run(config, session, view, signals, show_registry)
            finally:
                if ours:
                    with contextlib.suppress(Exception):
                        session.stop()
        except KeyboardInterrupt:
            if signals.received != signal.SIGTERM:
                raise
    return None if signals.received is None else signal.Signals(signals.received)


def open_session(config: ReceiveConfig) -> tuple[Any, bool]:
    """The SparkSession of a receiver, and whether it was made here; see :func:`session_for`.

    In local mode it has task slots for the workers and two more.
    """
    return session_for(f"wallaroo receiver {config.receiver}", config.spark, config.options.workers + 2)


def session_for(name: str, settings: Mapping[str, str], slots: int) -> tuple[Any, bool]:
    """A SparkSession with these Spark settings, and whether it was made here: an active one is used, and left running.

    Under spark-submit the session has the settings of that command. Otherwise it runs in local mode, with at least
    ``slots`` task slots. Raises :class:`ConfigurationError` when Spark does not start.
    """
    from pyspark.sql import SparkSession

    active = SparkSession.getActiveSession()
    if active is not None:
        for key, value in settings.items():
            active.conf.set(key, value)
        return active, False
    builder = SparkSession.builder.appName(name)
    for key, value in {**_defaults(settings, slots), **settings}.items():
        builder = builder.config(key, value)
    try:
        session = builder.getOrCreate()
    except Exception as error:
        if not _is_sparks(error):
            raise
        raise ConfigurationError(
            f"Spark did not start: {_in_short(error)}; see Spark's own messages", code="spark-not-started"
        ) from error
    with contextlib.suppress(Exception):
        # Spark Connect has no context, and logs elsewhere.
        session.sparkContext.setLogLevel("ERROR")
    return session, True


def start_query(receiver: Any, config: ReceiveConfig) -> Any:
    """Start the query of a started receiver. Raises :class:`ConfigurationError` when Spark refuses it."""
    sink = config.sink
    try:
        rows = receiver.stream()
        if config.select:
            rows = rows.selectExpr(*config.select)
        writer = rows.writeStream.format(sink.format).outputMode(sink.mode).options(**sink.options)
        if sink.path:
            writer = writer.option("path", sink.path)
        if config.trigger:
            writer = writer.trigger(**config.trigger)
        return receiver.start_query(writer.queryName(config.receiver), checkpoint=config.checkpoint)
    except Exception as error:
        if not _is_sparks(error):
            raise
        raise ConfigurationError(
            f"Spark refuses the query: {_in_short(error)}; check select, sink and trigger",
            code="query-refused",
            receiver=config.receiver,
        ) from error


def _run(config: ReceiveConfig, session: Any, view: QueryView, signals: Signals, show_registry: bool) -> None:
    from wallaroo_spark.receiver import Receiver

    with Receiver(session, config.receiver, **config.given) as receiver:
        tally = _Tally(session)
        try:
            query = start_query(receiver, config)
            tally.began = time.monotonic()
            signals.gentle = True
            addresses = _addresses(as_before(receiver.status(most=0)))
            view.listening(config, addresses, receiver.registry_url if show_registry else "", receiver.page_address)
            _watch(receiver, query, tally, view, signals)
            if signals.received is not None:
                view.stopping(signal.Signals(signals.received).name)
                with contextlib.suppress(Exception):
                    query.stop()
            tally.wait(LAST_PROGRESS_SECONDS)
            last = tally.snapshot(as_before(receiver.status(most=0)))
        finally:
            tally.close()
    view.ended(last)


def _watch(receiver: Any, query: Any, tally: _Tally, view: QueryView, signals: Signals) -> None:
    """Wait until the query ends or a signal arrives. Raises :class:`WallarooError` when the query failed."""
    shown = 0.0
    while signals.received is None:
        if time.monotonic() - shown >= 1.0:
            view.show(tally.snapshot(as_before(receiver.status(most=0))))
            shown = time.monotonic()
        try:
            if query.awaitTermination(POLL_SECONDS):
                return
        except Exception as error:
            if signals.received is not None or _spark_is_gone(error):
                # The Java process was killed, or ended before its hook could wait.
                return
            raise _failed(error) from error


class _Tally:
    """Counts the rows and batches that the query has committed, from Spark's progress reports."""

    def __init__(self, session: Any) -> None:
        from pyspark.sql.streaming.listener import StreamingQueryListener

        tally = self

        class Reports(StreamingQueryListener):
            def onQueryStarted(self, event: Any) -> None:
                """Do nothing: the counts are 0."""

            def onQueryProgress(self, event: Any) -> None:
                tally.rows += event.progress.numInputRows
                tally.batches += 1

            def onQueryIdle(self, event: Any) -> None:
                """Do nothing: an idle query commits no batch."""

            def onQueryTerminated(self, event: Any) -> None:
                tally._ended.set()

        self.rows = 0
        self.batches = 0
        self.began = time.monotonic()
        self._ended = threading.Event()
        self._session = session
        self._listener = Reports()
        session.streams.addListener(self._listener)

    def snapshot(self, status: dict[str, Any]) -> QuerySnapshot:
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
            self._session.streams.removeListener(self._listener)


def _defaults(settings: Mapping[str, str], slots: int) -> dict[str, str]:
    quiet = {"spark.ui.showConsoleProgress": "false"}
    chosen = {"spark.master", "spark.remote"} & set(settings)
    if chosen or any(name in os.environ for name in ("PYSPARK_GATEWAY_PORT", "SPARK_REMOTE", "MASTER")):
        return quiet
    # Spark's default is the first python3 on the PATH, which may lack this package.
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    return quiet | {
        "spark.master": f"local[{max(slots, os.cpu_count() or 1)}]",
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
    }


@contextlib.contextmanager
def _standard_error_to(path: str) -> Iterator[None]:
    """Redirect the standard error of processes that are started in the block to a file; empty: do nothing."""
    if not path:
        yield
        return
    sys.stderr.flush()
    saved = os.dup(2)
    try:
        with Path(path).open("ab") as file:
            os.dup2(file.fileno(), 2)
        yield
    finally:
        os.dup2(saved, 2)
        os.close(saved)


def new_spark_log(receiver: str) -> str:
    """Create an empty temporary file for Spark's messages of one run; return its path."""
    handle, path = tempfile.mkstemp(prefix=f"wallaroo-{receiver}-", suffix=".log")
    os.close(handle)
    return path


def _addresses(status: dict[str, Any]) -> list[str]:
    return [slot["worker"]["connect"] for slot in status["workers"] if "worker" in slot]


def _failed(error: Exception) -> WallarooError:
    """Return the error for a failed query: with this package's own message if there is one, else Spark's first line."""
    ours = _OURS.findall(str(error))
    if ours:
        message, code = split_code(ours[-1])
        return WallarooError(f"the query failed: {message}", code=code or "query-failed")
    return WallarooError(
        f"the query failed: {_in_short(error)}; correct that and start it again: it continues from its checkpoint",
        code="query-failed",
    )


def _is_sparks(error: Exception) -> bool:
    """Whether Spark raised this error; PySpark has no class of its own for some errors of Java."""
    from pyspark.errors import PySparkException

    return isinstance(error, PySparkException) or type(error).__name__ == "Py4JJavaError"


def _in_short(error: Exception) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    if len(lines) > 1 and lines[0].startswith("An error occurred while calling"):
        lines = [_JAVA_CLASS.sub("", lines[1])]
    text = lines[0] if lines else type(error).__name__
    return text[:_LONGEST].rstrip(".;")


def _spark_is_gone(error: Exception) -> bool:
    """Whether the error says that the Java process has ended."""
    return isinstance(error, ConnectionError) or type(error).__name__ == "Py4JNetworkError"
