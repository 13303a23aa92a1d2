"""Looks whether the driver can run the newest version of the schema: its functions and its time zones.

Source: ``docs/pipelines/engine.md#functions-of-stages``.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence

from wallaroo_spark.engine.application.checks import declared_functions, import_errors, problems
from wallaroo_spark.engine.source.plan import zone_problems
from wallaroo_spark.errors import one_line
from wallaroo_spark.pipelines.schema.store import SchemaStore, StoredSchema

log = one_line(logging.getLogger("wallaroo_spark.engine"))

AGAIN_SECONDS = 10.0
"""Seconds between two attempts to import functions that could not be imported: an import may read files."""

_INSTALL = "; install the function's package, or correct `run` of the stage and apply the schema again"


class SchemaWatch:
    """Follows the versions of the schema; ``application`` names the application in the log.

    One thread at a time calls :meth:`look`.
    """

    def __init__(self, schemas: SchemaStore, application: str, clock: Callable[[], float] = time.monotonic) -> None:
        self.problems: Sequence[str] = ()
        """A sentence for each function that cannot be imported, and each schedule that has no times on this machine."""
        self._schemas = schemas
        self._application = application
        self._clock = clock
        self._schema = StoredSchema()
        self._looked = clock()

    def look(self) -> None:
        """Look at a newer version, and from time to time again at functions that could not be imported.

        A problem is logged when it is new. Raises as :class:`SchemaStore` does.
        """
        newest = self._schemas.seen_version()
        if newest != self._schema.version:
            self._schema = self._schemas.version(newest)
        elif not self.problems or self._clock() < self._looked + AGAIN_SECONDS:
            return
        self._looked = self._clock()
        declared = declared_functions(self._schema.objects)
        errors = import_errors(one.function for one in declared)
        remedies = dict.fromkeys(problems(declared, "the driver", errors), _INSTALL)
        remedies.update(dict.fromkeys(zone_problems(self._schema), ""))
        found = tuple(remedies)
        for problem in found:
            if problem not in self.problems:
                text = f"{problem}{remedies[problem]}; everything else goes on"
                log.error("application %s, version %d of its schema: %s", self._application, newest, text)
        if self.problems and not found:
            log.info("application %s: all functions and time zones of its schema are there now", self._application)
        self.problems = found
