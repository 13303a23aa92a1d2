"""The services in the tasks of long jobs, such as a worker, a publisher and a gateway.

:class:`Tenancy` is the lease of a task for its number. A worker holds the lease of its slot, a publisher that of its
partition. :class:`ServiceShell` is their common part: the lease, asyncio tasks, peers and an orderly end on one event
loop. :func:`serve` runs a service in a task, on an event loop in a thread of its own, with heartbeats for Spark.
Source: ``docs/architecture.md#rules``, rules 5 and 8, and ``docs/spark.md#tasks-and-jobs``.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import os
import socket
import threading
import uuid
from collections.abc import Awaitable, Callable, Coroutine, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor, wait
from typing import TYPE_CHECKING, Any, Generic, Protocol, Self, TypeVar

from wallaroo_spark import transport
from wallaroo_spark.errors import ConfigurationError, LeaseLostError, RegistryError, one_line
from wallaroo_spark.event_loop import BackgroundTasks
from wallaroo_spark.registry import Lease
from wallaroo_spark.runtime.listening import ListenSettings, tls_context
from wallaroo_spark.runtime.python_tasks import rare_collections
from wallaroo_spark.transport import ByteStream, Listener, listens

if TYPE_CHECKING:
    import pandas as pd

log = one_line("wallaroo_spark.runtime")

T = TypeVar("T")


class LeaseRegistry(Protocol):
    """The operations on leases that a registry provides; see ``wallaroo_spark.registry.Registry``."""

    def acquire(self, slot: int, submission: int, holder: str, connect: str, flight: str) -> Lease | None:
        """Acquire the lease of a number; None while another copy of the same submission holds it."""

    def renew(self, lease: Any) -> object:
        """Extend the lease."""

    def release(self, lease: Any) -> None:
        """Release the lease."""

    def leases(self) -> Mapping[int, Lease]:
        """The live leases, by number."""


def new_holder() -> str:
    """Return a new name of this process, as the holder of a lease: its host, its number, and a random text."""
    return f"{socket.gethostname()}/{os.getpid()}/{uuid.uuid4().hex[:8]}"


class Tenancy:
    """The lease of one number, in the process that holds it or waits for it.

    ``number`` is the slot or partition, ``submission`` the driver's number for the submission of the job, ``holder``
    the unique name of this process, ``name`` the name of the service in the log. All calls to the registry about the
    lease are made by one thread.
    """

    def __init__(self, registry: LeaseRegistry, number: int, submission: int, holder: str, name: str) -> None:
        self.current: Any = None
        """The lease as the registry last returned it; None before the first."""
        self.unanswered = False
        """Whether the registry did not answer the last renewal."""
        self._leases = registry
        self._number = number
        self._submission = submission
        self._holder = holder
        self._name = name
        # A thread of its own, so that a renewal never waits behind the assignments of a thousand sessions.
        self._thread = ThreadPoolExecutor(1, "wallaroo-lease")

    async def take(self, connect: str, flight: str, stopped: asyncio.Event, pause: float) -> bool:
        """Acquire the lease with these addresses (may be empty), trying every ``pause`` seconds; True when acquired.

        Returns False when ``stopped`` is set meanwhile. A second copy of the same submission waits here as a standby
        while the first one lives. Raises :class:`LeaseLostError` when a newer submission is known.
        """
        while not stopped.is_set():
            try:
                if await self.acquire(connect, flight):
                    return True
                if await self._release_for_dead_holder():
                    continue
            except LeaseLostError:
                raise
            except RegistryError as error:
                log.warning("%s waits for the registry: %s", self._name, error)
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(stopped.wait(), pause)
        return False

    async def acquire(self, connect: str = "", flight: str = "") -> bool:
        """Try once to acquire the lease; False when another copy of this submission holds it.

        Raises :class:`RegistryError`, or :class:`LeaseLostError` when a newer submission is known.
        """
        lease = await self.ask(
            lambda: self._leases.acquire(self._number, self._submission, self._holder, connect, flight)
        )
        self.current = lease or self.current
        return lease is not None

    async def _release_for_dead_holder(self) -> bool:
        """As a standby: release the lease of a holder whose port refuses connections; return whether that was done.

        A killed process cannot release its lease, and Spark retries its task within the same submission. So nobody
        would serve the number until the lease expired. A refused connection shows that no process listens at the
        address any more. A connection attempt without an answer shows nothing; then the lease has to expire. If the
        holder lives after all, its next renewal fails and it stops serving.
        """
        lease = (await self.ask(self._leases.leases)).get(self._number)
        address = (lease.flight or lease.connect) if lease is not None else ""
        if lease is None or not address or await listens(address) is not False:
            return False
        log.warning("%s: its holder %s is gone; its lease is released", self._name, lease.holder)
        await self.ask(functools.partial(self._leases.release, lease))
        return True

    async def keep(self, renewal: Awaitable[T]) -> T | None:
        """Await a renewal of the lease and return its result; None while the registry does not answer.

        The log gets one line for each outage of the registry. Raises :class:`LeaseLostError` when the lease is lost.
        """
        try:
            answer = await renewal
        except LeaseLostError:
            raise
        except RegistryError as error:
            if not self.unanswered:
                log.warning("%s goes on without the registry: %s", self._name, error)
            self.unanswered = True
            return None
        self.unanswered = False
        return answer

    async def release(self) -> None:
        """Release the lease, if the registry answers, and end the thread; the last call."""
        if self.current is not None:
            with contextlib.suppress(RegistryError):
                await self.ask(functools.partial(self._leases.release, self.current))
        self._thread.shutdown(wait=False)

    async def ask(self, question: Callable[[], T]) -> T:
        """Call the registry in the thread for leases, and return its answer. Raises the errors of ``question``."""
        return await asyncio.get_running_loop().run_in_executor(self._thread, question)


HEARTBEAT_SECONDS = 1.0
"""Pause between two empty frames that the task yields, because Spark may treat a silent Python task as idle.

A choice, not a measurement: it costs one empty Arrow frame a second.
"""
END_SECONDS = 10.0
"""How long the service may take to end when its task ends. A choice: above the time that services give their peers."""


class ServiceThread:
    """A service on an event loop in a thread of its own.

    It is a context manager: the service starts on entry, and is asked to stop on exit. ``name`` names the thread.
    """

    def __init__(self, service: ServiceShell[Any, Any], name: str) -> None:
        self._service = service
        self._ended: Future[None] = Future()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._service.stop_from_outside("its task was ended")
        wait([self._ended], END_SECONDS)

    def alive(self, seconds: float) -> bool:
        """Wait for at most ``seconds``; return whether the service still runs. Raises the error that ended it."""
        ended, _ = wait([self._ended], seconds)
        for one in ended:
            one.result()
        return not ended

    def _run(self) -> None:
        try:
            self._ended.set_result(asyncio.run(self._service.run()))
        except BaseException as error:
            self._ended.set_exception(error)


def serve(service: ServiceThread, rows: Iterator[pd.DataFrame]) -> Iterator[pd.DataFrame]:
    """Run a service within mapInPandas until it ends, yielding empty frames as heartbeats.

    ``rows`` is the task's partition; its one row only makes Spark run the task, and is ignored. Raises the error that
    ends the service; a :class:`ConfigurationError` gets the host's name, because it may be about this host.
    """
    import pandas
    import pyarrow

    for _ in rows:
        pass
    heartbeat = pandas.DataFrame({"slot": pandas.Series([], dtype=pandas.ArrowDtype(pyarrow.int32()))})
    try:
        with rare_collections(), service as running:
            while running.alive(HEARTBEAT_SECONDS):
                yield heartbeat
    except ConfigurationError as error:
        raise ConfigurationError(
            f"on {socket.gethostname()}: {error.message}", code=error.code, **error.fields
        ) from None


RENEWALS = 3
"""Number of renewals of a lease within its length. A standby tries to acquire the lease at the same interval.

A choice: two renewals may fail before the lease expires.
"""


class ServedStream(Protocol):
    """A connection that can be cut."""

    def abort(self) -> None:
        """Close at once."""


class Peer(Protocol):
    """A program that is connected to a service."""

    @property
    def stream(self) -> ServedStream:
        """The connection."""


P = TypeVar("P", bound=Peer)
H = TypeVar("H", bound=Tenancy)


class ServiceShell(Generic[P, H]):
    """One service, from acquiring the lease of its number to releasing it.

    ``tenancy`` is its lease, ``number`` its slot or partition, ``name`` its name in the log. A subclass implements
    :meth:`_serve`, and :meth:`_shut_down`, which closes the subclass's own resources at the end.
    """

    def __init__(self, tenancy: H, number: int, name: str, lease_seconds: float) -> None:
        self._tenancy = tenancy
        self._number = number
        self._name = name
        self._lease_seconds = lease_seconds
        self._loop: asyncio.AbstractEventLoop | None = None
        self._stopped = asyncio.Event()
        self._stop_reason = ""
        self._failure: BaseException | None = None
        self._tasks = BackgroundTasks(self._task_ended)
        self._peers: dict[int, P] = {}
        self._next_session = 0
        self._alone = asyncio.Event()

    @property
    def _renewal_seconds(self) -> float:
        """Seconds between two renewals of the lease, and between two attempts to acquire it."""
        return self._lease_seconds / RENEWALS

    async def run(self) -> None:
        """Serve until :meth:`stop` is called or the lease is lost; then release the lease.

        Raises the first unexpected error in a task of the service, which also ends it.
        """
        self._loop = asyncio.get_running_loop()
        try:
            await self._serve()
        finally:
            self._tasks.cancel()
            await self._shut_down()
            await self._tenancy.release()
        if self._failure is not None:
            raise self._failure

    async def _serve(self) -> None:
        raise NotImplementedError

    async def _shut_down(self) -> None:
        """Close the subclass's own resources; the lease is released after that."""

    def stop(self, reason: str) -> None:
        """End the service in good order. Peers are sent ``reason``; the first reason counts.

        To be called on the loop's thread, or before :meth:`run`.
        """
        self._stop_reason = self._stop_reason or reason
        self._stopped.set()

    def stop_from_outside(self, reason: str) -> None:
        """Call :meth:`stop` from any thread; does nothing when the loop has ended."""
        loop = self._loop
        if loop is None:
            self.stop(reason)
            return
        with contextlib.suppress(RuntimeError):
            loop.call_soon_threadsafe(self.stop, reason)

    async def _take_lease(self, connect: str = "", flight: str = "") -> bool:
        """Acquire the lease with these addresses; False when a newer submission has it, or the service was stopped."""
        try:
            return await self._tenancy.take(connect, flight, self._stopped, self._renewal_seconds)
        except LeaseLostError as error:
            await self._lease_lost(error)
            return False

    async def _renew(self, seconds: float, renewal: Callable[[], Awaitable[T]], kept: Callable[[T], None]) -> None:
        """Renew the lease every ``seconds`` until it is lost. ``kept`` is called with each answer to ``renewal``."""
        while True:
            await asyncio.sleep(seconds)
            try:
                answer = await self._tenancy.keep(renewal())
            except LeaseLostError as error:
                await self._lease_lost(error)
                return
            if answer is not None:
                kept(answer)

    async def _lease_lost(self, error: LeaseLostError) -> None:
        self._log_lost(error)
        self.stop(error.message)

    def _log_lost(self, error: LeaseLostError) -> None:
        """Log that the service ends. A driver that stops releases its leases, which is nothing to be warned of."""
        say = log.warning if error.fields["holder"] else log.info
        say("%s ends: %s", self._name, error)

    async def _listen(
        self, settings: ListenSettings, serve: Callable[[ByteStream], Coroutine[Any, Any, None]]
    ) -> Listener | None:
        """Bind the service's port, waiting until a predecessor has closed it; None when the service is stopped first.

        ``serve`` is started for each connection.
        """
        port = settings.port + self._number if settings.port else 0
        return await transport.serve_once_free(
            serve, settings.host, port, tls=tls_context(settings), stopped=self._stopped
        )

    def _enter(self, peer: P) -> int:
        """Register a peer and return the number of its session, which increases with each peer."""
        session, self._next_session = self._next_session, self._next_session + 1
        self._peers[session] = peer
        return session

    def _leave(self, session: int) -> None:
        """Remove a peer by its session's number."""
        del self._peers[session]
        if not self._peers:
            self._alone.set()

    async def _farewell(self, listener: Listener, seconds: float, tell: Callable[[], Awaitable[None]]) -> None:
        """Close the listener, call ``tell`` to notify the peers, wait for at most ``seconds`` until they have closed.

        Connections that are still open after that are aborted.
        """
        closing = asyncio.ensure_future(listener.close(seconds))
        await tell()
        if self._peers:
            self._alone.clear()
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._alone.wait(), seconds)
        for peer in self._peers.values():
            peer.stream.abort()
        await closing

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        """Run a coroutine as a task of the service; an error in it ends the service."""
        self._tasks.start(work)

    def _task_ended(self, error: BaseException | None) -> None:
        if error is not None:
            self._fail(error)

    def _fail(self, error: BaseException) -> None:
        """End the service because of an unexpected error, which :meth:`run` raises at the end."""
        self._failure = self._failure or error
        self.stop(f"an error of this program: {error!r}")
