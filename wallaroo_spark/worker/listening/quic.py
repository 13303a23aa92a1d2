"""The worker's listener for connectors over QUIC, and the way to one of them.

The worker's machine knows nothing of it: the frames of all channels of a connection are handed over as the bytes of one
session, in the order in which they come. Source: ``docs/protocol.md#over-quic``.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator

from wallaroo_spark import aqueduct
from wallaroo_spark.errors import AqueductError, TransportError, one_line
from wallaroo_spark.options import Options
from wallaroo_spark.protocol import REVISIONS, Revision
from wallaroo_spark.protocol.channels import HEADER, MESSAGE_BYTES, ChannelRules, answer_to, revision_of
from wallaroo_spark.transport import once_free
from wallaroo_spark.worker.machine import events as e
from wallaroo_spark.worker.open_files import HANDSHAKES

log = one_line("wallaroo_spark.worker")

FLUSH_SECONDS = 5.0
"""Limit in seconds of the wait in :meth:`QuicStream.close` until the connector has everything. A choice: TCP's."""
REOPEN_SECONDS = 30.0
"""Limit in seconds of the wait for the rest of a stream whose connector has sent another NOTIFY.

A choice: the idle time after which QUIC gives up a connection, so a slow network is not cut off before that.
"""


class QuicStream:
    """The way to one connector, as :class:`~.streams.ConnectorStream` says."""

    certificate_names: tuple[str, ...] = ()

    def __init__(self, connection: aqueduct.Connection, revision: Revision) -> None:
        self.peer = f"{connection.peer} over QUIC"
        self._connection = connection
        self._rules = ChannelRules(revision)
        self._reading = asyncio.Event()
        self._reading.set()
        self._streams: dict[int, asyncio.Task[None]] = {}
        self._answers: aqueduct.Sender | None = None
        self._outbox: deque[bytes] = deque()
        self._queued = 0
        self._writing: asyncio.Task[None] | None = None
        self._closing = False
        self._held = self._lost = 0

    # What comes.

    async def deliver(self, received: Callable[[bytes], None]) -> None:
        """See :class:`~.streams.ConnectorStream`."""
        try:
            async with asyncio.TaskGroup() as group:
                await self._deliver(received, group)
        except ExceptionGroup as errors:
            first = errors.exceptions[0]
            if isinstance(first, AqueductError):
                if self._closing:
                    return
                raise TransportError(first.message, code="connection-lost", peer=self.peer, reason="cut") from first
            raise first from None

    async def _deliver(self, received: Callable[[bytes], None], group: asyncio.TaskGroup) -> None:
        """Hand over the frames of the session, and begin to do so for each stream that they open."""
        async for message in self._messages(self._connection.requests):
            senders = [one for one in message.attachments if one.is_sender]
            receivers = [one for one in message.attachments if not one.is_sender]
            opened = self._rules.session_frame(message.payload, len(senders), len(receivers))
            if senders:
                self._answers = senders[0].sender()
            if opened is not None:
                await self._ended(opened)
            received(message.payload)
            if opened is not None:
                reading = group.create_task(self._deliver_stream(opened, receivers[0].receiver(), received))
                self._streams[opened] = reading
                reading.add_done_callback(functools.partial(self._forget, opened))

    async def _deliver_stream(
        self, stream_id: int, channel: aqueduct.Receiver, received: Callable[[bytes], None]
    ) -> None:
        with contextlib.suppress(aqueduct.Cancelled):
            async for message in self._messages(channel):
                self._rules.stream_frames(stream_id, message.payload, unreliable=not message.reliable)
                received(message.payload)

    async def _messages(self, channel: aqueduct.Receiver) -> AsyncIterator[aqueduct.Message]:
        """The messages of a channel. None is taken while nothing may be handed over, so its window limits them."""
        while True:
            await self._reading.wait()
            message = channel.take()
            if message is not None:
                yield message
            elif channel.ended:
                return
            else:
                await channel.changed()

    async def _ended(self, stream_id: int) -> None:
        """Wait for the end of a stream's channel before."""
        before = self._streams.get(stream_id)
        if before is None:
            return
        while (await asyncio.wait([before], timeout=REOPEN_SECONDS))[1]:
            if not self._reading.is_set():
                # It is this side that does not read the rest.
                continue
            raise TransportError(
                f"stream {stream_id} was notified again, and its earlier channel did not end in {REOPEN_SECONDS:g} s",
                code="connection-lost",
                peer=self.peer,
                reason="cut",
            )

    def _forget(self, stream_id: int, reading: asyncio.Task[None]) -> None:
        if self._streams.get(stream_id) is reading:
            del self._streams[stream_id]

    def set_delivering(self, on: bool) -> None:
        """See :class:`~.streams.PeerStream`. While it is suspended, the channels' windows fill."""
        if on:
            self._reading.set()
        else:
            self._reading.clear()

    def news(self, session: int) -> Iterator[e.Event]:
        """What the machine has to know of the connection, as its session."""
        held, lost = self._connection.queued_bytes, self._connection.lost_messages
        if held != self._held:
            self._held = held
            yield e.Holding(session, held)
        if lost != self._lost:
            yield e.Undelivered(session, lost - self._lost)
            self._lost = lost

    # What is sent.

    @property
    def queued(self) -> int:
        """See :class:`~.streams.PeerStream`."""
        return self._queued

    def write(self, data: bytes) -> None:
        """See :class:`~.streams.PeerStream`. Before HELLO there is no channel on which anything could be sent."""
        if self._answers is None or self._closing:
            return
        self._outbox.append(data)
        self._queued += len(data)
        if self._writing is None or self._writing.done():
            self._writing = asyncio.get_running_loop().create_task(self._write(self._answers))

    async def _write(self, answers: aqueduct.Sender) -> None:
        # The reader meets an error of the connection, too.
        with contextlib.suppress(AqueductError):
            while self._outbox:
                data = self._outbox.popleft()
                while self._outbox and len(data) + len(self._outbox[0]) <= MESSAGE_BYTES:
                    data += self._outbox.popleft()
                await answers.send(data)
                self._queued -= len(data)

    async def close(self) -> None:
        """See :class:`~.streams.PeerStream`. It waits until the connector has closed, which it does at the end."""
        if not self._closing:
            self._closing = True
            with contextlib.suppress(AqueductError):
                if self._writing is not None:
                    await asyncio.wait([self._writing], timeout=FLUSH_SECONDS)
                await self._connection.close("closed by the worker", seconds=FLUSH_SECONDS)

    def abort(self) -> None:
        """See :class:`~.streams.PeerStream`."""
        self._closing = True
        self._connection.abort("closed by the worker")


async def listen(
    serve: Callable[[QuicStream], Awaitable[None]], options: Options, address: tuple[str, int], stopped: asyncio.Event
) -> aqueduct.Server | None:
    """Listen at the UDP port with the number of a TCP listener's; ``serve`` is called for each connector.

    A predecessor's port is waited for, as over TCP; None when ``stopped`` is set meanwhile.
    """

    async def served(connection: aqueduct.Connection) -> None:
        revision = revision_of(await connection.headers())
        if revision is None:
            log.info(
                "a client at %s connected over QUIC and is no connector: it has no header %s", connection.peer, HEADER
            )
            connection.abort(f"this is a worker; the header {HEADER} has to name a revision: {', '.join(REVISIONS)}")
            return
        stream = QuicStream(connection, revision)
        try:
            await serve(stream)
        finally:
            await stream.close()

    return await once_free(
        lambda: aqueduct.serve(
            served,
            *address,
            certificate=options.tls_certificate,
            key=options.tls_key,
            headers=answer_to,
            # The worker's machine refuses a connection beyond this as over TCP, and says why.
            connections=2 * options.max_sessions + HANDSHAKES,
        ),
        stopped,
    )
