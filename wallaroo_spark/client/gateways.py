"""The connection to one gateway of an application at a time, and requests that are tried again with others."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, NoReturn

import grpc

from wallaroo_spark.api import pipelines_pb2_grpc as rpc
from wallaroo_spark.client.arguments import ClientSettings
from wallaroo_spark.client.refusals import (
    DONE_ONCE,
    is_cancelled_itself,
    lost,
    may_try_again,
    refusal,
    refused_by_a_living_gateway,
)
from wallaroo_spark.connector.arguments import timeout_of
from wallaroo_spark.errors import LocalProtocolError, RegistryError, TransportError, one_line
from wallaroo_spark.event_loop import BackgroundTasks
from wallaroo_spark.registry import Registry, application_registry
from wallaroo_spark.transport import read_authority, read_pair

log = one_line("wallaroo_spark.client")

WORD_SECONDS = 1.0
"""Seconds without a connection after which the log says so. A choice: a person waits that long without wondering."""
LONGEST_SECONDS = 1e9
"""The longest limit of a request: gRPC takes one of some 300 years, or without an end, for one that is over."""
OPTIONS: tuple[tuple[str, Any], ...] = (
    # Each connection is its own, so a new attempt is not held back by the back-off of an earlier one.
    ("grpc.use_local_subchannel_pool", 1),
    # Requests are tried again here, and with other gateways.
    ("grpc.enable_retries", 0),
    # A delivery may have many events.
    ("grpc.max_receive_message_length", 64 << 20),
    # A gateway whose machine is gone sends nothing any more. Gateways permit one ping in ten seconds.
    ("grpc.keepalive_time_ms", 20_000),
    ("grpc.keepalive_timeout_ms", 20_000),
    # One whose process is stopped acknowledges bytes, and answers no ping.
    ("grpc.http2.ping_timeout_ms", 20_000),
    ("grpc.http2.max_pings_without_data", 0),
)


class GatewayConnection:
    """A connection to one gateway."""

    def __init__(self, address: str, channel: grpc.aio.Channel) -> None:
        self.address = address
        """``host:port`` of the gateway."""
        self.channel = channel
        """The connection."""
        self.uses = 0
        """The requests and memberships that use it now."""
        # The generated code has no types.
        made: Any = rpc
        self.streams: Any = made.StreamsStub(channel)
        """The service of streams."""
        self.pipelines: Any = made.PipelinesStub(channel)
        """The service of pipelines."""
        self.exchanges: Any = made.ExchangesStub(channel)
        """The service of exchanges."""
        self.endpoints: Any = made.EndpointsStub(channel)
        """The service of endpoints."""
        self.schema: Any = made.SchemaStub(channel)
        """The service of the schema."""


class Gateways:
    """Connects to any gateway of an application, and to another one when that fails.

    Each request is made with :meth:`using`, which learns from its error what has become of the connection: a gateway
    that refuses a request lives, and its connection stays open. A lost one is closed when nothing uses it any more.
    Methods are coroutines of one event loop.
    """

    def __init__(self, settings: ClientSettings) -> None:
        self._settings = settings
        self._current: GatewayConnection | None = None
        self._open: dict[str, GatewayConnection] = {}
        """The connections that are not lost, by address."""
        self._used_lost: set[GatewayConnection] = set()
        self._closing = BackgroundTasks()
        self._last: set[str] = set()
        """The addresses to try last: those that have failed, or were busy."""
        self._connecting = asyncio.Lock()
        self._problem = ""
        """Why no gateway could be connected to last."""
        self._word: asyncio.TimerHandle | None = None
        """Says that there is no connection; None while there is one."""
        self._registry: Registry | None = None
        self._closed = False

    @property
    def metadata(self) -> tuple[tuple[str, str], ...]:
        """The metadata of each request."""
        return (("authorization", f"Bearer {self._settings.token}"),) if self._settings.token else ()

    @property
    def address(self) -> str:
        """The address of the gateway that is connected; empty without one."""
        return self._current.address if self._current else ""

    @asynccontextmanager
    async def using(self, action: str) -> AsyncIterator[GatewayConnection]:
        """A connection for one request or membership, which is not closed meanwhile; ``action`` names it in errors.

        Raises :class:`TransportError` when no gateway can be connected to, and in place of a cancellation that is not
        one of the calling task: gRPC cancels the calls of a connection that is closed.
        """
        gateway = await self._connected()
        gateway.uses += 1
        try:
            yield gateway
        except grpc.aio.AioRpcError as error:
            if may_try_again(error):
                self._learn(gateway, error)
            raise
        except TransportError:
            self._pass_over(gateway)
            raise
        except asyncio.CancelledError as error:
            if is_cancelled_itself():
                raise
            self._check_open()
            self._pass_over(gateway)
            raise TransportError(
                f"{action}: the connection to {gateway.address} was closed meanwhile; try again",
                code="gateway-unreachable",
            ) from error
        finally:
            gateway.uses -= 1
            self._close_unused(gateway)

    async def call(
        self,
        action: str,
        method: Callable[[GatewayConnection], Any],
        request: Any,
        timeout: float | None,  # noqa: ASYNC109 -- the limit of all attempts
        late: str = DONE_ONCE,
    ) -> Any:
        """Make a request, again and with other gateways, until it is answered; ``action`` names it in errors.

        ``method`` chooses the method of a gateway, ``timeout`` is the limit of all attempts in seconds (None: the
        setting). Raises the error of :func:`refusal`, which takes ``late``, and :class:`TransportError` when the
        time or the attempts are over.
        """
        seconds = timeout_of(timeout)
        deadline = time.monotonic() + (self._settings.timeout if seconds is None else seconds)
        attempts = Attempts(self._settings)
        while True:
            try:
                async with self.using(action) as gateway:
                    left = max(0.001, deadline - time.monotonic())
                    return await method(gateway)(request, metadata=self.metadata, timeout=min(left, LONGEST_SECONDS))
            except grpc.aio.AioRpcError as error:
                if not may_try_again(error):
                    raise refusal(error, action, late) from error
                failure: Exception = refusal(error, action, late)
            except (TransportError, RegistryError) as error:
                failure = error
            delay = attempts.next_delay()
            if delay is None or time.monotonic() + delay >= deadline:
                raise failure
            log.debug("%s: trying again in %.1f s: %s", action, delay, failure)
            await asyncio.sleep(delay)

    async def keep(
        self, name: str, again: str, use: Callable[[GatewayConnection, Attempts], Awaitable[None]]
    ) -> NoReturn:
        """Use a connection, and another one whenever it is lost, for ever; ``again`` says in the log what is done then.

        ``use`` calls :meth:`Attempts.succeeded`. Raises the error of a request that is refused for good.
        """
        attempts = Attempts(self._settings, for_ever=True)
        while True:
            try:
                async with self.using(name) as gateway:
                    await use(gateway, attempts)
                    failure = f"{gateway.address} has ended the connection"
            except grpc.aio.AioRpcError as error:
                failure = lost(error, name).message
            except (TransportError, RegistryError) as error:
                failure = error.message
            delay = attempts.next_delay() or 0.0
            log.warning("%s: %s again in %.1f s: %s", name, again, delay, failure)
            await asyncio.sleep(delay)

    async def close(self) -> None:
        """Close the connections. May be called again."""
        self._closed = True
        self._end_word()
        for gateway in {*self._open.values(), *self._used_lost}:
            self._close(gateway)
        self._current, self._open, self._used_lost = None, {}, set()
        await self._closing.wait()
        if self._registry is not None:
            await asyncio.to_thread(self._registry.close)
            self._registry = None

    async def _connected(self) -> GatewayConnection:
        """The gateway that is connected, or another one. Raises :class:`TransportError` without one."""
        async with self._connecting:
            self._check_open()
            if self._current is None:
                if self._word is None:
                    self._word = asyncio.get_running_loop().call_later(WORD_SECONDS, self._say_that_none_is_connected)
                try:
                    self._current = await self._connect()
                except (TransportError, RegistryError) as error:
                    self._problem = error.message
                    raise
                self._end_word()
            return self._current

    def _say_that_none_is_connected(self) -> None:
        where = ", ".join(self._settings.addresses) or f"of application {self._settings.application}"
        problem = self._problem or f"no answer from {where} yet"
        log.warning("no gateway is connected, and the client goes on trying: %s", problem)

    def _end_word(self) -> None:
        self._problem = ""
        if self._word is not None:
            self._word.cancel()
            self._word = None

    def _learn(self, gateway: GatewayConnection, error: grpc.aio.AioRpcError) -> None:
        """Take the error of a request that may succeed with this gateway later, or with another one."""
        self._pass_over(gateway)
        ready = gateway.channel.get_state() is grpc.ChannelConnectivity.READY
        if not ready and not refused_by_a_living_gateway(error):
            self._lose(gateway)

    def _lose(self, gateway: GatewayConnection) -> None:
        """The connection takes nothing new, and is closed when nothing uses it any more."""
        if self._open.get(gateway.address) is gateway:
            del self._open[gateway.address]
            self._used_lost.add(gateway)
            self._close_unused(gateway)

    def _pass_over(self, gateway: GatewayConnection) -> None:
        """The next request goes to another gateway, if there is one; what uses this connection goes on with it."""
        self._last.add(gateway.address)
        if self._current is gateway:
            self._current = None

    def _close_unused(self, gateway: GatewayConnection) -> None:
        if gateway in self._used_lost and not gateway.uses:
            self._used_lost.discard(gateway)
            self._close(gateway)

    def _close(self, gateway: GatewayConnection) -> None:
        self._closing.start(gateway.channel.close())

    def _check_open(self) -> None:
        if self._closed:
            raise LocalProtocolError("the client is closed; open another one", code="client-closed")

    async def _connect(self) -> GatewayConnection:
        addresses = await self._addresses()
        # Those that have failed or refused come last; they are tried too, because all may have done so once.
        random.shuffle(addresses)
        addresses.sort(key=lambda address: address in self._last)
        reasons: list[str] = []
        for address in addresses:
            known = self._open.get(address)
            if known is not None and known.channel.get_state() is grpc.ChannelConnectivity.READY:
                return known
            channel = self._channel(address)
            try:
                await asyncio.wait_for(_ready(channel), self._settings.connect_timeout)
            except (TimeoutError, ConnectionError) as error:
                reasons.append(f"{address}: {error or 'no answer in time'}")
                self._last.add(address)
                await channel.close()
            except BaseException:
                await channel.close()
                raise
            else:
                self._last.clear()
                if known is not None:
                    self._lose(known)
                made = self._open[address] = GatewayConnection(address, channel)
                return made
        raise TransportError(
            f"no gateway can be reached ({'; '.join(reasons)}); check that the application runs, the addresses, and "
            f"{'the certificates' if self._settings.encrypted else 'whether the gateways use TLS'}",
            code="gateway-unreachable",
        )

    async def _addresses(self) -> list[str]:
        if self._settings.addresses:
            return self._settings.addresses
        found = await asyncio.to_thread(self._look_up)
        if not found:
            raise TransportError(
                f"no gateway of application {self._settings.application!r} is registered; start the application, or "
                "check its name and the registry",
                code="gateway-unreachable",
            )
        return found

    def _look_up(self) -> list[str]:
        if self._registry is None:
            assert self._settings.registry is not None
            self._registry = application_registry(self._settings.registry, self._settings.application, attempts=1)
        return [lease.connect for lease in self._registry.leases().values() if lease.connect]

    def _channel(self, address: str) -> grpc.aio.Channel:
        settings = self._settings
        if not settings.encrypted:
            return grpc.aio.insecure_channel(address, options=OPTIONS)
        certificate = key = None
        if settings.certificate:
            certificate, key = read_pair(settings.certificate, settings.key)
        authority = read_authority(str(Path(settings.ca))) if settings.ca else None
        credentials = grpc.ssl_channel_credentials(authority, key, certificate)
        return grpc.aio.secure_channel(address, credentials, options=OPTIONS)


class Attempts:
    """Failures in a row, and the delay after each."""

    def __init__(self, settings: ClientSettings, for_ever: bool = False) -> None:
        self._backoff = settings.backoff
        self._for_ever = for_ever
        self.succeeded()

    def next_delay(self) -> float | None:
        """Count a failure, and return the seconds to wait; None: give up."""
        self._failures += 1
        if not self._for_ever and self._backoff.exhausted(self._failures, time.monotonic() - self._since):
            return None
        return self._backoff.delay(self._failures, random.random())

    def succeeded(self) -> None:
        """Forget the failures."""
        self._failures = 0
        self._since = time.monotonic()


async def _ready(channel: grpc.aio.Channel) -> None:
    """Wait until the channel is connected. Raises ConnectionError when the first attempt has failed."""
    state = channel.get_state(try_to_connect=True)
    while state is not grpc.ChannelConnectivity.READY:
        if state in (grpc.ChannelConnectivity.TRANSIENT_FAILURE, grpc.ChannelConnectivity.SHUTDOWN):
            raise ConnectionError("the connection was refused or has failed")
        await channel.wait_for_state_change(state)
        state = channel.get_state(try_to_connect=True)
