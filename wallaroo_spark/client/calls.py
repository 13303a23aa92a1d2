"""Calls of endpoints, from both sides: the caller's answers, and the server's functions."""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import logging
from collections.abc import AsyncIterator, Callable, Generator, Iterable, Iterator, Sequence
from typing import Any

import grpc

from wallaroo_spark.api import pipelines_pb2 as pb
from wallaroo_spark.client.events import Event
from wallaroo_spark.client.gateways import Attempts, GatewayConnection, Gateways
from wallaroo_spark.client.refusals import is_cancelled_itself, within_limit
from wallaroo_spark.client.settings import ClientSettings
from wallaroo_spark.errors import one_line, shown_error

log = one_line(logging.getLogger("wallaroo_spark.client"))
_END = object()
LONGEST_ERROR = 1000
"""The most characters of the text of a call that has failed. A choice: enough for a message."""


async def answers(
    gateway: GatewayConnection,
    metadata: tuple[tuple[str, str], ...],
    endpoint: str,
    events: Iterable[Event],
    source: str,
    seconds: float | None,
) -> AsyncIterator[Event]:
    """Call an endpoint with one or more events, and yield the events of its answer.

    Raises ``grpc.aio.AioRpcError``, and :class:`ArgumentValueError` for an event that is too large.
    """
    messages = [
        within_limit(
            pb.CallMessage(endpoint="" if place else endpoint, event=event.to_message(source)), f"call {endpoint}"
        )
        for place, event in enumerate(events)
    ]
    call = gateway.endpoints.Call(metadata=metadata, timeout=seconds)
    writing = asyncio.create_task(_write(call, messages))
    try:
        while (message := await call.read()) is not grpc.aio.EOF:
            yield Event.from_message(message.event)
    finally:
        writing.cancel()
        call.cancel()
        await asyncio.gather(writing, return_exceptions=True)


async def _write(call: Any, messages: Sequence[pb.CallMessage]) -> None:
    for message in messages:
        await call.write(message)
    await call.done_writing()


class ServedCall:
    """A call that a server answers."""

    def __init__(self, number: int, event: Event) -> None:
        self.number = number
        """Number of the call in its connection."""
        self.event = event
        """The first event of the caller."""
        self.gone = False
        """Whether the caller has gone."""
        self._loop = asyncio.get_running_loop()
        self._more: asyncio.Queue[Event | None] = asyncio.Queue()

    def events(self) -> CallerEvents:
        """All events of the caller, the first one too, until it sends no more or has gone.

        For ``async for``, and in a function that is not asynchronous for ``for``.
        """
        return CallerEvents(self.event, self._more, self._loop)

    def add(self, event: Event | None) -> None:
        """Another event of the caller; None: there are no more."""
        self._more.put_nowait(event)


class CallerEvents:
    """The events of a caller as they come; they are read once, asynchronously or from a thread."""

    def __init__(self, first: Event, more: asyncio.Queue[Event | None], loop: asyncio.AbstractEventLoop) -> None:
        self._first = first
        self._more = more
        self._loop = loop

    async def __aiter__(self) -> AsyncIterator[Event]:
        """Iterate in the event loop."""
        yield self._first
        while (event := await self._more.get()) is not None:
            yield event

    def __iter__(self) -> Iterator[Event]:
        """Iterate in another thread, which waits for each event."""
        yield self._first
        while (event := asyncio.run_coroutine_threadsafe(self._more.get(), self._loop).result()) is not None:
            yield event


class Server:
    """Serves an endpoint with a function, and connects again whenever the connection is lost.

    ``function`` gets a :class:`ServedCall`. It returns the answer: an :class:`Event`, or a payload; or it is a
    generator of them, also an asynchronous one.
    """

    def __init__(
        self,
        gateways: Gateways,
        settings: ClientSettings,
        endpoint: str,
        function: Callable[[ServedCall], Any],
        concurrency: int,
    ) -> None:
        self._gateways = gateways
        self._source = settings.source
        self._endpoint = endpoint
        self._function = function
        self._concurrency = concurrency

    async def run(self) -> None:
        """Serve until this is cancelled. Raises the error of an endpoint that cannot be served."""
        await self._gateways.keep(f"endpoint {self._endpoint}", "serving", self._connection)

    async def _connection(self, gateway: GatewayConnection, attempts: Attempts) -> None:
        call = gateway.endpoints.Serve(metadata=self._gateways.metadata)
        writing = asyncio.Lock()
        calls: dict[int, tuple[ServedCall, asyncio.Task[None]]] = {}
        try:
            await call.write(pb.ServeMessage(endpoint=self._endpoint, concurrency=self._concurrency))
            while (event := await call.read()) is not grpc.aio.EOF:
                attempts.succeeded()
                self._take(event, calls, call, writing)
        finally:
            tasks = [task for _, task in calls.values()]
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            call.cancel()

    def _take(
        self, event: Any, calls: dict[int, tuple[ServedCall, asyncio.Task[None]]], call: Any, writing: asyncio.Lock
    ) -> None:
        known = calls.get(event.call)
        if event.gone:
            if known is not None:
                known[0].gone = True
                known[1].cancel()
            return
        if event.HasField("event"):
            found = Event.from_message(event.event)
            if known is None:
                served = ServedCall(event.call, found)
                task = asyncio.create_task(self._serve(served, call, writing))
                known = calls[event.call] = (served, task)
                task.add_done_callback(lambda _: calls.pop(event.call, None))
            else:
                known[0].add(found)
        if event.end and known is not None:
            known[0].add(None)

    async def _serve(self, served: ServedCall, call: Any, writing: asyncio.Lock) -> None:
        async def send(**message: Any) -> None:
            answer = within_limit(pb.ServeMessage(call=served.number, **message), f"endpoint {self._endpoint}: answer")
            async with writing:
                await call.write(answer)

        try:
            async for answer in self._answers(served):
                await send(event=_answer(answer, served.event).to_message(self._source))
        except (grpc.aio.AioRpcError, asyncio.InvalidStateError):
            return
        except (Exception, SystemExit, asyncio.CancelledError) as error:
            if isinstance(error, asyncio.CancelledError) and is_cancelled_itself():
                raise
            # SystemExit: it would end the client's event loop, and every other call with it.
            log.warning("endpoint %s: a call has failed: %s: %s", self._endpoint, type(error).__name__, error)
            end = {"error": shown_error(error, LONGEST_ERROR)}
        else:
            end = {}
        finally:
            # A thread that waits for an event of the caller ends.
            served.add(None)
        # A connection that is lost meanwhile has told the caller.
        with contextlib.suppress(grpc.aio.AioRpcError, asyncio.InvalidStateError):
            await send(end=True, **end)

    async def _answers(self, served: ServedCall) -> AsyncIterator[Any]:
        if inspect.isasyncgenfunction(self._function):
            async for answer in self._function(served):
                yield answer
        elif inspect.iscoroutinefunction(self._function):
            yield await self._function(served)
        elif inspect.isgeneratorfunction(self._function):
            async for answer in _steps(self._function(served)):
                yield answer
        else:
            yield await asyncio.to_thread(self._function, served)


async def _steps(generator: Generator[Any, None, None]) -> AsyncIterator[Any]:
    """The answers of a generator, each as it comes; the generator runs in threads."""
    try:
        while (answer := await asyncio.to_thread(next, generator, _END)) is not _END:
            yield answer
    finally:
        # A step that still runs ends the generator by itself, because its caller sends no more.
        with contextlib.suppress(ValueError):
            generator.close()


def _answer(value: Any, question: Event) -> Event:
    return value if isinstance(value, Event) else Event(f"{question.type}.answer", value)
