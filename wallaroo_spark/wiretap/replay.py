"""Sends the messages of a capture again, as the connectors that it has recorded would.

The SDK sends them: credits, references, reconnecting and resending are those of any connector. Messages that are
committed already are skipped. Source: ``docs/debug-a-connector.md#send-it-again``.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import defaultdict
from collections.abc import AsyncIterator, Callable, Iterable, Iterator
from dataclasses import dataclass, field, replace

from wallaroo_spark.connector import Connector, Stream
from wallaroo_spark.errors import ConfigurationError
from wallaroo_spark.protocol import EosMessage, Flags, Hello, Message, Notify
from wallaroo_spark.wiretap.decoding import DecodedFrame, decode
from wallaroo_spark.wiretap.proxy import End
from wallaroo_spark.wiretap.recording import ConnectionOpened, Event

AHEAD = 256
"""Messages of a stream that are read ahead of its credits. A choice that bounds memory."""


@dataclass(frozen=True)
class RecordedConnector:
    """The connector of a recorded session, as its HELLO names it."""

    instance: str
    program: str
    version: str
    """The protocol's version."""
    revision: str


@dataclass(frozen=True)
class RecordedMessage:
    """One message of a capture, or the end of a stream."""

    at: float
    """Seconds since 1970."""
    connector: RecordedConnector
    """Its sender."""
    stream_id: int
    stream: str
    message: Message | None
    """The message; None for an end without one."""
    ends: bool
    """Whether the stream ends with it."""


@dataclass
class ReplayTotals:
    """The numbers of a replay."""

    sent: int = 0
    """Messages that were sent, and are acknowledged once the replay has ended."""
    committed: int = 0
    """Messages that were committed before, and so were not sent."""
    repeated: int = 0
    """Messages that the capture has more than once, because a connector had to resend them."""
    unreadable: int = 0
    """Frames of connectors that are incomplete or wrong, and messages of sessions without their HELLO or NOTIFY."""
    streams: int = 0
    """Streams that were opened."""


@dataclass
class _Session:
    """A recorded connection as far as it was read."""

    connector: RecordedConnector | None = None
    """The connector; None before HELLO."""
    names: dict[int, str] = field(default_factory=dict)
    """The names of its streams, by their ids."""


def recorded_messages(
    events: Iterable[Event], totals: ReplayTotals, connection: int | None = None
) -> Iterator[RecordedMessage]:
    """The messages of a capture, each once, in the order in which they were sent.

    Messages that were recorded again after a reconnection, and frames that cannot be read, are left out and counted.
    """
    sessions: dict[int, _Session] = defaultdict(_Session)
    last: dict[tuple[str, int], int] = {}
    for one in decode(events):
        if connection is not None and one.connection != connection:
            continue
        if isinstance(one, ConnectionOpened) and not one.continued:
            sessions[one.connection] = _Session()
        if not isinstance(one, DecodedFrame) or one.sender is not End.CONNECTOR:
            continue
        found = _message(one, sessions[one.connection], totals)
        if found is None:
            continue
        key = (found.connector.instance, found.stream_id)
        if found.message is not None and _is_repeated(found.message, last.get(key)):
            totals.repeated += 1
            continue
        if found.message is not None and found.message.message_id is not None:
            last[key] = found.message.message_id
        yield found


def _message(one: DecodedFrame, session: _Session, totals: ReplayTotals) -> RecordedMessage | None:
    frame = one.frame
    match frame:
        case Hello():
            assert one.revision is not None
            session.connector = RecordedConnector(frame.instance, frame.program, frame.version, one.revision.name)
        case Notify():
            session.names[frame.stream_id] = frame.name
        case Message() | EosMessage():
            name = session.names.get(frame.stream_id)
            if session.connector is None or name is None:
                totals.unreadable += 1
                return None
            message = frame if isinstance(frame, Message) else None
            ends = message is None or bool(message.flags & Flags.EOS)
            if message is not None and message.flags & Flags.EOS and message.flags & Flags.BOUNDARY:
                message = None
            return RecordedMessage(one.at or 0.0, session.connector, frame.stream_id, name, message, ends)
        case None:
            totals.unreadable += 1
    return None


def _is_repeated(message: Message, last: int | None) -> bool:
    """Whether a stream had the message before. A BOUNDARY and an unstable message may share an id with others."""
    if message.message_id is None or last is None or message.flags & Flags.EPHEMERAL:
        return False
    shares = message.flags & (Flags.BOUNDARY | Flags.UNSTABLE_REFERENCE)
    return message.message_id < last if shares else message.message_id <= last


def _is_committed(message: Message, reference: int | None) -> bool:
    return None not in (message.message_id, reference) and (message.message_id or 0) <= (reference or 0)


class Replay:
    """One replay of a capture to a receiver.

    ``connect`` makes the connector for one that was recorded. ``pace`` is how many times as fast as recorded the
    messages are sent; None: as fast as credits allow. With ``instance`` all of them are sent under that name, on
    streams of their own, so that nothing of them is committed yet.
    """

    def __init__(
        self,
        events: Iterable[Event],
        connect: Callable[[RecordedConnector], Connector],
        *,
        pace: float | None = None,
        instance: str = "",
        connection: int | None = None,
    ) -> None:
        self.totals = ReplayTotals()
        self._messages = recorded_messages(events, self.totals, connection)
        self._connect = connect
        self._pace = pace
        self._instance = instance
        self._streams: dict[tuple[str, int], _ReplayedStream] = {}
        self._connectors: dict[str, Connector] = {}
        self._revisions: dict[str, str] = {}

    async def run(self) -> ReplayTotals:
        """Send all messages; return when all of them are acknowledged.

        Raises the error of the first connector or stream that fails.
        """
        async with contextlib.AsyncExitStack() as stack:
            try:
                async with asyncio.TaskGroup() as sending:
                    async for one in self._due():
                        connector = await self._connector(one.connector, stack)
                        await self._stream(one, connector, sending).put(one)
                    for stream in self._streams.values():
                        await stream.put(None)
            except ExceptionGroup as group:
                raise group.exceptions[0] from None
        return self.totals

    async def _due(self) -> AsyncIterator[RecordedMessage]:
        """The messages, each when it is due."""
        loop = asyncio.get_running_loop()
        begin, first = loop.time(), None
        for number, one in enumerate(self._messages):
            first = one.at if first is None else first
            if self._pace is not None:
                await asyncio.sleep(begin + (one.at - first) / self._pace - loop.time())
            elif number % AHEAD == 0:
                await asyncio.sleep(0)
            yield one

    def _stream(self, one: RecordedMessage, connector: Connector, sending: asyncio.TaskGroup) -> _ReplayedStream:
        key = (one.connector.instance, one.stream_id)
        if key not in self._streams:
            made = self._streams[key] = _ReplayedStream(one, connector, self.totals, own=bool(self._instance))
            sending.create_task(made.run())
        return self._streams[key]

    async def _connector(self, recorded: RecordedConnector, stack: contextlib.AsyncExitStack) -> Connector:
        name = self._instance or recorded.instance
        if self._revisions.setdefault(name, recorded.revision) != recorded.revision:
            raise ConfigurationError(
                f"the capture has instance {name!r} in revisions {self._revisions[name]} and {recorded.revision}; "
                "replay one connection at a time (--connection)",
                code="replay-ambiguous",
            )
        if name not in self._connectors:
            # The connector's end waits until everything is acknowledged.
            self._connectors[name] = await stack.enter_async_context(self._connect(replace(recorded, instance=name)))
        return self._connectors[name]


class _ReplayedStream:
    """One stream of a replay: a queue of messages, and the task that sends them."""

    def __init__(self, first: RecordedMessage, connector: Connector, totals: ReplayTotals, *, own: bool) -> None:
        self._name = first.stream
        self._id = None if own else first.stream_id
        self._connector = connector
        self._totals = totals
        self._queue: asyncio.Queue[RecordedMessage | None] = asyncio.Queue(AHEAD)
        self._stream: Stream | None = None
        self._ended = False

    async def put(self, one: RecordedMessage | None) -> None:
        """Send a message after those before it; None is the end of the capture."""
        await self._queue.put(one)

    async def run(self) -> None:
        """Send the messages until the capture ends."""
        while (one := await self._queue.get()) is not None:
            stream = await self._opened(one)
            message = one.message
            if message is not None:
                if _is_committed(message, stream.reference):
                    self._totals.committed += 1
                else:
                    await self._send(stream, message)
            if one.ends:
                await stream.end()
                self._ended = True

    async def _opened(self, one: RecordedMessage) -> Stream:
        if self._stream is not None and self._ended:
            # A stream is opened again once its end is acknowledged.
            await self._stream.flushed()
            self._stream = None
        if self._stream is None:
            ephemeral = one.message is not None and bool(one.message.flags & Flags.EPHEMERAL)
            self._stream = await self._connector.open(self._name, id=self._id, ephemeral=ephemeral)
            self._totals.streams += not self._ended
            self._ended = False
        return self._stream

    async def _send(self, stream: Stream, message: Message) -> None:
        unstable = bool(message.flags & Flags.UNSTABLE_REFERENCE)
        message_id = None if message.flags & Flags.EPHEMERAL else message.message_id
        if message.payload is None:
            await stream.send_boundary(message_id, unstable=unstable)
        else:
            await stream.send(
                message.payload,
                id=message_id,
                # In v3 an event time of 0 and an empty key mean that there is none.
                event_time=message.event_time or None,
                key=message.key or None,
                unstable=unstable,
            )
        self._totals.sent += 1
