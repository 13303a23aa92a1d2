"""The messages of RabbitMQ: of a queue, acknowledged behind the commit, or of a stream, with offsets as references."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any

from wallaroo_spark.bridges.bridge import (
    Bridge,
    LogBridge,
    Promise,
    SourceLog,
    position_of,
    reference_of,
    unreadable,
)
from wallaroo_spark.bridges.streams import BridgedStream, QueuedMessage, QueuedStream, nanoseconds, silent
from wallaroo_spark.connector import Record
from wallaroo_spark.errors import ConfigurationError
from wallaroo_spark.options import resolve_secret
from wallaroo_spark.settings import Kind, row, setting

if TYPE_CHECKING:
    from aiormq.abc import AbstractChannel, DeliveredMessage

ANSWER_SECONDS = 5.0
"""Longest wait for an answer."""
LOOK_SECONDS = 0.5
"""Seconds without a message after which it is looked whether the broker has ended the delivery."""
STREAM_PREFETCH = 1000
"""Most messages of a stream that are delivered and not handed on."""
_OFFSET = "x-stream-offset"


@dataclass(eq=False, kw_only=True)
class RabbitQueueBridge(Bridge):
    """Send the messages of a RabbitMQ QUEUE of the broker at URL (amqp://user:password@host:5672/vhost).

    URL may also be amqps://, env:NAME or file:PATH. The key is the routing key, the event time the timestamp; headers
    are left out. A message is acknowledged when it is committed.

    Examples:
        wallaroo-spark bridge rabbitmq amqp://guest:guest@broker/ orders --workers host-a:7100
    """

    promise = Promise("the time of arrival", "an acknowledgement of each message", "none is lost, some come again")
    extra = "rabbitmq"

    url: str = field(kw_only=False, metadata=row(Kind.TEXT, secret=True), repr=False)
    """The broker."""
    queue: str = field(kw_only=False, metadata=row(Kind.NAME))
    """The queue."""
    prefetch: int = setting(10_000, Kind.COUNT, minimum=1, maximum=65535)
    """Most messages that are delivered and not committed; they are in memory."""

    @property
    def place(self) -> str:
        """The queue."""
        return self.queue

    async def streams(self) -> AsyncGenerator[Sequence[BridgedStream], None]:
        """The one stream."""
        yield [RabbitQueue(self)]


@dataclass(eq=False, kw_only=True)
class RabbitStreamBridge(LogBridge):
    """Send the messages of a RabbitMQ STREAM, a queue of this type, of the broker at URL (amqp://user:password@host/).

    URL may also be amqps://, env:NAME or file:PATH. The key is the routing key, the event time the timestamp; headers
    are left out. The offset is message_id >> 16.

    Examples:
        wallaroo-spark bridge rabbitmq-stream amqp://guest:guest@broker/ orders --workers host-a:7100
    """

    promise = Promise("the offset", "nothing", "once")
    extra = "rabbitmq"

    url: str = field(kw_only=False, metadata=row(Kind.TEXT, secret=True), repr=False)
    """The broker."""
    stream: str = field(kw_only=False, metadata=row(Kind.NAME))
    """The stream."""

    @property
    def place(self) -> str:
        """The stream."""
        return self.stream

    async def streams(self) -> AsyncGenerator[Sequence[BridgedStream], None]:
        """The one stream."""
        yield [RabbitStream(self)]


class RabbitQueue(QueuedStream):
    """The messages of a queue."""

    delivers_again = True

    def __init__(self, settings: RabbitQueueBridge) -> None:
        super().__init__(settings.queue)
        self.passing = _passing()
        self._settings = settings

    async def deliveries(self) -> AsyncGenerator[Sequence[QueuedMessage], None]:
        """The messages of one connection."""
        settings = self._settings
        async with _delivering(settings.url, settings.queue, settings.prefetch) as delivery:
            yield []
            while True:
                found = await delivery.group()
                if any(_offset(one) >= 0 for one in found):
                    raise ConfigurationError(
                        f"the RabbitMQ queue {self.name!r} is a stream; use wallaroo-spark bridge rabbitmq-stream",
                        code="source-setup",
                    )
                yield [
                    QueuedMessage(one.body, partial(delivery.acknowledge, one), _time(one), _key(one)) for one in found
                ]


class RabbitStream(BridgedStream):
    """The messages of a stream."""

    def __init__(self, settings: RabbitStreamBridge) -> None:
        super().__init__(settings.stream)
        self.passing = _passing()
        self._settings = settings
        self._title = f"the RabbitMQ stream {self.name!r}"

    async def records(self, after: int | None) -> AsyncGenerator[Sequence[Record], None]:
        """The messages behind an offset."""
        settings = self._settings
        begin: Any = {"earliest": "first", "latest": "next"}[settings.begin]
        if after is not None:
            # The committed message too, which shows whether the stream is the one that it belongs to.
            begin = max(position_of(after), 0)
        async with _delivering(settings.url, self.name, STREAM_PREFETCH, {_OFFSET: begin}) as delivery:
            last, group = None, await delivery.group(ANSWER_SECONDS)
            if after is not None:
                log = await self._log(after, group)
                last = log.start(after, begin=settings.begin, lost=settings.lost) - 1
                group = [one for one in group if _offset(one) > last]
            yield []
            while True:
                for one in group:
                    offset = _offset(one)
                    # Entries of the broker's own have offsets, too, at the end of a segment for example. Retention
                    # deletes the oldest messages first, so none is deleted behind one that is still there.
                    if last is not None and offset != last + 1 and (offset <= last or not await self._is_there(last)):
                        raise ConnectionError(f"the message with the offset {last + 1} has not arrived")
                    if after is None and self.began is None:
                        self.began = reference_of(offset - 1, b"")
                    last = offset
                yield [Record(_reference(one), one.body, _time(one), _key(one)) for one in group]
                await delivery.accept(group)
                group = await delivery.group()

    async def _is_there(self, offset: int) -> bool:
        """Whether the broker still has the message with this offset."""
        async with _delivering(self._settings.url, self.name, 1, {_OFFSET: offset}) as delivery:
            group = await delivery.group(ANSWER_SECONDS)
        return bool(group) and _offset(group[0]) == offset

    async def _log(self, after: int, group: Sequence[DeliveredMessage]) -> SourceLog:
        """What is there of the stream, by the first messages from the committed one on."""
        if group:
            first = _offset(group[0])
            return SourceLog(self._title, _content(group[0]) if first == position_of(after) else b"", first, first + 1)
        async with _delivering(self._settings.url, self.name, STREAM_PREFETCH, {_OFFSET: "last"}) as delivery:
            if newest := await delivery.group(ANSWER_SECONDS):
                return SourceLog(self._title, b"", 0, _offset(newest[-1]) + 1)
        # A broker that has just started may not have opened the stream yet.
        raise ConnectionError(
            f"no message with the committed offset {position_of(after)} or behind it has arrived; if the stream stays "
            "empty, it was deleted and made again: then use another --instance"
        )


class _Delivery:
    """A queue's messages, as they are delivered over one connection."""

    def __init__(self, channel: AbstractChannel, queue: str) -> None:
        self.channel: Any = channel
        self._queue = queue
        self._arrived: asyncio.Queue[DeliveredMessage] = asyncio.Queue()
        self._consumer = ""
        self._newest = 0
        self._telling: asyncio.Task[None] | None = None

    async def begin(self, prefetch: int, arguments: Any) -> None:
        """Ask the broker to deliver."""
        await self.channel.basic_qos(prefetch_count=prefetch)
        begun = await self.channel.basic_consume(self._queue, self._arrived.put, arguments=arguments)
        self._consumer = begun.consumer_tag or ""

    async def group(self, seconds: float = LOOK_SECONDS) -> list[DeliveredMessage]:
        """The messages that have arrived; none when there are none for so long. Raises OSError when no more can."""
        found = []
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                found.append(await self._arrived.get())
        while not self._arrived.empty():
            found.append(self._arrived.get_nowait())
        if not found and (self.channel.is_closed or self._consumer not in self.channel.consumers):
            closing = self.channel.closing
            cause = closing.exception() if closing.done() and not closing.cancelled() else None
            # A header that the client cannot decode, for example.
            raise ConnectionError(f"the delivery has ended: {cause or 'the broker has ended it'}")
        return found

    async def accept(self, group: Sequence[DeliveredMessage]) -> None:
        """Acknowledge the messages up to the last one of a group."""
        if group:
            await self.channel.basic_ack(group[-1].delivery_tag or 0, multiple=True)

    def acknowledge(self, message: DeliveredMessage) -> None:
        """Acknowledge the messages up to this one, soon: several together."""
        self._newest = message.delivery_tag or 0
        if self._telling is None or self._telling.done():
            self._telling = asyncio.create_task(self._tell())

    async def _tell(self) -> None:
        # Without its connection, the broker delivers them again.
        with contextlib.suppress(*_passing()):
            told = 0
            while told < self._newest:
                told = self._newest
                await self.channel.basic_ack(told, multiple=True)


@contextlib.asynccontextmanager
async def _delivering(url: str, queue: str, prefetch: int, arguments: Any = None) -> AsyncIterator[_Delivery]:
    import aiormq

    silent("aiormq")
    try:
        async with asyncio.timeout(ANSWER_SECONDS):
            connection = await aiormq.connect(resolve_secret(url))
    except ValueError:
        raise unreadable("RabbitMQ", "amqp://user:password@host:5672/vhost, or amqps:// for TLS") from None
    try:
        async with asyncio.timeout(ANSWER_SECONDS):
            delivery = _Delivery(await connection.channel(), queue)
            await delivery.begin(prefetch, arguments)
        yield delivery
    finally:
        with contextlib.suppress(*_passing()):
            async with asyncio.timeout(ANSWER_SECONDS):
                await connection.close()


def _passing() -> tuple[type[Exception], ...]:
    from aiormq import exceptions

    return (OSError, exceptions.AMQPError, exceptions.ChannelInvalidStateError)


def _headers(message: DeliveredMessage) -> Any:
    return message.header.properties.headers or {}


def _offset(message: DeliveredMessage) -> int:
    """The offset in a stream; -1 in a queue of another type."""
    return int(_headers(message).get(_OFFSET, -1))


def _reference(message: DeliveredMessage) -> int:
    return reference_of(_offset(message), _content(message))


def _content(message: DeliveredMessage) -> bytes:
    """What tells a message from that of another stream with its offset: streams have no identity that a client sees."""
    facts = message.header.properties
    return repr((message.body, message.routing_key, facts.message_id, facts.timestamp)).encode()


def _time(message: DeliveredMessage) -> int | None:
    moment = message.header.properties.timestamp
    return None if moment is None else nanoseconds(int(moment.timestamp()), 1_000_000_000)


def _key(message: DeliveredMessage) -> bytes:
    return (message.routing_key or "").encode()
