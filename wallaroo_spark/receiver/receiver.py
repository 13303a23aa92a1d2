"""The receiver: it starts the workers and the query, notifies the workers of commits, reports status, and stops all.

Source: ``README.md#ten-lines-on-each-side``.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import secrets
import threading
import time
import weakref
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, Self, overload

from pyspark.sql import DataFrame

from wallaroo_spark.errors import ConfigurationError, RegistryError, TransportError, WallarooError, one_line
from wallaroo_spark.inner.client import Trust, WorkerClient, fleet_keys, status_token, tap_token
from wallaroo_spark.observe.collect import (
    ANSWER_SECONDS,
    ERROR_LENGTH,
    MOST,
    Collector,
    DriverReport,
    Question,
    ReceiverFacts,
)
from wallaroo_spark.observe.faces.records import metrics_frame, streams_frame
from wallaroo_spark.observe.receiver import QueryStatus, ReceiverStatus
from wallaroo_spark.observe.server.driver_pages import (
    LAST_LOOK_SECONDS,
    Monitor,
    check_report,
    page_routes,
    rows_of_each,
    start_receiver_page,
    write_report,
)
from wallaroo_spark.observe.server.endpoints import ReceiverTelemetry
from wallaroo_spark.observe.server.page_server import PageServer
from wallaroo_spark.observe.surroundings import Surroundings
from wallaroo_spark.options import Options, public_name, resolve_secret
from wallaroo_spark.receiver import checks, spark_queries
from wallaroo_spark.receiver.adoption import Adopter
from wallaroo_spark.receiver.announcer import Announcer
from wallaroo_spark.receiver.query import FedQuery, adopt_query, start_query
from wallaroo_spark.receiver.spark_queries import RunningQuery
from wallaroo_spark.receiver.traces import Tracer
from wallaroo_spark.receiver.traces import require as require_traces
from wallaroo_spark.registry import NO_QUERY, Registry
from wallaroo_spark.runtime import spark_checks
from wallaroo_spark.runtime.handle import STANDBY, DriverHandle
from wallaroo_spark.runtime.long_jobs import Work
from wallaroo_spark.runtime.python_tasks import LogSettings, least_level, log_to_stderr, secrets_of
from wallaroo_spark.source import Secrets, forget, load, register
from wallaroo_spark.worker.listening import ports
from wallaroo_spark.worker.service import WorkerSetup

if TYPE_CHECKING:
    from pyspark.sql.streaming.query import StreamingQuery

log = one_line("wallaroo_spark.receiver")

_running: weakref.WeakSet[Receiver] = weakref.WeakSet()
"""The started receivers of this program: a query may read several of them."""

_adopting = threading.Lock()

REPORT_SECONDS = 1.0
"""How often the driver's report is written to the registry. A choice: a person looks about as often."""
_ADOPTION_WAIT_SECONDS = 1.0
"""How long one look for queries waits while this receiver is starting a query or stopping. The next look follows."""
BUSY_SECONDS = 15.0
"""How long another receiver of the query may take to start or stop. A choice that bounds the start of the query."""


class Receiver(DriverHandle):
    """The workers inside Spark to which connectors send, and the one streaming query that reads them.

    ``spark`` is a SparkSession, classic or Spark Connect. ``name`` is 1 to 100 letters, digits, dots, dashes and
    underscores. ``options`` are the options of ``docs/options.md``, in camelCase or in snake_case; an option that is
    None has its default. The constructor raises :class:`ConfigurationError` for a wrong name or option and starts
    nothing.

    A receiver feeds one query, and a query has one checkpoint. As a context manager the receiver starts on entry and
    stops on exit. Its methods may be called from several threads; :meth:`stop` aborts a :meth:`start` in progress.
    """

    KIND, TASK, LOCK = "receiver", "worker", "receiver"
    MODULES = ("wallaroo_spark.worker.run", "wallaroo_spark.source")
    ROUND_SECONDS = 0.5
    """Shorter than that of others, because connectors wait while the driver does not know the worker of their slot."""

    def __init__(self, spark: Any, name: str, **options: Any) -> None:
        attributes = {field.name for field in dataclasses.fields(Options)}
        given = {key: value for key, value in options.items() if value is not None}
        texts = {public_name(key) if key in attributes else key: value for key, value in given.items()}
        self.options = Options.parse({**texts, "receiver": name})
        checks.receiver_name(self.options)
        place = name, spark, self.options.registry, self.options.lease_seconds
        super().__init__(*place, standby=self.options.standby, tasks=self.options.workers + 1)
        self._fed = FedQuery(name, self.owner, self.options, spark, self._waits, self._renew_all)
        self._announcer: Announcer | None = None
        self._adopter: Adopter | None = None
        self._page: PageServer | None = None
        self._monitor: Monitor | None = None
        self._surroundings = Surroundings()
        self._report_written = False
        self._stream: DataFrame | None = None
        self._token = ""
        self._log_level = self.options.log_level
        self._publishing, self._renewing = threading.Lock(), threading.Lock()
        self._collector = Collector()
        self._telemetry = ReceiverTelemetry(
            lambda: self.status(most=self.options.metrics_instances),
            lambda: self._fed.query,
            self.options.metrics_instances,
        )
        self._tracer: Tracer | None = None
        self._reported_at = 0.0
        self._reported_query = ""
        self._warnings: list[str] = []

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
        super().start()
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
            self._require_started()
            checks.trigger(writer)
            read = spark_queries.receivers_of(writer)
            with contextlib.ExitStack() as locks:
                others = [locks.enter_context(other._lifecycle_locked()) for other in self._also_read(read)]
                fed = [one._fed for one in (self, *others)]
                return start_query(fed, writer, checkpoint, read, self._spark, self._waits)

    def stream(self) -> DataFrame:
        """Return the streaming DataFrame of the rows that connectors send (``docs/architecture.md#rows``).

        Every call returns the same DataFrame. Raises :class:`ConfigurationError` when the receiver is not started.
        """
        self._require_started()
        if self._stream is None:
            options = dataclasses.replace(self.options, log_level=self._log_level)
            self._stream = load(self._spark, self.name, self._secrets(), options.to_texts(secrets=False))
        return self._stream

    def kafka_stream(self) -> DataFrame:
        """Return the records of Kafka producers with the columns of Spark's own Kafka source, also ``headers``.

        They are those of :meth:`stream` whose ``instance`` begins with ``kafka/``: ``topic`` is its ``stream``,
        ``partition`` its ``stream_id``, ``offset`` its ``message_id``, and ``timestamp`` its ``event_time``. Needs the
        option ``includeHeaders`` for headers; without it the column is null. Raises :class:`ConfigurationError` when
        the receiver is not started.
        """
        headers = (
            "headers" if self.options.include_headers else "CAST(NULL AS ARRAY<STRUCT<key: STRING, value: BINARY>>)"
        )
        return (
            self.stream()
            .where("instance LIKE 'kafka/%'")
            .selectExpr(
                "key",
                "value",
                "stream AS topic",
                "CAST(stream_id AS INT) AS partition",
                "message_id AS offset",
                "event_time AS timestamp",
                "0 AS timestampType",
                f"{headers} AS headers",
            )
        )

    def _require_started(self) -> None:
        if self._jobs is None:
            raise _not_started()

    def _secrets(self) -> Secrets:
        return Secrets(self.registry_url, self._token)

    def _forget_secrets(self) -> None:
        if self._token:
            forget(self.name, self._secrets())

    @property
    def tap_token(self) -> str:
        """The token for ``wallaroo-spark tap``: it shows status and samples of messages, and permits nothing else.

        A secret like the messages themselves. Raises :class:`ConfigurationError` when the receiver is not started.
        """
        if not self._token:
            raise _not_started()
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
        fleet, announcer = self._jobs, self._announcer
        known = announcer.workers() if announcer else {}
        live = announcer.leases if announcer else None
        facts = ReceiverFacts(
            self.name,
            self.options.workers if fleet else 0,
            {slot: (lease, live is None or live.get(slot) == lease) for slot, (lease, _) in known.items()},
            self.owner if fleet else self._waits_for,
            STANDBY if self._waits_for else self._fed.state,
            status_token(self._token) if self._token else "",
            self._report(),
            self._rounds.error if announcer and isinstance(self._rounds.failure, RegistryError) else "",
            tuple(self._warnings),
            self._standby_known,
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

    def status_frame(self, *, most: int = MOST, instance: str = "", stream: str = "") -> DataFrame:
        """Return the streams of :meth:`status` as a DataFrame: a row for each stream, with its slot and instance."""
        return streams_frame(self._spark, self.status(most=most, instance=instance, stream=stream))

    def metrics_frame(self) -> DataFrame:
        """Return :meth:`metrics` as a DataFrame: a row for each value, with its labels."""
        return metrics_frame(self._spark, self.name, self.metrics())

    def _report(self) -> DriverReport:
        """The facts that only the driver knows."""
        if self._waits_for:
            return DriverReport(time.time(), QueryStatus(STANDBY), page=self.page_address)
        jobs = self._jobs.records if self._jobs else ()
        announcer, watcher = self._announcer, self._fed.watcher
        last = announcer.last_commit if announcer else None
        committed = last.batch if last is not None and last.batch >= 0 else None
        planned = watcher.last.planned if watcher is not None and watcher.last is not None else None
        error = watcher.error if watcher is not None else ""
        query = self._fed.facts.look(committed, planned.batch if planned is not None else None, error)
        rows, size = self._fed.facts.lag
        return DriverReport(
            time.time(),
            query,
            tuple(dataclasses.replace(job, last_error=job.last_error[:ERROR_LENGTH]) for job in jobs),
            rows,
            size,
            str(self._rounds.failure or "") if announcer else "",
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
        super().stop()

    def _ends(self) -> Sequence[Callable[[], Any]]:
        _running.discard(self)
        return (
            lambda: self._end("_adopter"),
            self._end_watching,
            self._fed.stop,
            self._count_last,
            lambda: self._end("_tracer"),
            self._end_jobs,
            lambda: self._end("_announcer"),
            lambda: self._end("_page"),
            self._forget_secrets,
            self._write_report,
            self._collector.close,
            self._fed.close,
        )

    def _look(self) -> ReceiverStatus:
        """One snapshot for the page and the report; during a stop the workers get less time to answer."""
        seconds = LAST_LOOK_SECONDS if self._waits.stopping.is_set() else ANSWER_SECONDS
        status = self.status(most=rows_of_each(self.options.workers), seconds=seconds)
        files, registry = self._fed.files, self._leases
        if not self._waits.stopping.is_set():
            url = self.registry_url if registry is not None and not status.registry_error else ""
            self._surroundings.look(url, files.identity if files else "")
        around = self._surroundings
        return dataclasses.replace(status, topics=around.topics, sinks=around.sinks, unread=around.unread)

    def _end_watching(self) -> None:
        """Take the last snapshot before anything is stopped: later ones would only tell of the stop."""
        monitor = self._monitor
        if monitor is not None and self._jobs is not None:
            monitor.stop()
            monitor.look()

    def _count_last(self) -> None:
        if self._monitor is not None and self._jobs is not None:
            self._monitor.settle()

    def _write_report(self) -> None:
        if self.options.report and self._monitor is not None and not self._report_written:
            self._report_written = True
            self.report(self.options.report)
            log.info("receiver %s: the report of the run is %s", self.name, self.options.report)

    def _end(self, name: str) -> None:
        """Stop the part in an attribute, if there is one."""
        part = getattr(self, name)
        setattr(self, name, None)
        if part is not None:
            part.stop()

    def _dismiss(self) -> None:
        """Ask every worker with a lease to stop."""
        announcer = self._announcer
        if announcer is None:
            return
        announcer.find_workers()
        for slot, (_, client) in announcer.workers().items():
            # In a thread each, because a worker that hangs must not delay the others.
            threading.Thread(
                target=_ask_to_stop, args=(slot, client), name=f"wallaroo-stop-{slot}", daemon=True
            ).start()

    def _begin(self) -> None:
        checks.name_is_free(self.name, [receiver.name for receiver in list(_running)])
        checks.combinations(self.options)
        checks.quic(self.options)
        checks.addresses(self.options)
        place = checks.status_page(self.options)
        check_report(self.options.report)
        require_traces(self.options.trace_sample)
        trust = Trust.of(self.options)
        self._collector = Collector(trust)
        spark_checks.environment(self._spark)
        context = spark_checks.classic_context(self._spark)
        master = context.master if context is not None else "connect"
        self._log_level = least_level(self.options.log_level, spark_checks.master_of(self._spark))
        spark_checks.registry_reach(self.options.registry, master)
        spark_checks.task_slots(self._spark, self.options.workers)
        host = self.options.host or ("127.0.0.1" if spark_checks.on_one_machine(master) else "0.0.0.0")
        checks.doors(self.options, host)
        if self._embedded is not None:
            self._embedded.start()
        self._surroundings = Surroundings()
        self._monitor, self._report_written = Monitor(self._look, self.name), False
        self._page = start_receiver_page(
            place, self.options, {**page_routes(self._monitor), **self._telemetry.routes()}
        )
        self._token = resolve_secret(self.options.token) or self._token or secrets.token_urlsafe(32)
        register(self._spark, self.name, self._secrets())
        self._stream = None
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
        registry = self._take_name(
            lambda url: Registry(url, self.name, lease_seconds=self.options.lease_seconds), self.options.workers
        )
        setup = WorkerSetup(shipped, 0, 0, self._token, fleet_keys(self._token))
        jobs = self._make_jobs(self.options.workers, lambda *numbers: serve_slot(setup.of(*numbers)))
        connect = functools.partial(WorkerClient, trust=trust)
        self._announcer = Announcer(registry, self._token, connect, jobs.leases_seen, self._telemetry.driver)
        self._fed.open(self.registry_url, registry, self._announcer)
        self._waits.ask(self._renew_all)
        jobs.start()
        self._rounds.start(functools.partial(self._round, self._announcer), self._lost)
        self._monitor.start()
        self._await_jobs()
        self._announcer.find_workers()
        if self.options.trace_sample:
            self._tracer = Tracer(self.name, self._announcer.workers)
            self._tracer.start()
        if trust is not None:
            self._verify_workers(self._announcer)
        self._adopter = Adopter(
            self.name, self._spark, lambda: self._fed.state, self._is_read_by, self._adopt, self._renew_all
        )
        self._adopter.start()

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

    def _round(self, announcer: Announcer) -> None:
        """Renew the driver's entries, and look for workers, also when the first of it fails."""
        try:
            self._renew_all()
        except RegistryError:
            self._telemetry.driver["registry-errors"] += 1
            raise
        finally:
            announcer.find_workers()

    def _lost(self, error: ConfigurationError) -> None:
        """Stop the query when another driver has the name: that driver starts it on the same checkpoint.

        When the receiver is starting or stopping, the next round does it.
        """
        feeds = error is self._lost_name and self._fed.files is not None
        if feeds and self._lifecycle.acquire(timeout=_ADOPTION_WAIT_SECONDS):
            try:
                self._fed.stop()
            finally:
                self._lifecycle.release()

    def _renew_all(self) -> None:
        """Write the driver's entries in the registry again, because Redis may have lost them.

        Raises :class:`ConfigurationError` when another driver runs a receiver of this name; the fleet is then ended.
        """
        if self._leases is None or self._waits.stopping.is_set():
            return
        # The rounds, the adopter and the start of a query do this, each in a thread: one at a time, because a registry
        # of this process may be started again.
        with self._renewing:
            self._renew()
        self._fed.renew_lock()
        self._publish()

    def _publish(self) -> None:
        """Write the fleet's record; a source compares the record's ``query`` with the id of its own query."""
        registry = self._leases
        # Reading the state and writing it is one step, so that an older state never overwrites a newer one.
        with self._publishing:
            if registry is not None:
                workers, token = str(self.options.workers), status_token(self._token)
                # The time of the look is read before the state that follows from it.
                adopter = self._adopter
                looked = f"{adopter.looked:.6f}" if adopter is not None else "0"
                state, refused = self._fed.state, adopter.refused if adopter is not None else ""
                files = self._fed.files
                place = files.place if files is not None else ""
                fleet = {"status_token": token, "workers": workers, "query": state, "checkpoint": place}
                registry.publish_fleet({**fleet, "looked": looked, "refused": refused})
                if time.monotonic() - self._reported_at >= REPORT_SECONDS or self._fed.state != self._reported_query:
                    registry.publish_report(self._report().to_text())
                    self._reported_at, self._reported_query = time.monotonic(), self._fed.state

    def _is_read_by(self, query: RunningQuery) -> bool:
        """Whether a running query reads this receiver, and not one of the same name on another registry."""
        for source in query.sources:
            if source["receiver"] != self.name:
                continue
            given = {"registry": self.registry_url, "token": self._token}
            with contextlib.suppress(ConfigurationError):
                if all(resolve_secret(source.get(name, ours)) == ours for name, ours in given.items()):
                    return True
        return False

    def _adopt(self, query: RunningQuery) -> bool:
        """Follow a query that Spark's own ``.start()`` began; False while this receiver is starting or stopping.

        Raises :class:`WallarooError` when the query cannot be followed.
        """
        with contextlib.ExitStack() as held:
            # One adoption at a time, because a query may read several receivers.
            for lock in (_adopting, self._lifecycle):
                if not lock.acquire(timeout=_ADOPTION_WAIT_SECONDS):
                    return False
                held.callback(lock.release)
            if self._jobs is None or self._waits.stopping.is_set() or self._fed.state != NO_QUERY:
                return False
            others = [held.enter_context(other._lifecycle_locked()) for other in self._also_read(query.receivers)]
            fed = [one._fed for one in (self, *others)]
            checks.adoptable(query, fsync=any(one.options.fsync for one in fed))
            adopt_query(fed, query, self._spark, self._waits)
        return True

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
        if not self._lifecycle.acquire(timeout=BUSY_SECONDS):
            raise ConfigurationError(
                f"receiver {self.name!r} is starting or stopping; start the query again when that has ended",
                code="receiver-busy",
            )
        try:
            if self._jobs is None:
                raise ConfigurationError(
                    f"receiver {self.name!r} was stopped; start it before the query that reads it",
                    code="receiver-not-started",
                )
            yield self
        finally:
            self._lifecycle.release()


def _not_started() -> ConfigurationError:
    return ConfigurationError(
        "the receiver is not started; call start(), or use it in a with statement", code="receiver-not-started"
    )


def _ask_to_stop(slot: int, client: WorkerClient) -> None:
    try:
        client.stop("the receiver is stopping")
    except WallarooError as error:
        log.debug("slot %d: %s", slot, error)


if TYPE_CHECKING:
    import pandas as pd


def serve_slot(setup: WorkerSetup) -> Work:
    """Return the function that mapInPandas runs in an executor to serve one slot.

    Spark pickles the function, so it imports its modules on the executor.
    """

    def serve(rows: Iterator[pd.DataFrame]) -> Iterator[pd.DataFrame]:
        from wallaroo_spark.worker.run import run_worker

        options = setup.options
        secrets = secrets_of(options.registry, options.cookie, setup.token)
        log_to_stderr(
            LogSettings(options.receiver, least_level(options.log_level, ""), options.log_format, secrets), setup.slot
        )
        registry = Registry(options.registry, options.receiver, lease_seconds=options.lease_seconds)
        try:
            yield from run_worker(setup, registry, rows)
        finally:
            registry.close()

    return serve
