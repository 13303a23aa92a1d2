"""An application of durable streams for tests: a real gateway around real controllers, in memory, without Spark.

Publishers, consumers and stages connect to it as to an application in production, in any language. Stages with ``run:``
are run by the code that runs them in Spark. Only the files and Spark itself are left out, and with them durability.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections import defaultdict
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import timedelta
from pathlib import Path
from typing import Any, Self

from wallaroo_spark.client import Client, Event, StageFunction
from wallaroo_spark.client.events import decode_value
from wallaroo_spark.engine.operator.functions import StageFunctions
from wallaroo_spark.engine.operator.rows import gateway_of
from wallaroo_spark.engine.operator.turn import InputRow, take_turn
from wallaroo_spark.errors import ConfigurationError, PipelineError, TransportError
from wallaroo_spark.event_loop import LoopThread, beside
from wallaroo_spark.gateway.cloud_events import to_wire
from wallaroo_spark.gateway.files import Message
from wallaroo_spark.gateway.limits import GatewayLimits
from wallaroo_spark.gateway.server.credentials import NO_TLS, TlsFiles
from wallaroo_spark.gateway.server.gateway import Gateway
from wallaroo_spark.gateway.server.listener import bind, make_server
from wallaroo_spark.gateway.server.peers import Peers, channel_to
from wallaroo_spark.gateway.tokens import KeptToken, create_token
from wallaroo_spark.pipelines.controller.messages import events as e
from wallaroo_spark.pipelines.controller.messages import instructions as i
from wallaroo_spark.pipelines.controller.messages.plans import partition_plans
from wallaroo_spark.pipelines.controller.messages.values import PartitionKey
from wallaroo_spark.pipelines.controller.stored.encoding import decode, encode
from wallaroo_spark.pipelines.schema.applying import check_objects
from wallaroo_spark.pipelines.schema.cloud_event import CloudEvent
from wallaroo_spark.pipelines.schema.declarations import PipelineDeclaration, StreamDeclaration
from wallaroo_spark.pipelines.schema.documents import PlacedDeclaration, Problems, read_declarations, read_files
from wallaroo_spark.pipelines.schema.names import ObjectKey
from wallaroo_spark.pipelines.schema.store import StoredSchema
from wallaroo_spark.pipelines.schema.validation import distinct
from wallaroo_spark.streams.inbox import DRIVER
from wallaroo_spark.texts import hint
from wallaroo_spark.transport import parse_address
from wallaroo_spark.yaml_reader import documents_of


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
                for stream, plan in partition_plans(self.schema.objects.values()).items():
                    for number in range(plan.partitions):
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
            elif isinstance(one, i.ForGateway):
                gateway = gateway_of(one)
                if gateway != DRIVER:
                    self._outbox[gateway][self.committed + 1].append((one, self._attached(one, table)))

    def _attached(self, one: i.ForGateway, table: Sequence[CloudEvent]) -> tuple[CloudEvent, ...] | None:
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
    tls: TlsFiles = NO_TLS,
) -> AsyncIterator[ServedGateway]:
    """Run a gateway on a port of loopback, with its gRPC server: a free port with 0. ``grace``: the seconds that calls
    have at its end. ``connect`` makes the channel to another gateway."""
    files, failures = application.files(name), list[BaseException]()
    peers: dict[str, str] = {}
    gateway = Gateway(
        name, files, limits or GatewayLimits(), failures.append, peers=Peers(name, lambda: peers, connect)
    )
    server = make_server(gateway)
    address = f"127.0.0.1:{bind(server, '127.0.0.1', port, tls)}"
    gateway.addresses = lambda: [address]
    await gateway.start()
    await server.start()
    try:
        yield ServedGateway(gateway, files, address, failures, peers)
    finally:
        gateway.end("the test ends")
        await server.stop(grace)
        await gateway.close()


WAIT_SECONDS = 30.0
"""Default limit in seconds of a test's wait. A choice, generous for loaded machines."""
END_SECONDS = 0.1
"""Seconds that calls have to end by themselves when the gateway stops. A choice: they are told to end before."""


@dataclass(frozen=True)
class PipelineInstance:
    """One instance of a pipeline, as far as it has come."""

    partition: int
    """Number of the partition."""
    instance: int
    """Its number: the offset of the record that began it."""
    outcome: str | None
    """``done``, ``failed`` or ``cancelled``; None while it is active."""
    reason: str
    """Why it failed or was cancelled."""
    outputs: Mapping[str, Any]
    """The output of each stage that is done, by its name: a JSON value, a str or bytes; None for none."""


class FakeApplication:
    """An application at one address for the duration of the ``with`` block. Any thread may call its methods.

    ``schema`` are YAML files, or documents as texts of more than one line. Raises :class:`ConfigurationError` with all
    problems of the documents, as ``wallaroo-spark apply`` does.
    It needs ``pip install 'wallaroo-spark[pipelines,cli]'``.
    """

    def __init__(self, *schema: str | Path, port: int = 0) -> None:
        self._schema = _applied(StoredSchema(0, {}), schema)
        self._port = port
        self._memory: MemoryApplication | None = None
        self._loop: LoopThread
        self._served: ServedGateway
        self._serving = contextlib.AsyncExitStack()
        self._failures: list[Exception] = []

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def start(self) -> None:
        """Start to serve, as the ``with`` statement does; for tests that cannot use one."""
        self._memory = MemoryApplication(self._schema)
        self._loop = LoopThread("fake-application")
        try:
            self._loop.call(self._serve)
        except BaseException:
            self.stop()
            raise

    def stop(self) -> None:
        """End all connections. Everything that was kept is lost."""
        memory, self._memory = self._memory, None
        if memory is not None:
            self._loop.call(self._serving.aclose)
            self._loop.stop()
            memory.close()

    @property
    def address(self) -> str:
        """The address for clients, ``host:port``. It stays the same after :meth:`restart_gateway`."""
        self._running()
        return self._served.address

    def restart_gateway(self) -> None:
        """The gateway ends, and with it every connection; another one serves the same address. Records, instances and
        groups are kept; deliveries that were not acked are given to members again."""
        self._running()
        self._loop.call(self._serve_again)

    def apply(self, *schema: str | Path) -> None:
        """Apply further documents while the application runs. Raises :class:`ConfigurationError`."""
        memory = self._running()
        memory.apply(_applied(memory.schema, schema))
        self._tell_gateway()

    def create_token(self, name: str) -> str:
        """Create a token of a declared Token, for the client's ``token``.

        Raises :class:`PipelineError` for a name that is not declared.
        """
        memory = self._running()
        text, kept = create_token(_declared(memory.schema, "Token", name), time.time())
        memory.tokens[kept.id] = kept
        self._tell_gateway()
        return text

    def advance(self, seconds: float | timedelta) -> None:
        """Set the application's clock forward: delays of retries, and delayed events, need no waiting in a test."""
        self._running().advance(seconds.total_seconds() if isinstance(seconds, timedelta) else seconds)

    def records(self, stream: str, partition: int | None = None) -> list[Event]:
        """The events of a stream, in the order of partitions and offsets; of one partition with ``partition``.

        Raises :class:`PipelineError` for a stream that is not declared.
        """
        memory = self._running()
        declared = _declared(memory.schema, "Stream", stream)
        assert isinstance(declared, StreamDeclaration)
        partitions = range(declared.partitions) if partition is None else (partition,)
        return [
            Event.from_message(to_wire(record))
            for number in partitions
            for record in list(memory.records[PartitionKey(stream, number)])
        ]

    def instances(self, pipeline: str) -> list[PipelineInstance]:
        """The instances of a pipeline, in the order of partitions and numbers.

        Raises :class:`PipelineError` for a pipeline that is not declared.
        """
        memory = self._running()
        _declared(memory.schema, "Pipeline", pipeline)
        found: dict[tuple[int, int], PipelineInstance] = {}
        for key, said in list(memory.said):
            match said:
                case i.InstanceBegan(pipeline=name) if name == pipeline:
                    found[key.partition, said.instance] = PipelineInstance(key.partition, said.instance, None, "", {})
                case i.StoreOutput(delivery=of) if of.pipeline == pipeline:
                    one, output = found[key.partition, of.instance], said.output
                    value = None if output is None else decode_value(output.data, output.content_type)
                    found[key.partition, of.instance] = replace(one, outputs={**one.outputs, of.stage: value})
                case i.InstanceEnded(pipeline=name) if name == pipeline:
                    place = key.partition, said.instance
                    found[place] = replace(found[place], outcome=str(said.outcome), reason=said.reason)
        return [found[place] for place in sorted(found)]

    def await_ended(self, pipeline: str, count: int = 1, seconds: float = WAIT_SECONDS) -> list[PipelineInstance]:
        """Wait until ``count`` instances of a pipeline have ended, and return those that have.

        Raises :class:`TransportError` when they have not within ``seconds``, with the stages that active instances wait
        for, and :class:`PipelineError` for a pipeline that is not declared.
        """

        def ended() -> list[PipelineInstance]:
            return [one for one in self.instances(pipeline) if one.outcome is not None]

        if not self._wait(lambda: len(ended()) >= count, seconds):
            raise TransportError(
                f"{len(ended())} of {count} instances of {pipeline} have ended after {seconds:g} s; "
                f"{self._waiting_for(pipeline)}",
                code="test-timed-out",
            )
        return ended()

    def await_records(self, stream: str, count: int = 1, seconds: float = WAIT_SECONDS) -> list[Event]:
        """Wait until a stream has ``count`` events, and return all that it has.

        Raises as :meth:`await_ended`.
        """
        if not self._wait(lambda: len(self.records(stream)) >= count, seconds):
            found = len(self.records(stream))
            raise TransportError(
                f"stream {stream} has {found} events after {seconds:g} s, and the test needs {count}",
                code="test-timed-out",
            )
        return self.records(stream)

    @contextlib.contextmanager
    def working(self, *stages: StageFunction, **settings: Any) -> Iterator[None]:
        """Within the block, functions with ``@stage`` work on their stages, as a program of their own does.

        ``settings`` are those of the client. At the end of the block, functions that run may end. The error of a stage
        that cannot be joined is raised by the next wait, or at the end of the block.
        """
        with (
            Client(self.address, **settings) as client,
            beside(lambda: self._work(client, stages), "fake-stages", client.stop, WAIT_SECONDS),
        ):
            yield
        self._raise_failure()

    def _work(self, client: Client, stages: Sequence[StageFunction]) -> None:
        try:
            client.work(*stages)
        except Exception as error:
            self._failures.append(error)
            # Wakes a wait of the test.
            self.advance(0)

    def _wait(self, holds: Callable[[], bool], seconds: float) -> bool:
        found = self._running().wait(lambda: bool(self._failures) or holds(), seconds)
        self._raise_failure()
        return found

    def _raise_failure(self) -> None:
        if self._failures:
            raise self._failures.pop()

    def _tell_gateway(self) -> None:
        # It would look by itself a second later.
        self._loop.call(self._served.gateway.take_rules)

    def _waiting_for(self, pipeline: str) -> str:
        memory = self._running()
        declared = _declared(memory.schema, "Pipeline", pipeline)
        assert isinstance(declared, PipelineDeclaration)
        active = [one for one in self.instances(pipeline) if one.outcome is None]
        if not active:
            return "no instance is active; compare the type of the events with the triggers"
        done = active[0].outputs
        left = [
            one.name
            for one in declared.stages
            if one.name not in done and done.keys() >= {*one.after, *one.dependencies} - {"root_event"}
        ]
        where = f"instance {active[0].instance} of partition {active[0].partition}"
        if not left:
            return f"{len(active)} are active; {where} waits for the places of its stream outputs"
        return f"{len(active)} are active; {where} waits for a result of {', '.join(left)}"

    async def _serve(self) -> None:
        serving_one = serving(self._running(), port=self._port, grace=END_SECONDS)
        self._served = await self._serving.enter_async_context(serving_one)
        self._port = parse_address(self._served.address)[1]

    async def _serve_again(self) -> None:
        await self._serving.aclose()
        await self._serve()

    def _running(self) -> MemoryApplication:
        if self._memory is None:
            raise ConfigurationError(
                "the fake application is not started; use it in a with statement", code="receiver-not-started"
            )
        return self._memory


def _applied(stored: StoredSchema, given: Sequence[str | Path]) -> StoredSchema:
    """The schema with the documents of ``given``, checked as a whole. Raises :class:`ConfigurationError`."""
    problems = Problems()
    placed: list[PlacedDeclaration] = []
    for one in given:
        if isinstance(one, str) and "\n" in one:
            placed += read_declarations(documents_of(one, "schema"), problems)
        else:
            placed += read_files([str(one)], problems)
    documents = distinct(placed, problems)
    objects = {**stored.objects, **{key: one.declaration for key, one in documents.items()}}
    check_objects(stored, objects, documents, problems)
    problems.refuse()
    return StoredSchema(stored.version + 1, objects, stored.branches, time.time())


def _declared(schema: StoredSchema, kind: str, path: str) -> Any:
    """The declaration of ``namespace/name``. Raises :class:`PipelineError`."""
    namespace, _, name = path.rpartition("/")
    found = schema.objects.get(ObjectKey(kind, namespace, name))
    if found is None:
        known = [key.path for key in schema.objects if key.kind == kind]
        way_out = hint(path, known, f"the {kind.lower()}s are", f"no {kind.lower()} is declared")
        raise PipelineError(f"{kind.lower()} {path} is not declared: {way_out}", code="object-unknown")
    return found
