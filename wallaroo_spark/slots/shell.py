"""The shell that services in long jobs have in common: a lease, tasks, peers and an orderly end on one event loop.

A worker and a publisher are such services. What is peculiar to one stands in its subclass of :class:`ServiceShell`.
Source: ``docs/architecture.md#rules``, rules 5 and 8.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import ssl
from collections.abc import Awaitable, Callable, Coroutine
from dataclasses import dataclass
from typing import Any, Generic, Protocol, TypeVar

from wallaroo_spark import transport
from wallaroo_spark.errors import LeaseLostError, one_line
from wallaroo_spark.slots.tenancy import Tenancy
from wallaroo_spark.transport import ByteStream, Listener

log = one_line(logging.getLogger("wallaroo_spark.slots"))

T = TypeVar("T")


class Peer(Protocol):
    """One connection of a service."""

    @property
    def stream(self) -> ByteStream:
        """Its bytes."""


P = TypeVar("P", bound=Peer)
H = TypeVar("H", bound=Tenancy)


@dataclass(frozen=True)
class Door:
    """Where a service listens: at ``port`` plus its number, 0 being any, and with TLS when there is a certificate."""

    host: str
    port: int
    tls_certificate: str
    tls_key: str
    tls_ca: str

    def context(self) -> ssl.SSLContext | None:
        """The TLS settings, None for plain text."""
        if not self.tls_certificate:
            return None
        return transport.server_context(self.tls_certificate, self.tls_key, self.tls_ca)


class ServiceShell(Generic[P, H]):
    """One service, from taking the lease of its number to giving it back.

    ``name`` is what the log calls it. A subclass says in :meth:`_serve` how it serves, and in :meth:`_shut_down` what
    it closes at the end.
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
        self._tasks: set[asyncio.Task[None]] = set()
        self._peers: dict[int, P] = {}
        self._next_session = 0
        self._alone = asyncio.Event()

    async def run(self) -> None:
        """Serve until :meth:`stop`, or until the lease is another's.

        Raises what has ended the service, when that was an error of this program.
        """
        self._loop = asyncio.get_running_loop()
        try:
            await self._serve()
        finally:
            for task in list(self._tasks):
                task.cancel()
            await self._shut_down()
            await self._tenancy.release()
        if self._failure is not None:
            raise self._failure

    async def _serve(self) -> None:
        raise NotImplementedError

    async def _shut_down(self) -> None:
        """Close what is peculiar to the service; the lease is given back after that."""

    def stop(self, reason: str) -> None:
        """Leave in good order; peers are told the first reason. On the loop's thread, or before ``run``."""
        self._stop_reason = self._stop_reason or reason
        self._stopped.set()

    def stop_from_outside(self, reason: str) -> None:
        """:meth:`stop` from any thread, also when the loop has ended since."""
        loop = self._loop
        if loop is None:
            self.stop(reason)
            return
        with contextlib.suppress(RuntimeError):
            loop.call_soon_threadsafe(self.stop, reason)

    async def _take_lease(self, connect: str = "", flight: str = "") -> bool:
        """Take the lease and leave these addresses in it; False when it is another's, or the service is stopped."""
        try:
            return await self._tenancy.take(connect, flight, self._stopped, self._lease_seconds / 3)
        except LeaseLostError as error:
            await self._lease_lost(error)
            return False

    async def _renew(self, seconds: float, renewal: Callable[[], Awaitable[T]], kept: Callable[[T], None]) -> None:
        """Renew the lease every so many seconds, until it is another's; ``kept`` is told what a renewal has said."""
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

    async def _listen(self, door: Door, serve: Callable[[ByteStream], Coroutine[Any, Any, None]]) -> Listener | None:
        """Bind the service's port, waiting for a predecessor to let it go; None when told to stop meanwhile."""
        port = door.port + self._number if door.port else 0
        return await transport.serve_once_free(serve, door.host, port, tls=door.context(), stopped=self._stopped)

    def _enter(self, peer: P) -> int:
        """A peer is served; its session's number, which grows with each."""
        session, self._next_session = self._next_session, self._next_session + 1
        self._peers[session] = peer
        return session

    def _leave(self, session: int) -> None:
        """A peer is served no more."""
        del self._peers[session]
        if not self._peers:
            self._alone.set()

    async def _farewell(self, listener: Listener, seconds: float, tell: Callable[[], Awaitable[None]]) -> None:
        """Take nobody in any more, tell the peers to go, and give them some seconds to do so."""
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
        """Run something beside the rest; an error in it ends the service."""
        task = asyncio.ensure_future(work)
        self._tasks.add(task)
        task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        error = None if task.cancelled() else task.exception()
        if error is not None:
            self._fail(error)

    def _fail(self, error: BaseException) -> None:
        """End the service by an error of this program, which :meth:`run` raises at the end."""
        self._failure = self._failure or error
        self.stop(f"an error of this program: {error!r}")
