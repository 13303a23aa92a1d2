"""The sum of the gauges of an application's keys, beside the batches: read at the start, stored before manifests go.

Source: ``docs/pipelines/see.md#where-the-figures-come-from``.
"""

from __future__ import annotations

import contextlib
import json
import threading
from typing import Any

from wallaroo_spark.sidecar.folder import SidecarFolder
from wallaroo_spark.status.application.gauges import GaugeSum
from wallaroo_spark.storage.locations import Location
from wallaroo_spark.streams.batch_outputs.store import BatchOutputs
from wallaroo_spark.streams.places import STATUS

FILE = "gauges.json"


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
            self._folder.write(FILE, text.encode())
            self.stored = found.batch

    def sum(self, keys: set[str] | None = None) -> GaugeSum:
        """A copy of the sum; of the keys in ``keys`` alone, and the others are forgotten."""
        found = self._read()
        with self._lock:
            if keys is not None:
                found.forget(keys)
            return GaugeSum.from_json(found.to_json())

    def _read(self) -> GaugeSum:
        with self._lock:
            if self._sum is None:
                data, self._sum = self._folder.read(FILE), GaugeSum()
                # A damaged file costs the counts since the beginning, and nothing that anybody relies on.
                with contextlib.suppress(ValueError, KeyError, TypeError):
                    self._sum = GaugeSum.from_json(json.loads(data)) if data is not None else GaugeSum()
                self.stored = self._sum.batch
            return self._sum
