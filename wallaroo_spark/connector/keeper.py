"""Keeps a session alive: finds a worker, shakes hands, and comes back with back-off when the session is lost.

Source: ``docs/protocol.md#when-to-try-again``; ``docs/protocol.md#session-states`` and ``docs/protocol.md#rewinding``.
"""

from __future__ import annotations

import asyncio
import logging
import random
import ssl
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field

from wallaroo_spark.connector.backoff import Backoff
from wallaroo_spark.connector.hub import Hub
from wallaroo_spark.connector.link import Link
from wallaroo_spark.connector.route import Address, Route
from wallaroo_spark.errors import (
    ConfigurationError,
    RegistryError,
    RemoteProtocolError,
    ReplayError,
    TransportError,
    one_line,
)
from wallaroo_spark.protocol import ConnectorSession, Error, Frame, Ok, Restart
from wallaroo_spark.protocol.reasons import is_later, is_superseded, redirect_address
from wallaroo_spark.transport import connect, format_address, parse_address

_log = one_line(logging.getLogger("wallaroo_spark.connector"))

Addresses = Callable[[], Awaitable[Sequence[Address]]]

_HINTS = {
    "cookie": "check that the connector's cookie is the receiver's",
    "version": "check that connector and receiver are given the same protocol version",
    "program": "give the connector one of these program names, or add its own to the receiver's option programs",
    "instance": "check the instance name, and that no other connector runs under it",
}


@dataclass(frozen=True, kw_only=True)
class Settings:
    """What a session needs to know. Times are seconds."""

    program: str
    instance: str
    version: str
    cookie: str = field(repr=False)
    tls: ssl.SSLContext | None
    max_frame_bytes: int
    connect_timeout: float
    handshake_timeout: float
    retry: Backoff


Ending = Error | Restart | TransportError


class Keeper:
    """The task that keeps the hub supplied with a session."""

    def __init__(self, hub: Hub, settings: Settings, addresses: Addresses) -> None:
        self._hub = hub
        self._settings = settings
        self._addresses = addresses

    async def run(self) -> None:
        """Until cancelled, or until coming back is pointless: then the hub fails with the reason."""
        try:
            await self._run()
        except Exception as error:
            _log.error("the connector ends: %s", error)
            self._hub.fail(error)

    async def _run(self) -> None:
        clock = asyncio.get_running_loop().time
        route = Route(self._settings.retry, random.random, clock(), self._settings.instance)
        while True:
            error = route.given_up(clock())
            if error is not None:
                raise error
            await asyncio.sleep(route.delay(clock()))
            await self._attempt(route)

    async def _attempt(self, route: Route) -> None:
        try:
            route.replace(await self._addresses())
        except RegistryError as error:
            self._failed(route, "the registry", str(error))
            return
        address = route.next()
        if address is None:
            self._failed(route, "the registry", f"no worker serves receiver {self._settings.program!r} at the moment")
            return
        where = format_address(*address)
        try:
            stream = await connect(*address, tls=self._settings.tls, timeout=self._settings.connect_timeout)
        except TransportError as error:
            self._failed(route, where, str(error))
            return
        session = ConnectorSession(self._hub.revision, max_frame_bytes=self._settings.max_frame_bytes)
        await self._session(route, address, Link(stream, session, self._hub.room))

    async def _session(self, route: Route, address: Address, link: Link) -> None:
        clock = asyncio.get_running_loop().time
        where = format_address(*address)
        goodbye = ""
        began: float | None = None
        try:
            last: Ending | Frame = await self._handshake(link, where)
            if isinstance(last, Ok):
                began = clock()
                route.connected()
                _log.info(
                    "session with the worker at %s as %r, %d credits", where, self._settings.instance, last.credits
                )
                self._hub.up(link, last)
                last = await self._serve(link)
        except TransportError as error:
            last = error
        except ReplayError as error:
            goodbye = error.message
            if not route.behind(address, error.message, clock()):
                raise
            _log.warning("the worker at %s may not know of the last commits yet, and is asked again: %s", where, error)
            return
        except RemoteProtocolError as error:
            raise RemoteProtocolError(
                f"the worker at {where} broke the protocol: {error.message}; check that {where} is a worker and speaks "
                f"{self._hub.revision.name}",
                address=where,
                **error.fields,
            ) from error
        finally:
            self._hub.down(link)
            await link.close(goodbye)
        self._judge(route, address, last, began, link.progressed)

    async def _handshake(self, link: Link, where: str) -> Frame:
        settings = self._settings
        link.hello(settings.version, settings.cookie, settings.program, settings.instance)
        try:
            async with asyncio.timeout(settings.handshake_timeout):
                return await link.next()
        except TimeoutError:
            raise TransportError(
                f"the worker at {where} did not answer HELLO within {settings.handshake_timeout:g} seconds; "
                "it answers once its query has started; check the query, or raise handshake_timeout",
                address=where,
                reason="timeout",
            ) from None

    async def _serve(self, link: Link) -> Error | Restart:
        while True:
            frame = await link.next()
            if isinstance(frame, Error | Restart):
                return frame
            self._hub.take(link, frame)

    def _judge(
        self, route: Route, address: Address, last: Ending | Frame, began: float | None, progressed: bool
    ) -> None:
        """Whether to come back after this, and where."""
        where = format_address(*address)
        elsewhere, reason = _meaning(last, where)
        if began is not None:
            now = asyncio.get_running_loop().time()
            long = now - began > self._settings.retry.maximum
            route.ended(address, reason, now, progressed=progressed or long)
            _log.warning("the session with the worker at %s has ended: %s", where, reason)
        if elsewhere:
            self._follow(route, where, elsewhere)
        elif began is None:
            self._failed(route, where, reason)

    def _follow(self, route: Route, where: str, elsewhere: str) -> None:
        try:
            target = parse_address(elsewhere)
        except ConfigurationError as error:
            self._failed(route, where, f"it redirects to what is no address: {error}")
            return
        _log.info("the worker at %s sends this connector to %s", where, elsewhere)
        route.redirected(where, target)

    def _failed(self, route: Route, where: str, reason: str) -> None:
        route.failed(where, reason)
        _log.warning("no session with %s: %s", where, reason)


def _meaning(last: Ending | Frame, where: str) -> tuple[str, str]:
    """Where an ending sends us, if anywhere, and its reason. Raises for one that no new session can mend."""
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
                    address=where,
                    reason=last.reason,
                )
            hint = next((text for word, text in _HINTS.items() if word in last.reason), "see the worker's log")
            raise RemoteProtocolError(
                f"the worker at {where} refused: {last.reason}; {hint}", address=where, reason=last.reason
            )
    raise AssertionError(f"the session table lets {last!r} end a session")
