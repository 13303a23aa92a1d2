"""A bulk publish: its connection to a gateway, and to another one when that is lost.

The program adds events and takes their outcomes, in any thread; :meth:`BulkPublishing.run` is a coroutine of the
client's event loop.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import threading
import time
from collections.abc import AsyncGenerator, AsyncIterable, AsyncIterator, Awaitable, Callable, Iterable, Iterator
from typing import Any

import grpc

from wallaroo_spark.api.limits import EVENT_BYTES
from wallaroo_spark.client.bulk.window import BulkWindow, PublishedEvent, RefusedEvent
from wallaroo_spark.client.events import as_event
from wallaroo_spark.client.gateways import Attempts, Gateways
from wallaroo_spark.client.refusals import WRITTEN_ONCE, lost
from wallaroo_spark.client.settings import ClientSettings
from wallaroo_spark.errors import (
    ArgumentValueError,
    PipelineError,
    RegistryError,
    TransportError,
    WallarooError,
    one_line,
)

log = one_line(logging.getLogger("wallaroo_spark.client"))

_LOOK_SECONDS = 1.0
"""Seconds between two looks whether answers are late. A choice: it is short beside the setting ``timeout``."""
_WORD_SECONDS = 5.0
"""Seconds without an answer after which the log says so. A choice: several times those of an ordinary commit."""
_TURN = 100
"""Events that are added before other tasks of the loop run. A choice."""
MOST_SHOWN = 5
"""The most refused events that an error names. A choice: some lines of a terminal."""

OnRefused = Callable[[RefusedEvent], object]
"""Called with each refused event, in place of an error at the end."""


class BulkPublishing:
    """One call of ``publish_many``.

    ``seconds`` is the longest time without an answer while events wait for one. ``news`` is called when there may be an
    outcome or room, and at the end: in the loop's thread, and in the program's when it adds an event. To be made in the
    client's event loop.
    """

    def __init__(
        self,
        gateways: Gateways,
        settings: ClientSettings,
        action: str,
        window: BulkWindow,
        key: str | None,
        seconds: float,
        refused: OnRefused | None,
        news: Callable[[], None],
    ) -> None:
        self.ended = False
        """Whether :meth:`run` has ended."""
        self._gateways = gateways
        self._settings = settings
        self._action = action
        self._window = window
        self._key = key
        self._seconds = seconds
        self._on_refused = refused
        self._news = news
        self._failure: WallarooError | None = None
        self._source_error: BaseException | None = None
        self._lock = threading.Lock()
        self._loop = asyncio.get_running_loop()
        self._work = asyncio.Event()
        self._awake = False
        self._attempts = Attempts(settings)
        self._progress = time.monotonic()
        self._said = 0.0
        """The progress after which the log was told of the wait."""
        self._refused: list[RefusedEvent] = []
        self._count_refused = 0

    # The program's side, in any thread.

    @property
    def room(self) -> bool:
        """Whether an event may be added."""
        return self._window.room

    def add(self, event: Any) -> None:
        """Add the next event. One that cannot be sent is refused."""
        try:
            message = as_event(event).to_message(self._settings.source, self._key)
            if (size := message.ByteSize()) > EVENT_BYTES:
                raise ArgumentValueError(
                    f"the event has {size} bytes, and {EVENT_BYTES} are permitted; keep large data elsewhere, and "
                    "publish its address",
                    code="message-too-large",
                )
        except WallarooError as error:
            with self._lock:
                self._window.refuse(event, error)
            self._news()
            return
        with self._lock:
            self._window.add(event, message, size)
        self._wake()

    def finish(self, error: BaseException | None = None) -> None:
        """No more events come; ``error`` is why, if they have not come to their end."""
        self._source_error = error
        with self._lock:
            self._window.finished = True
        self._wake()

    def take(self) -> PublishedEvent | None:
        """The next published event; None while there is none. Refused events are passed over."""
        while True:
            with self._lock:
                outcome = self._window.take()
            if not isinstance(outcome, RefusedEvent):
                return outcome
            if self._on_refused is not None:
                self._on_refused(outcome)
                continue
            self._count_refused += 1
            if len(self._refused) < MOST_SHOWN:
                self._refused.append(outcome)

    def check(self) -> None:
        """Raise the error with which the publish has ended, if there is one. To be called at the end."""
        if self._failure is not None:
            first = self._window.taken
            error = type(self._failure)(
                f"{self._failure.message}; {first} events have an answer, and those from number {first} on may be "
                "published or not: publish them again with the same ids",
                code=self._failure.code,
                answered=first,
            )
            raise error from self._failure
        if self._source_error is not None:
            raise self._source_error
        if self._count_refused:
            shown = "; ".join(f"event {one.index}: {one.error.message}" for one in self._refused)
            more = f"; and {self._count_refused - MOST_SHOWN} more" if self._count_refused > MOST_SHOWN else ""
            raise PipelineError(
                f"{self._action}: {self._count_refused} of {self._window.taken} events were refused, and the others "
                f"are published: {shown}{more}; correct these, or give on_refused to be told of each",
                code="events-refused",
                refused=self._count_refused,
            )

    # The loop's side.

    async def run(self) -> None:
        """Publish until no more events come and all have an outcome, or it has failed."""
        try:
            while await self._needed():
                failure = await self._connection()
                if failure is None:
                    continue
                with self._lock:
                    self._window.lost()
                delay = self._attempts.next_delay()
                if delay is None or time.monotonic() + delay >= self._progress + self._seconds:
                    raise failure
                log.info("%s: trying again in %.1f s: %s", self._action, delay, failure)
                await asyncio.sleep(delay)
        except WallarooError as error:
            self._failure = error
        except asyncio.CancelledError:
            self._failure = TransportError(f"{self._action}: the client was closed meanwhile", code="client-closed")
            raise
        except Exception as error:
            log.exception("%s failed by an error of this program", self._action)
            self._failure = PipelineError(
                f"{self._action}: {type(error).__name__}: {error}; report it", code="gateway-refused"
            )
        finally:
            self.ended = True
            self._news()

    async def _needed(self) -> bool:
        """Wait until there is something to publish; False when all is done."""
        while True:
            self._sleep()
            if self._window.unanswered:
                return True
            if self._window.over:
                return False
            await self._work.wait()
            self._begin_to_wait()

    async def _connection(self) -> WallarooError | None:
        """One connection, until everything is answered or it is lost; the reason why it was lost."""
        try:
            async with self._gateways.using(self._action) as gateway:
                call = gateway.streams.PublishMany(metadata=self._gateways.metadata)
                sending = asyncio.create_task(self._send(call))
                try:
                    await self._read(call)
                finally:
                    sending.cancel()
                    call.cancel()
                    await asyncio.gather(sending, return_exceptions=True)
                if self._window.unanswered:
                    text = f"{self._action}: the gateway has ended the connection"
                    return TransportError(text, code="gateway-unreachable")
        except grpc.aio.AioRpcError as error:
            return lost(error, self._action, WRITTEN_ONCE)
        except TransportError as error:
            if error.code == "request-late":
                raise
            return error
        except RegistryError as error:
            return error
        return None

    async def _send(self, call: Any) -> None:
        """Send requests; an error of the connection is seen by the side that reads."""
        with contextlib.suppress(grpc.aio.AioRpcError, asyncio.InvalidStateError):
            while True:
                self._sleep()
                with self._lock:
                    idle = not self._window.unanswered
                    request = None if idle else self._window.next_request()
                if request is not None:
                    await call.write(request)
                elif self._window.over:
                    await call.done_writing()
                    return
                else:
                    await self._work.wait()
                    if idle:
                        self._begin_to_wait()

    async def _read(self, call: Any) -> None:
        """Take answers until the gateway ends the call."""
        reading = asyncio.ensure_future(call.read())
        try:
            while True:
                await asyncio.wait({reading}, timeout=_LOOK_SECONDS)
                if not reading.done():
                    self._say_that_it_waits()
                    if self._window.unanswered and time.monotonic() >= self._progress + self._seconds:
                        raise TransportError(
                            f"{self._action}: no answer came for {self._seconds:g} seconds; look at the application, "
                            "or raise timeout",
                            code="request-late",
                        )
                    continue
                if (reply := reading.result()) is grpc.aio.EOF:
                    return
                with self._lock:
                    self._answered(reply)
                self._begin_to_wait()
                self._work.set()
                self._news()
                reading = asyncio.ensure_future(call.read())
        finally:
            reading.cancel()
            await asyncio.gather(reading, return_exceptions=True)

    def _say_that_it_waits(self) -> None:
        if self._window.unanswered and self._said != self._progress < time.monotonic() - _WORD_SECONDS:
            self._said = self._progress
            log.warning(
                "%s: gateway %s has not answered for %g seconds, and is waited for up to %g: events are answered when "
                "the application commits them",
                self._action,
                self._gateways.address,
                _WORD_SECONDS,
                self._seconds,
            )

    def _answered(self, reply: Any) -> None:
        try:
            self._window.answered(reply)
        except TransportError as error:
            raise TransportError(f"{self._action}: {error.message}", code=error.code) from error

    def _begin_to_wait(self) -> None:
        """Count the time and the failures until the next answer from now on."""
        self._attempts.succeeded()
        self._progress = time.monotonic()

    def _sleep(self) -> None:
        """Look for work after this; what is added from now on sets the event again."""
        self._work.clear()
        self._awake = False

    def _wake(self) -> None:
        if not self._awake:
            self._awake = True
            with contextlib.suppress(RuntimeError):
                # The loop has ended when the client was closed meanwhile; the end has been told.
                self._loop.call_soon_threadsafe(self._work.set)


class PublishedEvents(AsyncIterator[PublishedEvent]):
    """The published events, each with its place; ``begin`` makes the bulk publish, and gets its ``news``."""

    def __init__(
        self, begin: Callable[[Callable[[], None]], BulkPublishing], events: Iterable[Any] | AsyncIterable[Any]
    ) -> None:
        self.begin = begin
        self.events = events
        self._steps = self._iterate()

    def __anext__(self) -> Awaitable[PublishedEvent]:
        return self._steps.__anext__()

    async def aclose(self) -> None:
        """End it before its end."""
        await self._steps.aclose()

    async def _iterate(self) -> AsyncGenerator[PublishedEvent, None]:
        news, room = asyncio.Event(), asyncio.Event()
        bulk = self.begin(news.set)
        tasks = [asyncio.create_task(bulk.run()), asyncio.create_task(_add_all(bulk, self.events, room))]
        try:
            while True:
                news.clear()
                ended = bulk.ended
                while (found := bulk.take()) is not None:
                    room.set()
                    yield found
                room.set()
                if ended:
                    break
                await news.wait()
            bulk.check()
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)


async def _add_all(bulk: BulkPublishing, events: Iterable[Any] | AsyncIterable[Any], room: asyncio.Event) -> None:
    """Add events while there is room, and take turns with the other tasks of the loop."""
    count = 0
    try:
        async for event in events if isinstance(events, AsyncIterable) else _each(events):
            while not bulk.room:
                room.clear()
                await room.wait()
            bulk.add(event)
            count += 1
            if count % _TURN == 0:
                await asyncio.sleep(0)
    except Exception as error:
        bulk.finish(error)
    else:
        bulk.finish()


async def _each(events: Iterable[Any]) -> AsyncIterator[Any]:
    for event in events:
        yield event


def published_events_in_thread(
    bulk: BulkPublishing, events: Iterable[Any], news: threading.Event
) -> Iterator[PublishedEvent]:
    """As :func:`published_events` for a thread that is not the loop's, where :meth:`BulkPublishing.run` runs.

    ``events`` is iterated over in the caller's thread.
    """
    source: Iterator[Any] | None = iter(events)
    while True:
        if news.is_set():
            news.clear()
            # Read before the last outcomes are taken: none comes after the end.
            ended = bulk.ended
            while (found := bulk.take()) is not None:
                yield found
            if ended:
                break
        if source is None or not bulk.room:
            news.wait()
            continue
        try:
            bulk.add(next(source))
        except StopIteration:
            source = None
            bulk.finish()
        except Exception as error:
            source = None
            bulk.finish(error)
    bulk.check()
