"""An application of durable streams in memory: the real controllers in batches of a thread, without Spark or files.

:class:`MemoryApplication` has the keys' states, the records and the messages for gateways.
:meth:`MemoryApplication.files` gives a gateway its files, and :func:`serving` runs a real gateway with a gRPC server
around them, so a test of a client has the whole way of a message but Spark and the file system. Tests of users take
:class:`~wallaroo_spark.testing.FakeApplication`, which is built on it::

    async with serving(MemoryApplication(schema)) as gateway:
        async with grpc.aio.insecure_channel(gateway.address) as channel: ...

A batch runs as soon as there is something for it.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections import defaultdict
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from wallaroo_spark.engine.operator.functions import StageFunctions
from wallaroo_spark.engine.operator.rows import ForGateway, gateway_of
from wallaroo_spark.engine.operator.turn import InputRow, take_turn
from wallaroo_spark.gateway.files import Message
from wallaroo_spark.gateway.limits import GatewayLimits
from wallaroo_spark.gateway.server.gateway import Gateway
from wallaroo_spark.gateway.server.listener import bind, make_server
from wallaroo_spark.gateway.server.peers import Peers, channel_to
from wallaroo_spark.gateway.tokens import KeptToken
from wallaroo_spark.pipelines.controller.messages import events as e
from wallaroo_spark.pipelines.controller.messages import instructions as i
from wallaroo_spark.pipelines.controller.messages.plans import partition_plans
from wallaroo_spark.pipelines.controller.messages.values import PartitionKey
from wallaroo_spark.pipelines.controller.stored.encoding import decode, encode
from wallaroo_spark.pipelines.schema.cloud_event import CloudEvent
from wallaroo_spark.pipelines.schema.store import StoredSchema
from wallaroo_spark.streams.inbox import DRIVER


class MemoryApplication:
    """The streams and pipelines of a schema."""

    def __init__(self, schema: StoredSchema) -> None:
        self.schema = schema
        self.tokens: dict[str, KeptToken] = {}
        self.records: dict[PartitionKey, list[CloudEvent]] = defaultdict(list)
        self.said: list[tuple[PartitionKey, i.Instruction]] = []
        """Every instruction of every committed batch."""
        self.committed = 0
        self.generations: dict[str, int] = defaultdict(int)
        """The newest generation of each gateway."""
        self.failure: Exception | None = None
        """The error that has ended the batches."""
        self._functions = StageFunctions()
        self._ahead = 0
        self._entries: dict[PartitionKey, dict[bytes, bytes]] = defaultdict(dict)
        self._declared = 0
        self._inbox: list[tuple[PartitionKey, e.Event]] = []
        self._carried: list[tuple[PartitionKey, e.CarriedIn]] = []
        self._timers: dict[PartitionKey, int] = {}
        self._outbox: dict[str, dict[int, list[Message]]] = defaultdict(lambda: defaultdict(list))
        self._turn = threading.Condition(threading.RLock())
        self._closed = False
        self._thread = threading.Thread(target=self._run, name="memory-application", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """End the thread."""
        with self._turn:
            self._closed = True
            self._turn.notify_all()
        self._thread.join()

    def apply(self, schema: StoredSchema) -> None:
        """Apply a new version of the schema, which replaces the whole."""
        with self._turn:
            self.schema = schema
            self._turn.notify_all()

    def advance(self, seconds: float) -> None:
        """Set the clock of batches forward, once a batch at the time before has what was written until now."""
        with self._turn:
            self._turn.wait_for(lambda: self._closed or self.failure is not None or not self._inbox)
            self._ahead += round(seconds * 1000)
            self._turn.notify_all()

    def wait(self, holds: Callable[[], bool], seconds: float) -> bool:
        """Wait until something holds behind a batch; False when it does not within so many seconds. Raises the error
        that has ended the batches."""
        with self._turn:
            found = self._turn.wait_for(lambda: self.failure is not None or holds(), seconds)
            if self.failure is not None:
                raise self.failure
            return found

    def files(self, gateway: str = "g0") -> MemoryFiles:
        """The files as a gateway has them."""
        return MemoryFiles(self, gateway)

    def read(
        self, key: PartitionKey, first: int, last: int, *, most_bytes: int | None = None
    ) -> tuple[int, Sequence[CloudEvent]]:
        """The records of a range, as a turn reads them."""
        return first, self.records.get(key, [])[first - 1 : last]

    def write(self, events: Sequence[tuple[PartitionKey, e.Event]]) -> int:
        """Add events to the inbox. Returns the batch that will read them."""
        with self._turn:
            self._inbox += events
            self._turn.notify_all()
            return self.committed + 1

    def messages(self, gateway: str, batch: int) -> list[Message]:
        """Return the messages of a batch for a gateway, once."""
        with self._turn:
            return self._outbox[gateway].pop(batch, [])

    def run_batch(self) -> None:
        """Run and commit one batch with everything that waits."""
        with self._turn:
            now = self._now()
            events: dict[PartitionKey, list[e.Event]] = defaultdict(list)
            # As in the planner of batches, events wait until partitions that are added know what the others do.
            inbox, self._inbox = self._inbox, []
            if self._declared < self.schema.version:
                if self._declared:
                    inbox, self._inbox = [], inbox
                self._declared = self.schema.version
                for stream, (partitions, plan) in partition_plans(self.schema.objects.values()).items():
                    for number in range(partitions):
                        events[PartitionKey(stream, number)].append(e.PartitionDeclared(self._declared, plan))
                for key in list(self._entries):
                    if key not in events:
                        events[key].append(e.PartitionDeclared(self._declared, None))
            for key, carried in self._carried:
                events[key].append(carried)
            for key, event in inbox:
                events[key].append(event)
            for key in [key for key, due in self._timers.items() if due <= now]:
                # A timer fires once; the controller arms it again where it needs one.
                del self._timers[key]
                events.setdefault(key, [])
            self._carried = []
            for key, given in events.items():
                self._take_turn(key, now, given)
            self.committed += 1
            self._turn.notify_all()

    def _take_turn(self, key: PartitionKey, now: int, events: Sequence[e.Event]) -> None:
        rows = [InputRow(0, "", number, 0, encode(event)) for number, event in enumerate(events)]
        entries, table = self._entries[key], self.records.get(key, [])
        result = take_turn(key, now, rows, entries, self, self._functions)
        for name, value in result.changes.items():
            entries.pop(name, None)
            if value is not None:
                entries[name] = value
        assert not result.fresh or result.fresh_from == len(table) + 1
        if result.fresh:
            table = self.records[key]
            table += result.fresh
        if result.armed is None:
            self._timers.pop(key, None)
        else:
            self._timers[key] = result.armed
        for one in result.instructions:
            self.said.append((key, one))
            if isinstance(one, i.CarryOut):
                self._carried.append((one.target, e.CarriedIn(key, one.sequence, one.message)))
            elif isinstance(one, ForGateway):
                gateway = gateway_of(one)
                if gateway != DRIVER:
                    self._outbox[gateway][self.committed + 1].append((one, self._attached(one, table)))

    def _attached(self, one: ForGateway, table: Sequence[CloudEvent]) -> tuple[CloudEvent, ...] | None:
        """The records that are attached to a message."""
        return tuple(table[one.first - 1 : one.last]) if isinstance(one, i.DeliverRecords) else None

    def _run(self) -> None:
        while True:
            with self._turn:
                if self._closed:
                    return
                if self._waiting():
                    try:
                        self.run_batch()
                    except Exception as error:
                        self.failure = error
                        self._turn.notify_all()
                        return
                    continue
                due = min(self._timers.values(), default=None)
                self._turn.wait(None if due is None else max(0.001, (due - self._now()) / 1000))

    def _now(self) -> int:
        return round(time.time() * 1000) + self._ahead

    def _waiting(self) -> bool:
        due = any(due <= self._now() for due in self._timers.values())
        return bool(self._inbox or self._carried or due or self._declared < self.schema.version)


class MemoryFiles:
    """The files of a :class:`MemoryApplication` for one gateway; see ``ApplicationFiles``."""

    def __init__(self, application: MemoryApplication, gateway: str) -> None:
        self.application = application
        self.writes = 0
        """Number of files that the gateway has written."""
        self._gateway = gateway
        self._known: int | None = None
        self._batches: list[tuple[int, int]] = []
        """The batch that reads each written file."""

    def open(self) -> int:
        """Begin a generation, and return its number."""
        self.application.generations[self._gateway] += 1
        return self.application.generations[self._gateway]

    def write(self, events: Sequence[tuple[PartitionKey, bytes]]) -> int:
        """Write events to the inbox, and return the number of the file."""
        self.writes += 1
        batch = self.application.write([(key, decode(data)) for key, data in events])
        self._batches.append((batch, self.writes))
        return self.writes

    def read_to(self, batch: int) -> int:
        """The number of the newest file that batches up to a committed one have read; 0: none."""
        return max((number for one, number in self._batches if one <= batch), default=0)

    def superseded(self) -> bool:
        """Whether another process has begun a newer generation."""
        return False

    def committed(self) -> int | None:
        """The newest committed batch."""
        return self.application.committed

    def await_commit(self) -> None:
        """Wait a moment, unless there was a commit since the last call."""
        known, self._known = self._known, self.application.committed
        if known == self._known:
            time.sleep(0.01)

    def messages(self, batch: int) -> Sequence[Message]:
        """The messages of a batch for this gateway."""
        return self.application.messages(self._gateway, batch)

    def read(self, stream: str, partition: int, first: int, last: int) -> tuple[int, Sequence[CloudEvent]]:
        """Records of a partition, and the offset of the first."""
        return self.application.read(PartitionKey(stream, partition), first, last)

    def schema(self, known: int) -> StoredSchema | None:
        """The schema, if it is newer than a known version."""
        return self.application.schema if self.application.schema.version != known else None

    def tokens(self) -> Mapping[str, KeptToken]:
        """The tokens."""
        return dict(self.application.tokens)


@dataclass
class ServedGateway:
    """A gateway that serves an address."""

    gateway: Gateway
    files: MemoryFiles
    address: str
    """Host and port of its gRPC listener."""
    failures: list[BaseException] = field(default_factory=list)
    """The errors that have ended it."""
    peers: dict[str, str] = field(default_factory=dict)
    """The gateways that it knows, by name; a test fills it."""


@contextlib.asynccontextmanager
async def serving(
    application: MemoryApplication,
    name: str = "g0",
    limits: GatewayLimits | None = None,
    *,
    connect: Callable[[str], Any] = channel_to,
    port: int = 0,
    grace: float = 1.0,
    **tls: Any,
) -> AsyncIterator[ServedGateway]:
    """Run a gateway on a port of loopback, with its gRPC server: a free port with 0. ``grace``: the seconds that calls
    have at its end. ``connect`` makes the channel to another gateway. ``tls``: the arguments of ``bind``."""
    files, failures = application.files(name), list[BaseException]()
    peers: dict[str, str] = {}
    gateway = Gateway(
        name, files, limits or GatewayLimits(), failures.append, peers=Peers(name, lambda: peers, connect)
    )
    server = make_server(gateway)
    address = f"127.0.0.1:{bind(server, '127.0.0.1', port, **tls)}"
    gateway.addresses = lambda: [address]
    await gateway.start()
    await server.start()
    try:
        yield ServedGateway(gateway, files, address, failures, peers)
    finally:
        gateway.end("the test ends")
        await server.stop(grace)
        await gateway.close()
