"""Looks whether the driver's machine knows the time zones of the schedules of each version of the schema."""

from __future__ import annotations

import logging
from collections.abc import Sequence

from wallaroo_spark.engine.source.plan import zone_problems
from wallaroo_spark.errors import one_line
from wallaroo_spark.pipelines.schema.store import SchemaStore

log = one_line(logging.getLogger("wallaroo_spark.engine"))


class ZoneWatch:
    """``application`` names the application in the log. One thread at a time calls :meth:`look`."""

    def __init__(self, schemas: SchemaStore, application: str) -> None:
        self.problems: Sequence[str] = ()
        """A sentence for each schedule of the newest version that has no times on this machine."""
        self._schemas = schemas
        self._version = 0
        self._application = application

    def look(self) -> None:
        """Look at a newer version. An error is logged when it is new. Raises as :class:`SchemaStore` does."""
        newest = self._schemas.seen_version()
        if newest == self._version:
            return
        found = zone_problems(self._schemas.version(newest))
        for problem in found:
            if problem not in self.problems:
                log.error("application %s: %s; everything else goes on", self._application, problem)
        self._version, self.problems = newest, found
