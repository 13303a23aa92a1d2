"""What the owner of long jobs waits for as it starts them: the registry, a lock, tasks that serve."""

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
"""How long a registry that was there may be away while jobs start."""
_ASK_AGAIN_SECONDS = 0.2
_LOOK_AGAIN_SECONDS = 0.05

T = TypeVar("T")


class Patience:
    """What the owner of long jobs waits for as it starts them, until somebody sets ``stopping``.

    ``owner`` names it. Every wait raises :class:`ConfigurationError` once ``stopping`` is set.
    """

    def __init__(self, owner: str) -> None:
        self.stopping = threading.Event()
        self._owner = owner

    def ask(self, question: Callable[[], T]) -> T:
        """Ask the registry; one that was there and is away now must not end a start that can wait for it."""
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
        """Take a lock. An owner that was killed holds its locks until they run out, so that is waited for."""
        until = time.monotonic() + lease_seconds + 1
        while not self.ask(take):
            if time.monotonic() > until:
                raise refusal()
            self._pause(_ASK_AGAIN_SECONDS)

    def await_served(
        self, what: str, records: Iterable[JobRecord], served: Callable[[], set[tuple[int, int]]], seconds: float
    ) -> None:
        """Wait until each job's submission is among the (number, submission) that the registry says are served."""
        until = time.monotonic() + seconds
        while True:
            # Leases of jobs that were killed last a while longer: only these submissions count.
            now = self.ask(served)
            missing = [record for record in records if (record.number, record.submission) not in now]
            if not missing:
                return
            for record in missing:
                if record.permanent:
                    raise ConfigurationError(
                        f"{self._owner}: {what} {record.number} cannot start: {record.last_error}",
                        number=record.number,
                    )
            if time.monotonic() > until:
                why = "; ".join(f"{what} {record.number}: {record.last_error or 'no error'}" for record in missing)
                raise ConfigurationError(
                    f"{self._owner}: its {what}s did not come up within {seconds:g} seconds: {why}"
                )
            self._pause(_LOOK_AGAIN_SECONDS)

    def _pause(self, seconds: float) -> None:
        if self.stopping.wait(seconds):
            raise ConfigurationError(f"{self._owner} was stopped while it was starting; start it again")
