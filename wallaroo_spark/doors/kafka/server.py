"""The server's side of Kafka's protocol, for the producers of one worker: requests in, answers out. Pure.

A connection's requests are handled in their order and answered in their order, as clients require it. A request waits
for its turn while the session of its client opens and while the worker has no memory; one that was handled waits for
the commit log, and the requests behind it are handled meanwhile. When what a connection waits for is lost, the
connection is closed, as that of a broker that ends: its client connects again, and sends everything again in order.
So it is when the session of its client does not open: the next batch of a new stream would be accepted as its first.
Source: ``docs/doors/kafka.md``.
"""

from __future__ import annotations

import re
from collections import Counter, deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

from wallaroo_spark.doors.client import DoorClient
from wallaroo_spark.doors.kafka import PREFIX
from wallaroo_spark.doors.kafka.apis import REFUSALS, SERVED, Api, Code
from wallaroo_spark.doors.kafka.batches import (
    NO_TRANSACTIONS,
    Batches,
    BatchOutcome,
    ProducerSessions,
    ServerSettings,
    SoundBatch,
    patience,
)
from wallaroo_spark.doors.kafka.wire import Malformed, WireReader, read, write
from wallaroo_spark.doors.tickets import Ticket

UNNAMED = "unnamed"
"""The client of requests without a client id."""
SMALL_BYTES = 1 << 18
"""The most bytes of a request that carries no records. A choice: Metadata of 1,000 topics with the longest names."""
UNKNOWN_BYTES = 1 << 14
"""The most bytes of a request of a peer that still has to authenticate itself. A choice."""
REQUEST_BATCHES = 8
"""The batches of the greatest size that one request may have. A choice."""
MOST_PENDING = 512
"""The most requests of a connection that wait for their answers. A choice: clients have five or, in order, one."""
MOST_TOPICS = 1_000
"""The most topics that one Metadata request may name, and that are remembered for one that names none."""
MOST_PARTITIONS = 128_000
"""The most partitions of all topics that one answer to Metadata has. A choice: 1,000 topics by default, 4.4 MB."""
MOST_NAME_BYTES = 128
"""The bytes of a client's id that name it; what follows is left out."""
UNCOUNTED_BYTES = 1 << 14
"""Unfinished requests up to this size are not counted as memory, because they are soon finished."""
UNFINISHED_SECONDS = 60.0
"""Seconds without a byte after which a connection with an unfinished request is closed. A choice."""
IDLE_SECONDS = 600.0
"""Seconds without a byte after which a connection that waits for nothing is closed, as Kafka does by default."""
YIELD_SECONDS = 0.5
"""Seconds for which a batch waits for what a client has to send again, before its requests that are under way are
answered as too late, so that it sends others. A choice: some clients send one batch a request, and five requests."""
_OTHERS = {
    b"\x16\x03": "TLS, and the door speaks it with the option tls.certificate alone (security.protocol)",
    b"GET ": "HTTP, for which there is http.port",
    b"POST": "HTTP, for which there is http.port",
}
"""Other protocols that come to this port by mistake, by their first bytes."""
_TOPIC = re.compile(r"[a-zA-Z0-9._-]{1,249}")
_MECHANISM = "PLAIN"
ASTRAY_TIMES, ASTRAY_SECONDS = 10, 5.0
"""Requests in a row on one connection that belong to another slot, and their seconds, from which the addresses that its
client was told lead to the wrong worker. A choice: a client whose Metadata was old asks again after the first."""
_REFUSAL = "this server takes records of producers only; read them with Spark"


class Link(Protocol):
    """The connections, as the server uses them."""

    def send(self, connection: int, data: bytes) -> None:
        """Write bytes to the peer."""

    def close_connection(self, connection: int, reason: str) -> None:
        """Close the connection when all has been written; ``reason`` says why."""

    def read_on(self, connection: int, reading: bool) -> None:
        """Read the peer's bytes from now on, or do not."""


@dataclass(eq=False, slots=True)
class _Answer:
    """The answer to one request, in the queue of its connection."""

    data: bytes | None = None
    """The frame, or nothing where none is sent; None while the request waits."""
    begun: float = 0.0
    """When it began to wait, in monotonic seconds."""
    until: float = float("inf")
    """When it is answered in any case, in monotonic seconds."""
    expire: Callable[[], None] | None = None
    """Makes the answer for that case."""
    numbered: bool = False
    """Whether all that it answers is of producers that number their batches."""


@dataclass(eq=False, slots=True)
class _KafkaConnection:
    number: int
    peer: str
    buffer: bytearray = field(default_factory=bytearray)
    pending: deque[_Answer] = field(default_factory=deque)
    trusted: bool = False
    secret: bytes = field(default=b"", repr=False)
    """The password that was given."""
    sender: str = ""
    """The name of who gave it; empty without one."""
    raw_token: bool = False
    """Whether the next frame is a bare token, as in version 0 of the handshake."""
    client: str = UNNAMED
    opening: DoorClient | None = None
    """The session whose opening the next request waits for."""
    user: DoorClient | None = None
    """The session that was used last, which the bytes of unfinished requests are counted for."""
    held: int = 0
    """The bytes that are counted."""
    heard_at: float = 0.0
    """When bytes came last, in monotonic seconds."""
    unsure: bool = False
    """Whether a request was answered as too late, so that its client sends its batches again."""
    waits: bool = False
    """Whether the next request waits for its client's session or for memory."""
    paused: bool = False
    closing: bool = False
    astray: int = 0
    """Batches in a row that belong to another slot."""
    astray_since: float = 0.0
    """When the first of them came, in monotonic seconds."""


class KafkaServer:
    """The state of all connections of the door.

    ``make_id`` returns a new producer's id, 63 random bits; ``eases`` says whether there is memory for a new request.
    ``count`` adds to one of the worker's counts; ``refuse`` takes the code of a refusal, the peer, its instance and the
    reason.
    """

    def __init__(
        self,
        settings: ServerSettings,
        ground: ProducerSessions,
        link: Link,
        make_id: Callable[[], int],
        eases: Callable[[], bool],
        count: Callable[[str, int], None],
        refuse: Callable[[str, str, str, str], None],
    ) -> None:
        self.settings = settings
        self.hosts: Mapping[int, str] = {}
        """The addresses of the slots that are served now."""
        self._ground = ground
        self._link = link
        self._make_id = make_id
        self._eases = eases
        self._count = count
        self._tell_refusal = refuse
        self._connections: dict[int, _KafkaConnection] = {}
        self._batches = Batches(settings, ground, count, self._see)
        self._topics: dict[str, None] = {}
        self._waited_for: set[str] = set()
        """The instances for whose messages a batch has been waiting for too long, also those of other slots."""
        self._now = 0.0
        self._time = 0
        self._handlers: dict[Api, Callable[[_KafkaConnection, int, dict[str, Any]], dict[str, Any]]] = {
            Api.API_VERSIONS: self._api_versions,
            Api.METADATA: self._metadata,
            Api.INIT_PRODUCER_ID: self._init_producer_id,
            Api.FIND_COORDINATOR: self._find_coordinator,
            Api.FETCH: self._fetch,
            Api.LIST_OFFSETS: self._list_offsets,
            Api.SASL_HANDSHAKE: self._handshake,
            Api.SASL_AUTHENTICATE: self._authenticate,
        }

    @property
    def requests(self) -> dict[str, int]:
        """The requests that wait for a commit, by the instance of their client."""
        found: Counter[str] = Counter()
        for one in self._connections.values():
            found[self._instance(one)] += sum(answer.data is None for answer in one.pending)
        return dict(+found)

    @property
    def connections(self) -> int:
        """The number of connections."""
        return len(self._connections)

    def connected(self, connection: int, peer: str) -> None:
        """A peer has connected."""
        one = _KafkaConnection(connection, peer, trusted=self.settings.senders.open, heard_at=self._now)
        self._connections[connection] = one

    def disconnected(self, connection: int) -> None:
        """A connection has ended. Its accepted records stay."""
        one = self._connections.pop(connection, None)
        if one is not None:
            one.buffer.clear()
            self._weigh(one)

    def received(self, connection: int, data: bytes, now: float, time_ns: int) -> None:
        """A peer has sent bytes. ``now`` is in monotonic seconds, ``time_ns`` in nanoseconds since 1970 UTC."""
        self._now, self._time = now, time_ns
        one = self._connections.get(connection)
        if one is not None and not one.closing:
            one.buffer += data
            one.heard_at = now
            self._go_on(one)

    def tick(self, now: float, time_ns: int) -> None:
        """Time has passed: answer what has waited too long, and go on where memory was missing."""
        self._now, self._time = now, time_ns
        self._batches.tick(now)
        # A client has only some requests under way. While a batch waits for others, those under way make room.
        self._waited_for = {
            instance for instance, seconds in self._ground.resend_waits(PREFIX).items() if seconds >= YIELD_SECONDS
        }
        for one in list(self._connections.values()):
            if one.sender and self.settings.senders.who(one.secret) != one.sender:
                self._drop(one, f"the token of {one.sender!r} is not valid any more (door.tokens)")
                continue
            begun = now - YIELD_SECONDS if self._is_waited_for(one) else float("-inf")
            late = [
                answer
                for answer in one.pending
                if answer.data is None and (answer.until <= now or answer.begun <= begun)
            ]
            for answer in late:
                assert answer.expire is not None
                answer.expire()
            if now - one.heard_at > (UNFINISHED_SECONDS if one.buffer and not one.waits else IDLE_SECONDS):
                if not one.pending:
                    self._drop(one, "it has sent nothing for too long")
            elif one.waits or one.paused:
                self._go_on(one)

    def _is_waited_for(self, one: _KafkaConnection) -> bool:
        """Whether a batch waits for what the client of a connection has to send again, and these requests delay that.

        Those of this slot take the place of what is waited for. A client that has lost another slot's worker may ask
        here where the next one is, and is told that behind the requests that it has sent before.
        """
        if self._instance(one) in self._waited_for:
            return True
        asks = any(answer.data is not None for answer in one.pending)
        return asks and self._another_slot_waits_for(one)

    def _another_slot_waits_for(self, one: _KafkaConnection) -> bool:
        own = self._instance(one)
        client = own.rpartition("/")[0]
        return own not in self._waited_for and any(name.rpartition("/")[0] == client for name in self._waited_for)

    def _go_on(self, one: _KafkaConnection) -> None:
        """Handle the requests that can be handled now, and send the answers that can be sent."""
        one.waits = False
        try:
            while not one.closing and not one.waits and len(one.pending) < MOST_PENDING:
                frame = self._next_frame(one)
                if frame is None:
                    break
                self._request(one, frame)
                if not one.waits:
                    del one.buffer[: 4 + len(frame)]
        except Malformed as error:
            self._refuse(one, "kafka-malformed", str(error))
            self._drop(one, str(error))
        self._flush(one)
        self._weigh(one)
        full = one.waits or len(one.pending) >= MOST_PENDING
        if full != one.paused and not one.closing:
            one.paused = full
            self._link.read_on(one.number, not full)

    def _weigh(self, one: _KafkaConnection) -> None:
        """Count the bytes of unfinished requests as memory of the worker."""
        size = len(one.buffer) if len(one.buffer) > UNCOUNTED_BYTES else 0
        if one.user is not None and size != one.held:
            one.user.hold(size - one.held)
            one.held = size

    def _next_frame(self, one: _KafkaConnection) -> bytes | None:
        if len(one.buffer) < 4:
            return None
        size = int.from_bytes(one.buffer[:4], "big", signed=True)
        most = UNKNOWN_BYTES
        if one.trusted:
            most = REQUEST_BATCHES * self.settings.max_batch
            if len(one.buffer) >= 6:
                api = _api(int.from_bytes(one.buffer[4:6], "big"))
                if api is None or SERVED[api].small:
                    most = SMALL_BYTES
        if not 0 <= size <= most:
            for beginning, protocol in _OTHERS.items():
                if one.buffer.startswith(beginning):
                    raise Malformed(f"this is {protocol}")
            raise Malformed(f"a request of {size} bytes is above the limit of {most}")
        if len(one.buffer) < 4 + size:
            return None
        with memoryview(one.buffer) as view:
            return bytes(view[4 : 4 + size])

    def _request(self, one: _KafkaConnection, frame: bytes) -> None:
        if one.raw_token:
            one.raw_token = False
            if not self._knows(one, frame):
                raise Malformed("the user or the password is wrong")
            one.pending.append(_Answer(bytes(4)))
            return
        reader = WireReader(frame)
        api, version, correlation = (reader.fixed(kind) for kind in ("i16", "i16", "i32"))
        client = reader.text(compact=False)
        key = _api(api)
        if key is None:
            raise Malformed(f"request {api} is not served")
        served = SERVED[key]
        if key is Api.API_VERSIONS and version > served.newest:
            # Told in the oldest form, so that a client of any age reads it.
            body = self._api_versions(one, 0, {}) | {"error": Code.UNSUPPORTED_VERSION}
            one.pending.append(_Answer(_frame(correlation, write(served.response, 0, body), flexible=False)))
            return
        if not served.oldest <= version <= served.newest:
            raise Malformed(f"version {version} of {key.name} is not served")
        if version >= served.request.flexible:
            reader.skip_tags()
        if not one.trusted and key not in (Api.API_VERSIONS, Api.SASL_HANDSHAKE, Api.SASL_AUTHENTICATE):
            raise Malformed(f"{key.name} came before authentication; use SASL with the mechanism {_MECHANISM}")
        if client:
            one.client = client
        request = read(served.request, version, frame, reader.at)
        flexible = version >= served.response.flexible and key is not Api.API_VERSIONS
        if key is Api.PRODUCE:
            self._produce(one, version, request, lambda body: _frame(correlation, body, flexible=flexible))
            return
        body = self._handlers[key](one, version, request)
        one.pending.append(_Answer(_frame(correlation, write(served.response, version, body), flexible=flexible)))

    def _flush(self, one: _KafkaConnection) -> None:
        """Send the answers up to the first request that waits."""
        out = []
        while one.pending and (data := one.pending[0].data) is not None:
            out.append(data)
            one.pending.popleft()
        if any(out) and one.number in self._connections:
            self._link.send(one.number, b"".join(out))

    def _drop(self, one: _KafkaConnection, reason: str) -> None:
        """Close a connection; answers that are ready are sent first."""
        if not one.closing:
            self._flush(one)
            one.closing = True
            one.buffer.clear()
            one.pending.clear()
            self._weigh(one)
            self._link.close_connection(one.number, reason)

    def _instance(self, one: _KafkaConnection) -> str:
        return instance_of(one.client, self.settings.slot)

    def _refuse(self, one: _KafkaConnection, code: Code | str, reason: str) -> None:
        """Have a refusal counted and shown."""
        instance = self._instance(one) if one.client != UNNAMED else ""
        self._tell_refusal(REFUSALS[code] if isinstance(code, Code) else code, one.peer, instance, reason)

    def _api_versions(self, one: _KafkaConnection, version: int, request: dict[str, Any]) -> dict[str, Any]:
        rows = [
            {"key": int(api), "oldest": row.listed_from, "newest": row.newest} for api, row in sorted(SERVED.items())
        ]
        return {"error": Code.NONE, "apis": rows, "throttle": 0}

    def _metadata(self, one: _KafkaConnection, version: int, request: dict[str, Any]) -> dict[str, Any]:
        layout = self.settings.layout
        asked = request["topics"]
        most = min(MOST_TOPICS, MOST_PARTITIONS // layout.partitions)
        names = list(self._topics)[:most] if asked is None else [topic["name"] for topic in asked]
        if len(names) > most:
            asks = f"{len(names)} topics of {layout.partitions} partitions"
            raise Malformed(f"a request for metadata names {asks}, and may name {most} topics")
        nodes = layout.shown(self.hosts)
        topics = []
        for name in names:
            sound = self._see(name)
            partitions = [
                {
                    "error": Code.NONE if partition % layout.slots in self.hosts else Code.LEADER_NOT_AVAILABLE,
                    "index": partition,
                    "leader": layout.leader(partition) if partition % layout.slots in self.hosts else -1,
                    "leader_epoch": 0,
                    "replicas": [layout.leader(partition)],
                    "in_sync": [layout.leader(partition)],
                    "offline": [],
                }
                for partition in range(layout.partitions if sound else 0)
            ]
            topics.append(
                {
                    "error": Code.NONE if sound else Code.INVALID_TOPIC,
                    "name": name,
                    "internal": False,
                    "partitions": partitions,
                    "operations": _UNKNOWN_OPERATIONS,
                }
            )
        return {
            "throttle": 0,
            "nodes": [{"id": node.number, "host": node.host, "port": node.port, "rack": None} for node in nodes],
            "cluster": self.settings.cluster,
            "controller": nodes[0].number if nodes else -1,
            "topics": topics,
            "operations": _UNKNOWN_OPERATIONS,
        }

    def _see(self, topic: str) -> bool:
        """Whether a topic may exist; then it does from now on."""
        if not _TOPIC.fullmatch(topic) or topic in (".", ".."):
            return False
        if len(self._topics) < MOST_TOPICS:
            self._topics[topic] = None
        return True

    def _init_producer_id(self, one: _KafkaConnection, version: int, request: dict[str, Any]) -> dict[str, Any]:
        if request["transactional_id"] is not None:
            # Final for every client: with other codes some ask for ever.
            self._refuse(one, Code.UNSUPPORTED_VERSION, NO_TRANSACTIONS)
            return {"throttle": 0, "error": Code.UNSUPPORTED_VERSION, "producer": -1, "epoch": -1}
        return {"throttle": 0, "error": Code.NONE, "producer": self._make_id(), "epoch": 0}

    def _find_coordinator(self, one: _KafkaConnection, version: int, request: dict[str, Any]) -> dict[str, Any]:
        none = {"node": -1, "host": "", "port": -1, "error": Code.TRANSACTIONAL_ID_AUTHORIZATION_FAILED}
        rows = [{"key": key, "message": _REFUSAL, **none} for key in request.get("keys", ())]
        return {"throttle": 0, "message": _REFUSAL, "coordinators": rows, **none}

    def _fetch(self, one: _KafkaConnection, version: int, request: dict[str, Any]) -> dict[str, Any]:
        self._refuse(one, Code.TOPIC_AUTHORIZATION_FAILED, _REFUSAL)
        row = {
            "error": Code.TOPIC_AUTHORIZATION_FAILED,
            "high_watermark": -1,
            "last_stable_offset": -1,
            "log_start_offset": -1,
            "aborted": None,
            "preferred": -1,
            "records": None,
        }
        return {"throttle": 0, "error": Code.NONE, "session": 0, "topics": _each_partition(request, row)}

    def _list_offsets(self, one: _KafkaConnection, version: int, request: dict[str, Any]) -> dict[str, Any]:
        row = {"error": Code.TOPIC_AUTHORIZATION_FAILED, "timestamp": -1, "offset": -1, "leader_epoch": -1}
        return {"throttle": 0, "topics": _each_partition(request, row)}

    def _handshake(self, one: _KafkaConnection, version: int, request: dict[str, Any]) -> dict[str, Any]:
        known = request["mechanism"] == _MECHANISM
        if not known:
            reason = f"it asks for the mechanism {request['mechanism'][:32]}, and {_MECHANISM} is served"
            self._refuse(one, Code.UNSUPPORTED_SASL_MECHANISM, reason)
        one.raw_token = known and version == 0
        return {"error": Code.NONE if known else Code.UNSUPPORTED_SASL_MECHANISM, "mechanisms": [_MECHANISM]}

    def _authenticate(self, one: _KafkaConnection, version: int, request: dict[str, Any]) -> dict[str, Any]:
        known = self._knows(one, request["token"])
        message = None if known else "the user or the password is wrong"
        code = Code.NONE if known else Code.SASL_AUTHENTICATION_FAILED
        return {"error": code, "message": message, "token": b"", "lifetime": 0}

    def _knows(self, one: _KafkaConnection, token: bytes) -> bool:
        """Whether a token of the mechanism PLAIN has a user and its password. Every client that needs none is known."""
        _, user, password = token.split(b"\0") if token.count(b"\0") == 2 else (b"", b"", b"")
        name = self.settings.senders.who(password)
        known = name is not None and name.encode() in (b"", user)
        if known:
            one.trusted, one.secret, one.sender = True, password, name or ""
        else:
            self._refuse(one, Code.SASL_AUTHENTICATION_FAILED, "its user or its password is not the right one")
        return known

    def _produce(
        self, one: _KafkaConnection, version: int, request: dict[str, Any], framed: Callable[[bytes], bytes]
    ) -> None:
        produced = _Produced(self, one, version, request, framed)
        client = self._session_of(one)
        if one.closing:
            return
        if client is None:
            self._wait_for_turn(one, request, produced)
            return
        parts = [
            (topic["name"], partition["index"], self._batches.checked(version, request, topic["name"], partition))
            for topic in request["topics"]
            for partition in topic["partitions"]
        ]
        if any(isinstance(part, SoundBatch) and client.leaves(part.stream) for _, _, part in parts):
            # It is not known yet whether the producer is remembered there.
            self._wait_for_turn(one, request, produced)
            return
        for name, index, part in parts:
            outcome: BatchOutcome | None
            if isinstance(part, SoundBatch):
                outcome = self._batches.take(client, part, request["timeout"], self._now, self._time)
            else:
                outcome = part
            if outcome is None:
                self._drop(one, client.ended)
                return
            self._see_outcome(one, outcome)
            produced.add(name, index, outcome)
        self._count("door-requests", 1)
        if one.sender:
            self._count(f"door-requests:{one.sender}", 1)
        one.pending.append(produced.answer)
        produced.begin(self._now, self._now + patience(request["timeout"]))
        if len(one.pending) > 1 and self._is_waited_for(one):
            # They take the place of what is waited for. An idempotent producer with several requests under way does not
            # count how often it sends them; others have only some attempts.
            for answer in [answer for answer in one.pending if answer.numbered and answer.data is None]:
                assert answer.expire is not None
                answer.expire()

    def _wait_for_turn(self, one: _KafkaConnection, request: dict[str, Any], produced: _Produced) -> None:
        """Let a request wait. It is answered as too late, and not accepted, while another slot waits for its client.

        That may ask for the nodes behind it, and what the request waits for, such as memory, comes with a commit.
        """
        if not request["acks"] or not self._another_slot_waits_for(one):
            one.waits = True
            return
        one.unsure = True
        self._refuse(one, _TURNED_AWAY.code, _TURNED_AWAY.reason)
        for topic in request["topics"]:
            for partition in topic["partitions"]:
                produced.add(topic["name"], partition["index"], _TURNED_AWAY)
        one.pending.append(produced.answer)
        produced.begin(self._now, self._now)

    def _session_of(self, one: _KafkaConnection) -> DoorClient | None:
        """The session of the client of the next request; None while that waits for its turn, or is closed."""
        if not self._eases():
            return None
        # A session that ended while it opened ends the connection.
        client = one.opening or self._ground.client(self._instance(one))
        if client.opening.kept and self._now - client.began_at >= self.settings.session_seconds:
            if client.waits:
                # What is under way is committed first.
                return None
            client.end("it begins anew, without producers that have gone")
            for other in self._connections.values():
                if other.user is client:
                    # Nothing of it was under way, so its client need not connect again to keep the order.
                    other.user, other.held, other.unsure = None, 0, False
            client = self._ground.client(client.instance)
        if client.opening.kept is None:
            if one.opening is None:
                one.opening = client
                client.opening.when_done(lambda: self._opened(one))
            return None
        one.opening = None
        if client.ended:
            self._drop(one, client.ended)
        elif one.user is not client:
            before, held = one.user, one.held
            one.user, one.held = client, 0
            if before is not None:
                before.hold(-held)
                if before.ended and one.unsure:
                    self._drop(one, before.ended)
        return client

    def _see_outcome(self, one: _KafkaConnection, outcome: BatchOutcome) -> None:
        """Count a refused batch, and recognise a client that is led to the wrong worker again and again."""
        if outcome.ticket is not None:
            one.astray = 0
            return
        code: Code | str = outcome.code
        if code is Code.NOT_LEADER_OR_FOLLOWER:
            one.astray_since = one.astray_since if one.astray else self._now
            one.astray += 1
            if one.astray >= ASTRAY_TIMES and self._now - one.astray_since >= ASTRAY_SECONDS:
                code = "kafka-wrong-node"
        self._refuse(one, code, outcome.reason)

    def _opened(self, one: _KafkaConnection) -> None:
        if self._connections.get(one.number) is one and not one.closing:
            self._go_on(one)

    def _lost(self, one: _KafkaConnection, reason: str) -> None:
        if self._connections.get(one.number) is one:
            self._drop(one, reason)


class _Produced:
    """One Produce request: its partitions, and the answer that is made when all of them are committed."""

    def __init__(
        self,
        server: KafkaServer,
        one: _KafkaConnection,
        version: int,
        request: dict[str, Any],
        framed: Callable[[bytes], bytes],
    ) -> None:
        self.answer = _Answer()
        self._server = server
        self._one = one
        self._version = version
        self._silent = request["acks"] == 0
        self._framed = framed
        self._parts: dict[str, list[tuple[int, BatchOutcome]]] = {}
        self._tickets: list[Ticket] = []
        """Those that were not found kept, in any order. All of a session are lost together."""

    def add(self, topic: str, partition: int, part: BatchOutcome) -> None:
        """One partition was accepted or refused."""
        self._parts.setdefault(topic, []).append((partition, part))

    def begin(self, now: float, until: float) -> None:
        """Wait for the commits of all partitions, until ``until`` at most."""
        outcomes = [part for parts in self._parts.values() for _, part in parts]
        self._tickets = [part.ticket for part in outcomes if part.ticket is not None]
        if self._silent:
            # A client that wants no answer hears of an error by the end of its connection.
            self.answer.data = b""
            if len(self._tickets) < len(outcomes):
                self._server._drop(self._one, "a batch was refused, and its client wants no answer")
            return
        self.answer.begun, self.answer.until, self.answer.expire = now, until, self._answer_now
        self.answer.numbered = all(part.numbered for part in outcomes)
        for ticket in list(self._tickets):
            ticket.when_done(self._done)
        self._done()

    def _done(self) -> None:
        if self.answer.data is not None:
            return
        while self._tickets and self._tickets[-1].kept:
            self._tickets.pop()
        if not self._tickets:
            self._answer_now()
        elif self._tickets[-1].kept is False:
            self._server._lost(self._one, self._tickets[-1].reason)

    def _answer_now(self) -> None:
        if not all(ticket.kept for ticket in self._tickets):
            self._one.unsure = True
            self._server._refuse(self._one, Code.REQUEST_TIMED_OUT, _TOO_LATE)
        topics = [
            {"name": name, "partitions": [_told(index, part) for index, part in parts]}
            for name, parts in self._parts.items()
        ]
        served = SERVED[Api.PRODUCE]
        self.answer.data = self._framed(write(served.response, self._version, {"topics": topics, "throttle": 0}))
        for ticket in self._tickets:
            ticket.forget(self._done)
        self._server._flush(self._one)


def _told(index: int, part: BatchOutcome) -> dict[str, Any]:
    code, reason = part.code, part.reason
    if part.ticket is not None and not part.ticket.kept:
        code, reason = Code.REQUEST_TIMED_OUT, _TOO_LATE
    return {
        "index": index,
        "error": code,
        "base_offset": part.first if code is Code.NONE else -1,
        "log_append_time": -1,
        # A client that is told that its state is lost begins a new epoch only when it knows where the log starts.
        "log_start_offset": 0 if code is Code.UNKNOWN_PRODUCER_ID else -1,
        "record_errors": [],
        "message": reason or None,
    }


_UNKNOWN_OPERATIONS = -(1 << 31)
_TOO_LATE = "Spark has not committed the records yet; they are sent again"
_TURNED_AWAY = BatchOutcome(Code.REQUEST_TIMED_OUT, "another worker waits for records of this client first")


def instance_of(client: str, slot: int) -> str:
    """The instance of a client's session at a slot; a client sends to several slots."""
    return f"{PREFIX}{client.encode()[:MOST_NAME_BYTES].decode(errors='ignore')}/{slot}"


def _api(key: int) -> Api | None:
    try:
        return Api(key)
    except ValueError:
        return None


def _frame(correlation: int, body: bytes, *, flexible: bool) -> bytes:
    head = correlation.to_bytes(4, "big", signed=True) + (b"\0" if flexible else b"")
    return (len(head) + len(body)).to_bytes(4, "big") + head + body


def _each_partition(request: dict[str, Any], row: dict[str, Any]) -> list[dict[str, Any]]:
    return [
        {"name": topic["name"], "partitions": [{"index": one["index"], **row} for one in topic["partitions"]]}
        for topic in request["topics"]
    ]
