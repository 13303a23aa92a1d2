"""Takes snapshots of a running application in the driver, and publishes them in the registry and in the folder.

Source: ``docs/pipelines/see.md#where-the-figures-come-from``.
"""

from __future__ import annotations

import contextlib
import json
import logging
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from wallaroo_spark.checkpoint import CheckpointFiles
from wallaroo_spark.engine.source import offset_of
from wallaroo_spark.errors import RegistryError, WallarooError, one_line
from wallaroo_spark.observe.application import ApplicationStatus, GatewayStatus, PipelineStatus, StageStatus
from wallaroo_spark.observe.causes import with_cause
from wallaroo_spark.observe.published import (
    FILE_SECONDS,
    GaugeFile,
    Shapes,
    SnapshotFile,
    report_of_gateway,
    snapshot,
    to_text,
)
from wallaroo_spark.observe.query_facts import QueryFacts
from wallaroo_spark.pipelines.schema.declarations import PipelineDeclaration, StreamDeclaration
from wallaroo_spark.pipelines.schema.store import SchemaStore, StoredSchema
from wallaroo_spark.registry import Lease, Registry
from wallaroo_spark.runtime.long_jobs import JobRecord
from wallaroo_spark.streams.inbox import InboxReader

log = one_line(logging.getLogger("wallaroo_spark.engine"))

LOOK_SECONDS = 1.0
"""Seconds between two snapshots. Each takes some calls to Redis and to Java."""
SAME_SECONDS = 0.3
"""Age up to which a snapshot is returned again: the page, the metrics and the run ask at the same time."""
SLOW_LOOK_SECONDS = 10.0
"""Seconds between two listings of the inbox where a listing is not cheap. Object stores charge for each."""
STOP_SECONDS = 5.0
"""How long a stop waits for a snapshot that is being taken. It bounds a stop."""


Facts = Callable[[], tuple[ApplicationStatus, Sequence[JobRecord]]]
"""Gives the state of an application as far as its driver knows it without looking, and the jobs of its gateways."""


class Observer:
    """Knows the state of one application. Several threads may call :meth:`look`.

    ``files`` is its checkpoint, ``folder`` its folder as the session ``spark`` opens it, ``facts`` gives the facts of
    the application itself.
    """

    def __init__(
        self,
        name: str,
        folder: str,
        spark: Any,
        files: CheckpointFiles,
        gauges: GaugeFile,
        leases: Registry,
        facts: Facts,
    ) -> None:
        self.query = QueryFacts()
        """The facts on the query."""
        self._name, self._folder = name, folder
        self._files, self._gauges, self._leases, self._facts = files, gauges, leases, facts
        self._schemas, self._inbox = SchemaStore(folder, spark), InboxReader(folder, spark)
        self._place = SnapshotFile(folder, spark)
        self._shapes = Shapes()
        self._reports: dict[str, tuple[str, float]] = {}
        self._unread: dict[str, tuple[int, int]] = {}
        self._listed_at = self._written_at = self._looked_at = float("-inf")
        self._committed: int | None = None
        self._last: ApplicationStatus | None = None
        self._failing = ""
        self._lock = threading.Lock()
        self._stopping = threading.Event()
        self._closed = False
        self._thread = threading.Thread(target=self._run, name=f"wallaroo-application-{name}-observer", daemon=True)

    def start(self) -> None:
        """Begin to publish snapshots."""
        self._thread.start()

    def stop(self) -> None:
        """Publish the last snapshot, and end the thread. May be called again."""
        self._stopping.set()
        if self._thread.is_alive() and threading.current_thread() is not self._thread:
            self._thread.join(STOP_SECONDS)
        self._closed = True

    def look(self) -> ApplicationStatus:
        """A snapshot of this moment. Raises nothing but a defect: a part that cannot be read keeps its last figures."""
        with self._lock:
            if self._last is None or not self._closed:
                if self._last is None or time.monotonic() - self._looked_at >= SAME_SECONDS:
                    self._last, self._looked_at = self._look(), time.monotonic()
            else:
                # The registry's connections are closed.
                known, _ = self._facts()
                self._last = with_cause(
                    replace(self._last, running=known.running, driver="", standby="", errors=known.errors)
                )
            return self._last

    def _look(self) -> ApplicationStatus:
        known, jobs = self._facts()
        registry_error, leases, reports = self._ask_registry()
        problems = []
        try:
            committed = self._files.committed()
            self._committed = self._committed if committed is None else committed
            self._list_inbox(committed)
            self._read_schema()
        except WallarooError as error:
            problems.append(error.message)
        keys = {f"{stream}/{number}" for stream, number in self._shapes.keys}
        query = self.query.look(self._committed)
        base = replace(
            known,
            query=query,
            commit_age=None if query.committed_at is None else max(0.0, known.time - query.committed_at),
            gateways=tuple(self._gateway(job, leases, reports, not registry_error) for job in jobs),
            errors=(*known.errors, *problems),
            registry_error=registry_error,
        )
        open_stages = [reports.get(one.gateway, {}).get("open_stages", {}) for one in base.gateways]
        return snapshot(base, self._gauges.sum(keys), self._shapes, open_stages)

    def _ask_registry(self) -> tuple[str, Mapping[int, Lease], Mapping[str, Mapping[str, Any]]]:
        try:
            leases = {number: lease for number, lease in self._leases.leases().items() if lease.connect}
            texts = self._leases.slot_reports()
        except RegistryError as error:
            return error.message, {}, {}
        found = {}
        for text in texts:
            with contextlib.suppress(ValueError, KeyError, TypeError):
                report = json.loads(text)
                name = str(report["gateway"])
                # Clocks of machines differ, so the age is counted from when this process has seen the report first.
                if self._reports.get(name, ("", 0.0))[0] != text:
                    self._reports[name] = text, time.monotonic()
                found[name] = report
        return "", leases, found

    def _list_inbox(self, committed: int | None) -> None:
        now = time.monotonic()
        if now - self._listed_at < (0.0 if self._files.local_folder is not None else SLOW_LOOK_SECONDS):
            return
        self._listed_at = now
        unread = self._inbox.unread(offset_of(self._files, committed).inbox)
        self._unread = {
            gateway: (sum(map(len, files.values())), sum(file.rows for some in files.values() for file in some))
            for gateway, files in unread.items()
        }

    def _read_schema(self) -> None:
        version = self._schemas.seen_version()
        if version and version != self._shapes.version:
            self._shapes = shapes_of(self._schemas.version(version))

    def _gateway(
        self,
        job: JobRecord,
        leases: Mapping[int, Lease],
        reports: Mapping[str, Mapping[str, Any]],
        known: bool,
    ) -> GatewayStatus:
        name = f"g{job.slot}"
        found = gateway_status(job, leases.get(job.slot), known, *self._unread.get(name, (0, 0)))
        if not found.address or name not in reports:
            return found
        return report_of_gateway(found, reports[name], time.monotonic() - self._reports[name][1])

    def _run(self) -> None:
        last = False
        while not last:
            last = self._stopping.wait(LOOK_SECONDS)
            try:
                self._publish(self.look(), last=last)
                self._failing = ""
            except WallarooError as error:
                if error.message != self._failing:
                    log.warning("application %s: its status is not published: %s", self._name, error.message)
                self._failing = error.message

    def _publish(self, status: ApplicationStatus, *, last: bool) -> None:
        text = to_text(status)
        try:
            self._leases.publish_report(text)
        except RegistryError:
            # A status that has this error itself is published in the folder, and seen there.
            if not status.registry_error:
                raise
        finally:
            now = time.monotonic()
            if last or now - self._written_at >= FILE_SECONDS:
                self._place.write(text)
                self._written_at = now


def gateway_status(
    job: JobRecord, lease: Lease | None, known: bool, unread_files: int = 0, unread_events: int = 0
) -> GatewayStatus:
    """A gateway without its report; ``lease`` is None when it holds none, or when that is not ``known``."""
    without = "starting" if known else "unknown"
    return GatewayStatus(
        f"g{job.slot}",
        "serving" if lease is not None else (without if job.running else "down"),
        lease.connect if lease is not None else "",
        submissions=job.submissions,
        unread_files=unread_files,
        unread_events=unread_events,
        last_error=job.last_error,
    )


def shapes_of(schema: StoredSchema) -> Shapes:
    """The shapes of a version of the schema."""
    streams = [one for one in schema.objects.values() if isinstance(one, StreamDeclaration)]
    pipelines = [one for one in schema.objects.values() if isinstance(one, PipelineDeclaration)]
    return Shapes(
        schema.version,
        {one.key.path: one.partitions for one in sorted(streams, key=lambda one: one.key.path)},
        tuple(_shape(one) for one in sorted(pipelines, key=lambda one: one.key.path)),
    )


def _shape(one: PipelineDeclaration) -> PipelineStatus:
    stages = tuple(StageStatus(stage.name, tuple(sorted(stage.predecessors)), bool(stage.run)) for stage in one.stages)
    return PipelineStatus(one.key.path, one.input_key.path, one.max_parallel, stages=stages)
