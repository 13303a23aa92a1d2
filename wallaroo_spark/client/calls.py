"""Calls of endpoints, from both sides: the caller's answers, and the server's functions."""

from __future__ import annotations

import asyncio
import contextlib
import inspect
from collections.abc import AsyncIterator, Callable, Generator, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import grpc

from wallaroo_spark.api import pipelines_pb2 as pb
from wallaroo_spark.client.arguments import ClientSettings
from wallaroo_spark.client.events import Event
from wallaroo_spark.client.gateways import LONGEST_SECONDS, Attempts, GatewayConnection, Gateways
from wallaroo_spark.client.refusals import MAYBE_ANSWERED, is_cancelled_itself, refusal, within_limit
from wallaroo_spark.errors import one_line, shown_error
from wallaroo_spark.event_loop import end_tasks

log = one_line("wallaroo_spark.client")
_END = object()
LONGEST_ERROR = 1000
"""The most characters of the text of a call that has failed. A choice: enough for a message."""


async def answers(
    gateways: Gateways, settings: ClientSettings, endpoint: str, events: Iterable[Event], seconds: float
) -> AsyncIterator[Event]:
    """Call an endpoint with one or more events, and yield the events of its answer.

    Raises :class:`ArgumentValueError` for an event that is too large, and the errors of :func:`refusal`.
    """
    action = f"call {endpoint}"
    messages = [
        within_limit(
            pb.CallMessage(endpoint="" if place else endpoint, event=event.to_message(settings.source)), action
        )
        for place, event in enumerate(events)
    ]
    try:
        async with gateways.using(action) as gateway:
            limit = min(seconds, LONGEST_SECONDS)
            call = gateway.endpoints.Call(metadata=gateways.metadata, timeout=limit)
            writing = asyncio.create_task(_write(call, messages))
            try:
                while (message := await call.read()) is not grpc.aio.EOF:
                    yield Event.from_message(message.event)
            finally:
                call.cancel()
                await end_tasks(writing)
    except grpc.aio.AioRpcError as error:
        raise refusal(error, action, MAYBE_ANSWERED) from error


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
        return CallerEvents(self)

    def add(self, event: Event | None) -> None:
        """Another event of the caller; None: there are no more."""
        self._more.put_nowait(event)


class CallerEvents:
    """The events of a caller as they come; they are read once, asynchronously or from a thread."""

    def __init__(self, call: ServedCall) -> None:
        self._call = call

    async def __aiter__(self) -> AsyncIterator[Event]:
        """Iterate in the event loop."""
        yield self._call.event
        while (event := await self._call._more.get()) is not None:
            yield event

    def __iter__(self) -> Iterator[Event]:
        """Iterate in another thread, which waits for each event."""
        call = self._call
        yield call.event
        while (event := asyncio.run_coroutine_threadsafe(call._more.get(), call._loop).result()) is not None:
            yield event


@dataclass(frozen=True)
class Server:
    """Serves an endpoint with a function, and connects again whenever the connection is lost.

    ``function`` gets a :class:`ServedCall`. It returns the answer: an :class:`Event`, or a payload; or it is a
    generator of them, also an asynchronous one.
    """

    gateways: Gateways
    source: str
    """The source of answers that have none."""
    endpoint: str
    function: Callable[[ServedCall], Any]
    concurrency: int
    """The most calls at once."""

    async def run(self) -> None:
        """Serve until this is cancelled. Raises the error of an endpoint that cannot be served."""
        await self.gateways.keep(f"endpoint {self.endpoint}", "serving", self._connection)

    async def _connection(self, gateway: GatewayConnection, attempts: Attempts) -> None:
        call = gateway.endpoints.Serve(metadata=self.gateways.metadata)
        writing = asyncio.Lock()
        calls: dict[int, tuple[ServedCall, asyncio.Task[None]]] = {}
        try:
            await call.write(pb.ServeMessage(endpoint=self.endpoint, concurrency=self.concurrency))
            while (event := await call.read()) is not grpc.aio.EOF:
                attempts.succeeded()
                self._take(event, calls, call, writing)
        finally:
            await end_tasks(*(task for _, task in calls.values()))
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
            answer = within_limit(pb.ServeMessage(call=served.number, **message), f"endpoint {self.endpoint}: answer")
            async with writing:
                await call.write(answer)

        try:
            async for answer in self._answers(served):
                await send(event=_answer(answer, served.event).to_message(self.source))
        except (grpc.aio.AioRpcError, asyncio.InvalidStateError):
            return
        except (Exception, SystemExit, asyncio.CancelledError) as error:
            if isinstance(error, asyncio.CancelledError) and is_cancelled_itself():
                raise
            # SystemExit: it would end the client's event loop, and every other call with it.
            log.warning("endpoint %s: a call has failed: %s: %s", self.endpoint, type(error).__name__, error)
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
        if inspect.isasyncgenfunction(self.function):
            async for answer in self.function(served):
                yield answer
        elif inspect.iscoroutinefunction(self.function):
            yield await self.function(served)
        elif inspect.isgeneratorfunction(self.function):
            async for answer in _steps(self.function(served)):
                yield answer
        else:
            yield await asyncio.to_thread(called, self.function, served)


def called(function: Callable[[Any], Any], given: Any) -> Any:
    """The result of a function in a thread. No future has a StopIteration: what waits for it would wait for ever."""
    try:
        return function(given)
    except StopIteration as error:
        raise RuntimeError(shown_error(error)) from error


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
