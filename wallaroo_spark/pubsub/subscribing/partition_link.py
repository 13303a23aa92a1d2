"""A subscriber's connection to the publisher of one partition: lookup, connect, read, reconnect, give up."""

from __future__ import annotations

import asyncio
import random
import ssl
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import islice
from typing import TypeVar

from wallaroo_spark.errors import (
    ConfigurationError,
    PubSubError,
    RegistryError,
    RemoteProtocolError,
    TransportError,
    one_line,
)
from wallaroo_spark.pubsub.messages import Decoder, Message, SubscriberHello, encode
from wallaroo_spark.pubsub.subscribing.settings import Catalog, SubscriptionSettings
from wallaroo_spark.pubsub.times import Lost
from wallaroo_spark.transport import ByteStream, connect, parse_address

log = one_line("wallaroo_spark.pubsub")

T = TypeVar("T")

CONNECT_SECONDS = 5.0
"""Limit of one attempt to connect, and of the wait for the first answer, in seconds.

A choice. An attempt always has all of it, even when ``lost_after`` ends before: with less time a slow machine would
look like an unreachable publisher.
"""
PAUSE_SECONDS = 0.2
"""First pause between two attempts, in seconds; each is twice as long as the one before, and random in its upper
half. A choice."""
LONGEST_PAUSE_SECONDS = 2.0
"""Longest pause between two attempts, in seconds.

A choice: far below the default ``lost_after`` of 60 seconds, so that a new publisher is found soon.
"""
REMEMBERED_REASONS = 16
"""Number of different reasons of an outage that are remembered. A choice: an outage rarely has more than three."""
NAMED_REASONS = 2
"""Number of earlier reasons that the error of an outage names in addition to the last one. A choice."""
SETTLED_SECONDS = 5.0
"""A connection that lasted this many seconds ends an outage, even when it carried no frontier update.

A choice: equal to ``CONNECT_SECONDS``, so that a publisher that fails right after each handshake does not count.
"""


class LinkLost(Exception):
    """The connection was lost or could not be made, for the reason that is its text, and a retry may succeed."""


@dataclass(eq=False, repr=False)
class PartitionLink:
    """The connection to the publisher of one partition.

    An outage begins with the first failure. It ends when the frontier moves or a connection has lasted for
    ``SETTLED_SECONDS``. When an outage lasts for ``lost_after`` seconds, the next failure raises :class:`PubSubError`,
    which names the last reason and the other ones before it.
    """

    catalog: Catalog
    settings: SubscriptionSettings
    partition: int
    tls: ssl.SSLContext | None = None
    clock: Callable[[], float] = time.monotonic
    """Seconds."""
    address: str = field(default="", init=False)
    """Where the publisher was found last."""
    _decoder: Decoder = field(init=False)
    _stream: ByteStream | None = field(default=None, init=False)
    _since: float | None = field(init=False)
    _unserved: float | None = field(default=None, init=False)
    _connected: float = field(default=0.0, init=False)
    _pause: float = field(init=False)
    _reasons: dict[str, None] = field(default_factory=dict, init=False)
    """Different reasons of this outage, the latest one last; each is logged once."""

    def __post_init__(self) -> None:
        self._since = self.clock()
        self._pause = PAUSE_SECONDS

    async def connect(self, hello: SubscriberHello) -> None:
        """Look up the publisher, connect, send the hello and receive bytes. Raises :class:`LinkLost`."""
        try:
            served = await asyncio.to_thread(self.catalog.served, self.settings.topic)
            place = served.get(self.partition)
            if place is None:
                raise LinkLost("no publisher serves it at the moment")
            self.address = place.address
            self._stream = await connect(*parse_address(place.address), tls=self.tls, timeout=CONNECT_SECONDS)
        except (TransportError, RegistryError, ConfigurationError) as error:
            raise LinkLost(error.message) from error
        self._decoder = Decoder(max_message_bytes=self.settings.max_message_bytes)
        self._connected, self._pause = self.clock(), PAUSE_SECONDS
        self._stream.write(encode(hello))
        try:
            async with asyncio.timeout(CONNECT_SECONDS):
                await self._receive()
        except TimeoutError:
            reason = f"the publisher at {self.address} did not answer within {CONNECT_SECONDS:g} seconds"
            raise LinkLost(reason) from None

    async def messages(self) -> list[Message]:
        """Return the next messages, one or more. Raises :class:`LinkLost` when the connection is lost."""
        while not (found := self.judged(self._whole)):
            await self._receive()
        return found

    def judged(self, step: Callable[[], T]) -> T:
        """Run a step that decodes a message. Convert a protocol violation of the peer to :class:`LinkLost`."""
        try:
            return step()
        except RemoteProtocolError as error:
            raise LinkLost(f"the publisher at {self.address} broke the protocol: {error.message}") from error

    def progressed(self) -> None:
        """The publisher has sent a frontier update, which ends an outage."""
        if self._since is not None:
            log.info("%s is followed at %s", self._name, self.address)
        self._since = None
        self._reasons.clear()

    def trouble(self, reason: str) -> None:
        """A connection or an attempt has failed. Raises :class:`PubSubError` when the outage has lasted too long."""
        now = self.clock()
        if self._since is None or (self._connected and now - self._connected > SETTLED_SECONDS):
            self._since = now
            self._reasons.clear()
        self._connected = 0.0
        seconds, limit = now - self._since, self.settings.lost_after
        if reason not in self._reasons:
            log.warning("%s is lost; retrying for %g seconds: %s", self._name, limit, reason)
        self._remember(reason)
        if self.settings.on_lost is not None:
            self.settings.on_lost(Lost(self.partition, self.address, reason, seconds))
        if seconds >= limit:
            at = f"last at {self.address}" if self.address else "which was never reached"
            raise PubSubError(
                f"{self._name}, {at}, is lost: it made no progress for {seconds:.0f} seconds, and {limit:g} is the "
                f"limit (lost_after); {self._all_reasons()}",
                code="partition-lost",
                topic=self.settings.topic,
                partition=self.partition,
                address=self.address,
                seconds=seconds,
            )

    async def pause(self) -> None:
        """Pause between a lost connection and the next attempt."""
        await asyncio.sleep(random.uniform(self._pause / 2, self._pause))
        self._pause = min(2 * self._pause, LONGEST_PAUSE_SECONDS)

    def seen_at(self, address: str) -> None:
        """The registry has the partition at ``address`` now (empty: nowhere). A connection to another address is
        closed.
        """
        now = self.clock()
        self._unserved = None if address else self._unserved or now
        lost = self._unserved is not None and now - self._unserved >= self.settings.lost_after
        if self._stream is not None and (lost or (address and address != self.address)):
            log.warning("%s: connection closed, because the registry has it at %s", self._name, address or "no address")
            self._stream.abort()

    async def hang_up(self) -> None:
        """Close the connection, if there is one."""
        stream, self._stream = self._stream, None
        if stream is not None:
            stream.abort()

    @property
    def _name(self) -> str:
        return f"topic {self.settings.topic!r}, partition {self.partition}"

    def _whole(self) -> list[Message]:
        found = []
        while (message := self._decoder.next()) is not None:
            found.append(message)
        return found

    def _remember(self, reason: str) -> None:
        self._reasons.pop(reason, None)
        self._reasons[reason] = None
        if len(self._reasons) > REMEMBERED_REASONS:
            del self._reasons[next(iter(self._reasons))]

    def _all_reasons(self) -> str:
        """The last reason, and earlier ones of the outage, because the last failure may not be the cause."""
        last, *earlier = islice(reversed(self._reasons), 1 + NAMED_REASONS)
        return "; before that: ".join([last, *earlier])

    async def _receive(self) -> None:
        assert self._stream is not None
        try:
            data = await self._stream.read()
        except TransportError as error:
            raise LinkLost(error.message) from error
        if not data:
            self.judged(self._decoder.finish)
            raise LinkLost(f"the publisher at {self.address} closed the connection without a reason")
        self._decoder.feed(data)
