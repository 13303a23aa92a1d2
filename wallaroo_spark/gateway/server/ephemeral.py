"""The services of exchanges and endpoints, which keep nothing and see no controller."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine
from functools import partial
from typing import Any, TypeVar

from wallaroo_spark.api import pipelines_pb2 as pb
from wallaroo_spark.api import pipelines_pb2_grpc as rpc
from wallaroo_spark.gateway.cloud_events import event_of
from wallaroo_spark.gateway.limits import invalid
from wallaroo_spark.gateway.server.answers import explained, first_message, token_of
from wallaroo_spark.gateway.server.channels import Service, open_channel
from wallaroo_spark.gateway.server.peers import PeerGateway, after, forward_one, forward_stream, forwarded
from wallaroo_spark.gateway.state.endpoints import Consumer, EndpointCall
from wallaroo_spark.gateway.tokens import PUBLISH, SUBSCRIBE
from wallaroo_spark.pipelines.schema.declarations import EndpointDeclaration, ExchangeDeclaration
from wallaroo_spark.pipelines.schema.names import name_problem

D = TypeVar("D", ExchangeDeclaration, EndpointDeclaration)
# The generated code has no types.
_EXCHANGES: Any = rpc.ExchangesStub
_ENDPOINTS: Any = rpc.EndpointsStub


class _EphemeralService(Service):
    """The common part of both services."""

    def _admitted(
        self, context: Any, access: str, kind: type[D], path: str
    ) -> tuple[D, PeerGateway | None, Callable[[], object]]:
        """The declaration of an object, the gateway that owns it (None: this one), and the check of the client's right.

        Raises :class:`Refused`, as the check does.
        """
        gateway, token = self._gateway, token_of(context)

        def check() -> D:
            gateway.check(token, access, kind.kind, path)
            return gateway.core.schema.find(kind, path)

        declared = check()
        gateway.core.require_life()
        return declared, gateway.peers.elsewhere(kind.kind, declared.key.path, context), check


class ExchangesService(_EphemeralService, rpc.ExchangesServicer):
    """Send and receive ephemeral messages."""

    @explained
    async def Send(self, request: pb.SendRequest, context: Any) -> pb.SendReply:  # the name of the interface
        """Give one receiver of each group a copy."""
        declared, other, _ = self._admitted(context, PUBLISH, ExchangeDeclaration, request.exchange)
        if other is not None:
            reply: pb.SendReply = await forward_one(other, _EXCHANGES(other.channel).Send, request, context)
            return reply
        event_of(request.event, self._gateway.limits)
        return pb.SendReply(groups=self._gateway.exchanges.send(declared.key.path, request.event))

    @explained
    async def Receive(self, request: pb.ReceiveRequest, context: Any) -> None:  # the name of the interface
        """Receive the messages of an exchange."""
        gateway = self._gateway
        declared, other, check = self._admitted(context, SUBSCRIBE, ExchangeDeclaration, request.exchange)
        if problem := name_problem(request.group):
            raise invalid(f"group: {problem}")
        if other is not None:
            call = _EXCHANGES(other.channel).Receive(request, metadata=forwarded(context))
            await forward_stream(other, call, None, context, announced=True)
            return
        gateway.require_place()
        wake = asyncio.Event()
        receiver = gateway.exchanges.join(declared.key.path, request.group, wake.set)
        async with open_channel(gateway, receiver, check, receiver.end, partial(gateway.exchanges.leave, receiver)):
            await context.send_initial_metadata(())
            await _write(context, wake, receiver.waiting.take, lambda: receiver.ended is not None)
            if receiver.ended is not None:
                raise receiver.ended


class EndpointsService(_EphemeralService, rpc.EndpointsServicer):
    """Call and serve endpoints."""

    @explained
    async def Call(self, messages: AsyncIterator[pb.CallMessage], context: Any) -> None:  # the name of the interface
        """Call an endpoint."""
        endpoints, first = self._gateway.endpoints, await first_message(messages)
        declared, other, check = self._admitted(context, PUBLISH, EndpointDeclaration, first.endpoint)
        if other is not None:
            call = _ENDPOINTS(other.channel).Call(metadata=forwarded(context), timeout=context.time_remaining())
            await forward_stream(other, call, after(first, messages), context, announced=False)
            return
        event_of(first.event, self._gateway.limits)
        wake, room = asyncio.Event(), asyncio.Event()

        def changed() -> None:
            wake.set()
            room.set()

        def answered() -> bool:
            _raise_of(reading)
            return begun.done and not begun.answers

        def leave() -> None:
            left = context.time_remaining()
            endpoints.hang_up(begun, late=left is not None and left <= 0)

        single = (declared.input == "single", declared.output == "single")
        begun = endpoints.call(declared.key.path, first.event, single, changed)
        async with open_channel(self._gateway, begun, check, begun.end, leave) as tasks:
            reading = _begin_reading(self._read(begun, messages, room), tasks, wake)
            await _write(context, wake, begun.answers.take, answered)
            if begun.problem is not None:
                raise begun.problem

    async def _read(self, call: EndpointCall, messages: AsyncIterator[pb.CallMessage], room: asyncio.Event) -> None:
        endpoints = self._gateway.endpoints
        async for message in messages:
            event_of(message.event, self._gateway.limits)
            endpoints.more(call, message.event)
            while endpoints.full(call):
                room.clear()
                await room.wait()
        endpoints.finish(call)

    @explained
    async def Serve(self, messages: AsyncIterator[pb.ServeMessage], context: Any) -> None:  # the name of the interface
        """Serve an endpoint."""
        gateway, first = self._gateway, await first_message(messages)
        declared, other, check = self._admitted(context, SUBSCRIBE, EndpointDeclaration, first.endpoint)
        if first.concurrency > gateway.limits.concurrency:
            raise invalid(f"concurrency is {first.concurrency}, and {gateway.limits.concurrency} is permitted")
        if other is not None:
            call = _ENDPOINTS(other.channel).Serve(metadata=forwarded(context))
            await forward_stream(other, call, after(first, messages), context, announced=True)
            return
        gateway.require_place()
        wake, endpoints = asyncio.Event(), gateway.endpoints
        consumer = endpoints.serve(declared.key.path, first.concurrency or 1, wake.set)
        retire, leave = partial(endpoints.retire, consumer), partial(endpoints.leave, consumer)
        async with open_channel(gateway, consumer, check, retire, leave) as tasks:
            reading = _begin_reading(self._read_answers(consumer, messages), tasks, wake)
            await context.send_initial_metadata(())
            await _write(context, wake, consumer.take, lambda: _raise_of(reading) or consumer.ended is not None)
            if consumer.ended is not None and not reading.done():
                raise consumer.ended

    async def _read_answers(self, consumer: Consumer, messages: AsyncIterator[pb.ServeMessage]) -> None:
        async for message in messages:
            if message.HasField("event") and not message.error:
                event_of(message.event, self._gateway.limits)
            self._gateway.endpoints.answer(consumer, message)


def _begin_reading(
    read: Coroutine[Any, Any, None], tasks: list[asyncio.Future[Any]], wake: asyncio.Event
) -> asyncio.Future[None]:
    """Begin to read from a client, as one of the tasks of its channel; ``wake`` is set at the end."""
    reading = asyncio.ensure_future(read)
    reading.add_done_callback(lambda _: wake.set())
    tasks.append(reading)
    return reading


async def _write(context: Any, wake: asyncio.Event, take: Callable[[], Any], over: Callable[[], bool]) -> None:
    """Write to a client what there is to take until it is over; ``wake`` is set when either may have changed."""
    while not over():
        wake.clear()
        message = take()
        if message is not None:
            await context.write(message)
        else:
            await wake.wait()


def _raise_of(reading: asyncio.Future[None]) -> bool:
    """Whether the client sends no more messages. Raises the error with which reading them has ended."""
    if reading.done():
        reading.result()
    return reading.done()
