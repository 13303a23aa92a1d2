"""The figures of an application that are stored: its newest snapshot, in its folder and in the registry, and the sum of
the gauges of its keys.

Reading needs no Spark and nothing of the application. Source: ``docs/pipelines/see.md#the-status``.
"""

from __future__ import annotations

import contextlib
import json
import threading
import time
from dataclasses import replace
from typing import Any

from wallaroo_spark.errors import CheckpointError, RegistryError
from wallaroo_spark.observe.application import ApplicationStatus
from wallaroo_spark.observe.causes import with_cause
from wallaroo_spark.observe.faces.as_json import SCHEMA, record_from_json, record_to_json
from wallaroo_spark.observe.gauges import GaugeSum
from wallaroo_spark.registry import application_registry
from wallaroo_spark.sidecar.folder import SidecarFolder
from wallaroo_spark.storage.locations import Location
from wallaroo_spark.streams.batch_outputs import BatchOutputs
from wallaroo_spark.streams.places import STATUS

FILE = "snapshot.json"
"""The file in the folder ``_wallaroo/status``."""
FILE_SECONDS = 5.0
"""Seconds between two writes of the file. A choice: a write waits for the disk."""
OLD_SECONDS = 4 * FILE_SECONDS
"""Age from which a snapshot in a folder is that of a driver which has ended. A choice: some writes may be late."""
LOCK = "driver"
"""The name of the lock in the registry that the driver of an application holds."""


def to_text(status: ApplicationStatus) -> str:
    """A snapshot as JSON."""
    return json.dumps(to_json(status), separators=(",", ":"))


def to_json(status: ApplicationStatus) -> dict[str, Any]:
    """A snapshot as JSON-ready values, with the version of the schema as ``format``."""
    return {"format": SCHEMA, **record_to_json(status)}


def from_text(text: str | bytes) -> ApplicationStatus:
    """A snapshot from its JSON. Raises ``ValueError`` for anything else, and for another version."""
    value = json.loads(text)
    if not isinstance(value, dict) or value.get("format") != SCHEMA:
        raise ValueError("it is not a snapshot that this release reads")
    return record_from_json(ApplicationStatus, value)


class SnapshotFile:
    """The snapshot in an application's folder, as the session ``spark`` opens it. Methods raise
    :class:`CheckpointError`."""

    def __init__(self, folder: Location, spark: Any = None) -> None:
        self._folder = SidecarFolder(folder, STATUS, spark=spark)

    def write(self, text: str) -> None:
        """Replace the file."""
        self._folder.write(FILE, text.encode())

    def read(self) -> ApplicationStatus | None:
        """The snapshot; None without one."""
        data = self._folder.read(FILE)
        try:
            return None if data is None else from_text(data)
        except (ValueError, KeyError, TypeError) as error:
            raise CheckpointError(
                f"{self._folder.identity}/{FILE} cannot be read: {error}; delete it: the driver writes it again",
                code="checkpoint-damaged",
                file=FILE,
            ) from error


def in_folder(folder: str) -> ApplicationStatus:
    """The newest snapshot in a folder; an old one is shown as that of an application that does not run.

    Raises :class:`CheckpointError` when the folder cannot be read.
    """
    found = SnapshotFile(folder).read()
    if found is None:
        found = ApplicationStatus(folder.rstrip("/").rpartition("/")[2], time.time(), folder)
    age = time.time() - found.time
    return _alive(found, age <= OLD_SECONDS, age - FILE_SECONDS)


def in_registry(url: str, application: str, attempts: int) -> ApplicationStatus:
    """The newest snapshot in the registry at ``url``. Raises :class:`RegistryError` when it does not answer."""
    with application_registry(url, application, attempts=attempts) as registry:
        text, owner = registry.report(), registry.locked_by(LOCK)
    try:
        found = ApplicationStatus(application, time.time()) if text is None else from_text(text)
    except (ValueError, KeyError, TypeError) as error:
        raise RegistryError(
            f"the report of application {application!r} cannot be read: {error}; use the release of its driver",
            code="registry-answer",
        ) from error
    return _alive(found, owner is not None, time.time() - found.time)


def _alive(found: ApplicationStatus, alive: bool, age: float) -> ApplicationStatus:
    """A snapshot that is so old, in seconds, and whose driver lives or not."""
    if alive or not found.running:
        return with_cause(replace(found, round_age=max(found.round_age or 0.0, age)))
    gateways = tuple(replace(one, state="unknown", address="") for one in found.gateways)
    return with_cause(replace(found, running=False, driver="", standby="", gateways=gateways))


GAUGES = "gauges.json"


class GaugeFile:
    """Follows the manifests of committed batches. The methods for writing are for one thread at a time.

    ``folder`` is the application's folder as the session ``spark`` opens it. Methods raise
    :class:`wallaroo_spark.errors.CheckpointError` when files cannot be read or written; they can be repeated.
    """

    def __init__(self, folder: Location, spark: Any = None) -> None:
        self._outputs = BatchOutputs(folder, spark)
        self._folder = SidecarFolder(folder, STATUS, spark=spark)
        self._lock = threading.Lock()
        self._sum: GaugeSum | None = None
        self.stored = -1
        """The newest batch that the file contains; -1 before the first."""

    def follow(self, committed: int) -> None:
        """Add the manifests of the batches up to ``committed``."""
        found = self._read()
        # Earlier manifests are deleted: a restored or an older folder has no gauges of them.
        first = max(found.batch + 1, self._outputs.kept_from())
        for batch in range(first, committed + 1):
            manifest = self._outputs.manifest(batch)
            with self._lock:
                found.add(batch, {} if manifest is None else manifest.gauges)

    def store(self) -> None:
        """Write the file, unless nothing has changed."""
        found = self._read()
        if found.batch > self.stored:
            with self._lock:
                text = json.dumps(found.to_json(), separators=(",", ":"))
            self._folder.write(GAUGES, text.encode())
            self.stored = found.batch

    def sum(self, keys: set[str] | None = None) -> GaugeSum:
        """A copy of the sum; of the keys in ``keys`` alone, and the others are forgotten."""
        found = self._read()
        with self._lock:
            if keys is not None:
                found.forget(keys)
            return replace(found, keys=dict(found.keys))

    def _read(self) -> GaugeSum:
        with self._lock:
            if self._sum is None:
                data, self._sum = self._folder.read(GAUGES), GaugeSum()
                # A damaged file costs the counts since the beginning, and nothing that anybody relies on.
                with contextlib.suppress(ValueError, KeyError, TypeError):
                    self._sum = GaugeSum.from_json(json.loads(data or b"{}"))
                self.stored = self._sum.batch
            return self._sum
