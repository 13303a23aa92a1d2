"""The driver's handle of long jobs that run under a name: a receiver, a topic and an application are such handles.

It waits for the registry, for the lock of the name, and for the tasks to serve; then it renews the lock, and looks at
the leases, in rounds. Source: ``docs/architecture.md#the-fleet`` and ``docs/architecture.md#rules``, rules 4 and 8.
"""

from __future__ import annotations

import contextlib
import functools
import math
import threading
import time
import weakref
from collections.abc import Callable, Iterable, Sequence
from typing import Any, ClassVar, Self, TypeVar

from wallaroo_spark.errors import ConfigurationError, RegistryError, WallarooError, one_line
from wallaroo_spark.options import resolve_secret
from wallaroo_spark.registry import EmbeddedRedis, Lease, Registry
from wallaroo_spark.runtime.long_jobs import JobRecord, LongJobs, Work, session_stopped
from wallaroo_spark.runtime.other_drivers import OtherDrivers, owner_of
from wallaroo_spark.runtime.spark_sessions import keep_warm, stateless_query

log = one_line("wallaroo_spark.runtime")

SERVED_SECONDS = 120.0
"""How long the tasks may take to serve, when a cluster may first have to start executors for them.

A choice, not a measurement: it bounds a start that cannot succeed.
"""
STOP_SECONDS = 20.0
"""How long the jobs may take to end by themselves before they are interrupted.

A choice: longer than the limit of each service for the good end of its connections (3 to 8 s), plus the time until it
sees that its lease is gone.
"""


REGISTRY_SECONDS = 60.0
"""How long the registry may be unreachable while jobs start. A choice: enough for a restart of Redis."""
_ASK_AGAIN_SECONDS = 0.2
"""Pause between two attempts to reach the registry or take a lock. A choice: five requests a second at most."""
TELL_SECONDS = 15.0
"""Seconds between two lines about tasks that do not serve yet. A choice: a start on an idle machine prints none."""
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
        self.gone = OtherDrivers().gone

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
        """Take a lock, waiting one lease time, because the lock of a killed owner may remain until it expires.

        ``take`` tries once and returns whether it has the lock. Raises the error that ``refusal`` makes when another
        owner still has the lock after ``lease_seconds`` and one second more.
        """
        until = time.monotonic() + lease_seconds + 1
        while not self.ask(take):
            if time.monotonic() > until:
                raise refusal()
            self._pause(_ASK_AGAIN_SECONDS)

    def take(self, locks: Registry, name: str, owner: str, lease_seconds: float) -> bool:
        """Take or renew a lock, also that of a driver that is gone; whether ``owner`` has it now.

        Raises :class:`RegistryError`.
        """
        return locks.lock(name, owner, lease_seconds) or (
            self.release_of_gone(locks, name) and locks.lock(name, owner, lease_seconds)
        )

    def release_of_gone(self, locks: Registry, name: str) -> bool:
        """Release a lock whose owner is known to be gone; whether that was done. Raises :class:`RegistryError`."""
        other = locks.locked_by(name)
        if other is None or not self.gone(other):
            return False
        locks.unlock(name, other)
        log.info("%s: the driver %s is gone; its lock is released", self._owner, other)
        return True

    def stand_by(
        self,
        left: Callable[[], float | None],
        gone: Callable[[], bool],
        take: Callable[[], bool],
        vacancy: Vacancy,
        waiting: Callable[[], Any],
    ) -> None:
        """Take a lock as soon as its owner is gone, however long that takes; an outage of the registry is waited for.

        ``left`` returns for how many more seconds the lock lasts, None when nobody has it; ``gone`` returns whether its
        owner was known to be gone and the lock is released. ``waiting`` is called again and again meanwhile.
        """
        told = ""
        while True:
            try:
                if (vacancy.look(time.monotonic(), left()) or gone()) and take():
                    return
                waiting()
                told = ""
            except RegistryError as error:
                vacancy.unknown()
                if not told:
                    log.warning("%s waits as standby, and its registry does not answer: %s", self._owner, error)
                told = error.message
            self._pause(_ASK_AGAIN_SECONDS)

    def await_served(
        self, task_name: str, records: Iterable[JobRecord], served: Callable[[], set[tuple[int, int]]], seconds: float
    ) -> None:
        """Wait until the task of each job's last submission serves.

        ``task_name`` names a task in messages. ``served`` returns the (number, submission) of the live leases. Raises
        :class:`ConfigurationError` at once when a job failed permanently, and otherwise after ``seconds``. A start that
        takes long is logged, so that nobody takes it for one that hangs.
        """
        records, began = list(records), time.monotonic()
        until, tell_at = began + seconds, began + TELL_SECONDS
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
            if time.monotonic() >= tell_at:
                tell_at += TELL_SECONDS
                log.warning(
                    "%s: %d of %d %ss serve after %.0f s; the others wait for Spark's executors and their Python",
                    *(self._owner, len(records) - len(missing), len(records), task_name, time.monotonic() - began),
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


class Vacancy:
    """Decides when a standby may take the lock of a driver. Pure.

    A lock that has expired was not renewed for its whole time, so its driver is gone. One that is missing before that
    was released, or the registry has lost its data: a driver that lives writes it again within ``grace`` seconds.
    """

    def __init__(self, grace: float) -> None:
        self._grace = grace
        self._expires = -math.inf
        self._missing_since: float | None = None

    def look(self, now: float, left: float | None) -> bool:
        """Whether the lock may be taken at ``now``; ``left`` is for how long it lasts, None when nobody has it."""
        if left is not None:
            self._expires, self._missing_since = now + left, None
            return False
        if self._missing_since is None:
            self._missing_since = now
        return now >= min(self._expires, self._missing_since + self._grace)

    def unknown(self) -> None:
        """The registry does not answer: its data may be lost, and the driver cannot renew the lock either."""
        self._expires, self._missing_since = math.inf, None


ROUND_END_SECONDS = 10.0
"""Limit of the wait for the last round, in seconds. A choice: longer than a request to a registry that does not answer.
"""


class DriverRounds:
    """The rounds of a driver, in a thread of its own, with ``pause`` seconds between two of them.

    ``who`` names the driver in the log, such as ``topic orders``.
    """

    def __init__(self, who: str, pause: float, waits: Waits) -> None:
        self.failure: Exception | None = None
        """The error of the last round; None when it succeeded."""
        self._who, self._pause, self._waits = who, pause, waits
        self._over = threading.Event()
        self._round_at: float | None = None
        self._thread: threading.Thread | None = None

    def start(self, work: Callable[[], None], lost: Callable[[ConfigurationError], None] = lambda error: None) -> None:
        """Call ``work`` again and again until ``stopping`` of the waits is set, or :meth:`end` is called.

        Its errors are logged once, kept in :attr:`failure`, and the call is repeated. ``lost`` is called with a
        :class:`ConfigurationError`, such as that of a name that is in use.
        """
        self.failure = None
        self._over.clear()
        self._round_at = time.monotonic()
        self._thread = threading.Thread(
            target=self._run, args=(work, lost), name=f"wallaroo-{self._who.replace(' ', '-')}", daemon=True
        )
        self._thread.start()

    @property
    def error(self) -> str:
        """The message of the last round's error; empty when the round succeeded."""
        return _message(self.failure)

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
            thread.join(ROUND_END_SECONDS)

    def _run(self, work: Callable[[], None], lost: Callable[[ConfigurationError], None]) -> None:
        while not self._waits.stopping.wait(self._pause) and not self._over.is_set():
            failure: Exception | None = None
            try:
                work()
            except Exception as error:
                if isinstance(error, ConfigurationError):
                    lost(error)
                if self._over.is_set():
                    return
                failure = error
                if _message(error) != self.error:
                    ours = None if isinstance(error, WallarooError) else error
                    text = "%s: an update of the registry failed and is retried: %s"
                    log.warning(text, self._who, _message(error), exc_info=ours)
            self.failure, self._round_at = failure, time.monotonic()


def _message(error: Exception | None) -> str:
    return error.message if isinstance(error, WallarooError) else str(error or "")


STANDBY = "standby"
"""The lock of the driver that waits to take over."""


_started: weakref.WeakSet[DriverHandle] = weakref.WeakSet()
"""The handles of this program that were started and not stopped."""


def _end_those_of_stopped_sessions() -> None:
    """Stop the handles whose Spark session was stopped: their names, ports and folders are free then."""
    for handle in list(_started):
        if session_stopped(handle._spark):
            handle.stop()


class DriverHandle:
    """Runs long jobs under a name that one driver has at a time, from :meth:`start` to :meth:`stop`.

    ``spark`` is the session, ``registry`` the registry's URL, or ``embedded``. With ``standby`` a start waits while
    another driver has the name, and ``tasks`` processes of executors are prepared meanwhile. As a context manager it
    raises at its end the error of a name that was lost. A subclass begins in :meth:`_begin`, with :meth:`_take_name`,
    :meth:`_make_jobs` and :meth:`_await_jobs`, and names the steps of its end in :meth:`_ends`.
    """

    KIND: ClassVar[str]
    """What the handle is, such as ``receiver``."""
    TASK: ClassVar[str]
    """What each of its tasks is, such as ``worker``."""
    LOCK: ClassVar[str]
    """The lock of the name in the handle's registry."""
    IN_USE: ClassVar[str] = "name-in-use"
    """The code of the error for a name that another driver has."""
    MODULES: ClassVar[tuple[str, ...]] = ()
    """The modules that its tasks import, which a standby has them import while it waits."""
    ROUND_SECONDS: ClassVar[float] = 1.0
    """The most seconds between two rounds. A choice: what the registry has lost is there again after so long."""

    def __init__(
        self, name: str, spark: Any, registry: str, lease_seconds: float, *, standby: bool = False, tasks: int = 1
    ) -> None:
        if standby and registry == "embedded":
            raise ConfigurationError(
                f"{self.KIND} {name!r}: standby needs a registry that both drivers reach, and an embedded one ends "
                "with its driver; give registry the URL of a Redis, or leave standby out",
                code="options-conflict",
                option="standby",
            )
        self.name = name
        self.owner = owner_of(spark)
        self._spark = spark
        self._given_registry = registry
        self._embedded = EmbeddedRedis() if registry == "embedded" else None
        self._lease_seconds = lease_seconds
        self._leases: Registry | None = None
        """The registry of the jobs; None while the handle is not started."""
        self._jobs: LongJobs | None = None
        self._lifecycle = threading.RLock()
        self._standby, self._tasks = standby, tasks
        self._standby_known = ""
        """The driver that waits to take over; empty when none does."""
        self._waits_for: str | None = None
        """The driver that this one, a standby, waits for; None when it does not wait."""
        self._lost_name: ConfigurationError | None = None
        self._waits = Waits(f"{self.KIND} {name!r}")
        pause = min(self.ROUND_SECONDS, lease_seconds / 3)
        self._rounds = DriverRounds(f"{self.KIND} {name}", pause, self._waits)

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

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        self.stop()
        if kind is None and self._lost_name is not None:
            raise self._lost_name

    def start(self) -> Any:
        """Begin, unless it has begun. After an error nothing is left running."""
        with self._lifecycle:
            _end_those_of_stopped_sessions()
            if self._leases is not None:
                return
            self._require_session()
            self._waits.stopping.clear()
            self._lost_name = None
            _started.add(self)
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

    def _require_session(self) -> None:
        """Raise :class:`ConfigurationError` when the session was stopped."""
        if session_stopped(self._spark):
            raise ConfigurationError(
                f"{self.KIND} {self.name!r}: its Spark session was stopped; make it again with the session that runs "
                "now",
                code="spark-stopped",
                name=self.name,
            )

    def _begin(self) -> None:
        """Start everything; raises the error that prevents it."""
        raise NotImplementedError

    def _ends(self) -> Sequence[Callable[[], Any]]:
        """The steps of the end, before the registry is closed; each of them also after a start that has failed."""
        return (self._end_jobs,)

    def _shut_down(self) -> None:
        """Release every resource, also when a step fails."""
        _started.discard(self)
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
        leases = self._await_turn(connect)
        take = functools.partial(self._waits.take, leases, self.LOCK, self.owner, self._lease_seconds)
        self._waits.hold(take, self._lease_seconds, self._name_in_use)
        self._waits.ask(lambda: leases.forget_slots_from(jobs))
        return leases

    def _await_turn(self, connect: Callable[[str], Registry], waiting: Callable[[], Any] = lambda: None) -> Registry:
        """Connect to the registry; as a standby, wait until no other driver has the name, and take it.

        ``waiting`` is called again and again during the wait. A name that is taken already is kept.
        """
        if self._leases is not None:
            return self._leases
        leases = self._leases = connect(self.registry_url)
        leases.ping()
        if not self._standby or self._waits.ask(self._take_lock):
            return leases
        self._waits_for = other = self._waits.ask(self._other) or "an unknown process"
        self._standby_known = self.owner
        log.warning("%s %s waits as standby: the driver %s runs it", self.KIND, self.name, other)

        def wait() -> None:
            leases.lock(STANDBY, self.owner, self._lease_seconds)
            waiting()

        over = threading.Event()
        warming = (self._spark, self._tasks, self.MODULES, self._rehearsal, over)
        threading.Thread(target=keep_warm, args=warming, name="wallaroo-standby", daemon=True).start()
        try:
            left = functools.partial(leases.lock_left, self.LOCK)
            gone = functools.partial(self._waits.release_of_gone, leases, self.LOCK)
            self._waits.stand_by(left, gone, self._take_lock, Vacancy(self._lease_seconds / 2), wait)
        finally:
            over.set()
        log.warning("%s %s takes over from the driver %s, which is gone", self.KIND, self.name, other)
        self._waits_for, self._standby_known = None, ""
        with contextlib.suppress(RegistryError):
            leases.unlock(STANDBY, self.owner)
        return leases

    def _rehearsal(self, spark: Any) -> Any:
        """The writer of a query like that of this handle, which a standby runs once while it waits."""
        return stateless_query(spark)

    def _other(self) -> str | None:
        """The driver that has the lock of the name; None when nobody has it."""
        assert self._leases is not None
        return self._leases.locked_by(self.LOCK)

    def _take_lock(self) -> bool:
        """Take the lock of the name, or renew it; whether this driver has it."""
        assert self._leases is not None
        return self._leases.lock(self.LOCK, self.owner, self._lease_seconds)

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
        """One round: start the registry of this process again if it has ended, and renew the lock of the name.

        When another driver has the lock, the jobs are not submitted again and :class:`ConfigurationError` is raised:
        two drivers that keep taking the leases from each other would serve nobody, so the one that has lost the lock
        ends.
        """
        assert self._leases is not None
        if self._jobs is not None and self._jobs.spark_stopped and not self._waits.stopping.is_set():
            self._waits.stopping.set()
            log.warning("%s %s ends, because its Spark session was stopped", self.KIND, self.name)
            # Aside, because the end waits for this round.
            threading.Thread(target=self.stop, name=f"wallaroo-end-of-{self.name}", daemon=True).start()
        if self._embedded is not None and not self._embedded.running:
            self._embedded.start()
        if self._lost_name is None and not self._take_lock():
            if self._jobs is not None:
                self._jobs.expect_end()
            self._lost_name = self._name_in_use()
        if self._lost_name is not None:
            # For good: this driver does not come back when the other one has ended, because its jobs have.
            raise self._lost_name
        self._standby_known = self._leases.locked_by(STANDBY) or ""
        return self._leases

    def _name_in_use(self) -> ConfigurationError:
        """The error for a name that another driver has."""
        other = self._other()
        return ConfigurationError(
            f"{self.KIND} {self.name!r} is run by another driver ({other}){self._elsewhere()}; stop it, or give this "
            "one another name",
            code=self.IN_USE,
            name=self.name,
            owner=other,
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
        self._waits_for, self._standby_known = None, ""
        with contextlib.ExitStack() as last:
            if self._embedded is not None:
                last.callback(self._embedded.stop)
            if leases is not None:
                last.callback(leases.close)
                with contextlib.suppress(RegistryError):
                    leases.unlock(self.LOCK, self.owner)
