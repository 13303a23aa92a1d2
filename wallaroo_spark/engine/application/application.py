"""The driver's handle of an application of durable streams: it runs the gateways and the query of one folder.

Source: ``docs/pipelines/engine.md#the-application``.
"""

from __future__ import annotations

import contextlib
import logging
import os
import socket
import threading
import time
import uuid
from types import TracebackType
from typing import Any, Self

from wallaroo_spark.checkpoint import CheckpointFiles
from wallaroo_spark.engine.application import checks
from wallaroo_spark.engine.application.commit_follower import CommitFollower
from wallaroo_spark.engine.application.declared_functions import FunctionWatch, declared_functions
from wallaroo_spark.engine.application.driver_inbox import DriverInbox, dismissals
from wallaroo_spark.engine.application.folder_lock import FolderLock
from wallaroo_spark.engine.application.gateways import gateway_setup, gateway_work, log_settings
from wallaroo_spark.engine.application.housekeeping import Housekeeping
from wallaroo_spark.engine.application.query import QueryPlan, start_query
from wallaroo_spark.engine.application.query_session import (
    PARTITIONS,
    query_session,
    state_partitions,
    tasks_beside,
)
from wallaroo_spark.engine.application.settings import STATUS_PAGE, ApplicationSettings
from wallaroo_spark.engine.observing.gauge_file import GaugeFile
from wallaroo_spark.engine.observing.observer import DriverFacts, Observer
from wallaroo_spark.engine.observing.page import SETTINGS as PAGE_SETTINGS
from wallaroo_spark.engine.observing.page import ApplicationPage
from wallaroo_spark.engine.observing.published import LOCK, to_json
from wallaroo_spark.errors import (
    ConfigurationError,
    PipelineError,
    RegistryError,
    WallarooError,
    one_line,
    split_code,
)
from wallaroo_spark.options import resolve_secret
from wallaroo_spark.pipelines.schema.applying import apply_files
from wallaroo_spark.pipelines.schema.store import SchemaStore, StoredSchema
from wallaroo_spark.registry import EmbeddedRedis, Lease, Registry, application_registry
from wallaroo_spark.settings import takes_settings
from wallaroo_spark.sidecar.task_access import require_reach
from wallaroo_spark.slots import spark_checks
from wallaroo_spark.slots.driver_rounds import DriverRounds
from wallaroo_spark.slots.job_errors import in_short, is_slow_start
from wallaroo_spark.slots.long_jobs import LongJobs
from wallaroo_spark.slots.patience import Patience
from wallaroo_spark.status.application.cause import with_cause
from wallaroo_spark.status.application.model import ApplicationStatus
from wallaroo_spark.storage.locations import for_tasks
from wallaroo_spark.streams.inbox import InboxReader
from wallaroo_spark.streams.places import checkpoint_of
from wallaroo_spark.streams.tables.delta import DeltaLogs
from wallaroo_spark.web import PageAddress

log = one_line(logging.getLogger("wallaroo_spark.engine"))

GATEWAYS_SECONDS = 120.0
"""Limit of the wait for the gateways at the start, in seconds. A choice: a cluster may have to start executors."""
STOP_SECONDS = 20.0
"""Limit of the wait for the gateways at the end, in seconds. A choice: longer than a gateway's own limit."""
MOST_STARTS = 5
"""The most starts of a query of which a process of Spark did not start in time. A choice: a minute on a loaded machine.
"""


class Application:
    """An application of durable streams and pipelines, which runs in the Spark session of this driver.

    As a context manager it starts on entry and stops on exit. Raises :class:`ConfigurationError` for settings that
    cannot work, before anything starts.
    """

    @takes_settings(ApplicationSettings)
    def __init__(self, settings: ApplicationSettings) -> None:
        self.name = settings.known_as
        self.owner = f"{socket.gethostname()}/{os.getpid()}/{uuid.uuid4().hex[:8]}"
        self._settings = settings
        self._spark = settings.spark
        self._embedded = EmbeddedRedis() if settings.registry == "embedded" else None
        self._lifecycle = threading.RLock()
        self._patience = Patience(f"application {self.name!r}")
        self._rounds = DriverRounds(
            f"application {self.name}",
            LOCK,
            self.owner,
            settings.lease_seconds,
            self._patience,
            self._embedded,
            self._name_in_use,
        )
        self._ended = threading.Event()
        self._failure: WallarooError | None = None
        self._session: Any = None
        self._plan: QueryPlan | None = None
        self._query: Any = None
        self._leases: Registry | None = None
        self._jobs: LongJobs | None = None
        self._files: CheckpointFiles | None = None
        self._schema: SchemaStore | None = None
        self._follower: CommitFollower | None = None
        self._housekeeping: Housekeeping | None = None
        self._functions: FunctionWatch | None = None
        self._observer: Observer | None = None
        place = PageAddress.parse(settings.status_page, resolve_secret(settings.status_page_token), PAGE_SETTINGS)
        required = settings.status_page != STATUS_PAGE
        self._page = ApplicationPage(self.name, place, self.snapshot, lambda: self._query, required=required)
        self._query_starts = 0
        self._folder_lock: FolderLock | None = None
        self._threads: list[threading.Thread] = []

    def __repr__(self) -> str:
        return f"Application({self.name!r})"

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    @property
    def registry_url(self) -> str:
        """The registry's URL. That of an embedded registry works only on this machine. It may contain a password."""
        return self._embedded.url if self._embedded else resolve_secret(self._settings.registry)

    @property
    def query(self) -> Any:
        """Spark's query (a ``StreamingQuery``), with its progress; None while the application does not run."""
        return self._query

    @property
    def folder(self) -> str:
        """The application's folder."""
        return self._settings.folder

    @property
    def page_address(self) -> str:
        """The URL of the application's page; empty when it is not served."""
        return self._page.address

    def metrics(self) -> dict[str, list[dict[str, Any]]]:
        """The values of all metrics by name, as JSON-serializable values; ``docs/metrics.md`` has their meaning."""
        return self._page.metrics()

    def start(self) -> None:
        """Start the query and the gateways, and wait until all gateways serve. Does nothing when it runs already.

        Raises :class:`ConfigurationError` when the schema is empty or has problems, another driver runs the
        application, there are too few task slots, or the gateways do not start in time; :class:`PipelineError` when the
        query fails meanwhile; :class:`RegistryError`; :class:`CheckpointError`.
        """
        with self._lifecycle:
            if self._leases is not None:
                return
            self._patience.stopping.clear()
            self._ended.clear()
            self._failure = None
            try:
                self._start()
            except BaseException:
                self._shut_down()
                raise

    def stop(self) -> None:
        """End the gateways, then the query; may be called again.

        Clients are told to connect to another gateway. Everything that was committed is kept, and events that a gateway
        has received are processed when the application starts again.
        """
        self._patience.stopping.set()
        with self._lifecycle:
            self._shut_down()

    def await_end(self, timeout: float | None = None) -> bool:
        """Wait until the application has ended, for at most ``timeout`` seconds; return whether it has.

        Raises the error with which it ended: :class:`PipelineError` when the query failed, and
        :class:`ConfigurationError` when another driver has taken its name.
        """
        if not self._ended.wait(timeout):
            return False
        if self._failure is not None:
            raise self._failure
        return True

    def addresses(self) -> list[str]:
        """The addresses ``host:port`` of the gateways that serve now. Raises :class:`RegistryError`."""
        leases = self._leases
        return [] if leases is None else [lease.connect for _, lease in sorted(_served(leases).items())]

    def status(self) -> dict[str, Any]:
        """The state of the application, its query and its gateways, as JSON-serializable values."""
        return to_json(self.snapshot())

    def snapshot(self) -> ApplicationStatus:
        """The state of the application as values; see ``docs/pipelines/see.md``."""
        observer = self._observer
        if observer is None:
            facts = self._facts()
            return with_cause(ApplicationStatus(self.name, time.time(), self._settings.folder, errors=facts.errors))
        return observer.look()

    def _facts(self) -> DriverFacts:
        follower, housekeeping, jobs = self._follower, self._housekeeping, self._jobs
        errors = [
            self._failure.message if self._failure else "",
            self._rounds.error,
            follower.error if follower else "",
        ]
        errors += self._functions.problems if self._functions else ()
        return DriverFacts(
            self._leases is not None and not self._ended.is_set() and not self._patience.stopping.is_set(),
            self.owner,
            jobs.records if jobs is not None else (),
            tuple(error for error in errors if error),
            housekeeping.moved if housekeeping is not None else None,
            self._query_starts,
        )

    def _start(self) -> None:
        settings = self._settings
        checks.environment(self._spark)
        if settings.delta:
            DeltaLogs(for_tasks(settings.folder, self._spark))
        spark_checks.registry_reach(settings.registry, self._spark.sparkContext.master)
        self._schema = SchemaStore(settings.folder, self._spark)
        if settings.schema_files:
            applied = apply_files(self._schema, settings.schema_files, time.time())
            log.info("application %s: schema: %s", self.name, applied.note)
        schema = self._schema.newest()
        checks.schema(schema, settings.folder)
        functions = declared_functions(schema.objects)
        checks.functions_of_driver(functions)
        checks.executors(self._spark, functions)
        spark_checks.task_slots(self._spark, settings.gateways, kind="gateways")
        require_reach(self._spark, settings.folder, f"application {self.name!r}")
        waiting = self._patience.stopping.wait
        self._folder_lock = FolderLock(settings.folder, self._spark, settings.lease_seconds, waiting)
        self._folder_lock.take(self.owner)
        leases = self._take_name()
        self._files = CheckpointFiles(checkpoint_of(settings.folder), self._spark)
        jobs = self._jobs = self._gateway_jobs(leases)
        self._prepare_query(schema, leases)
        jobs.start()
        self._rounds.start(self._round, self._fail)
        # The query comes second: Spark gives a process of it ten seconds to start, and those of gateways compete.
        self._patience.await_served("gateway", jobs.records, self._served_submissions, GATEWAYS_SECONDS)
        self._start_query()

    def _take_name(self) -> Registry:
        seconds = self._settings.lease_seconds
        if self._embedded is not None:
            self._embedded.start()
        leases = self._leases = application_registry(self.registry_url, self.name, lease_seconds=seconds)
        leases.ping()
        self._rounds.take(leases)
        self._patience.ask(lambda: leases.forget_slots_from(self._settings.gateways))
        return leases

    def _gateway_jobs(self, leases: Registry) -> LongJobs:
        setup = gateway_setup(self._settings, self._spark, self.registry_url)
        return LongJobs(
            self._spark,
            self._settings.gateways,
            f"wallaroo-application-{self.name}",
            f"gateway {{number}} of application {self.name}",
            leases.next_submission,
            gateway_work(setup, log_settings(self._settings, self._spark, self.registry_url)),
            self._settings.lease_seconds,
        )

    def _prepare_query(self, schema: StoredSchema, leases: Registry) -> None:
        settings, files = self._settings, self._files
        assert files is not None
        recorded = files.settings().get(PARTITIONS)
        partitions = state_partitions(
            settings.state_partitions, int(recorded) if recorded else None, tasks_beside(self._spark, settings.gateways)
        )
        self._session = query_session(self._spark, partitions)
        inbox, gauges = DriverInbox(settings.folder, self._spark), GaugeFile(settings.folder, self._spark)
        self._housekeeping = Housekeeping(
            files,
            settings.folder,
            inbox,
            gauges,
            keep=settings.keep,
            move_seconds=settings.move_seconds,
            retention_seconds=settings.retention_seconds,
            history_seconds=settings.history_seconds,
            delta=settings.delta,
            spark=self._spark,
        )
        checks.checkpoint(files.committed(), self._housekeeping.newest_committed(), settings.folder)
        if events := dismissals(schema, InboxReader(settings.folder, self._spark), settings.gateways):
            inbox.write(events)
        in_tasks = for_tasks(settings.folder, self._spark)
        self._plan = QueryPlan(self.name, settings.folder, in_tasks, settings.max_rows, files.local_folder)
        self._functions = FunctionWatch(SchemaStore(settings.folder, self._spark), schema.version, self.name)
        self._follower = CommitFollower(files, self._committed, f"application {self.name}")
        self._observer = Observer(self.name, settings.folder, self._spark, files, gauges, leases, self._facts)
        self._observer.query.starting(checkpoint_of(settings.folder), "as soon as possible")
        self._observer.start()
        self._page.start()

    def _start_query(self) -> None:
        assert self._plan is not None
        assert self._follower is not None
        self._query = start_query(self._session, self._plan)
        self._query_started()
        self._follower.start()
        self._begin(self._await_query, "query")

    def _begin(self, work: Any, name: str) -> None:
        thread = threading.Thread(target=work, name=f"wallaroo-application-{self.name}-{name}", daemon=True)
        self._threads.append(thread)
        thread.start()

    def _committed(self, batch: int | None) -> None:
        """Called by the thread that follows the commits."""
        if batch is not None and self._housekeeping is not None:
            self._housekeeping.work(batch, all_now=self._patience.stopping.is_set())
        if self._functions is not None:
            self._functions.look()

    def _await_query(self) -> None:
        """Wait for the end of the query; a query that has failed ends the application.

        A query is started again that failed because a process of Spark did not start in time. It is a matter of the
        machine's load, and Spark has no setting for the limit.
        """
        error: WallarooError | None = None
        plan = self._plan
        assert plan is not None
        for starts in range(1, MOST_STARTS + 1):
            try:
                self._query.awaitTermination()
                error = None
            except Exception as failure:
                error = _failed(failure)
            if self._patience.stopping.is_set():
                return
            if error is None or not is_slow_start(error.message) or starts == MOST_STARTS:
                break
            log.warning(
                "application %s: the query is started again (start %d of at most %d), because a process of Spark did "
                "not start within ten seconds, as happens on a machine under load; nothing has to be done",
                self.name,
                starts + 1,
                MOST_STARTS,
            )
            log.debug("application %s: the query had ended: %s", self.name, error.message)
            try:
                self._query = start_query(self._session, plan)
                self._query_started()
            except Exception as failure:
                error = _failed(failure)
                break
        self._fail(
            error
            or PipelineError(
                f"the query of application {self.name!r} was stopped by another part of the program; stop the "
                "application instead",
                code="query-failed",
            )
        )

    def _query_started(self) -> None:
        self._query_starts += 1
        if self._observer is not None:
            self._observer.query.started(self._query)

    def _fail(self, error: WallarooError) -> None:
        """End with an error: clients are sent away, and :meth:`await_end` raises it."""
        if self._ended.is_set():
            return
        self._rounds.end()
        self._failure = error
        log.error("application %s has failed: %s", self.name, error)
        if self._jobs is not None:
            self._jobs.expect_end()
        if self._leases is not None:
            self._dismiss(self._leases)
        with contextlib.suppress(Exception):
            self._query.stop()
        self._ended.set()

    def _served_submissions(self) -> set[tuple[int, int]]:
        if self._failure is not None:
            raise self._failure
        leases = self._leases
        assert leases is not None
        return {(number, lease.submission) for number, lease in _served(leases).items()}

    def _round(self) -> None:
        """Renew the lock, and look whether each gateway holds its lease."""
        leases, jobs = self._leases, self._jobs
        assert leases is not None
        assert jobs is not None
        self._rounds.renew(leases, jobs)
        jobs.leases_seen(leases.leases())
        folder_lock = self._folder_lock
        if folder_lock is not None:
            folder_lock.renew()

    def _name_in_use(self) -> ConfigurationError:
        assert self._leases is not None
        other = self._leases.locked_by(LOCK)
        return ConfigurationError(
            f"application {self.name!r} is run by another driver ({other}) in this registry; stop it, or give this one "
            "another name",
            code="application-in-use",
            owner=other,
        )

    def _shut_down(self) -> None:
        """Release every resource, even when a step fails."""
        self._patience.stopping.set()
        leases, jobs, query, embedded = self._leases, self._jobs, self._query, self._embedded
        with contextlib.ExitStack() as last:
            last.callback(self._ended.set)
            if self._folder_lock is not None:
                last.callback(self._folder_lock.release)
            if embedded is not None:
                last.callback(embedded.stop)
            if leases is not None:
                last.callback(leases.close)
                last.callback(self._unlock, leases)
            if self._observer is not None:
                last.callback(self._observer.stop)
            last.callback(self._page.stop)
            if self._follower is not None:
                last.callback(self._follower.stop)
            if query is not None:
                last.callback(_stop_query, query)
            if jobs is not None and leases is not None:
                jobs.expect_end()
                jobs.join(STOP_SECONDS, lambda: self._dismiss(leases))
        self._rounds.join()
        for thread in self._threads:
            if thread is not threading.current_thread():
                thread.join(10.0)
        self._threads.clear()
        self._leases = self._jobs = self._query = self._follower = self._functions = self._folder_lock = None

    def _unlock(self, leases: Registry) -> None:
        with contextlib.suppress(RegistryError):
            leases.unlock(LOCK, self.owner)

    def _dismiss(self, leases: Registry) -> None:
        """Revoke the leases of the gateways, so that they end."""
        with contextlib.suppress(RegistryError):
            if leases.locked_by(LOCK) in (self.owner, None):
                leases.forget_slots_from(0)


def _served(leases: Registry) -> dict[int, Lease]:
    """The leases of the gateways that listen, by number."""
    return {number: lease for number, lease in leases.leases().items() if lease.connect}


def _stop_query(query: Any) -> None:
    try:
        query.stop()
    except Exception as error:
        log.warning("the query did not stop in good order: %s", in_short(error))


def _failed(error: Exception) -> PipelineError:
    """The error for a query that has failed: with a message of this package if there is one, else with Spark's."""
    text = in_short(error)
    _, colon, ours = text.partition(": ")
    message, code = split_code(ours if text.startswith("wallaroo_spark.") and colon else text)
    return PipelineError(
        f"the query failed: {message}; correct that and start the application again: it continues from its checkpoint",
        code=code or "query-failed",
    )
