"""The driver's handle of an application of durable streams: it runs the gateways and the query of one folder.

Source: ``docs/pipelines/running.md``.
"""

from __future__ import annotations

import contextlib
import dataclasses
import logging
import math
import threading
import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from wallaroo_spark.checkpoint import CheckpointFiles, CommitThread
from wallaroo_spark.checkpoint.power_loss import forget_torn_files
from wallaroo_spark.engine.application import checks, query
from wallaroo_spark.engine.application.folder_lock import FolderLock
from wallaroo_spark.engine.application.housekeeping import DriverInbox, Housekeeping, SchemaWatch, dismissals
from wallaroo_spark.engine.application.query import start_query
from wallaroo_spark.engine.application.settings import STATUS_PAGE, ApplicationSettings
from wallaroo_spark.engine.isolation import FailedRows, publish_letters
from wallaroo_spark.engine.observer import Observer
from wallaroo_spark.engine.set_aside import SetAside
from wallaroo_spark.engine.source import InputOffset
from wallaroo_spark.errors import ConfigurationError, PipelineError, WallarooError, one_line, split_code
from wallaroo_spark.gateway.service import GatewaySetup
from wallaroo_spark.observe.application import ApplicationStatus
from wallaroo_spark.observe.causes import with_cause
from wallaroo_spark.observe.published import LOCK, GaugeFile, to_json
from wallaroo_spark.observe.server.driver_pages import SETTINGS as PAGE_SETTINGS
from wallaroo_spark.observe.server.driver_pages import ApplicationPage
from wallaroo_spark.observe.server.page_server import PageAddress
from wallaroo_spark.options import resolve_secret
from wallaroo_spark.pipelines.schema.applying import apply_files
from wallaroo_spark.pipelines.schema.store import SchemaStore, StoredSchema
from wallaroo_spark.registry import Registry, application_registry
from wallaroo_spark.runtime import spark_checks
from wallaroo_spark.runtime.handle import DriverHandle
from wallaroo_spark.runtime.job_errors import in_short, is_slow_start
from wallaroo_spark.runtime.long_jobs import JobRecord, Work
from wallaroo_spark.runtime.python_tasks import LogSettings, least_level, log_to_stderr, secrets_of
from wallaroo_spark.settings import takes_settings
from wallaroo_spark.sidecar.task_access import require_reach
from wallaroo_spark.storage.locations import for_tasks
from wallaroo_spark.streams.delta import DeltaLogs
from wallaroo_spark.streams.inbox import InboxReader
from wallaroo_spark.streams.places import checkpoint_of

log = one_line(logging.getLogger("wallaroo_spark.engine"))

MOVE_SECONDS = 30.0
"""Limit of the wait for the work after the last commit. The files of a batch may have to be moved."""
QUERY_SECONDS = 10.0
"""Limit of the wait for the thread that awaits the end of the query. The query has been stopped."""
NOTES_FORGOTTEN = -1
MOST_STARTS = 5
"""The most starts of a query of which a process of Spark did not start in time. That is a minute on a loaded machine.
"""


class Application(DriverHandle):
    """An application of durable streams and pipelines, which runs in the Spark session of this driver.

    As a context manager it starts on entry and stops on exit. Raises :class:`ConfigurationError` for settings that
    cannot work, before anything starts.
    """

    KIND, TASK, LOCK, IN_USE = "application", "gateway", LOCK, "application-in-use"
    MODULES = ("wallaroo_spark.gateway.service", "wallaroo_spark.engine.operator.processor")

    @takes_settings(ApplicationSettings)
    def __init__(self, settings: ApplicationSettings) -> None:
        given = settings.known_as, settings.spark, settings.registry, settings.lease_seconds
        super().__init__(*given, standby=settings.standby, tasks=settings.gateways + 1)
        self._settings = settings
        self._ended = threading.Event()
        self._failure: WallarooError | None = None
        self._failing = threading.Lock()
        self._make_query: Callable[[], Any] = lambda: None
        self._query: Any = None
        self._follower: CommitThread | None = None
        self._housekeeping: Housekeeping | None = None
        self._watch: SchemaWatch | None = None
        self._observer: Observer | None = None
        place = PageAddress.parse(settings.status_page, resolve_secret(settings.status_page_token), PAGE_SETTINGS)
        required = settings.status_page != STATUS_PAGE
        self._page = ApplicationPage(self.name, place, self.snapshot, lambda: self._query, required=required)
        self._failed_until: int | None = NOTES_FORGOTTEN
        """The newest batch that was committed before the start; until a later one the notes of failed rows count."""
        self._query_starts = 0
        self._folder_lock: FolderLock | None = None
        self._query_thread: threading.Thread | None = None

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
        super().start()

    def stop(self) -> None:
        """End the gateways, then the query; may be called again.

        Clients are told to connect to another gateway. Everything that was committed is kept, and events that a gateway
        has received are processed when the application starts again.
        """
        super().stop()

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
        return [lease.connect for _, lease in sorted(self._served().items())]

    def status(self) -> dict[str, Any]:
        """The state of the application, its query and its gateways, as JSON-serializable values."""
        return to_json(self.snapshot())

    def snapshot(self) -> ApplicationStatus:
        """The state of the application as values; see ``docs/pipelines/see.md``."""
        return self._observer.look() if self._observer is not None else with_cause(self._facts()[0])

    def _facts(self) -> tuple[ApplicationStatus, Sequence[JobRecord]]:
        follower, housekeeping, jobs = self._follower, self._housekeeping, self._jobs
        running = self._leases is not None and not self._ended.is_set() and not self._waits.stopping.is_set()
        errors = [
            self._failure.message if self._failure else "",
            self._rounds.error,
            follower.error if follower else "",
            *(self._watch.problems if self._watch else ()),
        ]
        known = ApplicationStatus(
            self.name,
            time.time(),
            self._settings.folder,
            running,
            self.owner if running else "",
            query_starts=self._query_starts,
            moved=housekeeping.moved if housekeeping is not None else None,
            errors=tuple(error for error in errors if error),
            round_age=self._rounds.age,
            standby=self._standby_known if running else "",
        )
        return known, jobs.records if jobs is not None else ()

    def _begin(self) -> None:
        settings = self._settings
        self._ended.clear()
        self._failure = None
        checks.environment(self._spark)
        if settings.delta:
            DeltaLogs(for_tasks(settings.folder, self._spark))
        spark_checks.registry_reach(settings.registry, self._spark.sparkContext.master)
        folder_lock = self._folder_lock = FolderLock(
            settings.folder, self._spark, settings.lease_seconds, self._waits.stopping.wait, self._waits.gone
        )
        connect = partial(application_registry, application=self.name, lease_seconds=settings.lease_seconds)
        if settings.standby:
            # First, because the other driver's schema must not change, and because its mark is watched meanwhile.
            self._await_turn(connect, folder_lock.look)
            self._await_folder(folder_lock)
            # The checks below run jobs of Spark, which may take longer than the locks last.
            self._rounds.start(self._round, self._fail)
        schemas = SchemaStore(settings.folder, self._spark)
        if settings.schema_files:
            applied = apply_files(schemas, settings.schema_files, time.time())
            log.info("application %s: schema: %s", self.name, applied.note)
        schema = schemas.newest()
        checks.schema(schema, settings.folder)
        functions = checks.declared_functions(schema.objects)
        checks.functions_of_driver(functions)
        checks.executors(self._spark, functions)
        spark_checks.task_slots(self._spark, settings.gateways, kind="gateways")
        require_reach(self._spark, settings.folder, f"application {self.name!r}")
        folder_lock.take(self.owner)
        leases = self._take_name(connect, settings.gateways)
        if not settings.standby:
            self._rounds.start(self._round, self._fail)
        jobs = self._make_jobs(settings.gateways, self._gateways())
        self._prepare_query(schema, leases, folder_lock)
        jobs.start()
        # The query comes second: Spark gives a process of it ten seconds to start, and those of gateways compete.
        self._await_jobs()
        self._start_query()

    def _rehearsal(self, spark: Any) -> Any:
        return query.rehearsal(spark)

    def _await_folder(self, folder_lock: FolderLock) -> None:
        """As a standby, take the lock of the folder, which a driver that is stopped has until it goes on or ends."""
        told = False

        def take() -> bool:
            nonlocal told
            if not self._take_lock():
                raise self._name_in_use()
            try:
                folder_lock.take(self.owner)
            except ConfigurationError as error:
                if not told:
                    log.warning("application %s: %s; this standby waits until that process has ended", self.name, error)
                told = True
                return False
            return True

        self._waits.hold(take, math.inf, self._name_in_use)

    def _gateways(self) -> Callable[[int, int], Work]:
        """A function from a gateway's number and its submission to the function that its task runs."""
        settings, master = self._settings, spark_checks.master_of(self._spark)
        local = spark_checks.on_one_machine(master)
        # Executors have not the driver's environment, so the registry's URL is resolved here.
        shipped = dataclasses.replace(
            settings,
            spark=None,
            registry=self.registry_url,
            status_page_token="",
            host=settings.host or ("127.0.0.1" if local else ""),
        )
        setup = GatewaySetup(shipped, for_tasks(settings.folder, self._spark))
        log_settings = LogSettings(
            self.name,
            least_level(settings.log_level, master),
            settings.log_format,
            secrets_of(self.registry_url),
            ("application", "gateway"),
        )
        return lambda *numbers: _gateway(setup.of(*numbers), log_settings)

    def _prepare_query(self, schema: StoredSchema, leases: Registry, folder_lock: FolderLock) -> None:
        settings = self._settings
        files = CheckpointFiles(checkpoint_of(settings.folder), self._spark, fsync=settings.fsync)
        self._forget_torn_files(files)
        recorded, tasks = files.settings().get(query.PARTITIONS), query.tasks_beside(self._spark, settings.gateways)
        wanted = query.state_partitions(settings.state_partitions, int(recorded) if recorded else None, tasks)
        session = query.query_session(self._spark, wanted)
        inbox, gauges = DriverInbox(settings.folder, self._spark), GaugeFile(settings.folder, self._spark)
        self._housekeeping = Housekeeping(files, settings, inbox, gauges)
        checks.checkpoint(files.committed(), self._housekeeping.newest_committed(), settings.folder)
        known = InboxReader(settings.folder, self._spark)
        if planned := files.newest_offsets():
            known.require_claims(InputOffset.from_json(planned[0]).inbox)
        if events := dismissals(schema, known, settings.gateways):
            inbox.write(events)
        aside = FailedRows(settings.folder, self._spark, aside=True)
        publish_letters(aside, inbox)
        self._make_query = partial(
            start_query, session, settings, files.local_folder, folder_lock.require, SetAside.of(*aside.all())
        )
        self._failed_until = files.committed()
        self._watch = SchemaWatch(SchemaStore(settings.folder, self._spark), self.name)
        self._follower = CommitThread(files, lambda: self._committed(files.committed()), f"application {self.name}")
        self._observer = Observer(self.name, settings.folder, self._spark, files, gauges, leases, self._facts)
        self._observer.query.starting(checkpoint_of(settings.folder), "as soon as possible")
        self._observer.start()
        self._page.start()

    def _forget_torn_files(self, files: CheckpointFiles) -> None:
        """Delete what a machine that has lost power had not finished; gateways have told nobody of it."""
        if files.local_folder is None:
            if self._settings.fsync:
                log.info("application %s: fsync changes nothing, because %s is not a local disk", self.name, files)
            return
        if torn := forget_torn_files(files.local_folder):
            log.warning(
                "application %s: the machine has lost power, and these files of the checkpoint were not whole, so they "
                "were deleted, and their batches run again: %s",
                self.name,
                ", ".join(torn),
            )

    def _start_query(self) -> None:
        assert self._follower is not None
        self._run_query()
        self._follower.start()
        self._query_thread = threading.Thread(
            target=self._await_query, name=f"wallaroo-application-{self.name}-query", daemon=True
        )
        self._query_thread.start()

    def _committed(self, batch: int | None) -> None:
        """Called by the thread that follows the commits."""
        if self._folder_lock is not None:
            self._folder_lock.require()
        if batch is not None and batch != self._failed_until and self._failed_until is not NOTES_FORGOTTEN:
            # The batch that had failed is committed now, so its rows are processed.
            FailedRows(self._settings.folder, self._spark).clear()
            self._failed_until = NOTES_FORGOTTEN
        if batch is not None and self._housekeeping is not None:
            self._housekeeping.work(batch, all_now=self._waits.stopping.is_set())
        if self._watch is not None:
            self._watch.look()

    def _await_query(self) -> None:
        """Wait for the end of the query; a query that has failed ends the application.

        A query is started again that failed because a process of Spark did not start in time. It is a matter of the
        machine's load, and Spark has no setting for the limit.
        """
        error = self._end_of_query()
        for start in range(2, MOST_STARTS + 1):
            if self._waits.stopping.is_set() or error is None or not is_slow_start(error.message):
                break
            log.warning(
                "application %s: the query is started again (start %d of at most %d), because a process of Spark did "
                "not start within ten seconds, as happens on a machine under load; nothing has to be done",
                self.name,
                start,
                MOST_STARTS,
            )
            log.debug("application %s: the query had ended: %s", self.name, error.message)
            error = self._end_of_query(again=True)
        if not self._waits.stopping.is_set():
            text = f"the query of application {self.name!r} was stopped by another part of the program"
            self._fail(error or PipelineError(f"{text}; stop the application instead", code="query-failed"))

    def _end_of_query(self, *, again: bool = False) -> PipelineError | None:
        """Wait for the end of the query, which is started ``again`` before; return the error with which it ends."""
        try:
            if again:
                self._run_query()
            self._query.awaitTermination()
        except Exception as failure:
            return _failed(failure)
        return None

    def _run_query(self) -> None:
        self._query = self._make_query()
        self._query_starts += 1
        if self._observer is not None:
            self._observer.query.started(self._query)

    def _fail(self, error: WallarooError) -> None:
        """End with an error: clients are sent away, and :meth:`await_end` raises it."""
        with self._failing:
            # What is ended because of the first failure fails, too.
            if self._ended.is_set() or self._failure is not None:
                return
            self._failure = error
        self._rounds.end()
        log.error("application %s has failed: %s", self.name, error)
        if self._jobs is not None:
            self._jobs.expect_end()
        self._dismiss()
        with contextlib.suppress(Exception):
            self._query.stop()
        self._ended.set()

    def _served_submissions(self) -> set[tuple[int, int]]:
        if self._failure is not None:
            raise self._failure
        return super()._served_submissions()

    def _round(self) -> None:
        """Renew the lock, and look whether each gateway holds its lease."""
        # First, because a registry that does not answer must not keep the mark from being renewed.
        if (folder_lock := self._folder_lock) is not None:
            folder_lock.renew()
        leases = self._renew()
        if self._jobs is not None:
            self._jobs.leases_seen(leases.leases())

    def _elsewhere(self) -> str:
        return " in this registry"

    def _ends(self) -> Sequence[Callable[[], Any]]:
        follower = self._follower
        return (
            self._end_jobs,
            self._stop_query,
            *(() if follower is None else (lambda: follower.stop(MOVE_SECONDS),)),
            self._page.stop,
            *(() if self._observer is None else (self._observer.stop,)),
        )

    def _close_registry(self) -> None:
        with contextlib.ExitStack() as last:
            last.callback(self._ended.set)
            if self._folder_lock is not None:
                last.callback(self._folder_lock.release)
            super()._close_registry()
        if self._query_thread is not None:
            self._query_thread.join(QUERY_SECONDS)
        self._query = self._follower = self._watch = self._folder_lock = None

    def _stop_query(self) -> None:
        if self._query is not None:
            self._query.stop()


def _gateway(setup: GatewaySetup, log_settings: LogSettings) -> Work:
    def serve(rows: Any) -> Any:
        from wallaroo_spark.gateway.service import run_gateway

        log_to_stderr(log_settings, setup.gateway)
        yield from run_gateway(setup, rows)

    return serve


def _failed(error: Exception) -> PipelineError:
    """The error for a query that has failed: with a message of this package if there is one, else with Spark's."""
    message, code = split_code(in_short(error))
    return PipelineError(
        f"the query failed: {message}; correct that and start the application again: it continues from its checkpoint",
        code=code or "query-failed",
    )
