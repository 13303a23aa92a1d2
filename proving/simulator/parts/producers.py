"""Producers that send through a worker's doors: HTTP clients with tokens and without, and Kafka's producers.

A producer is a program with its data; its process may be stopped, killed and started again, or never come back. Each
message is a text that says where it belongs: its *lane*, within which it has its order, and its request.
"""

from __future__ import annotations

import json
import struct
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import google_crc32c

from proving.simulator.engine.core import Part, Promise, Steps, Violation
from proving.simulator.engine.network import End
from proving.simulator.parts.surroundings import HTTP_PORT, KAFKA_PORT, PARTITIONS, Surroundings
from wallaroo_spark.doors.kafka.apis import SERVED, Api, Code
from wallaroo_spark.doors.kafka.record_batch import HEAD_BYTES
from wallaroo_spark.doors.kafka.wire import read, write
from wallaroo_spark.errors import TransportError

VERSION = 9
"""Of Produce and of Metadata."""
TOPIC = "orders"
BUSY_SECONDS, BUSY_REQUESTS = 0.4, 150
"""The mean pause of a busy producer, and how many requests it makes."""
LOOK_SECONDS = 0.3
"""Between two looks of a Kafka producer at what it can send."""


class Auditor(Protocol):
    """Is told what producers were told; ``proving.simulator.door_invariants.DoorJudge`` is one."""

    def answered(self, producer: Producer, values: list[str]) -> None:
        """Messages were answered with success."""

    def doubtful(self, values: list[str]) -> None:
        """Messages were given up, or their producer has died: they are sent again, and may be there twice."""


class Producer:
    """A program with its data. ``once`` says whether each message may be in the table only once."""

    once = False

    def __init__(self, world: Surroundings, auditor: Auditor, name: str, requests: int) -> None:
        self.world = world
        self.sim = world.sim
        self.auditor = auditor
        self.name = name
        self.gone = False
        """Whether it never comes back."""
        self.left = requests
        """The requests that it will still make."""
        self.process = Part(name)
        self.process.alive = False

    def start(self) -> None:
        """Start its process unless one runs."""
        if not self.process.alive and not self.gone:
            self.process = Part(f"{self.name}#{self.world.next_number()}")
            self.sim.spawn(self.process, self._run())

    def kill(self) -> None:
        """Kill its process."""
        if self.process.alive:
            self.process.alive = False
            self.sim.log(self.process.name, "is killed")
            self.world.network.kill(self.process)
            self._died()

    @property
    def waits(self) -> str:
        """What it waits for; empty when all is answered."""
        raise NotImplementedError

    def _run(self) -> Steps:
        raise NotImplementedError

    def _died(self) -> None:
        """Its process has died."""

    def _pause(self) -> float:
        profile = self.world.profile
        mean = 0.1 if self.sim.calm else BUSY_SECONDS if profile.busy else profile.fault_seconds / 12
        return self.sim.random.expovariate(1 / mean)

    def _bootstrap(self, port: int, apart: int) -> str | None:
        """The place of a door of some worker, as a load balancer finds one."""
        leases = [one for one in self.world.registry.model.leases().values() if one.connect]
        if not leases:
            return None
        lease = self.sim.random.choice(leases)
        return f"{lease.connect.partition(':')[0]}:{port + apart * lease.slot}"


class _Line:
    """A client's side of a connection, which keeps what has come."""

    def __init__(self, end: End) -> None:
        self.end = end
        self.received = bytearray()
        self.lost = False
        self.news = Promise()
        end.taker = self

    def take(self, end: End, data: bytes) -> None:
        """Bytes have arrived."""
        self.received += data
        self._tell()

    def gone(self, end: End, reason: str) -> None:
        """The connection has ended."""
        self.lost = True
        end.close()
        self._tell()

    def session_of(self, end: End) -> None:
        """It carries no session."""

    def _tell(self) -> None:
        news, self.news = self.news, Promise()
        news.resolve(None)


class HttpProducer(Producer):
    """Sends one request after the other, and repeats each until it is answered. With tokens it numbers them."""

    def __init__(self, world: Surroundings, auditor: Auditor, name: str, requests: int, *, tokens: bool) -> None:
        super().__init__(world, auditor, name, requests)
        self.once = tokens
        self.patience = self.sim.random.choice((3.0, 10.0, 30.0))
        """Seconds for which it waits for an answer."""
        self.token = 0
        """The last token that it has used, and its number of requests."""
        self.values: list[str] = []
        """The messages of the request that is not answered."""

    @property
    def waits(self) -> str:
        """See :class:`Producer`."""
        open_request = f"{self.name} waits for {self.values}" if self.values else ""
        return "" if self.gone else open_request or (f"{self.name} has {self.left} to send" if self.left else "")

    def _died(self) -> None:
        if not self.once and self.values:
            # Nobody knows whether it was accepted, and a program without tokens cannot ask.
            self.values = []

    def _run(self) -> Steps:
        if self.once and self.values:
            yield from self._look_up()
        while self.values or self.left:
            if not self.values:
                yield self._pause()
                self.token += self.sim.random.choice((1, 1, 1, 5))
                self.left -= 1
                parts = self.sim.random.choice((1, 1, 2, 4))
                self.values = [f"{self.name} {self.token} {part} {parts}" for part in range(parts)]
            answer = yield from self._until_answered(self.values)
            if answer["code"] == "http-token-given-up":
                self.sim.history.counts["told_given_up"] += 1
                self.auditor.doubtful(self.values)
            elif answer["code"]:
                raise Violation(f"{self.name} is told {answer} of {self.values}")
            else:
                self.auditor.answered(self, self.values)
            self.values = []

    def _look_up(self) -> Steps:
        """A program that has started again asks what is committed."""
        answer = yield from self._until_answered([])
        if not answer["code"] and (answer["committed"] or 0) >= self.token:
            self.auditor.answered(self, self.values)
            self.values = []

    def _until_answered(self, values: list[str]) -> Steps:
        place = None
        while True:
            answer = yield from self._ask(place or self._bootstrap(HTTP_PORT, 1), values)
            place = answer.get("place") if answer else None
            if answer and answer["code"] not in ("202", "http-send-again", "http-elsewhere", "http-full"):
                return answer
            yield self.sim.random.uniform(0.1, 0.6)

    def _ask(self, place: str | None, values: list[str]) -> Steps:
        if place is None:
            return None
        try:
            line = _Line((yield self.world.network.connect(self.process, place)))
        except TransportError:
            return None
        token = self.token if self.once else None
        request = {"stream": TOPIC, "instance": self.name if self.once else "", "token": token, "values": values}
        line.end.write(json.dumps(request).encode() + b"\n")
        late = False
        until = self.sim.now + self.patience
        while b"\n" not in line.received and not line.lost and not late:
            news = line.news
            self.sim.at(until, self.process, news.resolve)
            yield news
            late = self.sim.now >= until
        line.end.abort()
        body, whole, _ = bytes(line.received).partition(b"\n")
        return json.loads(body) if whole else None


@dataclass(eq=False)
class _Batch:
    """A batch of records that is not answered."""

    value: str
    count: int
    epoch: int = -1
    sequence: int = -1
    under_way: bool = False
    not_before: float = 0.0
    """When it may be sent again."""


@dataclass
class _Lane:
    """One partition, as a producer sees it."""

    partition: int
    serial: int = 0
    epoch: int = 0
    sequence: int = 0
    """The sequence of the next record."""
    batches: deque[_Batch] = field(default_factory=deque)


_Sent = tuple[_Lane, _Batch, tuple[int, int, int]]
"""A batch of a request, with the producer, epoch and sequence that it had."""


class _Node:
    """The connection to one node, with the requests under way, each with when it is late."""

    def __init__(self, end: End) -> None:
        self.line = _Line(end)
        self.requests: deque[tuple[Api, int, float, Sequence[_Sent]]] = deque()
        self.correlation = 0


class KafkaProducer(Producer):
    """A producer of Kafka. An idempotent one numbers its batches; its numbers die with its process."""

    def __init__(self, world: Surroundings, auditor: Auditor, name: str, requests: int, *, idempotent: bool) -> None:
        super().__init__(world, auditor, name, requests)
        random = self.sim.random
        self.once = idempotent
        self.window = random.choice((1, 5)) if idempotent else 1
        self.bumps = random.random() < 0.5
        """Whether it goes on with a new epoch when its records were given up, or a new producer follows it."""
        busy = world.profile.busy
        self.timeout = 20.0 if busy else random.choice((2.0, 5.0, 20.0))
        """Seconds after which a request is late."""
        self.asks_behind = idempotent and self.window == 1
        """Whether it asks where to send on a connection that it sends on, as aiokafka does, or on one of its own."""
        partitions = range(PARTITIONS) if busy else random.sample(range(PARTITIONS), random.choice((1, 2, 3)))
        self.lanes = [_Lane(partition) for partition in partitions]
        self._fresh()

    def _fresh(self) -> None:
        """A new producer, without an id."""
        self.producer = -1
        self.epoch = 0
        self._leaders: dict[int, str] = {}
        self._looked_at = -1.0
        self._nodes: dict[str, _Node] = {}
        self._connecting: set[str] = set()
        for lane in self.lanes:
            lane.epoch, lane.sequence = 0, 0
            for batch in lane.batches:
                self._number(lane, batch)

    @property
    def waits(self) -> str:
        """See :class:`Producer`."""
        waiting = [batch.value for lane in self.lanes for batch in lane.batches]
        text = f"{self.name} waits for {waiting}" if waiting else f"{self.name} has {self.left} to send"
        return "" if self.gone or not (waiting or self.left) else text

    def _died(self) -> None:
        self.is_forgotten()
        self._fresh()

    def is_forgotten(self) -> None:
        """Nobody knows any more what it has sent."""
        self.auditor.doubtful([batch.value for lane in self.lanes for batch in lane.batches])

    def _run(self) -> Steps:
        next_at = self.sim.now + self._pause()
        while self.waits:
            if self.left and self.sim.now >= next_at:
                self.left -= 1
                self._make(self.sim.random.choice(self.lanes))
                next_at = self.sim.now + self._pause()
            if self._nothing_known() and self.sim.now - self._looked_at > 1.0:
                yield from self._learn()
            if self._leaders and (self.producer >= 0 or not self.once):
                self._send()
            yield LOOK_SECONDS * self.sim.random.random()
            for address, node in list(self._nodes.items()):
                self._take(address, node)
        for node in self._nodes.values():
            node.line.end.close()

    def _make(self, lane: _Lane) -> None:
        lane.serial += 1
        batch = _Batch(f"{self.name}:{lane.partition} {lane.serial} 0 1", self.sim.random.choice((1, 2, 5)))
        if not lane.batches:
            lane.sequence = 0 if lane.epoch != self.epoch else lane.sequence
            lane.epoch = self.epoch
        self._number(lane, batch)
        lane.batches.append(batch)

    def _number(self, lane: _Lane, batch: _Batch) -> None:
        batch.epoch, batch.sequence, batch.under_way = lane.epoch, lane.sequence, False
        lane.sequence = lane.sequence + batch.count

    # Where to send.

    def _nothing_known(self) -> bool:
        return not self._leaders or (self.once and self.producer < 0)

    def _learn(self) -> Steps:
        """Ask for the leaders, and for an id."""
        self._looked_at = self.sim.now
        if self.asks_behind and self._nodes:
            nodes = list(self._nodes.values())
            if not any(api is Api.METADATA for node in nodes for api, *_ in node.requests):
                self._ask(self.sim.random.choice(nodes))
            return
        place = self._bootstrap(KAFKA_PORT, self.world.options(1).kafka_nodes)
        if place is None:
            return
        try:
            node = _Node((yield self.world.network.connect(self.process, place)))
        except TransportError:
            return
        self._ask(node)
        until = self.sim.now + 3.0
        while node.requests and not node.line.lost and self.sim.now < until:
            news = node.line.news
            self.sim.at(until, self.process, news.resolve)
            yield news
            for api, answer, _ in self._answers(node):
                self._learned(api, answer)
        node.line.end.close()

    def _ask(self, node: _Node) -> None:
        new = {"transactional_id": None, "timeout": 0, "producer": -1, "epoch": -1}
        self._write(node, Api.INIT_PRODUCER_ID, 4, new)
        more = {"create": False, "with_cluster_operations": False, "with_topic_operations": False}
        self._write(node, Api.METADATA, VERSION, {"topics": [{"name": TOPIC}], **more})

    def _learned(self, api: Api, answer: dict[str, Any]) -> None:
        if api is Api.INIT_PRODUCER_ID:
            self.producer = answer["producer"] if self.once and self.producer < 0 else self.producer
            return
        hosts = {one["id"]: f"{one['host']}:{one['port']}" for one in answer["nodes"]}
        (topic,) = answer["topics"]
        self._leaders = {one["index"]: hosts[one["leader"]] for one in topic["partitions"] if one["leader"] in hosts}

    # What to send, and what came back.

    def _send(self) -> None:
        wanted: dict[str, list[tuple[_Lane, _Batch]]] = {}
        for lane in self.lanes:
            address = self._leaders.get(lane.partition)
            if address is None:
                self._leaders = {}
                return
            room = self.window - sum(batch.under_way for batch in lane.batches)
            for batch in lane.batches:
                if batch.under_way:
                    continue
                if room <= 0 or batch.not_before > self.sim.now:
                    break
                room -= 1
                wanted.setdefault(address, []).append((lane, batch))
        for address, batches in wanted.items():
            node = self._nodes.get(address)
            if node is None:
                self._open(address)
                continue
            if self.sim.random.random() < 0.5:
                # One batch of each partition in a request, as most clients do.
                first = {id(lane): (lane, batch) for lane, batch in reversed(batches)}
                self._produce(node, list(first.values()))
                continue
            for one in batches:
                self._produce(node, [one])

    def _open(self, address: str) -> None:
        if address not in self._connecting:
            self._connecting.add(address)
            self.sim.spawn(self.process, self._connect(address))

    def _connect(self, address: str) -> Steps:
        try:
            self._nodes[address] = _Node((yield self.world.network.connect(self.process, address)))
        except TransportError:
            self._leaders = {}
        self._connecting.discard(address)

    def _produce(self, node: _Node, batches: list[tuple[_Lane, _Batch]]) -> None:
        partitions, sent = [], []
        for lane, batch in batches:
            batch.under_way = True
            partitions.append({"index": lane.partition, "records": self._encoded(batch)})
            sent.append((lane, batch, self._numbers(batch)))
        body = {
            "transactional_id": None,
            "acks": -1,
            "timeout": round(self.timeout * 1000),
            "topics": [{"name": TOPIC, "partitions": partitions}],
        }
        self._write(node, Api.PRODUCE, VERSION, body, sent)

    def _encoded(self, batch: _Batch) -> bytes:
        numbers, last = self._numbers(batch), batch.count - 1
        tail = struct.pack(">hiqqqhii", 0, last, 0, 0, *numbers, batch.count) + batch.value.encode()
        return struct.pack(">qiibI", 0, len(tail) + 9, -1, 2, google_crc32c.value(tail)) + tail

    def _numbers(self, batch: _Batch) -> tuple[int, int, int]:
        return (self.producer, batch.epoch, batch.sequence) if self.once else (-1, -1, -1)

    def _write(self, node: _Node, api: Api, version: int, body: dict[str, Any], sent: Sequence[_Sent] = ()) -> None:
        node.correlation += 1
        name = self.name.encode()
        request = struct.pack(">hhih", api, version, node.correlation, len(name)) + name
        request += b"\0" if version >= SERVED[api].request.flexible else b""
        request += write(SERVED[api].request, version, body)
        node.requests.append((api, version, self.sim.now + self.timeout, sent))
        node.line.end.write(struct.pack(">i", len(request)) + request)

    def _answers(self, node: _Node) -> list[tuple[Api, dict[str, Any], Sequence[_Sent]]]:
        found: list[tuple[Api, dict[str, Any], Sequence[_Sent]]] = []
        data = node.line.received
        while len(data) >= 4 and len(data) >= 4 + (size := int.from_bytes(data[:4], "big")):
            api, version, _, sent = node.requests.popleft()
            expected = node.correlation - len(node.requests)
            if int.from_bytes(data[4:8], "big") != expected:
                raise Violation(f"{self.name} is answered out of order: {data[4:8]!r} where {expected} is due")
            flexible = version >= SERVED[api].response.flexible
            found.append((api, read(SERVED[api].response, version, bytes(data[: 4 + size]), 8 + flexible), sent))
            del data[: 4 + size]
        return found

    def _take(self, address: str, node: _Node) -> None:
        """Take the answers of a node; a connection that is lost or late is given up, and all is sent again."""
        for api, answer, sent in self._answers(node):
            if api is not Api.PRODUCE:
                self._learned(api, answer)
                continue
            (topic,) = answer["topics"]
            for (lane, batch, numbers), part in zip(sent, topic["partitions"], strict=True):
                if batch in lane.batches and numbers == self._numbers(batch):
                    self._told(lane, batch, Code(part["error"]))
        late = bool(node.requests) and node.requests[0][2] < self.sim.now
        if node.line.lost or late:
            node.line.end.abort()
            self._nodes.pop(address, None)
            self._leaders = {}
            for _, _, _, sent in node.requests:
                for _, batch, _ in sent:
                    batch.under_way = False

    def _told(self, lane: _Lane, batch: _Batch, code: Code) -> None:
        first = batch is lane.batches[0]
        batch.under_way = False
        batch.not_before = self.sim.now + self.sim.random.uniform(0.0, 0.3)
        if code is Code.NONE:
            lane.batches.remove(batch)
            self.auditor.answered(self, [batch.value])
        elif code is Code.NOT_LEADER_OR_FOLLOWER:
            self._leaders = {}
        elif code is Code.UNKNOWN_PRODUCER_ID and self.once:
            self.sim.history.counts["told_given_up"] += 1
            self._given_up(lane)
        elif code is not Code.REQUEST_TIMED_OUT and (first or code is not Code.OUT_OF_ORDER_SEQUENCE):
            raise Violation(f"{self.name} is told {code.name} of {batch} in {lane}")

    def _given_up(self, lane: _Lane) -> None:
        """Records were given up: a new epoch or a new producer sends again what was not answered."""
        if not self.bumps:
            self.kill()
            self.start()
            return
        self.auditor.doubtful([batch.value for batch in lane.batches])
        self.epoch += 1
        lane.epoch, lane.sequence = self.epoch, 0
        for batch in lane.batches:
            self._number(lane, batch)


assert struct.calcsize(">qiibI") + struct.calcsize(">hiqqqhii") == HEAD_BYTES
