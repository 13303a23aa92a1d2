"""A worker for the door's server without sockets: it accepts what the server sends, and commits when it is told."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Callable
from typing import Any

from wallaroo_spark.doors.client import Accepted, DoorStream, stream_id
from wallaroo_spark.doors.kafka.apis import SERVED, Api
from wallaroo_spark.doors.kafka.batches import ServerSettings
from wallaroo_spark.doors.kafka.nodes import Layout
from wallaroo_spark.doors.kafka.server import KafkaServer
from wallaroo_spark.doors.kafka.wire import read, write
from wallaroo_spark.doors.senders import Senders
from wallaroo_spark.doors.tickets import Ticket
from wallaroo_spark.references import StreamKey


class FakeClient:
    """The session of an instance in a worker that keeps everything."""

    def __init__(
        self, instance: str, began_at: float, committed: dict[str, int], sent: list[tuple[str, str, int, bytes]]
    ) -> None:
        self.instance = instance
        self.ended = ""
        self.slot: int | None = None
        self.opening = Ticket()
        self.held = 0
        self.number = 0
        self.began_at = began_at
        self.streams: dict[str, DoorStream] = {}
        self.leaving: set[str] = set()
        self._committed = committed
        self._sent = sent

    def stream(self, name: str) -> DoorStream | None:
        if self.ended:
            return None
        if name not in self.streams:
            self.streams[name] = _Stream(self, name, self._committed.get(name), self._sent)
        return self.streams[name]

    def leaves(self, name: str) -> bool:
        return name in self.leaving

    @property
    def waits(self) -> bool:
        return any(stream.waits for stream in self.streams.values())

    def hold(self, change: int) -> None:
        self.held += change

    def transmit(self, *frames: Any) -> None:
        pass

    def end(self, reason: str) -> None:
        self.ended = reason
        self.opening.lose(reason)
        for stream in self.streams.values():
            stream.lose(reason)


class _Stream(DoorStream):
    def __init__(self, client: Any, name: str, committed: int | None, sent: list[Any]) -> None:
        super().__init__(client, stream_id(name), name, committed, Accepted())
        self._instance = client.instance
        self._sent = sent

    def send(self, messages: Any, first: int, step: int = 1) -> Ticket:
        self._sent += [(self._instance, self.name, first, value) for value in messages.values]
        return super().send(messages, first, step)


class World:
    """The server of one slot, its connections, and a commit log."""

    def __init__(
        self,
        *,
        slot: int = 0,
        slots: int = 1,
        secret: str = "",
        opens: bool = True,
        nodes: int = 1,
        received: tuple[str, ...] = (),
        tokens: str = "",
        session_seconds: float = float("inf"),
    ) -> None:
        self.sent: list[tuple[str, str, int, bytes]] = []
        """What was accepted: instance, stream, reference, batch."""
        self.out: dict[int, bytes] = {}
        self.closed: dict[int, str] = {}
        self.reading: dict[int, bool] = {}
        self.committed: dict[str, int] = {}
        self.clients: dict[str, FakeClient] = {}
        self.now = 100.0
        self.room = True
        self.lacks = 0.0
        """Seconds for which a read has been waiting for messages of ``lacking``."""
        self.lacking = "kafka/billing/0"
        self.ranges_given_up: dict[StreamKey, tuple[int, int]] = {}
        self.counts: Counter[str] = Counter()
        self.refused: list[tuple[str, str, str, str]] = []
        self.opens = opens
        self._ids = itertools.count(1000)
        layout = Layout(slots, nodes, 9092, 8)
        settings = ServerSettings(
            slot, layout, 1 << 20, "wallaroo-orders", Senders(secret, tokens), received, session_seconds
        )
        self.server = KafkaServer(
            settings, self, self, lambda: next(self._ids), lambda: self.room, self.count, self.refuse
        )
        self.server.hosts = {slot: f"host-{slot}" for slot in range(slots)}

    # The worker, as the server sees it.

    def client(self, instance: str) -> Any:
        found = self.clients.get(instance)
        if found is None or found.ended:
            found = self.clients[instance] = FakeClient(instance, self.now, self.committed, self.sent)
            if self.opens:
                found.opening.keep()
        return found

    def given_up(self, key: StreamKey) -> tuple[int, int]:
        return self.ranges_given_up.get(key, (0, 0))

    def resend_waits(self, prefix: str) -> dict[str, float]:
        return {self.lacking: self.lacks} if self.lacks else {}

    def count(self, name: str, more: int) -> None:
        self.counts[name] += more

    def refuse(self, code: str, peer: str, instance: str, reason: str) -> None:
        self.refused.append((code, peer, instance, reason))

    # The connections, as the server sees them.

    def send(self, connection: int, data: bytes) -> None:
        self.out[connection] = self.out.get(connection, b"") + data

    def close_connection(self, connection: int, reason: str) -> None:
        self.closed[connection] = reason

    def read_on(self, connection: int, reading: bool) -> None:
        self.reading[connection] = reading

    # What a test does.

    def connect(self, connection: int = 1) -> None:
        self.server.connected(connection, f"peer-{connection}")

    def receive(self, data: bytes, connection: int = 1) -> None:
        self.server.received(connection, data, self.now, int(self.now * 1e9))

    def tick(self, seconds: float) -> None:
        self.now += seconds
        self.server.tick(self.now, int(self.now * 1e9))

    def commit(self) -> None:
        """Everything that was sent is committed."""
        for client in self.clients.values():
            for stream in client.streams.values():
                if stream.accepted is not None:
                    self.committed[stream.name] = stream.accepted
                    stream.commit(stream.accepted)

    def answers(self, connection: int = 1) -> list[tuple[int, bytes]]:
        """The answers so far, each with its correlation id, and forget them."""
        data, found = self.out.pop(connection, b""), []
        while data:
            size = int.from_bytes(data[:4], "big")
            found.append((int.from_bytes(data[4:8], "big"), data[8 : 4 + size]))
            data = data[4 + size :]
        return found


def request(api: Api, version: int, correlation: int, client: str | None = "billing", **fields: Any) -> bytes:
    """The frame of a request."""
    served = SERVED[api]
    name = b"\xff\xff" if client is None else len(client).to_bytes(2, "big") + client.encode()
    head = int(api).to_bytes(2, "big") + version.to_bytes(2, "big") + correlation.to_bytes(4, "big") + name
    if version >= served.request.flexible:
        head += b"\0"
    body = head + write(served.request, version, fields)
    return len(body).to_bytes(4, "big") + body


def body_of(api: Api, version: int, data: bytes) -> dict[str, Any]:
    """The body of an answer."""
    served = SERVED[api]
    at = 1 if version >= served.response.flexible and api is not Api.API_VERSIONS else 0
    return read(served.response, version, data, at)


def produce(
    correlation: int,
    *batches: tuple[str, int, bytes | None],
    version: int = 9,
    acks: int = -1,
    timeout: int = 30_000,
    transactional_id: str | None = None,
    client: str | None = "billing",
) -> bytes:
    """A Produce request with batches by topic and partition."""
    topics: dict[str, list[dict[str, Any]]] = {}
    for topic, index, records in batches:
        topics.setdefault(topic, []).append({"index": index, "records": records})
    return request(
        Api.PRODUCE,
        version,
        correlation,
        client,
        transactional_id=transactional_id,
        acks=acks,
        timeout=timeout,
        topics=[{"name": name, "partitions": partitions} for name, partitions in topics.items()],
    )


def codes(data: bytes, version: int = 9) -> list[tuple[str, int, int]]:
    """The topic, partition and code of each part of a Produce answer."""
    found = body_of(Api.PRODUCE, version, data)
    return [(topic["name"], part["index"], part["error"]) for topic in found["topics"] for part in topic["partitions"]]


Batch = Callable[..., bytes]
