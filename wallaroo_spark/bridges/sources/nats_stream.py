"""The messages of a NATS JetStream stream, whose sequence numbers are the references."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from wallaroo_spark.bridges.bridge import LogBridge, LogStream, Promise, SourceLog
from wallaroo_spark.bridges.streams import BridgedStream, until_reached
from wallaroo_spark.connector import Record
from wallaroo_spark.errors import ConfigurationError
from wallaroo_spark.options import resolve_secret
from wallaroo_spark.settings import Kind, row, setting
from wallaroo_spark.transport import client_context

if TYPE_CHECKING:
    from nats.aio.client import Client
    from nats.js import JetStreamContext

GROUP_MESSAGES = 512
"""Most messages of one request."""
FETCH_SECONDS = 0.2
"""Longest time that a request waits for more messages."""
ANSWER_SECONDS = 5.0
"""Longest wait for an answer."""
KEEP_SECONDS = 3600.0
"""How long the server keeps the consumer of a bridge that has no credits; a new one is made then."""


@dataclass(eq=False, kw_only=True)
class NatsBridge(LogBridge):
    """Send the messages of a NATS JetStream STREAM of the servers at URL (nats://[user:password@]host:4222,…).

    URL may also be env:NAME or file:PATH. The key is the subject, the event time that of the stream; headers are left
    out. The bridge reads by a consumer that keeps nothing and acknowledges nothing. The sequence number is
    message_id >> 16.

    Examples:
        wallaroo-spark bridge nats nats://broker:4222 ORDERS --workers host-a:7100
    """

    promise = Promise("the sequence number", "nothing", "once")
    extra = "nats"

    url: str = field(kw_only=False, metadata=row(Kind.TEXT, secret=True), repr=False)
    """Servers."""
    stream: str = field(kw_only=False, metadata=row(Kind.NAME))
    """The stream."""
    subject: str = setting("", Kind.TEXT)
    """Only messages of this subject, such as orders.eu.>; empty: all."""
    credentials: str = setting("", Kind.TEXT)
    """File of a user's credentials (.creds)."""
    nats_ca: str = setting("", Kind.TEXT)
    """PEM file of the authority of the servers' certificates; turns TLS on."""
    nats_certificate: str = setting("", Kind.TEXT)
    """PEM file of a certificate to present to the servers; turns TLS on."""
    nats_key: str = setting("", Kind.TEXT)
    """PEM file of the key of --nats-certificate."""

    @property
    def place(self) -> str:
        """The stream."""
        return self.stream

    async def streams(self) -> AsyncGenerator[Sequence[BridgedStream], None]:
        """The one stream, when the server answers."""
        stream = MessageStream(self)
        await until_reached(self.stream, self.retry, stream.passing, stream.look)
        yield [stream]

    async def connected(self) -> Client:
        """A connection, which ends when the server does."""
        import nats
        from nats.errors import NoServersError

        failed: list[Exception] = []

        async def note(error: Exception) -> None:
            failed[:] = [error]

        files = (self.nats_ca, self.nats_certificate, self.nats_key)
        try:
            return await nats.connect(
                resolve_secret(self.url).split(","),
                name="wallaroo-bridge",
                error_cb=note,
                allow_reconnect=False,
                # Once more at once; without limits the client goes on for two minutes, and names no cause.
                max_reconnect_attempts=1,
                reconnect_time_wait=0,
                connect_timeout=int(ANSWER_SECONDS),
                tls=client_context(*files) if any(files) else None,
                user_credentials=self.credentials or None,
            )
        except NoServersError as error:
            raise ConnectionError(str(failed[0] if failed else error) or repr(failed[0])) from error


class MessageStream(LogStream):
    """The messages of a stream."""

    def __init__(self, settings: NatsBridge) -> None:
        from nats.errors import Error

        super().__init__(settings.stream)
        self.passing = (OSError, Error)
        self._settings = settings

    async def look(self) -> None:
        """Ask the server for the stream."""
        async with await self._settings.connected() as connection:
            await self._log(connection.jetstream(timeout=ANSWER_SECONDS))

    async def records(self, after: int | None) -> AsyncGenerator[Sequence[Record], None]:
        """The messages behind a sequence number."""
        settings = self._settings
        async with await settings.connected() as connection:
            server = connection.jetstream(timeout=ANSWER_SECONDS)
            log = await self._log(server)
            first = self.start(log, after, begin=settings.begin, lost=settings.lost)
            subscription = await server.pull_subscribe(
                settings.subject, stream=settings.stream, config=_consumer(first)
            )
            delivered, end = 0, log.end
            yield []
            while True:
                try:
                    found = await subscription.fetch(GROUP_MESSAGES, FETCH_SECONDS)
                except TimeoutError:
                    found = []
                # Behind the reading: what was read then belongs to this stream, and to no later one of its name.
                now = await self._log(server)
                if now.identity != log.identity:
                    raise log.made_again(after)
                for one in found:
                    delivered += 1
                    if one.metadata.sequence.consumer != delivered:
                        raise ConnectionError(f"the consumer's message {delivered} has not arrived")
                    if one.metadata.sequence.stream > first:
                        self._check_deleted(now, first)
                    first = one.metadata.sequence.stream + 1
                if not found:
                    first = self._check_deleted(now, first)
                    consumer = await subscription.consumer_info()
                    if consumer.delivered and (consumer.num_pending, consumer.delivered.consumer_seq) == (0, delivered):
                        # What was there before the reading is read, or of other subjects.
                        first = max(first, end)
                end = now.end
                yield [_record(log, one) for one in found]

    def _check_deleted(self, now: SourceLog, first: int) -> int:
        """The first position from one on that is still there. Raises :class:`ReplayError` when what was not read yet is
        deleted: the stream does so while the receiver takes nothing."""
        return now.start(now.reference(first - 1), begin=self._settings.begin, lost=self._settings.lost)

    async def _log(self, server: JetStreamContext) -> SourceLog:
        stream = await server.stream_info(self.name)
        if stream.config.retention not in (None, "limits"):
            raise ConfigurationError(
                f"the JetStream stream {self.name!r} has the retention {stream.config.retention}, so its messages are "
                "deleted when its consumers acknowledge them; read from a stream with the retention limits, such as "
                "one that mirrors it",
                code="source-setup",
            )
        title = f"the JetStream stream {self.name!r}"
        return SourceLog(title, str(stream.created).encode(), max(stream.state.first_seq, 1), stream.state.last_seq + 1)


def _consumer(first: int) -> Any:
    from nats.js import api

    return api.ConsumerConfig(
        deliver_policy=api.DeliverPolicy.BY_START_SEQUENCE,
        opt_start_seq=first,
        ack_policy=api.AckPolicy.NONE,
        inactive_threshold=KEEP_SECONDS,
        mem_storage=True,
        num_replicas=1,
    )


def _record(log: SourceLog, message: Any) -> Record:
    facts = message.metadata
    nanos = int(facts.timestamp.timestamp() * 1_000_000) * 1000
    return Record(log.reference(facts.sequence.stream), message.data, nanos, message.subject.encode())
