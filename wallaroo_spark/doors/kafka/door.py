"""The Kafka door of one worker: it listens at the ports of its slot's nodes, around the pure server.

Source: ``docs/doors/kafka.md``.
"""

from __future__ import annotations

import asyncio
import functools
import itertools
import logging
import math
import secrets
import time
from collections.abc import Awaitable, Callable, Mapping

from wallaroo_spark import transport
from wallaroo_spark.doors.ground import Ground
from wallaroo_spark.doors.kafka import PREFIX
from wallaroo_spark.doors.kafka.batches import ServerSettings
from wallaroo_spark.doors.kafka.nodes import Layout
from wallaroo_spark.doors.kafka.positions import fence
from wallaroo_spark.doors.kafka.server import KafkaServer
from wallaroo_spark.errors import TransportError, WallarooError, one_line
from wallaroo_spark.options import Options
from wallaroo_spark.transport import ByteStream, Listener, format_address, parse_address

log = one_line(logging.getLogger("wallaroo_spark.doors"))

Hosts = Callable[[], Awaitable[Mapping[int, str]]]
"""Returns the addresses, host:port, at which connectors reach the slots that are served now."""
LOOK_SECONDS = 1.0
"""Seconds between two looks at which slots are served where. A choice: a client asks again after 0.1 s."""
SESSION_PART = 8
"""A client's session lasts for one of so many parts of ``kafka.producerRetention``. A choice: each end is a pause."""
UNSENT_LIMIT = 10 << 20
"""Limit in bytes of the answers that wait for a client that does not read; above it the client is cut off.

A choice: twice the largest answer, Metadata of many topics.
"""


def layout_of(options: Options) -> Layout:
    """The nodes and partitions that a receiver's options say."""
    assert options.kafka_port is not None
    return Layout(options.workers, options.kafka_nodes, options.kafka_port, options.kafka_partitions)


def session_seconds(options: Options) -> float:
    """How long a client's session lasts, so that it does not hold streams of producers that are to be forgotten."""
    return options.producer_retention / SESSION_PART or math.inf


async def open_door(ground: Ground, options: Options, stopped: asyncio.Event, hosts: Hosts) -> KafkaDoor | None:
    """Open the door at the ports of the slot's nodes; None when ``stopped`` is set before they are free."""
    tls = None
    if options.tls_certificate:
        tls = transport.server_context(options.tls_certificate, options.tls_key, options.tls_ca)
    door = KafkaDoor(ground, options, hosts)
    for port in layout_of(options).ports(ground.slot):
        listener = await transport.serve_once_free(door.serve, options.host, port, tls=tls, stopped=stopped)
        if listener is None:
            for opened in door.listeners:
                await opened.close()
            return None
        door.listeners.append(listener)
    door.begin()
    return door


class KafkaDoor:
    """The connections of the door; it is the server's :class:`~.server.Link`."""

    def __init__(self, ground: Ground, options: Options, hosts: Hosts) -> None:
        self.listeners: list[Listener] = []
        self._ground = ground
        ground.fences[PREFIX] = fence
        self._options = options
        self._hosts = hosts
        self._streams: dict[int, ByteStream] = {}
        self._numbers = itertools.count(1)
        self._looking: asyncio.Task[None] | None = None
        self._closing: set[asyncio.Future[None]] = set()
        self._leaving = False
        settings = ServerSettings(
            ground.slot,
            layout_of(options),
            options.kafka_max_batch,
            f"wallaroo-{options.receiver}",
            ground.senders,
            options.door_received,
            session_seconds(options),
        )
        host = ground.host
        make_id = functools.partial(secrets.randbits, 63)
        self._server = KafkaServer(settings, ground, self, make_id, host.eases, host.count, host.refuse)

    def begin(self) -> None:
        """Look from now on at which slots are served where."""
        self._server.hosts = {self._ground.slot: self._own_host()}
        self._looking = asyncio.create_task(self._look())

    async def _look(self) -> None:
        failed = False
        while True:
            try:
                found = await self._hosts()
            except WallarooError as error:
                # The nodes that were found last stay.
                if not failed:
                    log.warning("the Kafka door does not learn of other slots: %s", error)
                failed = True
            else:
                failed = False
                hosts = {slot: parse_address(address)[0] for slot, address in found.items() if address}
                self._server.hosts = {**hosts, self._ground.slot: self._own_host()}
            await asyncio.sleep(LOOK_SECONDS)

    def _own_host(self) -> str:
        host, port = self.listeners[0].address
        if self._options.advertise:
            return parse_address(transport.advertised(self._options.advertise, self._ground.slot, port))[0]
        return transport.reachable_host(host, self._options.registry)

    @property
    def url(self) -> str:
        """What clients put into bootstrap.servers."""
        return format_address(self._own_host(), self.listeners[0].address[1])

    def tick(self, now: float) -> None:
        """Time has passed; ``now`` is in monotonic seconds."""
        self._server.tick(now, time.time_ns())

    @property
    def waiting(self) -> int:
        """The number of requests that wait for their answer."""
        return sum(self.requests.values())

    @property
    def ports(self) -> list[int]:
        """The ports of its nodes."""
        return [listener.address[1] for listener in self.listeners]

    @property
    def connections(self) -> int:
        """The number of its connections."""
        return self._server.connections

    @property
    def requests(self) -> dict[str, int]:
        """The requests that wait for their commit, by the instance of their client."""
        return self._server.requests

    async def close(self, reason: str, seconds: float) -> None:
        """End all connections: their clients send again, to the slot's next worker, what was not answered."""
        self._leaving = True
        if self._looking is not None:
            self._looking.cancel()
        for stream in list(self._streams.values()):
            stream.abort()
        await asyncio.gather(*(listener.close(seconds) for listener in self.listeners))

    async def serve(self, stream: ByteStream) -> None:
        """Serve one connection."""
        if self._leaving or len(self._streams) >= self._options.max_sessions:
            if not self._leaving:
                reason = f"the door has {len(self._streams)} connections (maxSessions)"
                self._ground.host.refuse("kafka-full", stream.peer, "", reason)
            stream.abort()
            return
        number = next(self._numbers)
        self._streams[number] = stream
        self._server.connected(number, stream.peer)
        try:
            await stream.deliver(functools.partial(self._received, number))
        except TransportError as error:
            log.debug("slot %d: %s", self._ground.slot, error.message)
        finally:
            del self._streams[number]
            self._server.disconnected(number)

    def _received(self, number: int, data: bytes) -> None:
        self._server.received(number, data, time.monotonic(), time.time_ns())

    # As the server's link.

    def send(self, connection: int, data: bytes) -> None:
        """See :class:`~.server.Link`."""
        stream = self._streams.get(connection)
        if stream is not None:
            stream.write(data)
            if stream.queued > UNSENT_LIMIT:
                log.warning("slot %d: kafka client %s does not read its answers", self._ground.slot, stream.peer)
                self._ground.host.refuse("kafka-unread", stream.peer, "", "it does not read its answers")
                stream.abort()

    def close_connection(self, connection: int, reason: str) -> None:
        """See :class:`~.server.Link`."""
        stream = self._streams.get(connection)
        if stream is not None:
            log.info("slot %d: the connection to kafka client %s is closed: %s", self._ground.slot, stream.peer, reason)
            closing = asyncio.ensure_future(stream.close())
            self._closing.add(closing)
            closing.add_done_callback(self._closing.discard)

    def read_on(self, connection: int, reading: bool) -> None:
        """See :class:`~.server.Link`."""
        stream = self._streams.get(connection)
        if stream is not None:
            stream.set_delivering(reading)
