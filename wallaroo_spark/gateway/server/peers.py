"""The other gateways of the application: calls that belong to another gateway are forwarded to it.

Exchanges and endpoints keep nothing, so each has one owner among the live gateways, where senders and receivers meet.
A forwarded call that its receiver does not own either is refused with UNAVAILABLE: the gateways see a change at
different times, and the client tries again.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import grpc

from wallaroo_spark.errors import WallarooError, one_line
from wallaroo_spark.gateway.limits import Refused, try_again
from wallaroo_spark.gateway.server.answers import CODE
from wallaroo_spark.gateway.server.credentials import NO_TLS, TlsFiles

log = one_line("wallaroo_spark.gateway")

FORWARDED = "wallaroo-forwarded"
"""The metadata of a forwarded call."""
PeerAddresses = Callable[[], Mapping[str, str]]
"""The addresses of the live gateways, by name."""


PeerOptions = tuple[tuple[str, Any], ...]
OPTIONS: PeerOptions = (
    # A gateway whose machine or process says nothing any more is lost within 20 seconds, as a client is.
    ("grpc.keepalive_time_ms", 10_000),
    ("grpc.keepalive_timeout_ms", 10_000),
    ("grpc.http2.ping_timeout_ms", 10_000),
    ("grpc.http2.max_pings_without_data", 0),
    # So is one that accepts a connection and says nothing; without this gRPC waits for 20 seconds, and then pauses for
    # up to two minutes between attempts, in which every call fails.
    ("grpc.min_reconnect_backoff_ms", 10_000),
    ("grpc.initial_reconnect_backoff_ms", 500),
    ("grpc.max_reconnect_backoff_ms", 1_000),
    # Each connection is its own: one that is made anew does not wait for the pause of an earlier one.
    ("grpc.use_local_subchannel_pool", 1),
    ("grpc.enable_retries", 0),
    # A message of a client and its metadata.
    ("grpc.max_receive_message_length", 8 << 20),
)
"""The options of a connection to another gateway. The times are choices, those of the gateway towards clients."""
SEND_SECONDS = 30.0
"""How long a forwarded Send may take when its client gives no deadline. A choice: nothing in it waits for a commit."""


def channel_to(address: str, tls: TlsFiles = NO_TLS, options: PeerOptions = OPTIONS) -> Any:
    """A channel to another gateway, which has the same TLS settings as this one."""
    if not tls.certificate:
        return grpc.aio.insecure_channel(address, options=options)
    return grpc.aio.secure_channel(address, tls.channel(), options=options)


@dataclass(eq=False)
class PeerGateway:
    """Another gateway: the owner of an object that a client of this one asks for."""

    name: str
    address: str
    channel: Any
    """The connection to it."""
    troubled: set[str]
    """The gateways that the last call has not reached, so that the log has one line about each."""
    lost: bool = False
    """Whether a call could not reach it; the next one takes a new connection."""

    @contextlib.contextmanager
    def forwarding(self, context: Any) -> Iterator[None]:
        """Pass an error of a forwarded call on to the client, as :class:`Refused`."""
        try:
            yield
        except grpc.aio.AioRpcError as error:
            code = next((str(value) for key, value in error.trailing_metadata() or () if key == CODE), "")
            if code:
                self.troubled.discard(self.name)
                raise Refused(error.details() or "", code=code, status=error.code().name) from error
            late = error.code() is grpc.StatusCode.DEADLINE_EXCEEDED
            if late and context.time_remaining() is not None:
                raise self._refused("has not answered before the deadline of the call") from error
            self.lost = self.lost or late or error.code() is grpc.StatusCode.UNAVAILABLE
            if self.name not in self.troubled:
                self.troubled.add(self.name)
                log.warning("calls to gateway %s at %s fail: %s", self.name, self.address, error.details())
            raise self._refused(f"cannot be reached: {error.details()}") from error
        self.troubled.discard(self.name)

    def _refused(self, problem: str) -> Refused:
        text = f"gateway {self.name} at {self.address}, which has to handle this call, {problem}; try again"
        return try_again(text)


@dataclass(eq=False)
class Peers:
    """The live gateways, as one of them sees them."""

    name: str
    """That of this gateway."""
    addresses: PeerAddresses
    connect: Callable[[str], Any] = channel_to
    """Makes a channel to an address."""
    _peers: dict[str, PeerGateway] = field(default_factory=dict, init=False)
    _troubled: set[str] = field(default_factory=set, init=False)
    _closing: set[asyncio.Future[Any]] = field(default_factory=set, init=False)

    def owns(self, kind: str, path: str) -> bool:
        """Whether this gateway owns an object; it owns all while it knows no other gateway."""
        return self._owner(kind, path) == self.name

    def elsewhere(self, kind: str, path: str, context: Any) -> PeerGateway | None:
        """The owner of an object, or None when this gateway is the owner.

        Raises :class:`Refused` for a forwarded call when this gateway is not the owner.
        """
        owner = self._owner(kind, path)
        if owner == self.name:
            return None
        if any(key == FORWARDED for key, _ in context.invocation_metadata() or ()):
            raise moving(kind, path)
        address = self.addresses()[owner]
        known = self._peers.get(owner)
        if known is not None and (known.lost or known.address != address):
            # A new connection, with the certificates as they are now; the earlier one is of no use to anybody.
            self._close(known)
            known = None
        if known is None:
            try:
                known = PeerGateway(owner, address, self.connect(address), self._troubled)
            except WallarooError as error:
                log.warning("gateway %s cannot be connected to: %s", owner, error)
                text = f"gateway {owner} at {address} cannot be connected to: {error.message}; try again"
                raise try_again(text) from error
            self._peers[owner] = known
        return known

    async def close(self) -> None:
        """Close the connections."""
        for peer in list(self._peers.values()):
            self._close(peer)
        await asyncio.gather(*self._closing, return_exceptions=True)

    def _close(self, peer: PeerGateway) -> None:
        if self._peers.get(peer.name) is peer:
            del self._peers[peer.name]
            closing = asyncio.ensure_future(peer.channel.close())
            self._closing.add(closing)
            closing.add_done_callback(self._closing.discard)

    def _owner(self, kind: str, path: str) -> str:
        return owner_of(kind, path, {*self.addresses(), self.name})


def moving(kind: str, path: str) -> Refused:
    """An object moves to another gateway."""
    text = f"{kind} {path[:200]} moves to another gateway, because one has come or gone; try again"
    return try_again(text)


def forwarded(context: Any) -> tuple[tuple[str, str], ...]:
    """The metadata of a forwarded call: the token of the client."""
    given = [(key, value) for key, value in context.invocation_metadata() or () if key == "authorization"]
    return (*given, (FORWARDED, "1"))


async def forward_one(peer: PeerGateway, method: Any, request: Any, context: Any) -> Any:
    """Forward a call of one message and one answer."""
    left = context.time_remaining()
    with peer.forwarding(context):
        return await method(request, metadata=forwarded(context), timeout=SEND_SECONDS if left is None else left)


async def forward_stream(
    peer: PeerGateway, call: Any, messages: AsyncIterator[Any] | None, context: Any, *, announced: bool
) -> None:
    """Forward a call whose answers are a stream. ``announced``: its initial metadata come before its first answer."""

    async def send() -> None:
        assert messages is not None
        async for message in messages:
            await call.write(message)
        await call.done_writing()

    sending = asyncio.ensure_future(send()) if messages is not None else None
    try:
        with peer.forwarding(context):
            if announced:
                await call.initial_metadata()
                await context.send_initial_metadata(())
            while (answer := await call.read()) is not grpc.aio.EOF:
                await context.write(answer)
    finally:
        call.cancel()
        if sending is not None:
            sending.cancel()
            await asyncio.gather(sending, return_exceptions=True)


async def after(first: Any, rest: AsyncIterator[Any]) -> AsyncIterator[Any]:
    """The first message and the further ones."""
    yield first
    async for message in rest:
        yield message


def owner_of(kind: str, path: str, gateways: Iterable[str]) -> str:
    """The owner of an object among gateways; empty without one.

    Each object goes to the gateway with the greatest hash of both, so a gateway that comes or goes moves only its own.
    """

    def weight(gateway: str) -> bytes:
        return hashlib.blake2b(f"{kind} {path} {gateway}".encode(), digest_size=8).digest()

    return max(gateways, key=weight, default="")
