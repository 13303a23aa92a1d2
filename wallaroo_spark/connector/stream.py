"""A stream for programs: the information in both its forms, and the methods of the asyncio form."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from datetime import datetime

from wallaroo_spark.connector.arguments import bytes_of, key_of
from wallaroo_spark.connector.reporting import OnDelivery
from wallaroo_spark.connector.sending.send_batches import SendBatches
from wallaroo_spark.connector.sending.stream_sender import StreamSender
from wallaroo_spark.protocol import Flags

_NO_FLAGS, _UNSTABLE = Flags.NONE, Flags.UNSTABLE_REFERENCE


def flags_of(*, unstable: bool) -> Flags:
    """The flags of a message."""
    return _UNSTABLE if unstable else _NO_FLAGS


class StreamInformation:
    """The information that both forms of a stream have."""

    def __init__(self, sender: StreamSender) -> None:
        self._sender = sender

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.name!r} id={self.id}: {self._sender.messages.describe()}>"

    @property
    def name(self) -> str:
        """The stream's name."""
        return self._sender.name

    @property
    def id(self) -> int:
        """The stream's id."""
        return self._sender.id

    @property
    def reference(self) -> int | None:
        """The last committed reference when the stream was opened; None: from the beginning.

        It is the worker's reference; where the worker has none, the caller's.
        """
        return self._sender.reference

    @property
    def acknowledged(self) -> int | None:
        """The last committed reference now; None when there is none."""
        return self._sender.messages.reference

    @property
    def unacknowledged(self) -> int:
        """Messages sent and not acknowledged yet; 0 for an ephemeral stream."""
        return self._sender.kept

    @property
    def last(self) -> int | None:
        """The id before the next message's: the id of the last message sent, or ``reference`` when none was sent."""
        return self._sender.last


class Stream(StreamInformation):
    """A stream of messages; made by :meth:`Connector.open`. Source: ``docs/protocol.md#stream-states``."""

    async def send(
        self,
        payload: bytes | bytearray | memoryview,
        *,
        id: int | None = None,
        event_time: int | datetime | None = None,
        key: bytes | None = None,
        unstable: bool = False,
        on_delivery: OnDelivery | None = None,
    ) -> int:
        """Send one message as soon as there are a connection, a credit and memory to keep it; return its id.

        Without ``id`` the message gets the last id plus one. In a process that gives no ids at all, numbering begins at
        the present time in nanoseconds. So no id occurs twice, and the worker takes no message for a replay of one from
        an earlier process. A program that sends the same messages again after a restart gives ids. On an ephemeral
        stream ids count from 1.

        ``event_time`` is an integer in the receiver's unit (``eventTimeUnit``), or an aware datetime, which is sent as
        nanoseconds. ``unstable`` says that the stream cannot be resumed from this id. A cancelled call has sent
        nothing.

        ``on_delivery(error, delivery)`` is called once: with None and a :class:`Delivery` when Spark has committed the
        message, also after reconnections; or with the error because of which no acknowledgement will be reported (the
        connector has failed or was closed). Then the message may still be committed later. The callbacks of a stream
        come in the order of its messages. An exception that one raises is logged. In a :class:`Connector` they run on
        the event loop, so they must not block; in a :class:`BlockingConnector` in a thread of their own, where they may
        send.

        Raises :class:`LocalProtocolError` for an id that does not increase and for a message that does not fit a frame,
        :class:`ArgumentTypeError` for an argument of another type, and the error that has ended the connector.
        """
        if on_delivery is not None:
            self._sender.check_delivery(on_delivery)
            number = await self.send(payload, id=id, event_time=event_time, key=key, unstable=unstable)
            self._sender.expect_delivery(number, on_delivery)
            return number
        if type(payload) is not bytes:
            payload = bytes_of(payload)
        elif event_time is None and key is None and not unstable:
            sent = self._sender.open_run.add(payload, id)
            if sent is not None:
                return sent
        if key is not None:
            key = key_of(key)
        flags = _UNSTABLE if unstable else _NO_FLAGS
        return await self._sender.send_one(payload, id, flags, event_time, key)

    async def send_many(
        self,
        payloads: Iterable[bytes | bytearray | memoryview],
        ids: Iterable[int] | None = None,
        event_times: Iterable[int | datetime | None] | None = None,
        keys: Iterable[bytes | None] | None = None,
        *,
        unstable: bool = False,
        on_delivery: OnDelivery | None = None,
    ) -> int | None:
        """Send many messages, each as :meth:`send` would, at a fraction of its cost; return the last id, or None.

        ``payloads`` is an iterable, or an Arrow array of binary or string; the columns beside it have an item for each
        payload (``ids`` may be a ``range``). They are read in batches during sending; a slow iterable does not delay
        the messages that were already read. ``on_delivery`` is called for each of them.

        Raises the errors of :meth:`send`, with the index of the message in ``fields["index"]``, and the errors of the
        iterables; the messages before that one are sent. If the call is cancelled, :attr:`last` is the id of the last
        message that was sent.
        """
        sent = self._sender.expecting(on_delivery)
        batches = SendBatches(payloads, ids, event_times, keys)
        flags = flags_of(unstable=unstable)
        last: int | None = None
        while (batch := batches.next()) is not None:
            last = await self._sender.send_batch(batch, flags, sent)
            if batches.slow:
                await asyncio.sleep(0)
        return last

    async def send_boundary(self, id: int | None = None, *, unstable: bool = False) -> int:
        """Send a BOUNDARY, a marker without payload from whose id the stream can be resumed; return its id.

        Raises :class:`LocalProtocolError` in a revision without boundaries.
        """
        return await self._sender.send_one(None, id, Flags.BOUNDARY | flags_of(unstable=unstable), None, None)

    async def end(self) -> None:
        """Close the stream; nothing can be sent on it afterwards."""
        await self._sender.end()

    async def flushed(self) -> None:
        """Wait until everything sent is acknowledged. Raises the error that ends the connector or the stream first."""
        await self._sender.flushed()
