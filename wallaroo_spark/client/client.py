# ruff: noqa: ASYNC109 -- a timeout is the limit of the request on its whole way, with all attempts
"""The client of an application's gateways, for asyncio.

async with AsyncClient("gateway:7200", token="env:TOKEN") as client:
    await client.publish("shop/orders", Event("shop.order.created", {"order": 17}))
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import AsyncIterable, AsyncIterator, Callable, Coroutine, Iterable
from datetime import datetime, timedelta
from functools import partial
from typing import Any, Self

import grpc

from wallaroo_spark.api import pipelines_pb2 as pb
from wallaroo_spark.api.limits import EVENTS, GROUP_EVENTS, STAGE_DELIVERIES
from wallaroo_spark.client.arguments import (
    LARGEST_OFFSET,
    ClientSettings,
    events_of,
    iterable_of,
    key_of,
    limited,
    name_of,
    path_of,
    request_maker,
    start_of,
)
from wallaroo_spark.client.calls import ServedCall, Server, answers
from wallaroo_spark.client.events import Event, as_event
from wallaroo_spark.client.gateways import Attempts, GatewayConnection, Gateways
from wallaroo_spark.client.members import D, EventPlace, Membership, StageWork, StreamDelivery, places_of
from wallaroo_spark.client.publishing import OnRefused, PublishedEvents
from wallaroo_spark.client.refusals import MAYBE_DELIVERED, WRITTEN_ONCE, ApplicationDescription, lost, within_limit
from wallaroo_spark.client.stages import StageFunction, StageWorker, stages_of
from wallaroo_spark.client.window import BulkWindow
from wallaroo_spark.connector.arguments import callable_of, timeout_of
from wallaroo_spark.errors import ArgumentValueError, PipelineError, RegistryError, TransportError
from wallaroo_spark.event_loop import end_tasks
from wallaroo_spark.settings import takes_settings

GROUP_ACTIONS = {
    "delete": pb.ChangeGroupRequest.DELETE,
    "move": pb.ChangeGroupRequest.MOVE,
    "pause": pb.ChangeGroupRequest.PAUSE,
    "resume": pb.ChangeGroupRequest.RESUME,
    "take_away": pb.ChangeGroupRequest.TAKE_AWAY,
}
"""The changes of a group, by the names that programs give."""


class AsyncClient:
    """A client for asyncio; :class:`Client` has the same methods without ``await``.

    It connects at the first request, to any gateway, and to another one when that is lost. Requests are tried again
    until their time is over; events that are published again are written once. As a context manager it is closed at the
    end of the block. All methods raise :class:`ConfigurationError` for arguments that cannot work and for a token that
    does not suffice, :class:`PipelineError` when the application refuses the request, :class:`TransportError` when no
    gateway answers in time.
    """

    @takes_settings(ClientSettings)
    def __init__(self, settings: ClientSettings) -> None:
        """The settings:"""
        self._settings = settings.resolved()
        self._gateways = Gateways(self._settings)
        self._memberships: set[Any] = set()
        self._stop = asyncio.Event()

    def __repr__(self) -> str:
        where = self._settings.application or ", ".join(self._settings.addresses)
        return f"<{type(self).__name__} of {where}>"

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    @property
    def gateway(self) -> str:
        """The address of the gateway that is connected; empty without one."""
        return self._gateways.address

    async def publish(
        self,
        stream: str,
        *events: Event,
        partition: int | None = None,
        durability: str = "committed",
        key: str | None = None,
        delay: float | timedelta | datetime | None = None,
        timeout: float | None = None,
    ) -> list[EventPlace]:
        """Append events to a stream, and return their places once they are committed.

        The events of one partition are written together or not at all. An event that was published before, known by its
        source and id, is not written again and has the place that it has. ``partition`` is the partition of all events;
        without it each event is given one by its extension ``partitionkey``, by ``key``, or by its source and id.
        ``durability="received"`` returns an empty list as soon as a gateway has written the events durably. ``delay``
        writes them later: after seconds, or at a time; the list is empty then.
        """
        make, action = request_maker(stream, partition, durability, delay), f"publish to {stream}"
        source, checked = self._settings.source, key_of(key)
        request = within_limit(make([event.to_message(source, checked) for event in events_of(events)]), action)
        reply = await self._gateways.call(action, lambda one: one.streams.Publish, request, timeout, WRITTEN_ONCE)
        return list(places_of(reply.places))

    def publish_many(
        self,
        stream: str,
        events: Iterable[Event] | AsyncIterable[Event],
        *,
        partition: int | None = None,
        durability: str = "committed",
        key: str | None = None,
        delay: float | timedelta | datetime | None = None,
        timeout: float | None = None,
        batch: int = 500,
        on_refused: OnRefused | None = None,
    ) -> PublishedEvents:
        """Append many events to a stream, and yield a :class:`PublishedEvent` for each, in their order.

        Events are taken from ``events``, by the blocking form in the caller's thread, while there is room, so memory is
        bounded, and are published while the result is iterated over; to the end, that is. They are sent in their order,
        ``batch`` at most in a request, and several requests at once. When a connection is lost, events without an
        answer are sent again with the same ids, to another gateway too. The events of one request and partition are
        written together or not at all.

        An event that is refused does no harm to the others: ``on_refused`` is called with a :class:`RefusedEvent`.
        Without it :class:`PipelineError` is raised after the last event. An error of ``events`` is raised after the
        events before it. ``timeout`` is the longest time without any answer. The other arguments are those of
        :meth:`publish`.
        """
        iterable_of(events, blocking=False)
        make = request_maker(stream, partition, durability, delay)
        most, seconds = min(limited(batch, "batch", 1), EVENTS), timeout_of(timeout)
        if on_refused is not None:
            callable_of(on_refused, "on_refused")
        return PublishedEvents(
            self._gateways,
            self._settings,
            action=f"publish to {stream}",
            window=BulkWindow(make, most),
            events=events,
            key=key_of(key),
            seconds=self._settings.timeout if seconds is None else seconds,
            on_refused=on_refused,
        )

    def consume(
        self,
        stream: str,
        *,
        group: str | None = None,
        start: str | int = "latest",
        durable: bool | None = None,
        max_events: int = GROUP_EVENTS,
        concurrency: int = 1,
        partitions: tuple[int, ...] | list[int] = (),
    ) -> Membership[StreamDelivery]:
        """Consume a stream as a member of a group: an asynchronous iterator of deliveries, each to be acked.

        ``async with delivery:`` acks it at the end of the block. Each event is given to one member of a group, and a
        delivery that is nacked or lost comes again, so events come at least once; a transaction makes the effect on
        streams happen exactly once. ``start`` is where a new group begins: ``latest``, ``beginning`` or an offset.
        ``durable``: the group outlives its members; by default a group with a name does. Without ``group`` this is a
        group of its own, which ends with it. ``max_events`` is the most events of a delivery, ``concurrency`` the most
        deliveries at once, which are of different partitions, ``partitions`` the partitions (none: all). Iterating goes
        on for ever, and connects to another gateway when one is lost.
        """
        path_of(stream, "stream")
        chosen = f"ephemeral-{secrets.token_hex(8)}" if group is None else name_of(group, "group")
        join = pb.JoinGroup(
            stream=stream,
            group=chosen,
            durable=group is not None if durable is None else bool(durable),
            start=start_of(start),
            max_events=limited(max_events, "max_events", 1),
            concurrency=limited(concurrency, "concurrency", 1),
            partitions=[limited(one, "partition", 0) for one in partitions],
        )
        name = f"group {chosen} of {stream}"
        make = partial(StreamDelivery, self._settings.source, name)
        return self._keep(
            Membership(self._gateways, name, lambda one: one.streams.Subscribe, pb.SubscriberMessage, join, make)
        )

    def stage(self, pipeline: str, stage: str, *, concurrency: int = STAGE_DELIVERIES) -> Membership[StageWork]:
        """Work on a stage of a pipeline: an asynchronous iterator of :class:`StageWork`, each to be acked with its
        output. :meth:`work` runs functions instead."""
        path_of(pipeline, "pipeline")
        name_of(stage, "stage")
        join = pb.JoinStage(pipeline=pipeline, stage=stage, concurrency=limited(concurrency, "concurrency", 1))
        name = f"stage {stage} of {pipeline}"
        make = partial(StageWork, self._settings.source, pipeline, stage)
        return self._keep(
            Membership(self._gateways, name, lambda one: one.pipelines.Work, pb.WorkerMessage, join, make)
        )

    async def work(self, *stages: StageFunction) -> None:
        """Run the functions of stages (:func:`stage`) for their deliveries, until :meth:`stop` or the client's end.

        Connections that are lost are made again for ever. At the end, functions that run are waited for up to
        ``finish_timeout`` seconds.
        """
        worker = StageWorker(stages_of(stages), self._stage_of)
        await worker.run(self._until_stopped, self._settings.finish_timeout)

    def stop(self) -> None:
        """Let :meth:`work` end."""
        self._stop.set()

    async def cancel(self, pipeline: str, partition: int, instance: int, *, timeout: float | None = None) -> None:
        """End an instance of a pipeline that is active."""
        request = pb.CancelRequest(**_instance_of(pipeline, partition, instance))
        action = f"cancel instance {instance} of {pipeline}"
        await self._end(action, lambda one: one.pipelines.Cancel, request, timeout)

    async def take_away(
        self, pipeline: str, partition: int, instance: int, stage: str = "", *, timeout: float | None = None
    ) -> None:
        """Take the deliveries of an instance away from the workers that have them; others are given them."""
        request = pb.TakeAwayRequest(
            **_instance_of(pipeline, partition, instance), stage=name_of(stage, "stage") if stage else ""
        )
        action = f"take instance {instance} of {pipeline} away"
        await self._gateways.call(action, lambda one: one.pipelines.TakeAway, request, timeout)

    async def change_group(
        self,
        stream: str,
        group: str,
        action: str,
        start: str | int = "beginning",
        *,
        partitions: tuple[int, ...] | list[int] = (),
        timeout: float | None = None,
    ) -> int:
        """Change a group: ``delete``, ``move`` (to ``start``, as of :meth:`consume`), ``pause``, ``resume``, or
        ``take_away`` its deliveries; in ``partitions``, or in all. Returns the number of partitions that had it; 0 when
        an earlier attempt whose answer was lost has deleted it.
        """
        if action not in GROUP_ACTIONS:
            raise ArgumentValueError(
                f"action is {action!r}; give one of {', '.join(GROUP_ACTIONS)}",
                code="request-invalid",
                argument="action",
            )
        request = pb.ChangeGroupRequest(
            stream=path_of(stream, "stream"),
            group=name_of(group, "group"),
            action=GROUP_ACTIONS[action],
            start=start_of(start),
            partitions=[limited(one, "partition", 0) for one in partitions],
        )
        call = self._end if action == "delete" else self._gateways.call
        answer = await call(
            f"{action} group {group} of {stream}", lambda one: one.streams.ChangeGroup, request, timeout
        )
        return 0 if answer is None else int(answer.partitions)

    async def _end(
        self, action: str, method: Callable[[GatewayConnection], Any], request: Any, timeout: float | None
    ) -> Any:
        """Make a request that ends something. None: an earlier attempt, whose answer was lost, has ended it."""
        attempts = 0

        def counted(gateway: GatewayConnection) -> Any:
            nonlocal attempts
            attempts += 1
            return method(gateway)

        try:
            return await self._gateways.call(action, counted, request, timeout)
        except PipelineError as error:
            if attempts > 1 and error.code == "request-refused":
                return None
            raise

    async def send(self, exchange: str, event: Event, *, timeout: float | None = None) -> int:
        """Send a message to an exchange, and return how many groups got it; it is not kept anywhere."""
        path_of(exchange, "exchange")
        action, message = f"send to {exchange}", as_event(event).to_message(self._settings.source)
        request = within_limit(pb.SendRequest(exchange=exchange, event=message), action)
        reply = await self._gateways.call(action, lambda one: one.exchanges.Send, request, timeout, MAYBE_DELIVERED)
        return int(reply.groups)

    async def receive(self, exchange: str, *, group: str | None = None) -> AsyncIterator[Event]:
        """The messages of an exchange as a member of a group, from now on; without ``group`` of a group of its own.

        Messages that are sent while there is no connection do not come.
        """
        path_of(exchange, "exchange")
        chosen = f"ephemeral-{secrets.token_hex(8)}" if group is None else name_of(group, "group")
        request = pb.ReceiveRequest(exchange=exchange, group=chosen)
        attempts = Attempts(self._settings, for_ever=True)
        while True:
            try:
                async with self._gateways.using(f"receive from {exchange}") as gateway:
                    call = gateway.exchanges.Receive(request, metadata=self._gateways.metadata)
                    try:
                        async for message in call:
                            attempts.succeeded()
                            yield Event.from_message(message)
                    finally:
                        call.cancel()
            except grpc.aio.AioRpcError as error:
                lost(error, f"receive from {exchange}")
            except (TransportError, RegistryError):
                pass
            await asyncio.sleep(attempts.next_delay() or 0.0)

    async def call(self, endpoint: str, event: Event, *, timeout: float | None = None) -> Event:
        """Call an endpoint with an event, and return the first event of its answer.

        Raises :class:`PipelineError` at once when nothing serves the endpoint. A call is made once: after
        :class:`TransportError` it may have been answered already.
        """
        async for answer in self.call_stream(endpoint, event, timeout=timeout):
            return answer
        raise PipelineError(f"call {endpoint}: the server has answered nothing", code="answer-missing")

    def call_stream(self, endpoint: str, *events: Event, timeout: float | None = None) -> AsyncIterator[Event]:
        """Call an endpoint with one or more events, and yield the events of its answer. It raises as :meth:`call`."""
        path_of(endpoint, "endpoint")
        seconds = timeout_of(timeout)
        return answers(
            self._gateways,
            self._settings,
            endpoint,
            events_of(events),
            self._settings.timeout if seconds is None else seconds,
        )

    async def serve(self, endpoint: str, function: Callable[[ServedCall], Any], *, concurrency: int = 1) -> None:
        """Serve an endpoint with a function until :meth:`stop`, the client's end or a cancellation.

        The function gets a :class:`ServedCall`. It returns the answer, an :class:`Event` or a payload, or it is a
        generator of them; it may be asynchronous. An exception is the caller's error.
        """
        path_of(endpoint, "endpoint")
        callable_of(function, "function")
        most = limited(concurrency, "concurrency", 1)
        server = Server(self._gateways, self._settings.source, endpoint, function, most)
        await self._until_stopped(server.run())

    async def describe(self, *, timeout: float | None = None) -> ApplicationDescription:
        """The declared objects of the application, and the addresses of its gateways."""
        action, request = "describe the schema", pb.DescribeRequest()
        reply = await self._gateways.call(action, lambda one: one.schema.Describe, request, timeout)
        return ApplicationDescription(reply.version, reply.schema, tuple(reply.gateways))

    async def close(self) -> None:
        """Leave all groups and stages, and close the connections. May be called again."""
        self._stop.set()
        for member in list(self._memberships):
            await member.close()
        await self._gateways.close()

    async def _until_stopped(self, *works: Coroutine[Any, Any, None]) -> None:
        """Run coroutines until :meth:`stop`, or until one of them has ended. Raises the error of that."""
        tasks = [asyncio.create_task(work) for work in works]
        stopped = asyncio.create_task(self._stop.wait())
        try:
            await asyncio.wait([*tasks, stopped], return_when=asyncio.FIRST_COMPLETED)
            for task in tasks:
                if task.done():
                    task.result()
        finally:
            await end_tasks(stopped, *tasks)

    def _stage_of(self, one: StageFunction) -> Membership[StageWork]:
        return self.stage(one.pipeline, one.name, concurrency=one.concurrency)

    def _keep(self, member: Membership[D]) -> Membership[D]:
        self._memberships = {one for one in self._memberships if not one.closed} | {member}
        return member


def _instance_of(pipeline: str, partition: int, instance: int) -> dict[str, Any]:
    """The fields of a request for an instance."""
    return {
        "pipeline": path_of(pipeline, "pipeline"),
        "partition": limited(partition, "partition", 0),
        "instance": limited(instance, "instance", 1, LARGEST_OFFSET),
    }
