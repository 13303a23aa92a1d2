"""The rounds of a driver that runs long jobs under a name: it renews the lock of the name, and looks at the leases.

Topics and applications have this in common. Source: ``docs/architecture.md#rules``, rules 4 and 8.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Mapping
from typing import Protocol

from wallaroo_spark.errors import ConfigurationError, WallarooError, one_line
from wallaroo_spark.slots.long_jobs import LongJobs, SubmissionLease
from wallaroo_spark.slots.patience import Patience

log = one_line(logging.getLogger("wallaroo_spark.slots"))

LONGEST_PAUSE = 1.0
"""The most seconds between two rounds. A choice: what the registry has lost is there again after so long."""
STOP_SECONDS = 10.0
"""Limit of the wait for the last round, in seconds. A choice: longer than a request to a registry that does not answer.
"""


class LockingRegistry(Protocol):
    """The part of the registry that the rounds use."""

    def lock(self, name: str, owner: str, seconds: float) -> bool:
        """Take a lock, or renew it; False when another owner has it."""

    def locked_by(self, name: str) -> str | None:
        """The owner of a lock."""

    def leases(self) -> Mapping[int, SubmissionLease]:
        """The live leases of the jobs, by number."""


class Restartable(Protocol):
    """A registry of this process, which is started again when it has ended."""

    @property
    def running(self) -> bool:
        """Whether it runs."""

    def start(self) -> str:
        """Start it."""


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
        patience: Patience,
        embedded: Restartable | None,
        in_use: Callable[[], ConfigurationError],
    ) -> None:
        self.error = ""
        """The error of the last round; empty when it succeeded."""
        self._who, self._lock, self._owner = who, lock, owner
        self._lease_seconds = lease_seconds
        self._patience = patience
        self._embedded = embedded
        self._in_use = in_use
        self._over = threading.Event()
        self._thread: threading.Thread | None = None

    def take(self, registry: LockingRegistry) -> None:
        """Take the lock, waiting one lease time for that of a killed driver.

        Raises the error of ``in_use``, and :class:`wallaroo_spark.errors.RegistryError`.
        """
        seconds = self._lease_seconds
        self._patience.hold(lambda: registry.lock(self._lock, self._owner, seconds), seconds, self._in_use)

    def renew(self, registry: LockingRegistry, jobs: LongJobs | None) -> None:
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
        """Call ``work`` at least once a second until ``stopping`` of the patience is set, or :meth:`end` is called.

        Its errors are logged once, kept in :attr:`error`, and the call is repeated. ``lost`` is called with a
        :class:`ConfigurationError`, such as that of a name that is in use.
        """
        self.error = ""
        self._over.clear()
        self._thread = threading.Thread(
            target=self._run, args=(work, lost), name=f"wallaroo-{self._who.replace(' ', '-')}", daemon=True
        )
        self._thread.start()

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
        while not self._patience.stopping.wait(pause) and not self._over.is_set():
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
            self.error = failure
