"""Connections are opened here: a client's, and those that a server accepts."""

from __future__ import annotations

import asyncio
import logging
import socket
from collections.abc import Awaitable, Callable, Generator, Iterable, Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, Generic, Protocol, Self, TypeVar

from wallaroo_spark.aqueduct.connection import AqueductConnection
from wallaroo_spark.aqueduct.errors import ConnectionLost
from wallaroo_spark.aqueduct.machine import AqueductLimits, Headers, Side
from wallaroo_spark.aqueduct.shell.driver import Driver
from wallaroo_spark.aqueduct.shell.quic import ALPN, LinkEnd, QuicLink, QuicListener, dial, listen
from wallaroo_spark.errors import (
    AqueductError,
    TransportError,
    WallarooError,
    one_line,
    printable,
)
from wallaroo_spark.transport import format_address, parse_address

_log = one_line(logging.getLogger(__name__))

HeadersGiven = Mapping[str, bytes] | Iterable[tuple[str, bytes]]
"""Headers of a program: a mapping, or pairs where a key occurs more than once."""
UNREACHABLE_SECONDS = 5.0
"""Seconds without any packet of the server after which it counts as unreachable, shared among its addresses."""
IDLE_SECONDS = 30.0
"""Seconds without any packet after which a connection is over."""
CONNECTIONS = 10_000
"""Connections that a server accepts. A choice: what one process can serve, if most of them are quiet."""
OPENING = 1024
"""Connections that a server has before they are open; each is over after the time of a handshake. A choice."""

_NO_ALPN = 120
_CERTIFICATES = range(42, 50)
"""Alerts of TLS."""


class _Closing(Protocol):
    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, where: TracebackType | None
    ) -> None: ...


_T = TypeVar("_T", bound=_Closing)


class Opening(Generic[_T]):
    """What is about to be opened: ``async with`` opens it and closes it again, ``await`` opens it alone."""

    def __init__(self, begin: Callable[[], Awaitable[_T]]) -> None:
        self._begin = begin
        self._opened: _T | None = None

    def __await__(self) -> Generator[Any, None, _T]:
        return self._begin().__await__()

    async def __aenter__(self) -> _T:
        self._opened = await self._begin()
        return self._opened

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, where: TracebackType | None
    ) -> None:
        assert self._opened is not None
        await self._opened.__aexit__(kind, error, where)


def connect(
    address: str,
    *,
    headers: HeadersGiven = (),
    ca: str | Path = "",
    server_name: str = "",
    early: bool = False,
    idle: float = IDLE_SECONDS,
    limits: AqueductLimits | None = None,
) -> Opening[AqueductConnection]:
    """Connect to the server at ``address`` (``host:port``): ``async with connect(…) as connection``.

    ``headers`` are told to the server. Its certificate must be for ``server_name``, which is the host of the address
    if it is empty, and of an authority in the PEM file ``ca``, or of one that is known in general. ``early`` sends the
    first messages with the first packet, where this process was connected to the server before; somebody who records
    them cannot make the server process them twice. The connection is over after ``idle`` seconds without a packet.

    Raises :class:`TransportError` for a server that is not reachable or whose certificate is not accepted, and
    :class:`ConfigurationError` for an argument that cannot work.
    """
    host, port = parse_address(address)
    given = _headers(headers)

    async def begin() -> AqueductConnection:
        shown = format_address(host, port)
        try:
            found = await asyncio.get_running_loop().getaddrinfo(host, port, type=socket.SOCK_DGRAM)
        except OSError as error:
            raise _cannot_connect(shown, f"unknown host: {error.strerror or error}; check the host name") from error
        places = list(dict.fromkeys((family, place) for family, _, _, _, place in found))
        failed: WallarooError | None = None
        for family, place in places:
            opening = _ClientOpening(shown, limits or AqueductLimits(), given)
            try:
                link = await dial(
                    place, family, opening.attach, server_name=server_name or host, ca=str(ca), idle=idle, early=early
                )
                return await opening.opened(link, UNREACHABLE_SECONDS / len(places))
            except _Unreachable as error:
                failed = error
            except OSError as error:
                failed = _cannot_connect(shown, f"{error.strerror or error}; check the address and the network")
        assert failed is not None
        raise failed

    return Opening(begin)


class _Unreachable(TransportError):
    """No packet has come."""


class _ClientOpening:
    """The first steps of a client's connection to one address."""

    def __init__(self, shown: str, limits: AqueductLimits, headers: Headers) -> None:
        self._shown = shown
        self._driver = Driver(Side.CLIENT, limits, headers)

    def attach(self, link: QuicLink) -> Driver:
        """Join the machine to its link."""
        self._driver.join(link)
        return self._driver

    async def opened(self, link: QuicLink, seconds: float) -> AqueductConnection:
        """Wait until the connection can be used."""
        driver, loop = self._driver, asyncio.get_running_loop()
        driver.on_over = link.discard
        silence = loop.call_later(seconds, self._silent, link, seconds)
        try:
            while not driver.ready_for_use and driver.error is None:
                await driver.changed.wait()
        except BaseException:
            driver.close("given up while it was opened")
            raise
        finally:
            if not link.early:
                silence.cancel()
        if driver.error is not None:
            raise self._why(driver.error, driver.link_end)
        return AqueductConnection(driver)

    def _silent(self, link: QuicLink, seconds: float) -> None:
        if not link.heard and self._driver.error is None:
            self._driver.over_by(
                _Unreachable(
                    f"cannot connect to {self._shown} over QUIC: no packet came back within {seconds:g} s; check "
                    "that the server runs, the address, and whether the network lets UDP through: many drop it",
                    code="quic-unreachable",
                    peer=self._shown,
                    reason="timeout",
                )
            )

    def _why(self, error: WallarooError, end: LinkEnd | None) -> WallarooError:
        if end is None or isinstance(error, _Unreachable):
            return error
        reason = printable(end.reason)
        if end.alert == _NO_ALPN:
            return _cannot_connect(
                self._shown,
                f"the server speaks another protocol than {ALPN} (TLS: {reason}); check the address, and that both "
                "sides have the same version of this package",
            )
        if end.alert in _CERTIFICATES:
            return _cannot_connect(
                self._shown,
                f"the certificate was not accepted: {reason}; check ca, and that the certificate has the name or the "
                "address of the server",
            )
        return _cannot_connect(self._shown, f"the handshake failed: {reason} (code {end.code})")


def _cannot_connect(shown: str, why: str) -> TransportError:
    return TransportError(f"cannot connect to {shown} over QUIC: {why}", code="cannot-connect", peer=shown)


AqueductHandler = Callable[[AqueductConnection], Awaitable[None]]
"""What a server does with each connection. When it returns, the connection ends in an orderly way."""


def serve(
    handler: AqueductHandler,
    host: str,
    port: int,
    *,
    certificate: str | Path,
    key: str | Path = "",
    headers: HeadersGiven | Callable[[Headers], HeadersGiven] = (),
    idle: float = IDLE_SECONDS,
    limits: AqueductLimits | None = None,
    connections: int = CONNECTIONS,
) -> Opening[AqueductServer]:
    """Listen at UDP ``port`` of ``host`` (empty: of every address), and run ``handler`` for each connection.

    ``async with serve(…) as server`` closes the connections at the end of the block. ``certificate`` is a PEM file with
    the certificate and its chain, ``key`` the PEM file of its key, which may be in the same file. ``headers`` are told
    to clients; a function is given those of the client, and returns them. A client beyond ``connections`` is told so,
    and its connection is closed.

    Raises :class:`TransportError` for an address that is not free, and :class:`ConfigurationError` for a certificate
    that cannot be read.
    """
    answer = headers if callable(headers) else None
    given = None if callable(headers) else _headers(headers)

    async def begin() -> AqueductServer:
        server = AqueductServer(handler, limits or AqueductLimits(), given, answer, connections)
        shown = format_address(host or "*", port)
        try:
            server.listener = await listen(
                host, port, server.accept, server.half_open, certificate=str(certificate), key=str(key), idle=idle
            )
        except (OSError, OverflowError) as error:
            raise TransportError(
                f"cannot listen on {shown} (UDP): {getattr(error, 'strerror', None) or error}; free the address, use "
                "another one, or use port 0",
                code="cannot-listen",
                address=shown,
                reason="bind",
            ) from error
        return server

    return Opening(begin)


class AqueductServer:
    """A server that listens, and its connections."""

    listener: QuicListener

    def __init__(
        self,
        handler: AqueductHandler,
        limits: AqueductLimits,
        headers: Headers | None,
        answer: Callable[[Headers], HeadersGiven] | None,
        connections: int,
    ) -> None:
        self._handler = handler
        self._most = connections
        self._limits = limits
        self._headers = headers
        self._answer = answer
        self._drivers: set[Driver] = set()
        self._unopened: set[Driver] = set()
        self._handling: set[asyncio.Task[None]] = set()
        self._closed = asyncio.Event()

    @property
    def address(self) -> str:
        """The address at which it listens, as ``host:port``."""
        return format_address(*self.listener.address)

    @property
    def connections(self) -> int:
        """How many connections are open."""
        return len(self._drivers)

    def half_open(self) -> int:
        """How many connections are in their handshake, or wait for headers."""
        return len(self._unopened)

    def accept(self, link: QuicLink) -> Driver:
        """A client has sent its first packet."""
        answer = None if self._answer is None else self._answered
        driver = Driver(Side.SERVER, self._limits, self._headers, answer)
        driver.join(link)
        driver.on_opened = lambda: self._begin(driver)
        driver.on_over = lambda: self._over(driver)
        self._drivers.add(driver)
        self._unopened.add(driver)
        if len(self._unopened) > OPENING:
            # Not at once: the link has no socket yet.
            driver.loop.call_soon(driver.over_by, ConnectionLost(f"{OPENING} other clients are about to connect"))
        return driver

    async def serve_forever(self) -> None:
        """Wait until the server is closed."""
        await self._closed.wait()

    async def close(self) -> None:
        """End all connections and stop to listen. Handlers that run are cancelled."""
        for driver in list(self._drivers):
            driver.close("the server is closed")
        for task in self._handling:
            task.cancel()
        await asyncio.gather(*self._handling, return_exceptions=True)
        self.listener.close()
        self._closed.set()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, where: TracebackType | None
    ) -> None:
        await self.close()

    def _answered(self, theirs: Headers) -> Headers:
        assert self._answer is not None
        return _headers(self._answer(theirs))

    def _begin(self, driver: Driver) -> None:
        self._unopened.discard(driver)
        if len(self._drivers) - len(self._unopened) > self._most:
            _log.warning("a client at %s is refused: %d connections are open, the limit", driver.peer, self._most)
            driver.close(f"the server has {self._most} connections, which is its limit; connect later")
            return
        task = asyncio.create_task(self._handle(AqueductConnection(driver)))
        self._handling.add(task)
        task.add_done_callback(self._handling.discard)

    async def _handle(self, connection: AqueductConnection) -> None:
        try:
            async with connection:
                await self._handler(connection)
        except ConnectionLost as error:
            _log.info("%s", error)
        except AqueductError as error:
            _log.warning("the handler of the connection with %s ended: %s", connection.peer, error)
        except Exception:
            _log.exception("the handler of the connection with %s has failed", connection.peer)

    def _over(self, driver: Driver) -> None:
        self._drivers.discard(driver)
        if driver in self._unopened:
            self._unopened.discard(driver)
            _log.info("a client has not opened its connection: %s", driver.error)


def _headers(given: HeadersGiven) -> Headers:
    pairs = given.items() if isinstance(given, Mapping) else given
    return tuple((key, bytes(value)) for key, value in pairs)
