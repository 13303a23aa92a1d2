"""Reports which messages are acknowledged: callbacks of single messages, and iterators of acknowledgements.

An ACK is cumulative. Messages of a stream are acknowledged in the order in which they were sent, so the number of
acknowledged messages tells which ones they are; that also holds for ids that do not increase.
"""

from __future__ import annotations

import asyncio
import logging
import time
import weakref
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

from wallaroo_spark.errors import one_line

_log = one_line(logging.getLogger("wallaroo_spark.connector"))

MARK_SECONDS = 0.25
"""Precision of the age of the oldest unacknowledged message. A choice: ages are shown to people, in tenths of seconds.
"""


@dataclass(frozen=True, slots=True)
class Delivery:
    """One message that was sent with ``on_delivery``."""

    stream: str
    """Name of its stream."""
    id: int
    """Its id."""


@dataclass(frozen=True, slots=True)
class Acknowledgement:
    """The progress of one stream: everything up to ``reference`` is committed by Spark."""

    stream: str
    """Name of the stream."""
    reference: int
    """The last committed reference."""
    messages: int
    """Number of messages of this process that are acknowledged since the stream's acknowledgement before."""


OnDelivery = Callable[[Exception | None, Delivery], object]
"""Called once for a message: with None when it is acknowledged, or with the error because of which no acknowledgement
will be reported."""


class StreamDeliveries:
    """The deliveries of one stream. Messages are numbered from 1 in the order in which they are sent."""

    def __init__(self, name: str, deliveries: Deliveries) -> None:
        self.sent = 0
        """Number of messages sent."""
        self.acknowledged = 0
        """Number of messages acknowledged; they are the first ones."""
        self._name = name
        self._deliveries = deliveries
        self._waiting: deque[tuple[int, int, OnDelivery]] = deque()
        self._marks: deque[tuple[int, float]] = deque()
        self._failure: Exception | None = None

    @property
    def oldest(self) -> float | None:
        """The time, by ``time.monotonic``, at which the oldest unacknowledged message was sent; None for none."""
        return self._marks[0][1] if self._marks else None

    def appended(self, count: int) -> None:
        """Messages were sent."""
        now = time.monotonic()
        if not self._marks or now - self._marks[-1][1] >= MARK_SECONDS:
            self._marks.append((self.sent, now))
        self.sent += count

    def expect(self, number: int, message_id: int, callback: OnDelivery) -> None:
        """Call back when the message with this number is acknowledged."""
        if number <= self.acknowledged:
            self._deliveries.call_soon(callback, None, Delivery(self._name, message_id))
        elif self._failure is not None:
            self._deliveries.call_soon(callback, self._failure, Delivery(self._name, message_id))
        else:
            self._waiting.append((number, message_id, callback))
            self._deliveries.waiting[self] = None

    def advance(self, acknowledged: int, reference: int | None) -> None:
        """So many messages are acknowledged now."""
        count = acknowledged - self.acknowledged
        if count <= 0:
            return
        self.acknowledged = acknowledged
        while self._marks and (self._marks[1][0] if len(self._marks) > 1 else self.sent) <= acknowledged:
            self._marks.popleft()
        waiting = self._waiting
        while waiting and waiting[0][0] <= acknowledged:
            _, message_id, callback = waiting.popleft()
            self._deliveries.call_soon(callback, None, Delivery(self._name, message_id))
        if not waiting:
            self._deliveries.waiting.pop(self, None)
        if reference is not None:
            self._deliveries.publish(Acknowledgement(self._name, reference, count))

    def fail(self, error: Exception) -> None:
        """No further acknowledgement will be reported."""
        self._failure = error
        waiting, self._waiting = self._waiting, deque()
        self._deliveries.waiting.pop(self, None)
        for _, message_id, callback in waiting:
            self._deliveries.call_soon(callback, error, Delivery(self._name, message_id))


class Deliveries:
    """The deliveries of all streams of a connector, and the callbacks that are due."""

    def __init__(self) -> None:
        self.waiting: dict[StreamDeliveries, None] = {}
        """The streams with messages whose callback was not called."""
        self.subscriptions: weakref.WeakSet[Acknowledgements] = weakref.WeakSet()
        """The iterators that are told of acknowledgements."""
        self._due: deque[tuple[OnDelivery, Exception | None, Delivery]] = deque()
        self._scheduled = False

    def call_soon(self, callback: OnDelivery, error: Exception | None, delivery: Delivery) -> None:
        """Call a callback behind those that are due already, outside the handling of the frame that made it due."""
        self._due.append((callback, error, delivery))
        self._schedule()

    def publish(self, acknowledgement: Acknowledgement) -> None:
        """Tell the iterators."""
        for subscription in self.subscriptions:
            subscription.add(acknowledgement)

    def finish(self, error: Exception, failure: Exception | None) -> None:
        """The connector has ended: report ``error`` for waiting messages; iterators end, with ``failure`` if any."""
        for stream in list(self.waiting):
            stream.fail(error)
        for subscription in list(self.subscriptions):
            subscription.finish(failure)

    def call_due(self) -> None:
        """Call the callbacks that are due. An exception of a callback is logged; the others are still called."""
        self._scheduled = False
        try:
            while self._due:
                callback, error, delivery = self._due.popleft()
                call(callback, error, delivery)
        finally:
            # A callback has interrupted the program, with KeyboardInterrupt for example.
            if self._due:
                self._schedule()

    def _schedule(self) -> None:
        if not self._scheduled:
            self._scheduled = True
            asyncio.get_running_loop().call_soon(self.call_due)


def call(callback: OnDelivery, error: Exception | None, delivery: Delivery) -> None:
    """Call one callback; its exception is logged."""
    try:
        callback(error, delivery)
    except Exception:
        _log.exception(
            "on_delivery of message %d of stream %r has raised; the message is %s",
            delivery.id,
            delivery.stream,
            "acknowledged" if error is None else "not acknowledged",
        )


class Acknowledgements:
    """An asynchronous iterator of acknowledgements. It ends when the connector is closed.

    What comes faster than it is read is joined: one acknowledgement a stream, with the latest reference and the sum of
    the messages. So it takes no more memory than there are streams, and no message is counted twice or left out.
    """

    def __init__(self, deliveries: Deliveries) -> None:
        self._pending: dict[str, Acknowledgement] = {}
        self._changed = asyncio.Event()
        self._ended = False
        self._failure: Exception | None = None
        deliveries.subscriptions.add(self)

    def __aiter__(self) -> Acknowledgements:
        return self

    async def __anext__(self) -> Acknowledgement:
        found = await self.next()
        if found is None:
            raise StopAsyncIteration
        return found

    async def next(self) -> Acknowledgement | None:
        """The next acknowledgement; None at the end. Raises the error that has ended the connector."""
        while not self._pending and not self._ended:
            self._changed.clear()
            await self._changed.wait()
        return self.take()

    def take(self) -> Acknowledgement | None:
        """The next acknowledgement that has come; None for none. Raises the error that has ended the connector."""
        if self._pending:
            return self._pending.pop(next(iter(self._pending)))
        if self._failure is not None:
            raise self._failure
        return None

    def add(self, new: Acknowledgement) -> None:
        """Messages were acknowledged."""
        before = self._pending.get(new.stream)
        messages = new.messages + (0 if before is None else before.messages)
        self._pending[new.stream] = Acknowledgement(new.stream, new.reference, messages)
        self._changed.set()

    def finish(self, failure: Exception | None) -> None:
        """The connector has ended."""
        self._ended = True
        self._failure = self._failure or failure
        self._changed.set()
