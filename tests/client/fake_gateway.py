"""A gateway whose application is a few lists in memory: streams, groups, offered stages, exchanges and endpoints.

Everything commits at once. It says no to clients as a gateway does, and it can die and come back with its memory.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from typing import Any

import grpc

from wallaroo_spark.api import pipelines_pb2 as pb
from wallaroo_spark.api import pipelines_pb2_grpc as rpc
from wallaroo_spark.client import Event

PARTITIONS = 2


@dataclass
class Memory:
    """The application: it outlives a gateway."""

    streams: dict[str, list[list[Any]]] = field(default_factory=dict)
    """Stream → partition → events."""
    cursors: dict[tuple[str, str, int], int] = field(default_factory=dict)
    """(stream, group, partition) → offset of the last acked event."""
    offered: dict[tuple[str, str], deque[pb.StageDelivery]] = field(default_factory=dict)
    """(pipeline, stage) → works that wait for a member."""
    outputs: dict[tuple[str, int], tuple[Any, str]] = field(default_factory=dict)
    """(stage, instance) → its output and content type."""
    nacks: list[tuple[int, str]] = field(default_factory=list)
    """Delay and reason of each nack."""
    cancelled: list[tuple[str, int, int]] = field(default_factory=list)
    """Instances that were cancelled."""

    def append(self, stream: str, events: Any, partition: int | None) -> list[pb.Place]:
        """Write events, each known one once."""
        partitions = self.streams[stream]
        places = []
        for event in events:
            at = (hash(event.id) % len(partitions)) if partition is None else partition
            known = [(one.source, one.id) for one in partitions[at]]
            if (event.source, event.id) not in known:
                partitions[at].append(event)
                known.append((event.source, event.id))
            places.append(pb.Place(partition=at, offset=known.index((event.source, event.id)) + 1))
        return places

    def offer(self, pipeline: str, stage: str, instance: int, event: Event, **outputs: tuple[bytes, str]) -> None:
        """Let a member work on a stage."""
        work = pb.StageDelivery(instance=instance, root_event=event.to_message("/test"))
        for name, (data, content_type) in outputs.items():
            work.outputs[name].CopyFrom(pb.Payload(data=data, content_type=content_type))
        self.offered.setdefault((pipeline, stage), deque()).append(work)


class FakeGateway:
    """One gateway on a port of its own, which it keeps when it starts again."""

    def __init__(self, memory: Memory | None = None) -> None:
        self.memory = memory or Memory()
        self.port = 0
        self.tokens: list[str] = []
        self.token = ""
        """The token that requests need; empty: none."""
        self.lose_answers = 0
        """So many publishes, and changes of groups, are done without an answer."""
        self.lost_status = grpc.StatusCode.UNAVAILABLE
        """The status of these."""
        self.silent = False
        """Whether PublishMany gives no answer."""
        self.publishes = 0
        self.joined = asyncio.Event()
        self.changed = asyncio.Event()
        self._server: grpc.aio.Server | None = None
        self.credentials: Any = None
        self.exchanges: dict[str, list[asyncio.Queue[Any]]] = {}
        self.servers: dict[str, Any] = {}
        self.deliveries = 0

    @property
    def address(self) -> str:
        return f"localhost:{self.port}"

    async def start(self) -> FakeGateway:
        options = [("grpc.so_reuseport", 0), ("grpc.http2.min_ping_interval_without_data_ms", 10_000)]
        self._server = grpc.aio.server(options=options)
        services: Any = rpc
        for service in ("Streams", "Pipelines", "Exchanges", "Endpoints", "Schema"):
            getattr(services, f"add_{service}Servicer_to_server")(self, self._server)
        address = f"localhost:{self.port}"
        add = self._server.add_insecure_port
        self.port = add(address) if not self.credentials else self._server.add_secure_port(address, self.credentials)
        await self._server.start()
        return self

    async def stop(self) -> None:
        """Die: every connection ends."""
        self.joined.clear()
        if self._server is not None:
            await self._server.stop(grace=None)
            self._server = None

    def wake(self) -> None:
        """Let every member look for deliveries."""
        self.changed.set()
        self.changed = asyncio.Event()

    async def _check(self, context: Any) -> None:
        given = dict(context.invocation_metadata()).get("authorization", "")
        self.tokens.append(given)
        if self.token and given != f"Bearer {self.token}":
            await self._refuse(context, grpc.StatusCode.UNAUTHENTICATED, "token-refused", "the token is not known")

    async def _refuse(self, context: Any, status: grpc.StatusCode, code: str, text: str) -> None:
        await context.abort(status, text, (("wallaroo-code", code),))

    # Streams

    async def Publish(self, request: Any, context: Any) -> Any:
        await self._check(context)
        self.publishes += 1
        if request.stream not in self.memory.streams:
            await self._refuse(context, grpc.StatusCode.NOT_FOUND, "stream-unknown", f"no stream {request.stream}")
        partition = request.partition if request.HasField("partition") else None
        places = self.memory.append(request.stream, request.events, partition)
        self.wake()
        if self.lose_answers:
            self.lose_answers -= 1
            await self._refuse(context, self.lost_status, "", "the gateway ends")
        return pb.PublishReply(places=() if request.durability or request.not_before else places)

    async def PublishMany(self, requests: Any, context: Any) -> AsyncIterator[Any]:
        await self._check(context)
        async for request in requests:
            if request.stream not in self.memory.streams:
                problem = pb.Problem(code="object-unknown", text=f"there is no Stream {request.stream!r}")
                yield pb.PublishReply(request=request.request, problem=problem)
                continue
            partition = request.partition if request.HasField("partition") else None
            places = self.memory.append(request.stream, request.events, partition)
            if self.lose_answers:
                self.lose_answers -= 1
                await self._refuse(context, self.lost_status, "", "the gateway ends")
            if not self.silent:
                yield pb.PublishReply(request=request.request, places=places)

    async def Subscribe(self, requests: Any, context: Any) -> None:
        await self._check(context)
        join = (await context.read()).join
        memory = self.memory
        partitions = list(join.partitions) or list(range(len(memory.streams[join.stream])))
        for partition in partitions:
            last = len(memory.streams[join.stream][partition])
            start = {pb.StartPoint.BEGINNING: 0, pb.StartPoint.OFFSET: join.start.offset - 1}
            first = start.get(join.start.location, last)
            memory.cursors.setdefault((join.stream, join.group, partition), first)
        await context.write(pb.SubscriberEvent(joined=pb.Joined(member="g0.1.1")))
        self.joined.set()

        def next_one(busy: set[int]) -> Any:
            for partition in partitions:
                cursor = memory.cursors[join.stream, join.group, partition]
                events = memory.streams[join.stream][partition][cursor : cursor + (join.max_events or 1)]
                if events and partition not in busy:
                    found = pb.GroupDelivery(partition=partition, first=cursor + 1, events=events)
                    return partition, found, (partition, cursor + len(events))
            return None

        def acked(acked_to: Any, _: Any) -> None:
            partition, last = acked_to
            memory.cursors[join.stream, join.group, partition] = last

        await self._member(context, pb.SubscriberEvent, next_one, acked, join.concurrency or 1)

    # Pipelines

    async def Work(self, requests: Any, context: Any) -> None:
        await self._check(context)
        join = (await context.read()).join
        await context.write(pb.WorkerEvent(joined=pb.Joined(member="g0.1.2")))
        self.joined.set()
        waiting = self.memory.offered.setdefault((join.pipeline, join.stage), deque())

        def next_one(busy: set[int]) -> Any:
            for work in waiting:
                if work.instance not in busy:
                    return work.instance, work, work
            return None

        def acked(work: Any, ack: Any) -> None:
            waiting.remove(work)
            assert (join.stage, work.instance) not in self.memory.outputs
            output = (ack.output.data, ack.output.content_type) if ack.HasField("output") else None
            self.memory.outputs[join.stage, work.instance] = output or (None, "")
            for one in ack.stream_outputs:
                self.memory.append(one.stream, one.events, None)

        await self._member(context, pb.WorkerEvent, next_one, acked, join.concurrency or 1)

    async def Cancel(self, request: Any, context: Any) -> Any:
        await self._check(context)
        instance = (request.pipeline, request.partition, request.instance)
        if instance in self.memory.cancelled:
            await self._refuse(context, grpc.StatusCode.FAILED_PRECONDITION, "request-refused", "no active instance")
        self.memory.cancelled.append(instance)
        if self.lose_answers:
            self.lose_answers -= 1
            await self._refuse(context, self.lost_status, "", "the gateway ends")
        return pb.CancelReply()

    async def TakeAway(self, request: Any, context: Any) -> Any:
        """Take deliveries away."""
        return pb.TakeAwayReply()

    async def ChangeGroup(self, request: Any, context: Any) -> Any:
        """Change a group; of the changes only deleting does something."""
        found = [key for key in self.memory.cursors if key[:2] == (request.stream, request.group)]
        if request.action != pb.ChangeGroupRequest.DELETE:
            return pb.ChangeGroupReply(partitions=1)
        if not found:
            text = f"there is no group {request.group}"
            await self._refuse(context, grpc.StatusCode.FAILED_PRECONDITION, "request-refused", text)
        for key in found:
            del self.memory.cursors[key]
        if self.lose_answers:
            self.lose_answers -= 1
            await self._refuse(context, self.lost_status, "", "the gateway ends")
        return pb.ChangeGroupReply(partitions=len(found))

    async def _member(self, context: Any, event: Any, next_one: Any, acked: Any, concurrency: int) -> None:
        open_ones: dict[int, tuple[int, Any]] = {}
        staged: dict[int, list[Any]] = {}
        reading = asyncio.create_task(context.read())
        try:
            while True:
                while len(open_ones) < concurrency and (found := next_one({key for key, _ in open_ones.values()})):
                    key, message, mark = found
                    self.deliveries += 1
                    message.delivery = self.deliveries
                    open_ones[self.deliveries] = (key, mark)
                    if len(getattr(message, "events", ())) > 1:
                        # In two messages, as a gateway sends a large one.
                        first = pb.GroupDelivery.FromString(message.SerializeToString())
                        del first.events[1:]
                        first.more = True
                        await context.write(event(delivery=first))
                        del message.events[0]
                        message.first += 1
                    await context.write(event(delivery=message))
                changed = asyncio.create_task(self.changed.wait())
                await asyncio.wait({reading, changed}, return_when=asyncio.FIRST_COMPLETED)
                changed.cancel()
                if not reading.done():
                    continue
                message = reading.result()
                if message is grpc.aio.EOF:
                    return
                await self._take(context, event, message, open_ones, staged, acked)
                reading = asyncio.create_task(context.read())
        finally:
            reading.cancel()

    async def _take(self, context: Any, event: Any, message: Any, open_ones: Any, staged: Any, acked: Any) -> None:
        kind = message.WhichOneof("message")
        body = getattr(message, kind)
        if kind == "ack":
            _, mark = open_ones.pop(body.delivery)
            acked(mark, body)
            written = [
                pb.Written(stream=one.stream, places=self.memory.append(one.stream, one.events, None))
                for one in staged.pop(body.delivery, ())
            ]
            await context.write(event(settled=pb.Settled(delivery=body.delivery, written=written)))
            self.wake()
        elif kind == "nack":
            open_ones.pop(body.delivery)
            staged.pop(body.delivery, None)
            self.memory.nacks.append((body.delay, body.reason))
            await context.write(event(settled=pb.Settled(delivery=body.delivery)))
            self.wake()
        elif kind == "begin":
            staged[body.delivery] = []
            state = pb.StatementResult(delivery=body.delivery, place=-1, state=pb.StatementResult.APPLIED)
            await context.write(event(statement=state))
        elif kind == "statement":
            known = body.events.stream in self.memory.streams
            staged[body.delivery].append(body.events)
            state = pb.StatementResult(
                delivery=body.delivery,
                place=len(staged[body.delivery]) - 1,
                state=pb.StatementResult.APPLIED if known else pb.StatementResult.REJECTED,
                reason="" if known else f"no stream {body.events.stream}",
            )
            await context.write(event(statement=state))
            if not known:
                # A rejected statement ends the delivery as nacked.
                open_ones.pop(body.delivery)
                del staged[body.delivery]
                await context.write(event(withdrawn=pb.Withdrawn(delivery=body.delivery, reason="it is nacked")))

    # Exchanges and endpoints

    async def Send(self, request: Any, context: Any) -> Any:
        receivers = self.exchanges.get(request.exchange, [])
        for one in receivers:
            one.put_nowait(request.event)
        return pb.SendReply(groups=len(receivers))

    async def Receive(self, request: Any, context: Any) -> AsyncIterator[Any]:
        queue: asyncio.Queue[Any] = asyncio.Queue()
        self.exchanges.setdefault(request.exchange, []).append(queue)
        self.joined.set()
        try:
            while True:
                yield await queue.get()
        finally:
            self.exchanges[request.exchange].remove(queue)

    async def Call(self, requests: Any, context: Any) -> None:
        first = await context.read()
        server: Any = self.servers.get(first.endpoint)
        if server is None:
            text = f"nothing serves {first.endpoint}"
            await self._refuse(context, grpc.StatusCode.FAILED_PRECONDITION, "no-consumer", text)
        number = server["calls"] = server["calls"] + 1
        answers: asyncio.Queue[Any] = asyncio.Queue()
        server["answers"][number] = answers
        await server["context"].write(pb.ServeEvent(call=number, event=first.event))
        while (message := await context.read()) is not grpc.aio.EOF:
            await server["context"].write(pb.ServeEvent(call=number, event=message.event))
        await server["context"].write(pb.ServeEvent(call=number, end=True))
        while True:
            answer = await answers.get()
            if answer.HasField("event"):
                await context.write(pb.CallMessage(event=answer.event))
            if answer.error:
                await self._refuse(context, grpc.StatusCode.UNKNOWN, "call-failed", answer.error)
            if answer.end:
                return

    async def Serve(self, requests: Any, context: Any) -> None:
        first = await context.read()
        server = self.servers[first.endpoint] = {"context": context, "calls": 0, "answers": {}}
        self.joined.set()
        try:
            while (message := await context.read()) is not grpc.aio.EOF:
                server["answers"][message.call].put_nowait(message)
        finally:
            self.servers.pop(first.endpoint, None)

    async def Describe(self, request: Any, context: Any) -> Any:
        return pb.DescribeReply(version=3, schema="kind: Stream\n", gateways=[self.address])
