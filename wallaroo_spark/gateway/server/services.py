"""The services of the gRPC interface for durable streams, pipelines and the schema."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from functools import partial
from typing import Any, TypeVar

from wallaroo_spark.api import pipelines_pb2 as pb
from wallaroo_spark.api import pipelines_pb2_grpc as rpc
from wallaroo_spark.gateway.limits import Refused, invalid
from wallaroo_spark.gateway.server.answers import explained, first_message, token_of
from wallaroo_spark.gateway.server.channels import MemberChannel, Service
from wallaroo_spark.gateway.server.gateway import Gateway
from wallaroo_spark.gateway.state.calls import PublishCall, ToInbox, WaitingCall
from wallaroo_spark.gateway.tokens import PUBLISH, SUBSCRIBE
from wallaroo_spark.pipelines.controller.messages.values import Durability
from wallaroo_spark.pipelines.controller.partition_log import LONGEST_WAIT
from wallaroo_spark.pipelines.schema.declarations import TokenDeclaration
from wallaroo_spark.pipelines.schema.documents import to_document

C = TypeVar("C", bound=WaitingCall)
_AT_ONCE = 256
"""The most requests of one PublishMany at once. More are read when some are answered."""


class StreamsService(Service, rpc.StreamsServicer):
    """Publish and subscribe."""

    @explained
    async def Publish(self, request: pb.PublishRequest, context: Any) -> pb.PublishReply:
        """Append events to one stream."""
        gateway = self._gateway
        gateway.check(token_of(context), PUBLISH, "Stream", request.stream)
        gateway.queue.require_room()
        call, done = _begin(gateway, request)
        return await _published(gateway, request, call, done)

    @explained
    async def PublishMany(self, requests: AsyncIterator[pb.PublishRequest], context: Any) -> None:
        """Append events for many requests on one connection."""
        gateway, token = self._gateway, token_of(context)
        at_once, writing = asyncio.Semaphore(_AT_ONCE), asyncio.Lock()
        tasks: set[asyncio.Task[None]] = set()
        await context.send_initial_metadata(())

        async def answer(request: pb.PublishRequest, found: tuple[PublishCall, asyncio.Event] | Refused) -> None:
            try:
                if isinstance(found, Refused):
                    raise found
                reply = await _published(gateway, request, *found)
                gateway.figures.call("PublishMany.request")
            except Refused as problem:
                gateway.figures.call("PublishMany.request", problem.code)
                reply = pb.PublishReply(request=request.request)
                reply.problem.code, reply.problem.text = problem.code, problem.message
            finally:
                at_once.release()
            async with writing:
                await context.write(reply)

        try:
            async for request in requests:
                await at_once.acquire()
                await gateway.queue.room(publishing=True)
                found: tuple[PublishCall, asyncio.Event] | Refused
                try:
                    gateway.check(token, PUBLISH, "Stream", request.stream)
                    # The events of one channel are added in the order of its requests.
                    found = _begin(gateway, request)
                except Refused as problem:
                    found = problem
                task = asyncio.ensure_future(answer(request, found))
                tasks.add(task)
                task.add_done_callback(tasks.discard)
            await asyncio.gather(*tasks)
        finally:
            for task in list(tasks):
                task.cancel()

    @explained
    async def Subscribe(self, messages: AsyncIterator[pb.SubscriberMessage], context: Any) -> None:
        """Consume a stream as a member of a group."""
        await _serve(self._gateway, context, messages, "Stream", lambda join: join.stream)

    @explained
    async def ChangeGroup(self, request: pb.ChangeGroupRequest, context: Any) -> pb.ChangeGroupReply:
        """Change a group, or take its deliveries away."""
        gateway = self._gateway
        call = await _ask(gateway, context, ("Stream", request.stream), partial(gateway.core.change_group, request))
        return pb.ChangeGroupReply(partitions=call.partitions)


class PipelinesService(Service, rpc.PipelinesServicer):
    """Work on stages, and cancel instances."""

    @explained
    async def Work(self, messages: AsyncIterator[pb.WorkerMessage], context: Any) -> None:
        """Work on a stage."""
        await _serve(self._gateway, context, messages, "Pipeline", lambda join: join.pipeline)

    @explained
    async def Cancel(self, request: pb.CancelRequest, context: Any) -> pb.CancelReply:
        """End an instance."""
        gateway = self._gateway
        await _ask(gateway, context, ("Pipeline", request.pipeline), partial(gateway.core.change_instance, request))
        return pb.CancelReply()

    @explained
    async def TakeAway(self, request: pb.TakeAwayRequest, context: Any) -> pb.TakeAwayReply:
        """Take the deliveries of an instance away."""
        gateway = self._gateway
        await _ask(gateway, context, ("Pipeline", request.pipeline), partial(gateway.core.change_instance, request))
        return pb.TakeAwayReply()


class SchemaService(Service, rpc.SchemaServicer):
    """The schema, and the addresses of gateways."""

    @explained
    async def Describe(self, request: pb.DescribeRequest, context: Any) -> pb.DescribeReply:
        """The declared objects without Tokens, and the addresses of the gateways."""
        del request, context
        gateway = self._gateway
        schema = gateway.core.schema
        documents = [to_document(one) for one in schema.objects.values() if not isinstance(one, TokenDeclaration)]
        # A JSON document is a YAML document, and needs no package on executors.
        text = "\n---\n".join(json.dumps(document, indent=2, ensure_ascii=False) for document in documents)
        return pb.DescribeReply(version=schema.version, schema=text, gateways=gateway.addresses())


def _begin(gateway: Gateway, request: pb.PublishRequest) -> tuple[PublishCall, asyncio.Event]:
    if request.not_before > round(time.time() * 1000) + LONGEST_WAIT:
        raise invalid(
            f"not_before is {request.not_before}, which is more than {LONGEST_WAIT // 86_400_000} days from now; give "
            "milliseconds since 1970 UTC, or publish later"
        )
    done = asyncio.Event()
    call, events = gateway.core.publish(request, done.set)
    gateway.queue.add(events)
    return call, done


async def _published(
    gateway: Gateway, request: pb.PublishRequest, call: PublishCall, done: asyncio.Event
) -> pb.PublishReply:
    """Wait for the answer to a publish. Raises :class:`Refused`."""
    reply = pb.PublishReply(request=request.request)
    if call.durability is Durability.RECEIVED:
        await _in_time(gateway, gateway.queue.durable(), "durable in the inbox")
        return reply
    await _committed(gateway, call, done)
    if not request.not_before:
        reply.places.extend(pb.Place(partition=partition, offset=offset) for partition, offset in call.places)
    return reply


async def _ask(
    gateway: Gateway,
    context: Any,
    object: tuple[str, str],
    begin: Callable[[Callable[[], None]], tuple[C, list[ToInbox]]],
) -> C:
    """Ask controllers of an object to change something, and wait until that is committed. Raises :class:`Refused`."""
    gateway.check(token_of(context), SUBSCRIBE, *object)
    gateway.queue.require_room()
    done = asyncio.Event()
    call, events = begin(done.set)
    gateway.queue.add(events)
    await _committed(gateway, call, done)
    return call


async def _committed(gateway: Gateway, call: WaitingCall, done: asyncio.Event) -> None:
    figures = gateway.figures
    figures.waits(call, time.monotonic())
    try:
        await _in_time(gateway, done.wait(), "committed")
    finally:
        figures.waited(call, time.monotonic(), committed=done.is_set() and call.problem is None)
        gateway.core.forget(call)
    if call.problem is not None:
        raise call.problem


async def _in_time(gateway: Gateway, waiting: Awaitable[Any], state: str) -> None:
    limit = gateway.limits.request_seconds
    try:
        async with asyncio.timeout(limit):
            await waiting
    except TimeoutError:
        raise Refused(
            f"the request was not {state} within {limit:g} seconds; it may be later; look at the application's "
            "query, and send the same request again",
            code="commit-timeout",
        ) from None


async def _serve(
    gateway: Gateway, context: Any, messages: AsyncIterator[Any], kind: str, path_of: Callable[[Any], str]
) -> None:
    """Serve a member of an object whose path is in its first message."""
    token, first = token_of(context), await first_message(messages)
    if first.WhichOneof("message") != "join":
        raise invalid("the first message of the channel is not join; send join first")

    def check() -> None:
        gateway.check(token, SUBSCRIBE, kind, path_of(first.join))

    def may_publish(path: str) -> None:
        gateway.check(token, PUBLISH, "Stream", path)

    check()
    await gateway.queue.room()
    await MemberChannel(gateway, context, check, may_publish).serve(first.join, messages)
