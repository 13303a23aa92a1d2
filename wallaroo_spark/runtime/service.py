"""The services in the tasks of long jobs, such as a worker, a publisher and a gateway.

:class:`ServiceShell` is their common part: a lease, asyncio tasks, peers and an orderly end on one event loop.
:func:`serve` runs a service in a task, on an event loop in a thread of its own, with heartbeats for Spark.
Source: ``docs/architecture.md#rules``, rules 5 and 8, and ``docs/spark.md#tasks-and-jobs``.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
import threading
from collections.abc import Awaitable, Callable, Coroutine, Iterator
from typing import TYPE_CHECKING, Any, Generic, Protocol, Self, TypeVar

from wallaroo_spark import transport
from wallaroo_spark.errors import ConfigurationError, LeaseLostError, one_line
from wallaroo_spark.event_loop import BackgroundTasks
from wallaroo_spark.runtime.listening import ListenSettings, tls_context
from wallaroo_spark.runtime.tenancy import Tenancy
from wallaroo_spark.transport import ByteStream, Listener

if TYPE_CHECKING:
    import pandas as pd

log = one_line(logging.getLogger("wallaroo_spark.runtime"))

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
        self._error: BaseException | None = None
        self._done = threading.Event()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._service.stop_from_outside("its task was ended")
        self._done.wait(END_SECONDS)

    def alive(self, seconds: float) -> bool:
        """Wait for at most ``seconds``; return whether the service still runs. Raises the error that ended it."""
        self._done.wait(seconds)
        if self._error is not None:
            raise self._error
        return not self._done.is_set()

    def _run(self) -> None:
        try:
            asyncio.run(self._service.run())
        except BaseException as error:
            self._error = error
        finally:
            self._done.set()


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
        with service as running:
            while running.alive(HEARTBEAT_SECONDS):
                yield heartbeat
    except ConfigurationError as error:
        raise ConfigurationError(
            f"on {socket.gethostname()}: {error.message}", code=error.code, **error.fields
        ) from None


T = TypeVar("T")


RENEWALS = 3
"""Number of renewals of a lease within its length. A standby tries to acquire the lease at the same interval.

A choice: two renewals may fail before the lease expires.
"""


class Peer(Protocol):
    """A program that is connected to a service."""

    @property
    def stream(self) -> ByteStream:
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
        log.warning("%s ends: %s", self._name, error)
        self.stop(error.message)

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
