"""The waits and the rounds of a driver that runs long jobs under a name.

It waits for the registry, for the lock of the name, and for the tasks to serve; then it renews the lock, and looks at
the leases, in rounds. Source: ``docs/architecture.md#rules``, rules 4 and 8.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterable
from typing import TypeVar

from wallaroo_spark.errors import ConfigurationError, RegistryError, WallarooError, one_line
from wallaroo_spark.registry import EmbeddedRedis, Registry
from wallaroo_spark.runtime.long_jobs import JobRecord, LongJobs

log = one_line(logging.getLogger("wallaroo_spark.runtime"))

REGISTRY_SECONDS = 60.0
"""How long the registry may be unreachable while jobs start. A choice: enough for a restart of Redis."""
_ASK_AGAIN_SECONDS = 0.2
"""Pause between two attempts to reach the registry or take a lock. A choice: five requests a second at most."""
_LOOK_AGAIN_SECONDS = 0.05
"""Pause between two looks at the leases of starting tasks. A choice: small beside the seconds that a task takes."""

T = TypeVar("T")


class Waits:
    """The waits of an owner that starts long jobs. Each one has a time limit.

    ``owner`` names the owner in messages, such as ``receiver 'orders'``. Every wait also ends when somebody sets
    ``stopping``: it then raises :class:`ConfigurationError`.
    """

    def __init__(self, owner: str) -> None:
        self.stopping = threading.Event()
        self._owner = owner

    def ask(self, question: Callable[[], T]) -> T:
        """Call the registry and return its answer; repeat the call while the registry does not answer.

        Raises the last :class:`RegistryError` after :data:`REGISTRY_SECONDS`.
        """
        until = time.monotonic() + REGISTRY_SECONDS
        while True:
            try:
                return question()
            except RegistryError as error:
                if time.monotonic() > until:
                    raise
                log.warning("%s waits for its registry: %s", self._owner, error)
            self._pause(_ASK_AGAIN_SECONDS)

    def hold(self, take: Callable[[], bool], lease_seconds: float, refusal: Callable[[], WallarooError]) -> None:
        """Take a lock, waiting one lease time, because the lock of a killed owner remains until it expires.

        ``take`` tries once and returns whether it has the lock. Raises the error that ``refusal`` makes when another
        owner still has the lock after ``lease_seconds`` and one second more.
        """
        until = time.monotonic() + lease_seconds + 1
        while not self.ask(take):
            if time.monotonic() > until:
                raise refusal()
            self._pause(_ASK_AGAIN_SECONDS)

    def await_served(
        self, task_name: str, records: Iterable[JobRecord], served: Callable[[], set[tuple[int, int]]], seconds: float
    ) -> None:
        """Wait until the task of each job's last submission serves.

        ``task_name`` names a task in messages. ``served`` returns the (number, submission) of the live leases. Raises
        :class:`ConfigurationError` at once when a job failed permanently, and otherwise after ``seconds``.
        """
        until = time.monotonic() + seconds
        while True:
            # Leases of killed jobs may still be live, so the submissions are compared, too.
            now = self.ask(served)
            missing = [record for record in records if (record.slot, record.submission) not in now]
            if not missing:
                return
            for record in missing:
                if record.permanent:
                    raise ConfigurationError(
                        f"{self._owner}: {task_name} {record.slot} cannot start: {record.last_error}",
                        code="workers-not-started",
                        number=record.slot,
                    )
            if time.monotonic() > until:
                why = "; ".join(f"{task_name} {record.slot}: {record.last_error or 'no error'}" for record in missing)
                raise ConfigurationError(
                    f"{self._owner}: its {task_name}s did not start within {seconds:g} seconds: {why}",
                    code="workers-not-started",
                )
            self._pause(_LOOK_AGAIN_SECONDS)

    def _pause(self, seconds: float) -> None:
        if self.stopping.wait(seconds):
            raise ConfigurationError(
                f"{self._owner} was stopped while it was starting; start it again", code="receiver-busy"
            )


LONGEST_PAUSE = 1.0
"""The most seconds between two rounds. A choice: what the registry has lost is there again after so long."""
STOP_SECONDS = 10.0
"""Limit of the wait for the last round, in seconds. A choice: longer than a request to a registry that does not answer.
"""


class DriverRounds:
    """Keeps the lock of a driver's name, and watches the leases of its jobs, in a thread of its own.

    ``who`` names the driver in the log, such as ``topic orders``. ``lock`` is the name of the lock, ``owner`` the
    driver that takes it, ``in_use`` makes the error for a lock that another driver has.
    """

    def __init__(
        self,
        who: str,
        lock: str,
        owner: str,
        lease_seconds: float,
        waits: Waits,
        embedded: EmbeddedRedis | None,
        in_use: Callable[[], ConfigurationError],
    ) -> None:
        self.error = ""
        """The error of the last round; empty when it succeeded."""
        self._who, self._lock, self._owner = who, lock, owner
        self._lease_seconds = lease_seconds
        self._waits = waits
        self._embedded = embedded
        self._in_use = in_use
        self._over = threading.Event()
        self._round_at: float | None = None
        self._thread: threading.Thread | None = None

    def take(self, registry: Registry) -> None:
        """Take the lock, waiting one lease time for that of a killed driver.

        Raises the error of ``in_use``, and :class:`wallaroo_spark.errors.RegistryError`.
        """
        seconds = self._lease_seconds
        self._waits.hold(lambda: registry.lock(self._lock, self._owner, seconds), seconds, self._in_use)

    def renew(self, registry: Registry, jobs: LongJobs | None) -> None:
        """One round: start the registry of this process again if it has ended, and renew the lock.

        When another driver has the lock, ``jobs`` are not submitted again and the error of ``in_use`` is raised: two
        drivers that keep taking the leases from each other would serve nobody, so the one that has lost the lock ends.
        """
        if self._embedded is not None and not self._embedded.running:
            self._embedded.start()
        if not registry.lock(self._lock, self._owner, self._lease_seconds):
            if jobs is not None:
                jobs.expect_end()
            raise self._in_use()

    def start(self, work: Callable[[], None], lost: Callable[[ConfigurationError], None] = lambda error: None) -> None:
        """Call ``work`` at least once a second until ``stopping`` of the waits is set, or :meth:`end` is called.

        Its errors are logged once, kept in :attr:`error`, and the call is repeated. ``lost`` is called with a
        :class:`ConfigurationError`, such as that of a name that is in use.
        """
        self.error = ""
        self._over.clear()
        self._round_at = time.monotonic()
        self._thread = threading.Thread(
            target=self._run, args=(work, lost), name=f"wallaroo-{self._who.replace(' ', '-')}", daemon=True
        )
        self._thread.start()

    @property
    def age(self) -> float | None:
        """Seconds since the last round ended; None while there are none."""
        at = self._round_at
        return None if at is None or self._over.is_set() else time.monotonic() - at

    def end(self) -> None:
        """Begin no further round. It does not wait."""
        self._over.set()

    def join(self) -> None:
        """Wait until the last round is over."""
        thread, self._thread = self._thread, None
        if thread is not None and thread is not threading.current_thread():
            thread.join(STOP_SECONDS)

    def _run(self, work: Callable[[], None], lost: Callable[[ConfigurationError], None]) -> None:
        pause = min(LONGEST_PAUSE, self._lease_seconds / 3)
        while not self._waits.stopping.wait(pause) and not self._over.is_set():
            failure = ""
            try:
                work()
            except WallarooError as error:
                if isinstance(error, ConfigurationError):
                    lost(error)
                if self._over.is_set():
                    return
                failure = error.message
                if failure != self.error:
                    log.warning("%s: an update of the registry failed and is retried: %s", self._who, failure)
            self.error, self._round_at = failure, time.monotonic()
