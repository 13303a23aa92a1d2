"""Takes snapshots of a running receiver or application in a thread of its own: often while a browser shows the page,
and seldom otherwise.

Browsers read the newest snapshot, so the cost for the workers does not grow with the number of browsers.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from http import HTTPStatus
from typing import Any, Generic, TypeVar

from wallaroo_spark.errors import one_line
from wallaroo_spark.observe.faces.page import document
from wallaroo_spark.observe.receiver import ReceiverStatus
from wallaroo_spark.observe.record import KeptRecord, RunRecord
from wallaroo_spark.observe.server.messages import Request, Response

log = one_line("wallaroo_spark.observe")

WATCHED_SECONDS = 1.0
"""Interval of the snapshots while a browser shows the page."""
UNWATCHED_SECONDS = 5.0
"""Interval while no browser shows the page; these snapshots are for the run report and the page's history."""
WATCHING_SECONDS = 15.0
"""Seconds after its last request for which a browser counts as watching. A choice: it sends one request a second."""
SHARE = 10
"""An interval is at least this multiple of the time that the last snapshot took, so that snapshots take only a small
part of a large fleet's time."""
PATIENCE_SECONDS = 5.0
"""The least age from which a snapshot counts as old. A choice: a person watches a snapshot a second."""
FIRST_SECONDS = 5.0
"""How long a request waits for the first snapshot. A choice: less than a browser's patience."""
STOP_SECONDS = 5.0
"""How long a stop waits for a snapshot that is being taken. A choice that bounds a stop."""


R = TypeVar("R", bound=KeptRecord[Any])


class PageMonitor(Generic[R]):
    """Keeps the record of one run, from :meth:`start` to :meth:`stop`. Several threads may call its methods.

    ``sample`` takes one snapshot; ``name`` is the name for people, such as ``receiver orders``; ``document`` makes the
    JSON that the page shows from ``record``.
    """

    def __init__(
        self, sample: Callable[[], Any], name: str, record: R, document: Callable[..., dict[str, Any]]
    ) -> None:
        self._sample = sample
        self._name = name
        self._record = record
        self._document = document
        self._lock = threading.Lock()
        self._wake = threading.Event()
        self._first = threading.Event()
        self._stopping = False
        self._asked_at = float("-inf")
        self._taken_at = float("-inf")
        self._interval = WATCHED_SECONDS
        self._failing = False
        self._thread = threading.Thread(
            target=self._run, name=f"wallaroo-{name.replace(' ', '-')}-monitor", daemon=True
        )

    def start(self) -> None:
        """Begin to take snapshots."""
        self._thread.start()

    def stop(self) -> None:
        """Take no more snapshots. The record stays. May be called again."""
        self._stopping = True
        self._wake.set()
        if self._thread.is_alive() and threading.current_thread() is not self._thread:
            self._thread.join(STOP_SECONDS)

    def read(self, reader: Callable[[R], str]) -> str:
        """Call ``reader`` with the record while no snapshot is added, and return its text."""
        with self._lock:
            return reader(self._record)

    def look(self) -> None:
        """Take a snapshot now, in the caller's thread. Raises nothing."""
        begun = time.monotonic()
        try:
            status = self._sample()
        except Exception as error:
            # The page then shows that its figures are old.
            if not self._failing:
                log.warning("%s: the status page has no new figures: %s", self._name, error)
            self._failing = True
        else:
            self._failing = False
            with self._lock:
                self._record.add(status)
                self._taken_at = time.monotonic()
            self._first.set()
        finally:
            watched = begun - self._asked_at < WATCHING_SECONDS
            least = WATCHED_SECONDS if watched else UNWATCHED_SECONDS
            self._interval = max(least, SHARE * (time.monotonic() - begun))

    def answer(self, request: Request) -> Response:
        """The response of the JSON that the page shows."""
        now = time.monotonic()
        unwatched, self._asked_at = now - self._asked_at > WATCHING_SECONDS, now
        if unwatched:
            self._wake.set()
        if not self._first.wait(FIRST_SECONDS):
            return Response.text("there is no snapshot yet; ask again", HTTPStatus.SERVICE_UNAVAILABLE)
        with self._lock:
            age = time.monotonic() - self._taken_at
            patience = max(PATIENCE_SECONDS, 2 * self._interval)
            shown = self._document(self._record, age=age, patience=patience, query=request.query)
        return Response.json(shown)

    def _run(self) -> None:
        while not self._stopping:
            self.look()
            self._wake.wait(self._interval)
            self._wake.clear()


class Monitor(PageMonitor[RunRecord]):
    """The monitor of a receiver."""

    def __init__(self, sample: Callable[[], ReceiverStatus], name: str) -> None:
        """``sample`` takes one snapshot; ``name`` is the receiver's name."""
        super().__init__(sample, f"receiver {name}", RunRecord(), document)

    def settle(self) -> None:
        """Count the rows that were committed since the last snapshot, and keep nothing else. Raises nothing.

        It is called while the receiver stops, when its state no longer has a meaningful cause.
        """
        try:
            status = self._sample()
        except Exception as error:
            log.debug("%s: no last figures: %s", self._name, error)
            return
        with self._lock:
            self._record.count(status)
