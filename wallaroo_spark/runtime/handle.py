"""The driver's handle of long jobs that run under a name: a receiver, a topic and an application are such handles.

Source: ``docs/architecture.md#the-fleet`` and ``docs/architecture.md#rules``, rules 4 and 8.
"""

from __future__ import annotations

import contextlib
import logging
import os
import socket
import threading
import uuid
from collections.abc import Callable, Sequence
from types import TracebackType
from typing import Any, ClassVar, Self

from wallaroo_spark.errors import ConfigurationError, RegistryError, one_line
from wallaroo_spark.options import resolve_secret
from wallaroo_spark.registry import EmbeddedRedis, Lease, Registry
from wallaroo_spark.runtime.long_jobs import LongJobs, Work
from wallaroo_spark.runtime.rounds import DriverRounds, Waits

log = one_line(logging.getLogger("wallaroo_spark.runtime"))

SERVED_SECONDS = 120.0
"""How long the tasks may take to serve, when a cluster may first have to start executors for them.

A choice, not a measurement: it bounds a start that cannot succeed.
"""
STOP_SECONDS = 20.0
"""How long the jobs may take to end by themselves before they are interrupted.

A choice: longer than the limit of each service for the good end of its connections (3 to 8 s), plus the time until it
sees that its lease is gone.
"""


class DriverHandle:
    """Runs long jobs under a name that one driver has at a time, from :meth:`start` to :meth:`stop`.

    ``spark`` is the session, ``registry`` the registry's URL, or ``embedded``. A subclass begins in :meth:`_begin`,
    with :meth:`_take_name`, :meth:`_make_jobs` and :meth:`_await_jobs`, and names the steps of its end in
    :meth:`_ends`.
    """

    KIND: ClassVar[str]
    """What the handle is, such as ``receiver``."""
    TASK: ClassVar[str]
    """What each of its tasks is, such as ``worker``."""
    LOCK: ClassVar[str]
    """The lock of the name in the handle's registry."""

    def __init__(self, name: str, spark: Any, registry: str, lease_seconds: float) -> None:
        self.name = name
        self.owner = f"{socket.gethostname()}/{os.getpid()}/{uuid.uuid4().hex[:8]}"
        self._spark = spark
        self._given_registry = registry
        self._embedded = EmbeddedRedis() if registry == "embedded" else None
        self._lease_seconds = lease_seconds
        self._leases: Registry | None = None
        """The registry of the jobs; None while the handle is not started."""
        self._jobs: LongJobs | None = None
        self._lifecycle = threading.RLock()
        self._waits = Waits(f"{self.KIND} {name!r}")
        self._rounds = DriverRounds(
            f"{self.KIND} {name}", self.LOCK, self.owner, lease_seconds, self._waits, self._embedded, self._name_in_use
        )

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.name!r})"

    @property
    def registry_url(self) -> str:
        """The registry's URL, which other programs need; it may contain a password.

        That of an embedded registry works only on this machine, and once the handle has started.
        """
        return self._embedded.url if self._embedded else resolve_secret(self._given_registry)

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def start(self) -> Any:
        """Begin, unless it has begun. After an error nothing is left running."""
        self._start()

    def _start(self) -> None:
        """Begin, unless it has begun. After an error nothing is left running."""
        with self._lifecycle:
            if self._leases is not None:
                return
            self._waits.stopping.clear()
            try:
                self._begin()
            except BaseException:
                self._shut_down()
                raise

    def stop(self) -> None:
        """Stop everything; may be called again, and ends a start in another thread."""
        self._waits.stopping.set()
        with self._lifecycle:
            self._shut_down()

    def _begin(self) -> None:
        """Start everything; raises the error that prevents it."""
        raise NotImplementedError

    def _ends(self) -> Sequence[Callable[[], Any]]:
        """The steps of the end, before the registry is closed; each of them also after a start that has failed."""
        return (self._end_jobs,)

    def _shut_down(self) -> None:
        """Release every resource, also when a step fails."""
        self._waits.stopping.set()
        for step in (self._rounds.join, *self._ends(), self._close_registry):
            try:
                step()
            except Exception as error:
                log.warning("%s %s: stopping continues after an error: %s", self.KIND, self.name, error)

    def _take_name(self, connect: Callable[[str], Registry], jobs: int) -> Registry:
        """Connect to the registry, and take the name; the lock of a killed driver is waited for.

        ``connect`` gets the registry's URL, ``jobs`` is the number of jobs. Raises :class:`RegistryError`, and
        :class:`ConfigurationError` when another driver has the name.
        """
        if self._embedded is not None:
            self._embedded.start()
        leases = self._leases = connect(self.registry_url)
        leases.ping()
        self._rounds.take(leases)
        self._waits.ask(lambda: leases.forget_slots_from(jobs))
        return leases

    def _make_jobs(self, jobs: int, work: Callable[[int, int], Work]) -> LongJobs:
        """The jobs, which are not submitted yet. ``work`` is that of :class:`LongJobs`."""
        assert self._leases is not None
        self._jobs = LongJobs(
            self._spark,
            jobs,
            f"wallaroo-{self.KIND}-{self.name}",
            f"{self.TASK} {{number}} of {self.KIND} {self.name}",
            self._leases.next_submission,
            work,
            self._lease_seconds,
        )
        return self._jobs

    def _await_jobs(self) -> None:
        """Wait until each job serves. Raises :class:`ConfigurationError` when one cannot, or not in time."""
        assert self._jobs is not None
        self._waits.await_served(self.TASK, self._jobs.records, self._served_submissions, SERVED_SECONDS)

    def _served_submissions(self) -> set[tuple[int, int]]:
        return {(number, lease.submission) for number, lease in self._served().items()}

    def _served(self) -> dict[int, Lease]:
        """The leases of the jobs that serve, by number. Raises :class:`RegistryError`."""
        leases = self._leases
        return {} if leases is None else {number: one for number, one in leases.leases().items() if one.connect}

    def _renew(self) -> Registry:
        """Renew the lock of the name; raises :class:`ConfigurationError` when another driver has it."""
        assert self._leases is not None
        self._rounds.renew(self._leases, self._jobs)
        return self._leases

    def _name_in_use(self) -> ConfigurationError:
        """The error for a name that another driver has."""
        assert self._leases is not None
        other = self._leases.locked_by(self.LOCK)
        return ConfigurationError(
            f"{self.KIND} {self.name!r} is run by another driver ({other}){self._elsewhere()}; stop it, or give this "
            "one another name",
            code="name-in-use",
            name=self.name,
        )

    def _elsewhere(self) -> str:
        """What is known of that driver, for the error."""
        return ""

    def _end_jobs(self) -> None:
        """End the jobs: their tasks are told to, and those that do not are interrupted."""
        if self._jobs is not None:
            self._jobs.expect_end()
            self._jobs.join(STOP_SECONDS, self._dismiss)

    def _dismiss(self) -> None:
        """Revoke the leases of the tasks, so that they end."""
        leases = self._leases
        if leases is not None:
            with contextlib.suppress(RegistryError):
                if leases.locked_by(self.LOCK) in (self.owner, None):
                    self._revoke(leases)

    def _revoke(self, leases: Registry) -> None:
        leases.forget_slots_from(0)

    def _close_registry(self) -> None:
        """Give the name up, and close the registry."""
        leases, self._leases, self._jobs = self._leases, None, None
        with contextlib.ExitStack() as last:
            if self._embedded is not None:
                last.callback(self._embedded.stop)
            if leases is not None:
                last.callback(leases.close)
                with contextlib.suppress(RegistryError):
                    leases.unlock(self.LOCK, self.owner)
