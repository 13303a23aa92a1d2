"""Keeps a session alive: finds a worker, performs the handshake, and reconnects with back-off when a session has ended.

What the end of a session means, whether and where the connector tries again, is decided by pure functions. Source:
``docs/protocol.md#when-to-try-again``, ``docs/protocol.md#session-states`` and ``docs/protocol.md#rewinding``.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable, Sequence

from wallaroo_spark.connector.sending.open_streams import OpenStreams
from wallaroo_spark.connector.settings import ConnectorSettings
from wallaroo_spark.connector.worker_connection import (
    Address,
    AddressRotation,
    Carrier,
    TcpCarrier,
    WorkerConnection,
)
from wallaroo_spark.errors import (
    ConfigurationError,
    RegistryError,
    RemoteProtocolError,
    ReplayError,
    TransportError,
    one_line,
)
from wallaroo_spark.protocol import ConnectorSession, Error, Frame, Ok, Restart
from wallaroo_spark.protocol.faults import is_later, is_superseded, redirect_address
from wallaroo_spark.transport import connect, format_address, parse_address

_log = one_line("wallaroo_spark.connector")

Ending = Error | Restart | TransportError
"""The frame or the error that ended a session."""

_HINTS = {
    "cookie": ("wrong-cookie", "check that the connector's cookie is the receiver's"),
    "version": ("wrong-version", "check that connector and receiver are given the same protocol version"),
    "program": (
        "wrong-program",
        "give the connector one of these program names, or add its own to the receiver's option programs",
    ),
    "certificate": ("wrong-certificate", "use a certificate that names the instance, or correct the instance name"),
    "instance": ("bad-instance", "check the instance name, and that no other connector runs under it"),
}
"""Word in a refusing reason → the code, and the way out. The wire has no codes."""
_OTHER = ("refused", "see the worker's log")


def report_ending(
    rotation: AddressRotation,
    address: Address,
    last: Ending | Frame,
    now: float,
    *,
    began: float | None,
    progressed: bool,
) -> None:
    """Report the end of a connection to the rotation. Raises :class:`RemoteProtocolError` if no further attempt can
    succeed.

    ``last`` is the last frame, or the error that ended the connection; ``began`` is the time at which the worker
    answered OK, None if it did not; ``progressed`` says whether it sent an ACK.
    """
    where = format_address(*address)
    elsewhere, reason = _meaning(last, where)
    if began is not None:
        rotation.ended(address, reason, now, progressed=progressed or rotation.was_long(now - began))
        _log.warning("the session with the worker at %s has ended: %s", where, reason)
    if elsewhere:
        _follow(rotation, where, elsewhere)
    elif began is None:
        report_failure(rotation, where, reason)


def report_failure(rotation: AddressRotation, where: str, reason: str) -> None:
    """Report to the rotation that an attempt has brought no session."""
    rotation.failed(where, reason)
    _log.warning("no session with %s: %s", where, reason)


def _follow(rotation: AddressRotation, where: str, elsewhere: str) -> None:
    try:
        target = parse_address(elsewhere)
    except ConfigurationError as error:
        report_failure(rotation, where, f"its redirection has no valid address: {error}")
        return
    _log.info("the worker at %s redirects this connector to %s", where, elsewhere)
    rotation.redirected(where, target)


def _meaning(last: Ending | Frame, where: str) -> tuple[str, str]:
    """The address of a redirection, empty for none, and the reason of an ending. Raises if no further attempt can
    succeed.
    """
    match last:
        case TransportError():
            return "", last.message
        case Restart():
            return last.address, "the worker asked for a restart"
        case Error():
            elsewhere = redirect_address(last.reason)
            if elsewhere or is_later(last.reason):
                return elsewhere or "", last.reason
            if is_superseded(last.reason):
                raise RemoteProtocolError(
                    f"the worker at {where} has ended this session: {last.reason}; another program runs under this "
                    "instance name; end one of them, or give each program an instance name of its own",
                    code="superseded",
                    address=where,
                    reason=last.reason,
                )
            code, hint = next((known for word, known in _HINTS.items() if word in last.reason), _OTHER)
            raise RemoteProtocolError(
                f"the worker at {where} refused: {last.reason}; {hint}", code=code, address=where, reason=last.reason
            )
    raise AssertionError(f"the session table lets {last!r} end a session")


AddressLookup = Callable[[], Awaitable[Sequence[Address]]]
"""Returns the workers' current addresses."""


class SessionKeeper:
    """The task that opens a session for the streams, and another one whenever a session has ended."""

    def __init__(self, streams: OpenStreams, settings: ConnectorSettings, addresses: AddressLookup) -> None:
        self._streams = streams
        self._settings = settings
        self._addresses = addresses
        self.rotation: AddressRotation | None = None
        """The order of attempts; None before the first one."""
        self.handshake_with: str | None = None
        """``host:port`` of the worker that has not answered HELLO yet; None for none."""

    async def run(self) -> None:
        """Run until cancelled, or until no further attempt can succeed; then end the connector."""
        try:
            await self._run()
        except Exception as error:
            _log.error("the connector ends: %s", error)
            self._streams.failed(error)

    async def _run(self) -> None:
        clock = asyncio.get_running_loop().time
        rotation = AddressRotation(self._settings.backoff, random.random, clock(), self._settings.instance)
        self.rotation = rotation
        while True:
            error = rotation.given_up(clock())
            if error is not None:
                raise error
            await asyncio.sleep(rotation.delay(clock()))
            await self._attempt(rotation)

    async def _attempt(self, rotation: AddressRotation) -> None:
        settings, where = self._settings, "the registry"
        try:
            rotation.replace(await self._addresses())
            address = rotation.next()
            if address is None:
                report_failure(rotation, where, f"no worker serves receiver {settings.program!r} at the moment")
                return
            where = format_address(*address)
            carrier = await self._connect(address)
        except (RegistryError, TransportError) as error:
            report_failure(rotation, where, error.message)
            return
        session = ConnectorSession(settings.protocol_revision, max_frame_bytes=settings.max_frame_bytes)
        connection = WorkerConnection(carrier, session, self._streams.written, self._streams.lost)
        await self._session(rotation, address, connection)

    async def _connect(self, address: Address) -> Carrier:
        settings = self._settings
        if settings.over_quic:
            # Imported here because aioquic is installed only where QUIC is used.
            from wallaroo_spark.connector import quic

            return await quic.connect(address, settings)
        return TcpCarrier(await connect(*address, tls=settings.tls, timeout=settings.connect_timeout))

    async def _session(self, rotation: AddressRotation, address: Address, connection: WorkerConnection) -> None:
        clock = asyncio.get_running_loop().time
        where = format_address(*address)
        goodbye = ""
        began: float | None = None
        try:
            self.handshake_with = where
            last: Ending | Frame = await self._handshake(connection, where)
            self.handshake_with = None
            if isinstance(last, Ok):
                began = clock()
                rotation.connected()
                _log.info(
                    "session with the worker at %s as %r, %d credits", where, self._settings.instance, last.credits
                )
                self._streams.session_began(connection, last)
                last = await self._serve(connection)
        except TransportError as error:
            last = error
        except ReplayError as error:
            goodbye = error.message
            if not rotation.behind(address, error.message, clock()):
                raise
            _log.warning("the worker at %s may not know the last commits yet; reconnecting: %s", where, error)
            return
        except RemoteProtocolError as error:
            raise RemoteProtocolError(
                f"the worker at {where} broke the protocol: {error.message}; check that {where} is a worker and speaks "
                f"{self._settings.revision}",
                code=error.code,
                address=where,
                **error.fields,
            ) from error
        finally:
            self.handshake_with = None
            self._streams.session_ended(connection)
            await connection.close(goodbye)
        report_ending(rotation, address, last, clock(), began=began, progressed=connection.progressed)

    async def _handshake(self, connection: WorkerConnection, where: str) -> Frame:
        settings = self._settings
        connection.send_hello(settings.version, settings.cookie, settings.program, settings.instance)
        try:
            async with asyncio.timeout(settings.handshake_timeout):
                return await connection.next()
        except TimeoutError:
            raise TransportError(
                f"the worker at {where} did not answer HELLO within {settings.handshake_timeout:g} seconds; "
                "it answers once its query has started; check the query, or raise handshake_timeout",
                code="hello-unanswered",
                address=where,
                reason="timeout",
            ) from None

    async def _serve(self, connection: WorkerConnection) -> Error | Restart:
        while True:
            frame = await connection.next()
            if isinstance(frame, Error | Restart):
                return frame
            self._streams.received(connection, frame)
