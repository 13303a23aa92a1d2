"""The waits of an owner that starts long jobs: for the registry, for a lock, and for the tasks to serve."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterable
from typing import TypeVar

from wallaroo_spark.errors import ConfigurationError, RegistryError, WallarooError, one_line
from wallaroo_spark.slots.long_jobs import JobRecord

log = one_line(logging.getLogger("wallaroo_spark.slots"))

REGISTRY_SECONDS = 60.0
"""How long the registry may be unreachable while jobs start. A choice: enough for a restart of Redis."""
_ASK_AGAIN_SECONDS = 0.2
"""Pause between two attempts to reach the registry or take a lock. A choice: five requests a second at most."""
_LOOK_AGAIN_SECONDS = 0.05
"""Pause between two looks at the leases of starting tasks. A choice: small beside the seconds that a task takes."""

T = TypeVar("T")


class Patience:
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
            missing = [record for record in records if (record.number, record.submission) not in now]
            if not missing:
                return
            for record in missing:
                if record.permanent:
                    raise ConfigurationError(
                        f"{self._owner}: {task_name} {record.number} cannot start: {record.last_error}",
                        code="workers-not-started",
                        number=record.number,
                    )
            if time.monotonic() > until:
                why = "; ".join(f"{task_name} {record.number}: {record.last_error or 'no error'}" for record in missing)
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
