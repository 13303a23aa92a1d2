"""What carries the frames of a session over QUIC: the entrypoint, a channel for each stream, and datagrams.

Source: ``docs/protocol.md#over-quic``.
"""

from __future__ import annotations

import asyncio
import contextlib
import ssl
from collections.abc import Callable, Sequence

from wallaroo_spark import aqueduct
from wallaroo_spark.connector.settings import ConnectorSettings
from wallaroo_spark.errors import AqueductError, TransportError
from wallaroo_spark.event_loop import BackgroundTasks
from wallaroo_spark.protocol import Revision
from wallaroo_spark.protocol.channels import HEADER, Part, PartKind, is_ephemeral, split
from wallaroo_spark.transport import format_address
from wallaroo_spark.transport.base import not_connected

FLUSH_SECONDS = 5.0
"""Limit in seconds of the wait in :meth:`QuicCarrier.close` until everything has arrived. A choice."""


IDLE_SECONDS = 15.0
"""Seconds without any packet after which a worker counts as gone: a worker that was killed sends no close over UDP.

A choice: longer than most gaps in a radio network, and a quarter of what TCP takes to notice a host without power. A
quiet session is kept alive by pings.
"""


class _StreamChannel:
    """The channel of one NOTIFY."""

    def __init__(self, sender: aqueduct.Sender) -> None:
        self.sender = sender
        self.outstanding = 0
        """Datagrams of which it is not known whether they have arrived."""
        self.settled = asyncio.Event()
        """Set while there are none."""
        self.settled.set()


class QuicCarrier:
    """Carries the frames of one session; see :class:`~.worker_connection.Carrier`."""

    def __init__(self, connection: aqueduct.Connection, peer: str, revision: Revision, *, datagrams: bool) -> None:
        self.peer = peer
        self.lost: Callable[[int], None] = lambda messages: None
        self._connection = connection
        self._revision = revision
        self._datagrams = datagrams
        self._answers, self._theirs = connection.channel("receiver")
        self._greeted = False
        self._channels: dict[int, _StreamChannel] = {}
        self._ending = BackgroundTasks(lambda error: None)

    async def send(self, parts: Sequence[Part]) -> None:
        """See :class:`~.worker_connection.Carrier`."""
        try:
            for part in parts:
                await self._send(part)
        except AqueductError as error:
            raise self._cut(error) from error

    async def _send(self, part: Part) -> None:
        entrypoint = self._connection.entrypoint
        match part.kind:
            case PartKind.SESSION:
                attached, self._greeted = () if self._greeted else (self._theirs,), True
                await entrypoint.send(part.data, attach=attached)
            case PartKind.NOTIFY:
                # The worker takes this NOTIFY in when it has all of the stream's channel before.
                await self._finish(self._channels.pop(part.stream_id, None))
                mine, theirs = self._connection.channel("sender")
                self._channels[part.stream_id] = _StreamChannel(mine)
                await entrypoint.send(part.data, attach=[theirs])
            case PartKind.MESSAGES:
                channel = self._channels[part.stream_id]
                if self._datagrams and is_ephemeral(self._revision, part.data):
                    await self._send_datagrams(channel, part.data)
                else:
                    for data in split(self._revision, part.data):
                        await channel.sender.send(data)
            case PartKind.END:
                self._ending.start(self._end(self._channels.pop(part.stream_id), part.data))

    async def _send_datagrams(self, channel: _StreamChannel, data: bytes) -> None:
        for frame in split(self._revision, data, 1):
            try:
                sent = await channel.sender.send(frame, unreliable=True)
            except aqueduct.MessageTooLarge:
                await channel.sender.send(frame)
                continue
            channel.outstanding += 1
            channel.settled.clear()
            sent.acked.add_done_callback(lambda acked: self._settled(channel, acked))

    def _settled(self, channel: _StreamChannel, acked: asyncio.Future[bool]) -> None:
        channel.outstanding -= 1
        if not channel.outstanding:
            channel.settled.set()
        error = None if acked.cancelled() else acked.exception()
        # At the end of a connection nobody knows what has arrived.
        if error is not None and not isinstance(error, aqueduct.ConnectionLost):
            self.lost(1)

    async def _end(self, channel: _StreamChannel, data: bytes) -> None:
        """End a stream behind its datagrams, because a worker refuses messages behind the end."""
        with contextlib.suppress(AqueductError):
            await channel.settled.wait()
            await channel.sender.send(data)
            await channel.sender.finish()

    async def _finish(self, channel: _StreamChannel | None) -> None:
        if channel is not None:
            with contextlib.suppress(AqueductError):
                await channel.sender.finish()

    async def read(self) -> bytes:
        """See :class:`~.worker_connection.Carrier`."""
        try:
            message = await self._answers.receive()
        except AqueductError as error:
            raise self._cut(error) from error
        return b"" if message is None else message.payload

    async def close(self) -> None:
        """See :class:`~.worker_connection.Carrier`."""
        with contextlib.suppress(AqueductError):
            await self._ending.wait(FLUSH_SECONDS)
            self._ending.cancel()
            await self._connection.close(seconds=FLUSH_SECONDS)

    def _cut(self, error: AqueductError) -> TransportError:
        return TransportError(
            f"connection to {self.peer} was cut: {error.message}; connect again and resume",
            code="connection-lost",
            peer=self.peer,
            reason="cut",
        )


async def connect(address: tuple[str, int], settings: ConnectorSettings) -> QuicCarrier:
    """Connect to a worker. Raises :class:`TransportError` with the address, the cause and the way out."""
    where, revision = format_address(*address), settings.protocol_revision
    header = HEADER, revision.name.encode()
    try:
        async with asyncio.timeout(settings.connect_timeout):
            # The authorities that TCP trusts, not those of a package.
            ca = settings.ca or ssl.get_default_verify_paths().cafile or ""
            connection = await aqueduct.connect(where, headers=[header], ca=ca, idle=IDLE_SECONDS)
            headers = await connection.headers()
    except TimeoutError as error:
        raise not_connected(where, error, settings.connect_timeout) from error
    if header not in headers:
        connection.abort("not a worker")
        raise TransportError(
            f"cannot connect to {where} over QUIC: the program there is not a worker; check the address",
            code="cannot-connect",
            peer=where,
            reason="refused",
        )
    return QuicCarrier(connection, where, revision, datagrams=settings.datagrams)
