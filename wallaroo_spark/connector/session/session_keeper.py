"""Keeps a session alive: finds a worker, performs the handshake, and reconnects with back-off when the session is lost.

Source: ``docs/protocol.md#when-to-try-again``; ``docs/protocol.md#session-states`` and ``docs/protocol.md#rewinding``.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Awaitable, Callable, Sequence
from typing import Protocol

from wallaroo_spark.connector.session.address_rotation import Address, AddressRotation
from wallaroo_spark.connector.session.session_endings import EndedSession, Ending, report_ending, report_failure
from wallaroo_spark.connector.session.worker_connection import WorkerConnection
from wallaroo_spark.connector.settings import ConnectorSettings
from wallaroo_spark.errors import (
    RegistryError,
    RemoteProtocolError,
    ReplayError,
    TransportError,
    one_line,
)
from wallaroo_spark.protocol import ConnectorSession, Error, Frame, Ok, Restart
from wallaroo_spark.transport import connect, format_address

_log = one_line(logging.getLogger("wallaroo_spark.connector"))

AddressLookup = Callable[[], Awaitable[Sequence[Address]]]
"""Returns the workers' current addresses."""


class SessionUser(Protocol):
    """The user of the sessions, which is called on their events."""

    def session_began(self, connection: WorkerConnection, ok: Ok) -> None:
        """The worker has answered HELLO. Raises :class:`ReplayError` for a stream that cannot be resumed."""

    def received(self, connection: WorkerConnection, frame: Frame) -> None:
        """The worker has sent a frame. Raises :class:`ReplayError` as :meth:`session_began` does."""

    def written(self) -> None:
        """The connection has written the collected frames."""

    def session_ended(self, connection: WorkerConnection) -> None:
        """The session has ended. Also called for a connection whose handshake has failed."""

    def failed(self, error: Exception) -> None:
        """No further session is attempted, because of ``error``."""


class SessionKeeper:
    """The task that opens a session for its user, and another one whenever a session has ended."""

    def __init__(self, user: SessionUser, settings: ConnectorSettings, addresses: AddressLookup) -> None:
        self._user = user
        self._settings = settings
        self._addresses = addresses
        self.rotation: AddressRotation | None = None
        """The order of attempts; None before the first one."""
        self.handshake_with: str | None = None
        """``host:port`` of the worker that has not answered HELLO yet; None for none."""

    @property
    def last_error(self) -> str:
        """The reason why the last session or attempt has ended; empty when there was none."""
        return "" if self.rotation is None else self.rotation.last_reason

    async def run(self) -> None:
        """Run until cancelled, or until no further attempt can succeed; then call ``failed`` of the user."""
        try:
            await self._run()
        except Exception as error:
            _log.error("the connector ends: %s", error)
            self._user.failed(error)

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
        settings = self._settings
        try:
            rotation.replace(await self._addresses())
        except RegistryError as error:
            report_failure(rotation, "the registry", error.message)
            return
        address = rotation.next()
        if address is None:
            reason = f"no worker serves receiver {settings.program!r} at the moment"
            report_failure(rotation, "the registry", reason)
            return
        where = format_address(*address)
        try:
            stream = await connect(*address, tls=settings.tls, timeout=settings.connect_timeout)
        except TransportError as error:
            report_failure(rotation, where, error.message)
            return
        session = ConnectorSession(settings.protocol_revision, max_frame_bytes=settings.max_frame_bytes)
        await self._session(rotation, address, WorkerConnection(stream, session, self._user.written))

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
                self._user.session_began(connection, last)
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
            self._user.session_ended(connection)
            await connection.close(goodbye)
        report_ending(rotation, EndedSession(address, last, began, connection.progressed), clock())

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
            self._user.received(connection, frame)
