"""The services of exchanges and endpoints, which keep nothing and see no controller."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from typing import Any

from wallaroo_spark.api import pipelines_pb2 as pb
from wallaroo_spark.api import pipelines_pb2_grpc as rpc
from wallaroo_spark.gateway.cloud_events import event_of
from wallaroo_spark.gateway.limits import Refused, invalid
from wallaroo_spark.gateway.server.answers import explained, first_message, token_of
from wallaroo_spark.gateway.server.gateway import Gateway
from wallaroo_spark.gateway.server.peers import after, forward_one, forward_stream, forwarded
from wallaroo_spark.gateway.state.endpoints import Consumer, EndpointCall
from wallaroo_spark.gateway.tokens import PUBLISH, SUBSCRIBE
from wallaroo_spark.pipelines.schema.names import name_problem


class ExchangesService(rpc.ExchangesServicer):
    """Send and receive ephemeral messages."""

    def __init__(self, gateway: Gateway) -> None:
        self._gateway = gateway

    @explained
    async def Send(self, request: pb.SendRequest, context: Any) -> pb.SendReply:  # the name of the interface
        """Give one receiver of each group a copy."""
        gateway = self._gateway
        gateway.check(token_of(context), PUBLISH, "Exchange", request.exchange)
        path = gateway.core.schema.exchange(request.exchange).key.path
        gateway.require_life()
        other = gateway.peers.elsewhere("Exchange", path, context)
        if other is not None:
            stub: Any = rpc.ExchangesStub
            reply: pb.SendReply = await forward_one(other, stub(other.channel).Send, request, context)
            return reply
        event_of(request.event, gateway.limits)
        return pb.SendReply(groups=gateway.exchanges.send(path, request.event))

    @explained
    async def Receive(self, request: pb.ReceiveRequest, context: Any) -> None:  # the name of the interface
        """Receive the messages of an exchange."""
        gateway, token = self._gateway, token_of(context)

        def check() -> None:
            gateway.check(token, SUBSCRIBE, "Exchange", request.exchange)
            gateway.core.schema.exchange(request.exchange)

        check()
        if problem := name_problem(request.group):
            raise invalid(f"group: {problem}")
        path = gateway.core.schema.exchange(request.exchange).key.path
        gateway.require_life()
        other = gateway.peers.elsewhere("Exchange", path, context)
        if other is not None:
            stub: Any = rpc.ExchangesStub
            call = stub(other.channel).Receive(request, metadata=forwarded(context))
            await forward_stream(other, call, None, context, announced=True)
            return
        gateway.require_place()
        wake = asyncio.Event()
        receiver = gateway.exchanges.join(path, request.group, wake.set)
        gateway.rules_changed[receiver] = _ending(check, receiver.end)
        try:
            await context.send_initial_metadata(())
            while receiver.ended is None:
                wake.clear()
                event = receiver.waiting.take()
                if event is not None:
                    await context.write(event)
                else:
                    await wake.wait()
            raise receiver.ended
        finally:
            del gateway.rules_changed[receiver]
            gateway.exchanges.leave(receiver)


class EndpointsService(rpc.EndpointsServicer):
    """Call and serve endpoints."""

    def __init__(self, gateway: Gateway) -> None:
        self._gateway = gateway

    @explained
    async def Call(self, messages: AsyncIterator[pb.CallMessage], context: Any) -> None:  # the name of the interface
        """Call an endpoint."""
        gateway, token = self._gateway, token_of(context)
        first = await first_message(messages)

        def check() -> None:
            gateway.check(token, PUBLISH, "Endpoint", first.endpoint)
            gateway.core.schema.endpoint(first.endpoint)

        check()
        declared = gateway.core.schema.endpoint(first.endpoint)
        path = declared.key.path
        gateway.require_life()
        other = gateway.peers.elsewhere("Endpoint", path, context)
        if other is not None:
            stub: Any = rpc.EndpointsStub
            call = stub(other.channel).Call(metadata=forwarded(context), timeout=context.time_remaining())
            await forward_stream(other, call, after(first, messages), context, announced=False)
            return
        event_of(first.event, gateway.limits)
        wake, room = asyncio.Event(), asyncio.Event()

        def changed() -> None:
            wake.set()
            room.set()

        single = (declared.input == "single", declared.output == "single")
        begun = gateway.endpoints.call(path, first.event, single, changed)
        gateway.rules_changed[begun] = _ending(check, begun.end)
        reading = asyncio.ensure_future(self._read(begun, messages, wake, room))
        try:
            await self._answer(begun, reading, wake, context)
        finally:
            # Before anything is awaited: a client that goes while its channel ends cancels this task at any await.
            del gateway.rules_changed[begun]
            left = context.time_remaining()
            gateway.endpoints.hang_up(begun, late=left is not None and left <= 0)
            reading.cancel()
            await asyncio.gather(reading, return_exceptions=True)

    async def _read(
        self, call: EndpointCall, messages: AsyncIterator[pb.CallMessage], wake: asyncio.Event, room: asyncio.Event
    ) -> None:
        endpoints = self._gateway.endpoints
        try:
            async for message in messages:
                event_of(message.event, self._gateway.limits)
                endpoints.more(call, message.event)
                while endpoints.full(call):
                    room.clear()
                    await room.wait()
            endpoints.finish(call)
        finally:
            wake.set()

    async def _answer(
        self, call: EndpointCall, reading: asyncio.Future[None], wake: asyncio.Event, context: Any
    ) -> None:
        while True:
            wake.clear()
            if reading.done():
                reading.result()
            answer = call.answers.take()
            if answer is not None:
                await context.write(answer)
            elif call.done:
                break
            else:
                await wake.wait()
        if call.problem is not None:
            raise call.problem

    @explained
    async def Serve(self, messages: AsyncIterator[pb.ServeMessage], context: Any) -> None:  # the name of the interface
        """Serve an endpoint."""
        gateway, token = self._gateway, token_of(context)
        first = await first_message(messages)

        def check() -> None:
            gateway.check(token, SUBSCRIBE, "Endpoint", first.endpoint)
            gateway.core.schema.endpoint(first.endpoint)

        check()
        path = gateway.core.schema.endpoint(first.endpoint).key.path
        if first.concurrency > gateway.limits.concurrency:
            raise invalid(f"concurrency is {first.concurrency}, and {gateway.limits.concurrency} is permitted")
        gateway.require_life()
        other = gateway.peers.elsewhere("Endpoint", path, context)
        if other is not None:
            stub: Any = rpc.EndpointsStub
            call = stub(other.channel).Serve(metadata=forwarded(context))
            await forward_stream(other, call, after(first, messages), context, announced=True)
            return
        gateway.require_place()
        wake = asyncio.Event()
        consumer = gateway.endpoints.serve(path, first.concurrency or 1, wake.set)
        gateway.rules_changed[consumer] = _ending(check, lambda problem: gateway.endpoints.retire(consumer, problem))
        reading = asyncio.ensure_future(self._read_answers(consumer, messages, wake))
        try:
            await context.send_initial_metadata(())
            await self._give_calls(consumer, reading, wake, context)
        finally:
            # Before anything is awaited, as above.
            del gateway.rules_changed[consumer]
            gateway.endpoints.leave(consumer)
            reading.cancel()
            await asyncio.gather(reading, return_exceptions=True)

    async def _read_answers(
        self, consumer: Consumer, messages: AsyncIterator[pb.ServeMessage], wake: asyncio.Event
    ) -> None:
        gateway = self._gateway
        try:
            async for message in messages:
                if message.HasField("event") and not message.error:
                    event_of(message.event, gateway.limits)
                gateway.endpoints.answer(consumer, message)
        finally:
            wake.set()

    async def _give_calls(
        self, consumer: Consumer, reading: asyncio.Future[None], wake: asyncio.Event, context: Any
    ) -> None:
        while True:
            wake.clear()
            if reading.done():
                reading.result()
                return
            event = consumer.take()
            if event is not None:
                await context.write(event)
            elif consumer.ended is not None:
                raise consumer.ended
            else:
                await wake.wait()


def _ending(check: Callable[[], None], end: Callable[[Refused], None]) -> Callable[[], None]:
    """A check that ends a channel which has lost its right."""

    def checked() -> None:
        try:
            check()
        except Refused as problem:
            end(problem)

    return checked
