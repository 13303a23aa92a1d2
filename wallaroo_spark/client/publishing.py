"""A bulk publish: its connection to a gateway, and to another one when that is lost.

The program adds events and takes their outcomes, in any thread; :meth:`PublishedEvents.run` is a coroutine of the
client's event loop.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
import time
from collections.abc import AsyncGenerator, AsyncIterable, AsyncIterator, Awaitable, Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

import grpc

from wallaroo_spark.api.limits import EVENT_BYTES
from wallaroo_spark.client.arguments import ClientSettings
from wallaroo_spark.client.events import as_event
from wallaroo_spark.client.gateways import Attempts, Gateways
from wallaroo_spark.client.refusals import WRITTEN_ONCE, lost
from wallaroo_spark.client.window import BulkWindow, PublishedEvent, RefusedEvent
from wallaroo_spark.errors import (
    ArgumentValueError,
    PipelineError,
    RegistryError,
    TransportError,
    WallarooError,
    one_line,
)
from wallaroo_spark.event_loop import end_tasks

log = one_line("wallaroo_spark.client")

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


@dataclass(eq=False)
class PublishedEvents(AsyncIterator[PublishedEvent]):
    """One call of ``publish_many``: the published events, each with its place. They are published while it is iterated
    over, asynchronously or by :meth:`in_thread`.

    ``seconds`` is the longest time without an answer while events wait for one.
    """

    gateways: Gateways
    settings: ClientSettings
    action: str
    """What it does, for errors and the log."""
    window: BulkWindow
    events: Iterable[Any] | AsyncIterable[Any]
    key: str | None
    """The key of events without one of their own."""
    seconds: float
    """Seconds, with all attempts."""
    on_refused: OnRefused | None
    ended: bool = field(default=False, init=False)
    """Whether :meth:`run` has ended."""
    _failure: WallarooError | None = field(default=None, init=False)
    _source_error: BaseException | None = field(default=None, init=False)
    _lock: threading.Lock = field(default_factory=threading.Lock, init=False)
    _work: asyncio.Event = field(default_factory=asyncio.Event, init=False)
    _awake: bool = field(default=False, init=False)
    _said: float = field(default=0.0, init=False)
    """The progress after which the log was told of the wait."""
    _refused: list[RefusedEvent] = field(default_factory=list, init=False)
    _count_refused: int = field(default=0, init=False)

    def __post_init__(self) -> None:
        self._attempts = Attempts(self.settings)
        self._steps = self._iterate()

    def __anext__(self) -> Awaitable[PublishedEvent]:
        return self._steps.__anext__()

    async def aclose(self) -> None:
        """End it before its end."""
        await self._steps.aclose()

    def start(self, news: Callable[[], object]) -> asyncio.Task[None]:
        """Start :meth:`run` on the client's event loop.

        ``news`` is called when there may be an outcome or room, and at the end: in the loop's thread, and in the
        program's when it adds an event.
        """
        self._news = news
        self._loop = asyncio.get_running_loop()
        self._begin_to_wait()
        return self._loop.create_task(self.run())

    # The program's side, in any thread.

    def add(self, event: Any) -> None:
        """Add the next event. One that cannot be sent is refused."""
        try:
            message = as_event(event).to_message(self.settings.source, self.key)
            if (size := message.ByteSize()) > EVENT_BYTES:
                raise ArgumentValueError(
                    f"the event has {size} bytes, and {EVENT_BYTES} are permitted; keep large data elsewhere, and "
                    "publish its address",
                    code="message-too-large",
                )
        except WallarooError as error:
            with self._lock:
                self.window.refuse(event, error)
            self._news()
            return
        with self._lock:
            self.window.add(event, message, size)
        self._wake()

    def finish(self, error: BaseException | None = None) -> None:
        """No more events come; ``error`` is why, if they have not come to their end."""
        self._source_error = error
        with self._lock:
            self.window.finished = True
        self._wake()

    def take(self) -> PublishedEvent | None:
        """The next published event; None while there is none. Refused events are passed over."""
        while True:
            with self._lock:
                outcome = self.window.take()
            if not isinstance(outcome, RefusedEvent):
                return outcome
            if self.on_refused is not None:
                self.on_refused(outcome)
                continue
            self._count_refused += 1
            if len(self._refused) < MOST_SHOWN:
                self._refused.append(outcome)

    def check(self) -> None:
        """Raise the error with which the publish has ended, if there is one. To be called at the end."""
        if self._failure is not None:
            first = self.window.taken
            error = type(self._failure)(
                f"{self._failure.message}; {first} events have an answer, and those from number {first} on may be "
                "published or not: publish them again with the same ids",
                code=self._failure.code,
                answered=first,
            )
            # Without the frames of the loop that has published.
            raise error from self._failure.__cause__
        if self._source_error is not None:
            raise self._source_error
        if self._count_refused:
            shown = "; ".join(f"event {one.index}: {one.error.message}" for one in self._refused)
            more = f"; and {self._count_refused - MOST_SHOWN} more" if self._count_refused > MOST_SHOWN else ""
            raise PipelineError(
                f"{self.action}: {self._count_refused} of {self.window.taken} events were refused, and the others "
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
                    self.window.lost()
                delay = self._attempts.next_delay()
                if delay is None or time.monotonic() + delay >= self._progress + self.seconds:
                    raise failure
                log.info("%s: trying again in %.1f s: %s", self.action, delay, failure)
                await asyncio.sleep(delay)
        except WallarooError as error:
            self._failure = error
        except asyncio.CancelledError:
            self._failure = TransportError(f"{self.action}: the client was closed meanwhile", code="client-closed")
            raise
        except Exception as error:
            log.exception("%s failed by an error of this program", self.action)
            self._failure = PipelineError(
                f"{self.action}: {type(error).__name__}: {error}; report it", code="gateway-refused"
            )
        finally:
            self.ended = True
            self._news()

    async def _needed(self) -> bool:
        """Wait until there is something to publish; False when all is done."""
        while True:
            self._sleep()
            if self.window.unanswered:
                return True
            if self.window.over:
                return False
            await self._work.wait()
            self._begin_to_wait()

    async def _connection(self) -> WallarooError | None:
        """One connection, until everything is answered or it is lost; the reason why it was lost."""
        try:
            async with self.gateways.using(self.action) as gateway:
                call = gateway.streams.PublishMany(metadata=self.gateways.metadata)
                sending = asyncio.create_task(self._send(call))
                try:
                    await self._read(call, sending)
                finally:
                    call.cancel()
                    await end_tasks(sending)
                if self.window.unanswered:
                    text = f"{self.action}: the gateway has ended the connection"
                    return TransportError(text, code="gateway-unreachable")
        except grpc.aio.AioRpcError as error:
            return lost(error, self.action, WRITTEN_ONCE)
        except TransportError as error:
            if error.code == "request-late":
                raise
            return error
        except RegistryError as error:
            return error
        return None

    async def _send(self, call: Any) -> None:
        """Send requests. An error of the connection is that of the side that reads, too."""
        with contextlib.suppress(grpc.aio.AioRpcError, asyncio.InvalidStateError):
            while True:
                self._sleep()
                with self._lock:
                    idle = not self.window.unanswered
                    request = None if idle else self.window.next_request()
                if request is not None:
                    await call.write(request)
                elif self.window.over:
                    await call.done_writing()
                    return
                else:
                    await self._work.wait()
                    if idle:
                        self._begin_to_wait()

    async def _read(self, call: Any, sending: asyncio.Task[None]) -> None:
        """Take answers until the gateway ends the call, or ``sending`` fails by an error of this program."""
        reading = asyncio.ensure_future(call.read())
        try:
            while True:
                waited = {reading} if sending.done() else {reading, sending}
                await asyncio.wait(waited, timeout=_LOOK_SECONDS, return_when=asyncio.FIRST_COMPLETED)
                if sending.done() and not sending.cancelled() and (error := sending.exception()) is not None:
                    raise error
                if not reading.done():
                    self._say_that_it_waits()
                    if self.window.unanswered and time.monotonic() >= self._progress + self.seconds:
                        raise TransportError(
                            f"{self.action}: no answer came for {self.seconds:g} seconds; look at the application, "
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
            await end_tasks(reading)

    def _say_that_it_waits(self) -> None:
        if self.window.unanswered and self._said != self._progress < time.monotonic() - _WORD_SECONDS:
            self._said = self._progress
            log.warning(
                "%s: gateway %s has not answered for %g seconds, and is waited for up to %g: events are answered when "
                "the application commits them",
                self.action,
                self.gateways.address,
                _WORD_SECONDS,
                self.seconds,
            )

    def _answered(self, reply: Any) -> None:
        try:
            self.window.answered(reply)
        except TransportError as error:
            raise TransportError(f"{self.action}: {error.message}", code=error.code) from error

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

    # The iterations.

    async def _iterate(self) -> AsyncGenerator[PublishedEvent, None]:
        news, room = asyncio.Event(), asyncio.Event()
        tasks = [self.start(news.set), asyncio.create_task(self._add_all(room))]
        try:
            while True:
                news.clear()
                ended = self.ended
                while (found := self.take()) is not None:
                    room.set()
                    yield found
                room.set()
                if ended:
                    break
                await news.wait()
            self.check()
        finally:
            await end_tasks(*tasks)

    async def _add_all(self, room: asyncio.Event) -> None:
        """Add events while there is room, and take turns with the other tasks of the loop."""
        count = 0
        try:
            async for event in self.events if isinstance(self.events, AsyncIterable) else _each(self.events):
                while not self.window.room:
                    room.clear()
                    await room.wait()
                self.add(event)
                count += 1
                if count % _TURN == 0:
                    await asyncio.sleep(0)
        except Exception as error:
            self.finish(error)
        else:
            self.finish()

    def in_thread(self, news: threading.Event) -> Iterator[PublishedEvent]:
        """The same for a thread that is not the loop's, in which the events are iterated over.

        ``news`` is the event that :meth:`start` was told to set.
        """
        assert isinstance(self.events, Iterable)
        source: Iterator[Any] | None = iter(self.events)
        while True:
            if news.is_set():
                news.clear()
                # Read before the last outcomes are taken: none comes after the end.
                ended = self.ended
                while (found := self.take()) is not None:
                    yield found
                if ended:
                    break
            if source is None or not self.window.room:
                news.wait()
                continue
            try:
                self.add(next(source))
            except StopIteration:
                source = None
                self.finish()
            except Exception as error:
                source = None
                self.finish(error)
        self.check()


async def _each(events: Iterable[Any]) -> AsyncIterator[Any]:
    for event in events:
        yield event
