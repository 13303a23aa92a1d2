"""The other gateways of the application: calls that belong to another gateway are forwarded to it.

Exchanges and endpoints keep nothing, so each has one owner among the live gateways, where senders and receivers meet.
A forwarded call that its receiver does not own either is refused with UNAVAILABLE: the gateways see a change at
different times, and the client tries again.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping
from typing import Any, NoReturn

import grpc

from wallaroo_spark.gateway.refusals import Refused
from wallaroo_spark.gateway.server.answers import CODE
from wallaroo_spark.gateway.state.owners import owner_of

FORWARDED = "wallaroo-forwarded"
"""The metadata of a forwarded call."""
PeerAddresses = Callable[[], Mapping[str, str]]
"""The addresses of the live gateways, by name."""


def plain_channel(address: str) -> Any:
    """A channel without TLS."""
    return grpc.aio.insecure_channel(address)


class Peers:
    """The live gateways, as one of them sees them."""

    def __init__(self, name: str, addresses: PeerAddresses, connect: Callable[[str], Any] = plain_channel) -> None:
        self._name = name
        self._addresses = addresses
        self._connect = connect
        self._channels: dict[str, Any] = {}

    def owns(self, kind: str, path: str) -> bool:
        """Whether this gateway owns an object; it owns all while it knows no other gateway."""
        return self._owner(kind, path) == self._name

    def elsewhere(self, kind: str, path: str, context: Any) -> Any:
        """The channel to the owner of an object, or None when this gateway is the owner.

        Raises :class:`Refused` for a forwarded call when this gateway is not the owner.
        """
        owner = self._owner(kind, path)
        if owner == self._name:
            return None
        if any(key == FORWARDED for key, _ in context.invocation_metadata() or ()):
            raise moving(kind, path)
        address = self._addresses()[owner]
        if address not in self._channels:
            self._channels[address] = self._connect(address)
        return self._channels[address]

    async def close(self) -> None:
        """Close the channels."""
        await asyncio.gather(*(channel.close() for channel in self._channels.values()))

    def _owner(self, kind: str, path: str) -> str:
        return owner_of(kind, path, {*self._addresses(), self._name})


def moving(kind: str, path: str) -> Refused:
    """An object moves to another gateway."""
    text = f"{kind} {path[:200]} moves to another gateway, because one has come or gone; try again"
    return Refused(text, code="gateway-ends", status="UNAVAILABLE")


def forwarded(context: Any) -> tuple[tuple[str, str], ...]:
    """The metadata of a forwarded call: the token of the client."""
    given = [(key, value) for key, value in context.invocation_metadata() or () if key == "authorization"]
    return (*given, (FORWARDED, "1"))


async def forward_one(method: Any, request: Any, context: Any) -> Any:
    """Forward a call of one message and one answer."""
    try:
        return await method(request, metadata=forwarded(context), timeout=context.time_remaining())
    except grpc.aio.AioRpcError as error:
        await _pass_on(error, context)


async def forward_stream(call: Any, messages: AsyncIterator[Any] | None, context: Any, *, announced: bool) -> None:
    """Forward a call whose answers are a stream. ``announced``: its initial metadata come before its first answer."""

    async def send() -> None:
        assert messages is not None
        async for message in messages:
            await call.write(message)
        await call.done_writing()

    sending = asyncio.ensure_future(send()) if messages is not None else None
    try:
        if announced:
            await call.initial_metadata()
            await context.send_initial_metadata(())
        while (answer := await call.read()) is not grpc.aio.EOF:
            await context.write(answer)
    except grpc.aio.AioRpcError as error:
        await _pass_on(error, context)
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


async def _pass_on(error: Any, context: Any) -> NoReturn:
    code = next((value for key, value in error.trailing_metadata() or () if key == CODE), "gateway-ends")
    await context.abort(error.code(), error.details() or "the other gateway is gone; try again", ((CODE, code),))
    raise AssertionError("a call goes on after its end")
