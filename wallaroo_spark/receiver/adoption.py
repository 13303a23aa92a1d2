"""Adoption: a receiver that feeds no query follows one that Spark's own ``.start()`` began.

The sources of a query wait at their first call until the receiver has looked at the running queries and has either
adopted one of them or told why not. Source: ``docs/decisions/any-query.md``.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Any

from wallaroo_spark.errors import RegistryError, WallarooError, one_line
from wallaroo_spark.receiver.spark_queries import RunningQueries, RunningQuery
from wallaroo_spark.registry import NO_QUERY

log = one_line("wallaroo_spark.receiver")

LOOK_SECONDS = 0.2
"""Pause between two looks. A choice: a query takes seconds to start, and a look some calls to Java."""
PUBLISHED_SECONDS = 5.0
"""For how long after a change each look is published, because sources of a new query wait for it; later looks are
published with the driver's rounds. A choice: the process of a source starts in less."""
_JOIN_SECONDS = 5.0
"""The longest wait for the end of the thread. A choice."""
_BUSY = "receiver-busy"
"""The code of the error for a receiver that is starting or stopping, which passes."""
_UNREACHABLE = (
    "Spark Connect does not tell a client where the checkpoint of a running query is, so this receiver cannot follow a "
    "query that it did not start; run the receiver in the driver of the Connect server (docs/connect.md)"
)


class Adopter:
    """A thread that looks for a query to adopt while the receiver feeds none.

    ``state`` returns the field ``query`` of the fleet's record. ``reads`` returns whether a query reads this very
    receiver. ``adopt`` adopts a query; it raises :class:`WallarooError`, and returns False when the receiver is busy.
    ``publish`` renews the driver's entries in the registry, the fleet's record among them; it raises when another
    driver has the receiver's name.
    """

    def __init__(
        self,
        name: str,
        spark: Any,
        state: Callable[[], str],
        reads: Callable[[RunningQuery], bool],
        adopt: Callable[[RunningQuery], bool],
        publish: Callable[[], None],
    ) -> None:
        self.looked = 0.0
        """When the last look that was completed began, in seconds since 1970."""
        self.refused = ""
        """Why the queries that run and read the receiver were not adopted; empty when there are none."""
        self._name = name
        self._queries = RunningQueries(spark)
        self._state, self._reads, self._adopt, self._publish = state, reads, adopt, publish
        self._refusals: dict[str, str] = {}
        self._shown: tuple[str, str] = ("", "")
        self._changed_at = 0.0
        self._failure = ""
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name=f"wallaroo-adopt-{name}", daemon=True)

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def stop(self) -> None:
        """End the thread."""
        self._stopping.set()
        if self._thread.is_alive():
            self._thread.join(_JOIN_SECONDS)

    def _run(self) -> None:
        while not self._stopping.wait(LOOK_SECONDS):
            try:
                self.look()
                self._failure = ""
            except Exception as error:
                # The next look repeats it: until then no query is adopted, and its sources wait.
                if str(error) != self._failure and not self._stopping.is_set():
                    log.warning("receiver %s: looking for a query failed, and is repeated: %s", self._name, error)
                self._failure = str(error)

    def look(self) -> None:
        """Adopt a query, if the receiver feeds none and one that reads it runs."""
        began = time.time()
        if self._state() == NO_QUERY and not self._adopted():
            return
        self.looked = began
        shown = self._state(), self.refused
        if shown != self._shown:
            self._shown, self._changed_at = shown, time.monotonic()
        if time.monotonic() - self._changed_at < PUBLISHED_SECONDS:
            self._publish()

    def _adopted(self) -> bool:
        """Whether this look is complete: False if the receiver was busy, or its registry away."""
        if not self._queries.visible:
            self.refused = _UNREACHABLE
            return True
        running = [query for query in self._queries.look() if self._reads(query)]
        self._refusals = {query.run: self._refusals[query.run] for query in running if query.run in self._refusals}
        for query in running:
            if query.run in self._refusals:
                continue
            try:
                if not self._adopt(query):
                    return False
            except WallarooError as error:
                if isinstance(error, RegistryError) or error.code == _BUSY:
                    raise
                log.warning("receiver %s does not adopt %s: %s", self._name, query, error.message)
                self._refusals[query.run] = f"{query} was not adopted: {error.message}"
            else:
                log.info("receiver %s follows %s, whose checkpoint is %s", self._name, query, query.checkpoint)
                self._refusals = {}
                break
        self.refused = "; ".join(self._refusals.values())
        return True
