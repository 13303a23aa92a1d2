"""Publishers over real sockets whose files are in memory, and a catalog that is a dictionary."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa

from tests.waiting import SECONDS
from wallaroo_spark.errors import RegistryError
from wallaroo_spark.pubsub.messages import Closed, Data, Decoder, SubscriberHello, Why, encode, pack_rows
from wallaroo_spark.pubsub.publishing.publication import BatchPart, Publication
from wallaroo_spark.pubsub.times import Time
from wallaroo_spark.transport import ByteStream, Listener, format_address, serve

COOKIE = "sesame"


def rows(*numbers: int) -> pa.RecordBatch:
    """A batch of rows."""
    return pa.record_batch({"n": pa.array(numbers, pa.int64())})


def numbers(batch: Any) -> list[int]:
    """The argument of :func:`rows`."""
    found: list[int] = batch.column("n").to_pylist()
    return found


@dataclass(frozen=True)
class Record:
    partitions: int
    identity: str = "history"
    product: bool = False


@dataclass(frozen=True)
class Place:
    address: str


@dataclass
class Catalog:
    """The catalog's answers; with ``away`` every call fails."""

    records: dict[str, Record] = field(default_factory=dict)
    places: dict[int, Place] = field(default_factory=dict)
    away: bool = False
    asked: int = 0

    def find(self, name: str) -> Record | None:
        self._ask()
        return self.records.get(name)

    def served(self, name: str) -> dict[int, Place]:
        self._ask()
        return dict(self.places)

    def _ask(self) -> None:
        self.asked += 1
        if self.away:
            raise RegistryError("Redis cannot be reached")


class Publisher:
    """A publisher of one partition, served by the real state machine."""

    def __init__(self, catalog: Catalog, partition: int = 0, *, tls: ssl.SSLContext | None = None, **settings: Any):
        record = catalog.records["totals"]
        given: dict[str, Any] = {"cookie": COOKIE, "product": record.product} | settings
        self.machine = Publication("totals", partition, given.pop("identity", record.identity), **given)
        self.partition = partition
        self.hellos: list[SubscriberHello] = []
        self._catalog = catalog
        self._tls = tls
        self._listener: Listener | None = None
        self._streams: dict[int, tuple[ByteStream, asyncio.Event]] = {}

    async def start(self, handler: Callable[[ByteStream], Awaitable[None]] | None = None) -> Publisher:
        """Listen, and be found; ``handler`` serves connections in the machine's place."""
        self._listener = await serve(handler or self._serve, "127.0.0.1", 0, tls=self._tls)
        host, port = self._listener.address
        self._catalog.places[self.partition] = Place(format_address("localhost" if self._tls else host, port))
        return self

    def commit(self, batch: int, *batches: Iterable[int], times: Iterable[Time] = ()) -> None:
        """A batch of rows is committed: a message for each list of numbers."""
        stamps = list(times) or [batch] * len(batches)
        parts = [
            BatchPart((time,), 100, Data(time, pack_rows(rows(*found))))
            for time, found in zip(stamps, batches, strict=True)
        ]
        for session in self.machine.committed(batch, parts):
            self._wake(session)

    def end(self, why: Why = Why.ENDED) -> None:
        """Tell everybody."""
        for session in self.machine.end(why, "the test says so"):
            self._wake(session)

    def cut_off(self) -> None:
        """Close everybody as too slow."""
        for session, one in self.machine._subscribers.items():
            one.closed = Closed(Why.SLOW, "the test finds it too slow")
            self._wake(session)

    @property
    def subscribers(self) -> int:
        return self.machine.subscribers

    def cut(self) -> None:
        """Break all connections."""
        for stream, _ in self._streams.values():
            stream.abort()

    async def stop(self) -> None:
        """Die: connections break, and nobody listens any more."""
        self._catalog.places.pop(self.partition, None)
        self.cut()
        if self._listener is not None:
            await self._listener.close(SECONDS)

    def _wake(self, session: Any) -> None:
        if session in self._streams:
            self._streams[session][1].set()

    async def _serve(self, stream: ByteStream) -> None:
        decoder = Decoder(control_only=True)
        while (hello := decoder.next()) is None:
            decoder.feed(await stream.read())
        assert isinstance(hello, SubscriberHello)
        self.hellos.append(hello)
        session, wake = id(stream), asyncio.Event()
        self._streams[session] = stream, wake
        self.machine.join(session, hello)
        reading = asyncio.ensure_future(stream.read())
        reading.add_done_callback(lambda done: (done.cancelled() or done.exception(), wake.set()))
        try:
            while not reading.done():
                wake.clear()
                while (item := self.machine.take(session)) is not None:
                    message: Any = item.source if isinstance(item, BatchPart) else item
                    stream.write(encode(message))
                    if isinstance(item, Closed):
                        return
                    await stream.drain()
                await wake.wait()
        finally:
            reading.cancel()
            self.machine.left(session)
            del self._streams[session]
