"""A publisher's shell: listener, registry, commit log and files around the pure state, on one event loop.

It serves one partition of a topic from within ``mapInPandas``. Rows are sent only after the commit of their batch. They
are read from the files beside the checkpoint when a subscriber is ready for them. Its tenancy of the partition has the
lease, the progress that it reports, and whether the topic has ended. The settings of a topic are here, because they are
shipped to its publishers. Source: ``docs/pubsub/protocol.md#on-the-wire`` and ``docs/architecture.md#rules``, rule 5.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Any, cast

import pandas as pd

from wallaroo_spark import transport
from wallaroo_spark.checkpoint import CheckpointFiles, CommitFollower
from wallaroo_spark.errors import (
    LeaseLostError,
    ProtocolError,
    PubSubError,
    RegistryError,
    TransportError,
    WallarooError,
    one_line,
)
from wallaroo_spark.pubsub.messages import Closed, Data, Decoder, SubscriberHello, Why, encode, encode_parts, pack_rows
from wallaroo_spark.pubsub.publishing.publication import (
    MAX_SUBSCRIBER_BYTES,
    MAX_SUBSCRIBERS,
    RETAIN,
    BatchPart,
    Publication,
    Readings,
)
from wallaroo_spark.pubsub.publishing.topic_log import StagedFile, TopicLog
from wallaroo_spark.pubsub.topic_catalog import LEASE_SECONDS, PublisherProgress, TopicCatalog, checked_name, leases_of
from wallaroo_spark.registry import Registry
from wallaroo_spark.runtime.listening import check_listening, listen_rows
from wallaroo_spark.runtime.service import ServiceShell, ServiceThread, Tenancy, new_holder, serve
from wallaroo_spark.settings import Kind, check_all, row, setting
from wallaroo_spark.storage.locations import Location
from wallaroo_spark.transport import ByteStream
from wallaroo_spark.transport.base import HIGH_WATER

_LISTEN = listen_rows("publisher", "subscriber")


@dataclass(frozen=True, kw_only=True)
class TopicSettings:
    """The settings of :class:`~wallaroo_spark.pubsub.Topic`."""

    spark: Any = field(kw_only=False, repr=False, metadata=row(Kind.OBJECT))
    """Spark session of the query."""
    name: str = field(kw_only=False, metadata=row(Kind.TEXT))
    """Name of the topic: 1 to 100 letters, digits, dots, dashes and underscores."""
    checkpoint: str = field(metadata=row(Kind.TEXT))
    """Checkpoint location of the query whose batches are published. Every executor must reach it."""
    registry: str = setting("embedded", Kind.TEXT, secret=True)
    """Redis URL, also `env:NAME` or `file:PATH`; or `embedded`, to start one for this machine alone. A receiver's
    URL is its `registry_url`."""
    partitions: int = setting(1, Kind.COUNT, minimum=1)
    """Number of publishers; each takes one task slot for as long as the topic runs."""
    pairs: bool = setting(False, Kind.FLAG)
    """Whether times are pairs (batch, value of a column) instead of batches alone."""
    cookie: str = setting("", Kind.TEXT, secret=True)
    """Cookie that subscribers must present; also `env:NAME` or `file:PATH`."""
    host: str = setting(**_LISTEN["host"])
    port: int = setting(**_LISTEN["port"])
    advertise: str = setting(**_LISTEN["advertise"])
    retain: int = setting(RETAIN, Kind.COUNT, minimum=1)
    """Number of newest batches retained for subscribers that reconnect."""
    max_subscriber_bytes: int = setting(MAX_SUBSCRIBER_BYTES, Kind.BYTES, minimum=1)
    """A subscriber is cut off when more than this waits for it, in more than one batch."""
    max_subscribers: int = setting(MAX_SUBSCRIBERS, Kind.COUNT, minimum=0)
    """Maximum number of subscribers of a publisher."""
    lease_seconds: float = setting(LEASE_SECONDS, Kind.SECONDS, minimum=0.001)
    """Time after which a partition's lease expires unless renewed."""
    handshake_timeout: float = setting(10.0, Kind.SECONDS, minimum=0.001)
    """Longest wait for a subscriber's hello."""
    tls_certificate: str = setting(**_LISTEN["tls_certificate"])
    tls_key: str = setting(**_LISTEN["tls_key"])
    tls_ca: str = setting(**_LISTEN["tls_ca"])

    def __post_init__(self) -> None:
        checked_name(self.name)
        check_all(self, f"topic {self.name!r}: ")
        check_listening(self, f"topic {self.name!r}", self.advertise)


log = one_line("wallaroo_spark.pubsub")

RENEW_SECONDS = 1.0
"""Seconds between two renewals of the lease, unless a third of the lease is shorter.

A choice: one Redis call a second and publisher, ten within the default lease of 10 seconds.
"""
STOP_SECONDS = 8.0
"""Seconds that subscribers have to receive the rest when the publisher ends.

A choice. It is shorter than the driver's wait for its publishers (``STOP_SECONDS`` of :mod:`topic`, 20 seconds).
"""


@dataclass(frozen=True)
class PublisherSetup:
    """What the driver ships to a publisher. It is pickled."""

    settings: TopicSettings
    """The topic's settings, with resolved secrets and without the session."""
    identity: str
    """Identity of the topic's history."""
    checkpoint: Location
    """Checkpoint location of the query, as a task opens it."""
    partition: int = 0
    """Partition that the publisher serves."""
    submission: int = 0
    """Number of the Spark job that runs the publisher."""

    def of(self, partition: int, submission: int) -> PublisherSetup:
        """The setup of one publisher."""
        return replace(self, partition=partition, submission=submission)


class PartitionTenancy(Tenancy):
    """The right of a publisher to serve one partition of a topic."""

    def __init__(
        self, registry: Registry, topics: TopicCatalog, topic: str, partition: int, submission: int, holder: str
    ) -> None:
        super().__init__(registry, partition, submission, holder, f"topic {topic}, partition {partition}")
        self._registry = registry
        self._topics = topics
        self._topic = topic

    async def renew(self, progress: PublisherProgress) -> None:
        """Renew the lease and report the publisher's progress. Raises :class:`RegistryError`."""
        lease = self.current
        await self.ask(lambda: self._registry.renew(lease))
        await self.ask(lambda: self._topics.report(self._topic, self._number, progress))

    async def ended(self) -> bool:
        """Whether the driver has recorded in the registry that the topic has ended."""
        try:
            return (await self.ask(self._registry.fleet)).get(ENDED) == "yes"
        except RegistryError:
            return False


ENDED = "ended"
"""Key of the fleet values under which a driver publishes the end of its topic: ``yes``, or empty while it runs."""


@dataclass(slots=True)
class _SubscriberPeer:
    """A connected subscriber."""

    stream: ByteStream
    """Its connection."""
    wake: asyncio.Event = field(default_factory=asyncio.Event)
    """Set when there may be a message to send to it."""


class PublisherService(ServiceShell[_SubscriberPeer, PartitionTenancy]):
    """One publisher, from acquiring the partition's lease to releasing it."""

    def __init__(self, setup: PublisherSetup, tenancy: PartitionTenancy) -> None:
        settings = self.settings = setup.settings
        name = f"topic {settings.name}, partition {setup.partition}"
        super().__init__(tenancy, setup.partition, name, settings.lease_seconds)
        self.setup = setup
        self.machine = Publication(
            settings.name,
            setup.partition,
            setup.identity,
            product=settings.pairs,
            cookie=settings.cookie,
            retain=settings.retain,
            max_subscriber_bytes=settings.max_subscriber_bytes,
            max_subscribers=settings.max_subscribers,
        )
        self._files = CheckpointFiles(setup.checkpoint)
        self._topic_log = TopicLog(setup.checkpoint, settings.name)
        self._why = Why.LATER
        self._readings = Readings()
        self._commits = CommitFollower(self._files)

    async def _serve(self) -> None:
        setup, settings = self.setup, self.settings
        if not await self._take_lease():
            return
        # Binding the port and reading the files may take longer than the lease lasts, so it is renewed meanwhile.
        self._spawn(self._renew(min(RENEW_SECONDS, self._renewal_seconds), self._renewal, lambda _: None))
        await asyncio.to_thread(self._begin)
        listener = await self._listen(settings, self._serve_peer)
        if listener is None:
            return
        try:
            host = settings.advertise or transport.reachable_host(listener.address[0], settings.registry)
            address = transport.advertised(host, setup.partition, listener.address[1])
            if await self._take_lease(address):
                log.info("%s listens at %s", self._name, address)
                self._spawn(self._watch())
                await self._stopped.wait()
        finally:
            await self._farewell(listener, STOP_SECONDS, self._end)

    def _begin(self) -> None:
        """Load the committed and retained batches of the topic."""
        newest = self._files.committed()
        oldest = self._topic_log.kept_from()
        if newest is not None:
            oldest = max(oldest, newest + 1 - self.settings.retain)
        epochs = {batch: self._parts(batch) for batch in range(oldest, (-1 if newest is None else newest) + 1)}
        self.machine.begin(newest, oldest, {batch: parts for batch, parts in epochs.items() if parts})

    def _parts(self, batch: int) -> list[BatchPart]:
        manifest = self._topic_log.manifest(batch)
        files = manifest.of(self.setup.partition, self.settings.partitions) if manifest else ()
        return [
            BatchPart(tuple(dict.fromkeys(time for time, _ in file.parts)), file.bytes, (batch, file)) for file in files
        ]

    async def _renewal(self) -> None:
        await self._tenancy.renew(PublisherProgress(self.machine.newest, self.machine.subscribers))

    async def _lease_lost(self, error: LeaseLostError) -> None:
        if not error.fields["holder"] and await self._tenancy.ended():
            self._why = self._why if self._stopped.is_set() else Why.ENDED
            self.stop(f"topic {self.settings.name} has ended")
        else:
            self._log_lost(error)
            self.stop("the partition is served by another publisher")

    async def _watch(self) -> None:
        """Follow the commit log until the publisher stops."""
        while True:
            await self._look()
            await self._commits.wait_async()

    async def _look(self) -> None:
        """Report the batches that were committed since the last call."""
        newest = await asyncio.to_thread(self._files.committed)
        known = self.machine.newest
        if newest is None or newest == known:
            return
        if known is not None and newest < known:
            raise PubSubError(
                f"{self._name}: batch {known} was committed, and now the newest is {newest}; a checkpoint that is made "
                "anew needs a topic that is started anew",
                code="topic-started-anew",
                topic=self.settings.name,
            )
        for batch in range((-1 if known is None else known) + 1, newest + 1):
            parts = await asyncio.to_thread(self._parts, batch)
            for session in self.machine.committed(batch, parts):
                self._wake(session)

    def _wake(self, session: Any) -> None:
        peer = self._peers.get(session)
        if peer is not None:
            peer.wake.set()

    async def _end(self) -> None:
        """Have all committed batches and the final close sent to every subscriber."""
        if self._why is Why.ENDED:
            with contextlib.suppress(WallarooError):
                await self._look()
        for session in self.machine.end(self._why, self._stop_reason):
            self._wake(session)

    async def _serve_peer(self, stream: ByteStream) -> None:
        """Serve one subscriber from its hello to the end of its connection."""
        hello = await self._hello(stream)
        if hello is None:
            return
        peer = _SubscriberPeer(stream)
        session = self._enter(peer)
        log.debug("%s: subscriber %r at %s joins", self._name, hello.subscriber[:100], stream.peer)
        self.machine.join(session, hello)
        # A subscriber sends nothing after its hello, so any byte ends its connection, as its end does.
        sides = [asyncio.ensure_future(side) for side in (self._feed(session, peer), stream.read())]
        try:
            await asyncio.wait(sides, return_when=asyncio.FIRST_COMPLETED)
        finally:
            # Before anything is awaited: the end of the publisher cancels this task at any await.
            self.machine.left(session)
            self._leave(session)
            for side in sides:
                side.cancel()
            ends = await asyncio.gather(*sides, return_exceptions=True)
        for end in ends:
            if isinstance(end, Exception) and not isinstance(end, TransportError):
                raise end

    async def _hello(self, stream: ByteStream) -> SubscriberHello | None:
        """Receive the first message of a peer. When it is not an acceptable hello, send the reason and return None."""
        decoder = Decoder(control_only=True)
        try:
            async with asyncio.timeout(self.settings.handshake_timeout):
                while (message := decoder.next()) is None:
                    data = await stream.read()
                    if not data:
                        return None
                    decoder.feed(data)
        except TransportError:
            return None
        except TimeoutError:
            problem = f"no hello came within {self.settings.handshake_timeout:g} seconds"
        except ProtocolError as error:
            problem = error.message
        else:
            if isinstance(message, SubscriberHello) and not decoder.waiting:
                return message
            problem = f"expected a hello and no bytes behind it, and received a {type(message).__name__} message"
        log.info("%s: %s is refused: %s", self._name, stream.peer, problem)
        stream.write(encode(Closed(Why.REFUSED, problem)))
        return None

    async def _feed(self, session: int, peer: _SubscriberPeer) -> None:
        """Send a subscriber its messages in order, until it is closed."""
        while True:
            peer.wake.clear()
            outgoing = self.machine.take(session)
            if outgoing is None:
                await peer.wake.wait()
            elif isinstance(outgoing, BatchPart):
                if not await self._send_part(session, peer, outgoing):
                    return
            else:
                peer.stream.write(encode(outgoing))
                if isinstance(outgoing, Closed):
                    log.warning("%s: %s is closed: %s", self._name, peer.stream.peer, outgoing.reason)
                    return
                await self._drained(session, peer)

    async def _send_part(self, session: int, peer: _SubscriberPeer, part: BatchPart) -> bool:
        """Send the messages of a part while the subscriber is served. Returns False when the part cannot be read."""
        try:
            batch, file = cast("tuple[int, StagedFile]", part.source)
            # Subscribers that need the messages at about the same time share one pass over the file.
            async for message in self._readings.messages((batch, file.name), lambda: self._read(batch, file)):
                for piece in encode_parts(message):
                    peer.stream.write(bytes(piece))
                await self._drained(session, peer)
                if self.machine.closing(session) is not None:
                    break
        except PubSubError as error:
            peer.stream.write(encode(Closed(Why.NOT_KEPT, error.message)))
        except WallarooError as error:
            if isinstance(error, TransportError):
                raise
            log.warning("%s: %s", self._name, error)
            peer.stream.write(encode(Closed(Why.LATER, error.message)))
        else:
            return True
        return False

    def _read(self, batch: int, file: StagedFile) -> Iterator[Data]:
        for moment, rows in self._topic_log.messages(batch, file):
            yield Data(moment, pack_rows(rows))

    async def _drained(self, session: int, peer: _SubscriberPeer) -> None:
        """Wait until the peer has taken most of the written bytes, or its connection is to be closed."""
        if peer.stream.queued < HIGH_WATER:
            await asyncio.sleep(0)
            return
        draining = asyncio.ensure_future(peer.stream.drain())
        try:
            while not draining.done() and self.machine.closing(session) is None:
                peer.wake.clear()
                waking = asyncio.ensure_future(peer.wake.wait())
                await asyncio.wait((draining, waking), return_when=asyncio.FIRST_COMPLETED)
                waking.cancel()
            if draining.done():
                draining.result()
        finally:
            draining.cancel()

    def _fail(self, error: BaseException) -> None:
        self.stop("the publisher has failed and is started again")
        super()._fail(error)


def run_publisher(setup: PublisherSetup, rows: Iterator[pd.DataFrame]) -> Iterator[pd.DataFrame]:
    """Serve the partition within ``mapInPandas``. Yields empty frames as heartbeats, and ends with the publisher."""
    settings = setup.settings
    registry = leases_of(settings.registry, settings.name, settings.lease_seconds)
    with registry, TopicCatalog(settings.registry, lease_seconds=settings.lease_seconds) as topics:
        tenancy = PartitionTenancy(registry, topics, settings.name, setup.partition, setup.submission, new_holder())
        service = PublisherService(setup, tenancy)
        yield from serve(ServiceThread(service, f"wallaroo-topic-{settings.name}-{setup.partition}"), rows)
