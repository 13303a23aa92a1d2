"""The newest snapshot of an application as its driver has published it: in the folder, and in the registry.

Reading needs no Spark and nothing of the application. Source: ``docs/pipelines/see.md#the-status``.
"""

from __future__ import annotations

import json
import time
from dataclasses import replace
from typing import Any

from wallaroo_spark.errors import CheckpointError, RegistryError
from wallaroo_spark.registry import application_registry
from wallaroo_spark.sidecar.folder import SidecarFolder
from wallaroo_spark.status.application.cause import with_cause
from wallaroo_spark.status.application.model import ApplicationStatus
from wallaroo_spark.status.schema import SCHEMA, record_from_json, record_to_json
from wallaroo_spark.storage.locations import Location
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
    return _alive(found, time.time() - found.time <= OLD_SECONDS)


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
    return _alive(found, owner is not None)


def _alive(found: ApplicationStatus, alive: bool) -> ApplicationStatus:
    if alive or not found.running:
        return with_cause(found)
    gateways = tuple(replace(one, state="unknown", address="") for one in found.gateways)
    return with_cause(replace(found, running=False, driver="", gateways=gateways))
