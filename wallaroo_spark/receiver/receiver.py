"""The receiver: it starts the workers and the query, notifies the workers of commits, reports status, and stops all.

Source: ``README.md#ten-lines-on-each-side``.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import logging
import os
import re
import secrets
import socket
import threading
import time
import uuid
import weakref
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Self, overload

from pyspark.sql import DataFrame

from wallaroo_spark.checkpoint import CheckpointFiles, CheckpointWatcher, QueryProgress
from wallaroo_spark.errors import (
    CheckpointError,
    ConfigurationError,
    RegistryError,
    TransportError,
    WallarooError,
    one_line,
)
from wallaroo_spark.inner.client import Trust, WorkerClient
from wallaroo_spark.inner.trust import fleet_keys, status_token, tap_token
from wallaroo_spark.options import Options, public_name, resolve_secret
from wallaroo_spark.receiver import checks, writers
from wallaroo_spark.receiver.announcer import Announcer, LastCommit
from wallaroo_spark.receiver.batch_reports import read_batches
from wallaroo_spark.receiver.file_manager import quick_on_local_disk
from wallaroo_spark.receiver.fleet import Fleet
from wallaroo_spark.receiver.ownership import require_own
from wallaroo_spark.receiver.page import (
    LAST_LOOK_SECONDS,
    check_report,
    page_routes,
    rows_of_each,
    start_page,
    write_report,
)
from wallaroo_spark.receiver.page.surroundings import Surroundings
from wallaroo_spark.receiver.query_facts import QueryFacts
from wallaroo_spark.receiver.waker import Waker
from wallaroo_spark.registry import NO_QUERY, QUERY_STARTS, EmbeddedRedis, Registry
from wallaroo_spark.slots import spark_checks
from wallaroo_spark.slots.patience import Patience
from wallaroo_spark.source import Secrets, load, register
from wallaroo_spark.status import ReceiverStatus
from wallaroo_spark.status.collect import ANSWER_SECONDS, MOST, Collector, Question, ReceiverFacts
from wallaroo_spark.status.frames import metrics_frame, streams_frame
from wallaroo_spark.status.report import DriverReport, job_report
from wallaroo_spark.telemetry import BatchTimes, Telemetry
from wallaroo_spark.telemetry.logs import least_level
from wallaroo_spark.telemetry.traces import TracedWorker, Tracer
from wallaroo_spark.telemetry.traces import require as require_traces
from wallaroo_spark.web import Monitor, PageServer
from wallaroo_spark.worker import ports
from wallaroo_spark.worker.service import WorkerSetup

if TYPE_CHECKING:
    from pyspark.sql.streaming.query import StreamingQuery

log = one_line(logging.getLogger("wallaroo_spark.receiver"))

_running: weakref.WeakSet[Receiver] = weakref.WeakSet()
"""The started receivers of this program: a query may read several of them."""

WORKERS_SECONDS = 120.0
"""How long the workers may take to start, when a cluster may first have to start executors for them.

A choice, not a measurement: it bounds a start that cannot succeed.
"""
REPORT_SECONDS = 1.0
"""How often the driver's report is written to the registry. A choice: a person looks about as often."""
STOP_SECONDS = 15.0
"""How long the workers' jobs may take to end by themselves before they are interrupted. A choice that bounds a stop."""


class Receiver:
    """The workers inside Spark to which connectors send, and the one streaming query that reads them.

    ``spark`` is a SparkSession, classic or Spark Connect. ``name`` is 1 to 100 letters, digits, dots, dashes and
    underscores. ``options`` are the options of ``docs/options.md``, in camelCase or in snake_case; an option that is
    None has its default. The constructor raises :class:`ConfigurationError` for a wrong name or option and starts
    nothing.

    A receiver feeds one query, and a query has one checkpoint. As a context manager the receiver starts on entry and
    stops on exit. Its methods may be called from several threads; :meth:`stop` aborts a :meth:`start` in progress.
    """

    def __init__(self, spark: Any, name: str, **options: Any) -> None:
        if not re.fullmatch(r"[A-Za-z0-9_.-]{1,100}", name):
            raise ConfigurationError(
                f"receiver name {name!r}: use 1 to 100 letters, digits, dots, dashes and underscores",
                code="name-invalid",
                name=name,
            )
        attributes = {field.name for field in dataclasses.fields(Options)}
        given = {key: value for key, value in options.items() if value is not None}
        texts = {public_name(key) if key in attributes else key: value for key, value in given.items()}
        self.name = name
        self.options = Options.parse({**texts, "receiver": name})
        self.owner = f"{socket.gethostname()}/{os.getpid()}/{uuid.uuid4().hex[:8]}"
        self._spark = spark
        self._embedded: EmbeddedRedis | None = None
        self._registry: Registry | None = None
        self._checkpoints: Registry | None = None
        self._fleet: Fleet | None = None
        self._announcer: Announcer | None = None
        self._page: PageServer | None = None
        self._monitor: Monitor | None = None
        self._surroundings = Surroundings()
        self._report_written = False
        self._stream: DataFrame | None = None
        self._query: Any = None
        self._files: CheckpointFiles | None = None
        self._watcher: CheckpointWatcher | None = None
        self._listener: Waker | None = None
        self._token = ""
        self._log_level = self.options.log_level
        self._query_starts = False
        self._checkpoint_owner = self.owner
        self._publishing = threading.Lock()
        self._query_facts = QueryFacts()
        self._collector = Collector()
        self._telemetry = Telemetry(
            lambda: self.status(most=self.options.metrics_instances), self._read_batches, self.options.metrics_instances
        )
        self._tracer: Tracer | None = None
        self._reported_at = 0.0
        self._reported_query = ""
        self._warnings: list[str] = []
        self._lifecycle = threading.RLock()
        self._patience = Patience(f"receiver {name!r}")

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    @property
    def registry_url(self) -> str:
        """The URL of the registry, which connectors need; it may contain a password.

        The URL of an embedded registry is valid on this machine, once the receiver has started.
        """
        return self._embedded.url if self._embedded else resolve_secret(self.options.registry)

    @property
    def addresses(self) -> list[str]:
        """The workers' addresses for connectors, ``host:port``, in the order of the slots; empty when not started.

        ``Connector(workers=…)`` takes this list. The worker that replaces a failed one may have another port, unless
        the option ``port`` fixes it.
        """
        announcer = self._announcer
        workers = announcer.workers() if announcer else {}
        return [lease.connect for _, (lease, _) in sorted(workers.items())]

    @property
    def page_address(self) -> str:
        """The URL of the status page, such as ``http://127.0.0.1:4140/``; empty when there is none."""
        page = self._page
        return page.address if page else ""

    @overload
    def start(self) -> Self: ...

    @overload
    def start(self, writer: Any, *, checkpoint: str = "") -> StreamingQuery: ...

    def start(self, writer: Any = None, *, checkpoint: str = "") -> Self | StreamingQuery:
        """Start the workers, wait until they serve, and return the receiver itself. Does nothing when they already run.

        With a ``writer`` the call is the same as :meth:`start_query`. Raises :class:`ConfigurationError` (an option or
        the environment cannot work, or the workers do not start in time), :class:`RegistryError` or
        :class:`TransportError`; after an error nothing is left running.
        """
        if writer is not None:
            return self.start_query(writer, checkpoint=checkpoint)
        with self._lifecycle:
            if self._fleet is None:
                self._patience.stopping.clear()
                try:
                    self._start_fleet()
                except BaseException:
                    self._shut_down()
                    raise
                _running.add(self)
            return self

    def start_query(self, writer: Any, *, checkpoint: str) -> StreamingQuery:
        """Start the query of a ``DataStreamWriter`` with a checkpoint; messages are acknowledged when it commits them.

        ``checkpoint`` is a path or URI, as for ``checkpointLocation``. The workers must be running (:meth:`start`).
        Raises :class:`ConfigurationError` (not started, or a query that cannot work), :class:`CheckpointError` (a
        checkpoint of another query or receiver) or :class:`RegistryError`; after an error no query is left running, and
        no message was acknowledged.
        """
        with self._lifecycle:
            return self._start_query(writer, checkpoint)

    def stream(self) -> DataFrame:
        """Return the streaming DataFrame of the rows that connectors send (``docs/architecture.md#rows``).

        Every call returns the same DataFrame. Raises :class:`ConfigurationError` when the receiver is not started.
        """
        if self._fleet is None:
            raise ConfigurationError(
                "the receiver is not started; call start(), or use it in a with statement", code="receiver-not-started"
            )
        if self._stream is None:
            options = dataclasses.replace(self.options, log_level=self._log_level)
            self._stream = load(self._spark, self.name, self._secrets(), options.to_texts(secrets=False))
        return self._stream

    def _secrets(self) -> Secrets:
        return Secrets(self.registry_url, self._token)

    @property
    def tap_token(self) -> str:
        """The token for ``wallaroo-spark tap``: it shows status and samples of messages, and permits nothing else.

        A secret like the messages themselves. Raises :class:`ConfigurationError` when the receiver is not started.
        """
        if not self._token:
            raise ConfigurationError(
                "the receiver is not started; call start(), or use it in a with statement", code="receiver-not-started"
            )
        return tap_token(self._token)

    def status(
        self, *, most: int = MOST, instance: str = "", stream: str = "", seconds: float = ANSWER_SECONDS
    ) -> ReceiverStatus:
        """Return the live state of the workers, the query, connectors and streams (``docs/status.md``).

        All workers are asked at once, for at most ``seconds`` together. Each tells of at most ``most`` instances and
        ``most`` streams, those that wait longest; ``instance`` and ``stream`` (a name, or an id in decimal digits)
        restrict that to one. Raises nothing: what does not answer says so in the status.
        """
        # Another thread may be starting or stopping the receiver, so each attribute is read once.
        fleet, announcer = self._fleet, self._announcer
        known = announcer.workers() if announcer else {}
        live = announcer.leases if announcer else None
        facts = ReceiverFacts(
            self.name,
            self.options.workers if fleet else 0,
            {slot: (lease, live is None or live.get(slot) == lease) for slot, (lease, _) in known.items()},
            self.owner if fleet else None,
            self._feeds(),
            status_token(self._token) if self._token else "",
            self._report(),
            announcer.registry_error if announcer else "",
            tuple(self._warnings),
        )
        found = self._collector.status(facts, Question(most, instance, stream), seconds)
        self._telemetry.observe(found)
        return found

    def metrics(self) -> dict[str, list[dict[str, Any]]]:
        """Return the metrics of ``/metrics`` (``docs/metrics.md``) as JSON-ready values, by name.

        Each has a list of values: ``labels`` and ``value``, and for a histogram ``sum``, ``count`` and ``buckets`` in
        place of ``value``. Counters never go backwards for as long as this object lives. Raises nothing, as
        :meth:`status`.
        """
        return self._telemetry.metrics()

    def _read_batches(self, times: BatchTimes) -> None:
        query = self._query
        if query is not None:
            # A query that ends meanwhile, or a lost connection to Spark: the next call reads the reports.
            with contextlib.suppress(Exception):
                read_batches(query, times)

    def status_frame(self, *, most: int = MOST, instance: str = "", stream: str = "") -> DataFrame:
        """Return the streams of :meth:`status` as a DataFrame: a row for each stream, with its slot and instance."""
        return streams_frame(self._spark, self.status(most=most, instance=instance, stream=stream))

    def metrics_frame(self) -> DataFrame:
        """Return :meth:`metrics` as a DataFrame: a row for each value, with its labels."""
        return metrics_frame(self._spark, self.name, self.metrics())

    def _report(self) -> DriverReport:
        """The facts that only the driver knows."""
        fleet, announcer, watcher = self._fleet, self._announcer, self._watcher
        query = self._query_facts.look(announcer.last_commit if announcer else None, watcher)
        rows, size = self._query_facts.lag
        return DriverReport(
            time.time(),
            query,
            tuple(job_report(record) for record in fleet.records) if fleet else (),
            rows,
            size,
            announcer.error if announcer else "",
            self.page_address,
        )

    def report(self, path: str) -> None:
        """Write the report of the run so far, or of the last run when the receiver is stopped, as one HTML file.

        ``docs/status-page.md#run-report`` describes it. Raises :class:`ConfigurationError` when the receiver was never
        started, or the file cannot be written.
        """
        monitor = self._monitor
        if monitor is None:
            raise ConfigurationError(
                "the receiver was never started, so there is nothing to report; call start()",
                code="receiver-not-started",
            )
        write_report(path, monitor, self.options)

    def stop(self) -> None:
        """Stop the query, acknowledge the messages that it has committed, and end the workers. May be called again."""
        self._patience.stopping.set()
        with self._lifecycle:
            self._shut_down()

    def _shut_down(self) -> None:
        """Stop and close every part, also when stopping another part fails."""
        self._patience.stopping.set()
        _running.discard(self)
        for step in (
            self._end_watching,
            self._stop_query,
            self._count_last,
            self._stop_traces,
            self._stop_workers,
            self._stop_page,
            self._write_report,
            self._collector.close,
            self._close_registry,
        ):
            try:
                step()
            except Exception as error:
                log.warning("receiver %s: stopping continues after an error: %s", self.name, error)
        self._stream = None

    def _look(self) -> ReceiverStatus:
        """One snapshot for the page and the report; during a stop the workers get less time to answer."""
        seconds = LAST_LOOK_SECONDS if self._patience.stopping.is_set() else ANSWER_SECONDS
        status = self.status(most=rows_of_each(self.options.workers), seconds=seconds)
        files, registry = self._files, self._registry
        if not self._patience.stopping.is_set():
            url = self.registry_url if registry is not None and not status.registry_error else ""
            self._surroundings.look(url, files.identity if files else "")
        around = self._surroundings
        return dataclasses.replace(status, topics=around.topics, sinks=around.sinks, unread=around.unread)

    def _end_watching(self) -> None:
        """Take the last snapshot before anything is stopped: later ones would only tell of the stop."""
        monitor = self._monitor
        if monitor is not None and self._fleet is not None:
            monitor.stop()
            monitor.look()

    def _count_last(self) -> None:
        if self._monitor is not None and self._fleet is not None:
            self._monitor.settle()

    def _write_report(self) -> None:
        if self.options.report and self._monitor is not None and not self._report_written:
            self._report_written = True
            self.report(self.options.report)
            log.info("receiver %s: the report of the run is %s", self.name, self.options.report)

    def _stop_traces(self) -> None:
        tracer, self._tracer = self._tracer, None
        if tracer is not None:
            tracer.stop()

    def _traced_workers(self) -> dict[int, tuple[int, TracedWorker]]:
        announcer = self._announcer
        workers = announcer.workers() if announcer else {}
        return {slot: (lease.generation, client) for slot, (lease, client) in workers.items()}

    def _stop_page(self) -> None:
        page, self._page = self._page, None
        if page is not None:
            page.stop()

    def _stop_workers(self) -> None:
        fleet, announcer = self._fleet, self._announcer
        if fleet:
            fleet.expect_end()
            fleet.join(STOP_SECONDS, self._dismiss)
        if announcer:
            announcer.stop()
        self._fleet = self._announcer = None

    def _dismiss(self) -> None:
        """Ask every worker with a lease to stop."""
        assert self._announcer is not None
        self._announcer.find_workers()
        for slot, (_, client) in self._announcer.workers().items():
            # In a thread each, because a worker that hangs must not delay the others.
            threading.Thread(
                target=_ask_to_stop, args=(slot, client), name=f"wallaroo-stop-{slot}", daemon=True
            ).start()

    def _close_registry(self) -> None:
        registry, checkpoints, embedded = self._registry, self._checkpoints, self._embedded
        self._registry = self._checkpoints = self._embedded = None
        with contextlib.ExitStack() as last:
            if embedded:
                last.callback(embedded.stop)
            if checkpoints:
                last.callback(checkpoints.close)
            if registry:
                last.callback(registry.close)
                with contextlib.suppress(RegistryError):
                    registry.unlock("receiver", self.owner)

    def _start_fleet(self) -> None:
        checks.combinations(self.options)
        checks.addresses(self.options)
        place = checks.status_page(self.options)
        check_report(self.options.report)
        require_traces(self.options.trace_sample)
        trust = Trust.of(self.options)
        self._collector = Collector(trust)
        checks.environment(self._spark)
        context = spark_checks.classic_context(self._spark)
        master = context.master if context is not None else "connect"
        self._log_level = least_level(self.options.log_level, spark_checks.master_of(self._spark))
        spark_checks.registry_reach(self.options.registry, master)
        spark_checks.task_slots(self._spark, self.options.workers)
        registry = self._open_registry()
        self._surroundings = Surroundings()
        self._monitor, self._report_written = Monitor(self._look, self.name), False
        self._page = start_page(place, self.options, {**page_routes(self._monitor), **self._telemetry.routes()})
        self._token = resolve_secret(self.options.token) or self._token or secrets.token_urlsafe(32)
        register(self._spark, self.name, self._secrets())
        host = self.options.host or ("127.0.0.1" if spark_checks.on_one_machine(master) else "0.0.0.0")
        # Executors may have neither the driver's environment nor its files, so secrets are resolved here.
        shipped = dataclasses.replace(
            self.options,
            host=host,
            registry=self.registry_url,
            cookie=resolve_secret(self.options.cookie),
            status_page_token="",
            log_level=self._log_level,
        )
        self._warnings = ports.warnings(shipped)
        for warning in self._warnings:
            log.warning("%s", warning)
        seconds = self.options.lease_seconds
        self._patience.hold(lambda: registry.lock("receiver", self.owner, seconds), seconds, self._name_in_use)
        self._patience.ask(lambda: registry.forget_slots_from(self.options.workers))
        self._fleet = Fleet(self._spark, registry, WorkerSetup(shipped, 0, 0, self._token, fleet_keys(self._token)))
        connect = functools.partial(WorkerClient, trust=trust)
        self._announcer = Announcer(
            registry, self._token, self._renew, connect, self._fleet.leases_seen, self._telemetry.driver
        )
        self._patience.ask(self._renew)
        self._fleet.start()
        self._announcer.start()
        self._monitor.start()
        self._patience.await_served(
            "worker",
            self._fleet.records,
            lambda: {(slot, lease.submission) for slot, lease in registry.leases().items() if lease.flight},
            WORKERS_SECONDS,
        )
        self._announcer.find_workers()
        if self.options.trace_sample:
            self._tracer = Tracer(self.name, self._traced_workers)
            self._tracer.start()
        if trust is not None:
            self._verify_workers(self._announcer)

    def _verify_workers(self, announcer: Announcer) -> None:
        """Raise :class:`ConfigurationError` if a worker's certificate cannot be verified.

        A query would wait for that worker forever.
        """
        for slot, (_, client) in announcer.workers().items():
            try:
                client.status()
            except TransportError as error:
                if error.fields.get("reason") == "tls":
                    raise ConfigurationError(f"slot {slot}: {error.message}", code=error.code, slot=slot) from None
                log.info("slot %d: %s", slot, error)

    def _open_registry(self) -> Registry:
        if self.options.registry == "embedded":
            self._embedded = EmbeddedRedis()
            self._embedded.start()
        seconds = self.options.lease_seconds
        self._registry = Registry(self.registry_url, self.name, lease_seconds=seconds)
        self._checkpoints = Registry(self.registry_url, "checkpoints", lease_seconds=seconds)
        self._registry.ping()
        self._checkpoints.ping()
        return self._registry

    def _name_in_use(self) -> WallarooError:
        assert self._registry is not None
        other = self._registry.locked_by("receiver")
        return ConfigurationError(
            f"receiver {self.name!r} is run by another driver ({other}); stop it, or give this one another name",
            code="name-in-use",
        )

    def _renew(self) -> None:
        """Write the driver's entries in the registry again, because Redis may have lost them.

        The announcer calls this in every round. Raises :class:`ConfigurationError` when another driver runs a receiver
        of this name; the fleet is then ended.
        """
        registry, checkpoints, files = self._registry, self._checkpoints, self._files
        if registry is None or self._patience.stopping.is_set():
            return
        if self._embedded is not None and not self._embedded.running:
            self._embedded.start()
        if not registry.lock("receiver", self.owner, self.options.lease_seconds):
            # Two fleets that take the slots from each other would serve no connector. This driver could not renew its
            # lock in time, so it is the one that ends.
            if self._fleet is not None:
                self._fleet.expect_end()
            raise self._name_in_use()
        if files is not None and checkpoints is not None:
            checkpoints.lock(files.key, self._checkpoint_owner, self.options.lease_seconds)
        self._publish()

    def _publish(self) -> None:
        """Write the fleet's record; a source compares the record's ``query`` with the id of its own query."""
        registry = self._registry
        # Reading the state and writing it is one step, so that an older state never overwrites a newer one.
        with self._publishing:
            if registry is not None:
                workers, token = str(self.options.workers), status_token(self._token)
                files = self._files
                place = files.place if files is not None else ""
                fleet = {"status_token": token, "workers": workers, "query": self._feeds(), "checkpoint": place}
                registry.publish_fleet(fleet)
                if time.monotonic() - self._reported_at >= REPORT_SECONDS or self._feeds() != self._reported_query:
                    registry.publish_report(self._report().to_text())
                    self._reported_at, self._reported_query = time.monotonic(), self._feeds()

    def _feeds(self) -> str:
        """The field ``query`` of the fleet's record: the id of the running query, QUERY_STARTS or NO_QUERY."""
        query = self._query
        if query is None:
            return QUERY_STARTS if self._query_starts else NO_QUERY
        return str(query.id) if query.isActive else NO_QUERY

    def _start_query(self, writer: Any, checkpoint: str) -> StreamingQuery:
        if self._fleet is None or self._announcer is None or self._registry is None:
            raise ConfigurationError(
                "the receiver is not started; call start(), or use it in a with statement", code="receiver-not-started"
            )
        checks.trigger(writer)
        read = writers.receivers_of(writer)
        with contextlib.ExitStack() as locks:
            together = [self, *(locks.enter_context(other._lifecycle_locked()) for other in self._also_read(read))]
            for receiver in together:
                receiver._require_no_query()
            for receiver in together:
                receiver._stop_query()
            files = CheckpointFiles(checkpoint, self._spark)
            checks.synchronous(writer, files.holes(), files.identity)
            checks.same_receivers(files.identity, files.receivers(), read or {self.name})
            try:
                for receiver in together:
                    receiver._lock_checkpoint(CheckpointFiles(checkpoint, self._spark), self.owner)
                    receiver._begin(writers.trigger(writer))
                with quick_on_local_disk(self._spark, files.local_folder):
                    query: StreamingQuery = writer.option("checkpointLocation", checkpoint).start()
                for receiver in together:
                    receiver._query = query
                    receiver._query_facts.started(query)
                require_own(self._spark, query, files, checkpoint, self._patience.stopping)
                for receiver in together:
                    receiver._follow()
            except BaseException:
                for receiver in together:
                    receiver._stop_query()
                raise
        return query

    def _also_read(self, read: set[str] | None) -> list[Receiver]:
        """The other receivers that a query reads, whose connectors its commits acknowledge too.

        ``read`` are the names of all receivers that the query reads; None when that is not known.
        """
        if read is None:
            return []
        running = {receiver.name: receiver for receiver in list(_running)}
        checks.receivers(self.name, read, running.keys())
        return [running[name] for name in sorted(read - {self.name})]

    @contextlib.contextmanager
    def _lifecycle_locked(self) -> Iterator[Self]:
        """Within the block this receiver is neither started nor stopped.

        Raises :class:`ConfigurationError` when it is not running, or is being started or stopped for too long.
        """
        if not self._lifecycle.acquire(timeout=STOP_SECONDS):
            raise ConfigurationError(
                f"receiver {self.name!r} is starting or stopping; start the query again when that has ended",
                code="receiver-busy",
            )
        try:
            if self._fleet is None:
                raise ConfigurationError(
                    f"receiver {self.name!r} was stopped; start it before the query that reads it",
                    code="receiver-not-started",
                )
            yield self
        finally:
            self._lifecycle.release()

    def _require_no_query(self) -> None:
        if self._query is not None and self._query.isActive:
            raise ConfigurationError(
                f"receiver {self.name!r} feeds a query already; stop it first, or use foreachBatch for several sinks",
                code="receiver-feeds-query",
            )

    def _follow(self) -> None:
        """Watch the checkpoint of the query that has started, and publish the query's id."""
        assert self._watcher is not None
        self._watcher.start()
        self._try_to_renew()

    def _begin(self, trigger: str) -> None:
        """Prepare for a query: send the workers the references it continues from, and create the watcher."""
        files = self._files
        self._query_facts.starting(files.identity if files is not None else "", trigger)
        assert self._announcer is not None
        assert self._registry is not None
        assert files is not None
        committed = files.progress(self.name).committed
        checks.decided(files.identity, committed)
        references = committed.references if committed else (self.options.starting_offsets or {})
        epoch = self._announcer.next_epoch(self._patience.ask(self._registry.next_submission))
        self._announcer.begin(LastCommit(epoch, committed.batch if committed else -1, references))
        self._query_starts = True
        self._patience.ask(self._renew)
        self._watcher = CheckpointWatcher(files, self.name, functools.partial(self._progressed, epoch))
        if files.stamp() is None:
            # A listener costs many calls to Java for each batch, because PySpark reads every value of a report from
            # Java. So it is used only where the commit log cannot be watched cheaply.
            self._listener = Waker(self._watcher)
            self._spark.streams.addListener(self._listener)

    def _lock_checkpoint(self, files: CheckpointFiles, owner: str) -> None:
        """Lock the checkpoint, because only one query may use it.

        ``owner`` is the owner of the receiver that starts the query. All receivers that the query reads lock the
        checkpoint under this owner. Raises :class:`CheckpointError` when another owner has the lock.
        """
        checkpoints = self._checkpoints
        assert checkpoints is not None

        def in_use() -> WallarooError:
            return CheckpointError(
                f"checkpoint {files.identity} is used by another query, of {checkpoints.locked_by(files.key)}; "
                "stop that one, or use another checkpoint",
                code="checkpoint-in-use",
                checkpoint=files.identity,
            )

        seconds = self.options.lease_seconds
        self._patience.hold(lambda: checkpoints.lock(files.key, owner, seconds), seconds, in_use)
        self._files, self._checkpoint_owner = files, owner

    def _progressed(self, epoch: int, progress: QueryProgress) -> None:
        announcer = self._announcer
        if progress.committed is not None and announcer is not None:
            committed = progress.committed
            announcer.commit(epoch, committed.batch, committed.references, (*committed.undecided, *committed.partial))

    def _stop_query(self) -> None:
        """Stop the query. The watcher then reads the commit log once more and reports the last commit."""
        query, watcher, listener, files = self._query, self._watcher, self._listener, self._files
        self._query = self._listener = None
        self._query_starts = False
        with contextlib.ExitStack() as last:
            last.callback(self._release_checkpoint, files)
            last.callback(self._try_to_renew)
            if listener is not None:
                last.callback(self._spark.streams.removeListener, listener)
            if watcher is not None:
                last.callback(self._settle)
                last.callback(watcher.stop)
            last.callback(self._query_facts.ended)
            if query is not None and query.isActive:
                query.stop()

    def _settle(self) -> None:
        """Wait until the workers have been notified of the last commit, before anything else is sent to them."""
        if self._announcer is not None:
            self._announcer.settle()

    def _try_to_renew(self) -> None:
        """:meth:`_renew` now; errors are ignored, because the announcer's next round repeats it and logs them."""
        with contextlib.suppress(WallarooError):
            self._renew()

    def _release_checkpoint(self, files: CheckpointFiles | None) -> None:
        self._watcher = self._files = None
        if files is not None and self._checkpoints is not None:
            with contextlib.suppress(RegistryError):
                self._checkpoints.unlock(files.key, self._checkpoint_owner)


def _ask_to_stop(slot: int, client: WorkerClient) -> None:
    try:
        client.stop("the receiver is stopping")
    except WallarooError as error:
        log.debug("slot %d: %s", slot, error)
