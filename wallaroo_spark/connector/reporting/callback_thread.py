"""The thread in which a BlockingConnector calls back, so that a callback may use the connector and may take long."""

from __future__ import annotations

import logging
import threading
from collections import deque

from wallaroo_spark.connector.reporting.deliveries import Delivery, OnDelivery, call
from wallaroo_spark.errors import one_line

_log = one_line(logging.getLogger("wallaroo_spark.connector"))

MOST_WAITING = 100_000
"""Callbacks that may wait for slower ones before sends with a callback wait, too. A choice that bounds memory: some
30 MB."""

FINISH_SECONDS = 15.0
"""Limit in seconds of the wait for callbacks when the connector closes. A choice: that of closing the connection."""


class CallbackThread:
    """A daemon thread that calls callbacks one after another, in order. It starts with the first callback."""

    def __init__(self) -> None:
        self._due: deque[tuple[OnDelivery, Exception | None, Delivery]] = deque()
        self._condition = threading.Condition()
        self._thread: threading.Thread | None = None
        self._calling = False
        self._finishing = False

    @property
    def inside(self) -> bool:
        """Whether this is called from the thread itself."""
        return threading.current_thread() is self._thread

    def put(self, callback: OnDelivery, error: Exception | None, delivery: Delivery) -> None:
        """Call a callback behind the others; never waits."""
        with self._condition:
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="wallaroo-callbacks", daemon=True)
                self._thread.start()
            self._due.append((callback, error, delivery))
            self._condition.notify_all()

    def admit(self) -> None:
        """Wait while too many callbacks wait; not in a callback, which would wait for itself."""
        if len(self._due) < MOST_WAITING or self.inside:
            return
        with self._condition:
            self._condition.wait_for(lambda: len(self._due) < MOST_WAITING or self._finishing)

    def settle(self, seconds: float | None) -> bool:
        """Wait until all callbacks were called, at most so long; not in a callback. Returns whether they were."""
        if self.inside:
            return True
        with self._condition:
            return self._condition.wait_for(lambda: not self._due and not self._calling, seconds)

    def finish(self) -> None:
        """End the thread behind the callbacks that are due. One that takes too long is logged and left behind."""
        if not self.settle(FINISH_SECONDS):
            _log.warning(
                "an on_delivery callback has taken more than %g seconds while the connector closed; %d callbacks "
                "behind it may not be called",
                FINISH_SECONDS,
                len(self._due),
            )
        with self._condition:
            self._finishing = True
            self._condition.notify_all()

    def _run(self) -> None:
        while True:
            with self._condition:
                self._calling = False
                self._condition.notify_all()
                self._condition.wait_for(lambda: self._due or self._finishing)
                if not self._due:
                    self._thread = None
                    return
                one = self._due.popleft()
                self._calling = True
            call(*one)
