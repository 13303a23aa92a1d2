"""A small world around a worker's state: connectors that replay, a registry that takes its time, and a query.

Everything happens when the test says so. What must hold is checked as it happens: nothing is acknowledged that is not
committed, and past its budget a worker reads nobody.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from tests.worker.bench import COOKIE, Bench, Connector
from wallaroo_spark.protocol import (
    NOTHING_PROCESSED,
    Ack,
    Error,
    Flags,
    Frame,
    Message,
    Nack,
    NotifyAck,
    Ok,
    Restart,
    Revision,
    StreamState,
    faults,
)
from wallaroo_spark.references import PlannedRange, Reference, StreamKey
from wallaroo_spark.worker.buffer.ephemeral import Origin
from wallaroo_spark.worker.machine import events as e
from wallaroo_spark.worker.machine.connection_state import ConnectionPhase
from wallaroo_spark.worker.machine.state import WorkerState


@dataclass
class Source:
    """A stream as its connector has it: all its messages, without an end."""

    stream_id: int
    ids: list[int]
    sizes: list[int]
    unstable: frozenset[int] = frozenset()
    ephemeral: bool = False
    next: int | None = None
    ended: bool = False

    def index_after(self, reference: int | None) -> int:
        """Where to go on behind a reference."""
        return 0 if reference is None else self.ids.index(reference) + 1

    def message(self, at: int) -> Message:
        flags = Flags.UNSTABLE_REFERENCE if at in self.unstable else Flags.NONE
        flags |= Flags.EPHEMERAL if self.ephemeral else Flags.NONE
        return Message(self.stream_id, self.ids[at], self.ids[at].to_bytes(4) + b"x" * self.sizes[at], flags)


class Sender:
    """A connector instance: one connection at a time, and the state that it keeps between connections."""

    def __init__(self, world: World, instance: str, revision: Revision, sources: list[Source]) -> None:
        self.world = world
        self.instance = instance
        self.revision = revision
        self.sources = {source.stream_id: source for source in sources}
        self.connector: Connector | None = None
        self.outbox = b""
        self.refs: dict[int, int] = {}
        self.over = False
        self._seen = 0

    def key(self, stream_id: int) -> StreamKey:
        return StreamKey(self.instance if self.revision.stream_scope == "instance" else "", stream_id)

    def connect(self) -> None:
        self.connector = self.world.bench.connect(self.revision, self.instance)
        self._seen, self.over, self.refs = 0, False, {}
        for source in self.sources.values():
            source.ended = False
            if not source.ephemeral:
                source.next = None
        self.outbox = self.connector.session.hello(
            version="0.0.1", cookie=COOKIE.encode(), program="", instance=self.instance
        )

    def disconnect(self) -> None:
        """The connection is gone, and the worker has noticed."""
        if self.connector is not None:
            self.connector.leave()
            self.connector = None

    @property
    def streaming(self) -> bool:
        return self.connector is not None and not self.over and bool(self.connector.said(Ok))

    def react(self) -> None:
        """Record the frames that the worker has sent since, and that it has closed the connection."""
        while self.connector is not None and self._seen < len(self.connector.frames):
            self._seen += 1
            self._take(self.connector.frames[self._seen - 1])
        if self.connector is not None and self.connector.closed is not None:
            self.over = True

    def _take(self, frame: Frame) -> None:
        match frame:
            case Ok():
                self.refs = {stream.stream_id: stream.ref for stream in frame.streams}
                for stream_id, ref in self.refs.items():
                    self.world.check_committed(self.key(stream_id), ref)
            case NotifyAck():
                source = self.sources[frame.stream_id]
                if frame.success and frame.ref != NOTHING_PROCESSED:
                    self.world.check_committed(self.key(frame.stream_id), frame.ref)
                reference = None if frame.ref == NOTHING_PROCESSED else frame.ref
                source.next = source.index_after(reference) if frame.success else None
            case Ack():
                for stream_id, ref in frame.refs:
                    self.world.check_committed(self.key(stream_id), ref)
                    self.refs[stream_id] = ref
            case Nack():
                self.refs.pop(frame.stream_id, None)
                if frame.ref:
                    self.refs[frame.stream_id] = frame.ref
                self.sources[frame.stream_id].next = None
                self.sources[frame.stream_id].ended = False
            case Restart():
                self.over = True
            case Error():
                assert faults.is_later(frame.reason) or "takes its place" in frame.reason, frame.reason
                self.over = True

    def open(self, stream_id: int) -> None:
        """NOTIFY a stream that may be notified."""
        if not self.streaming:
            return
        assert self.connector is not None
        source, session = self.sources[stream_id], self.connector.session
        if session.streams.get(stream_id).state not in (StreamState.START, StreamState.CLOSED, StreamState.RESET):
            return
        if source.ended:
            return
        ref = self.refs.get(stream_id)
        self.outbox += session.notify(stream_id, "a stream", ref or 0)
        if self.revision.stream_scope == "instance" and session.is_open(stream_id):
            source.next = source.next or 0 if source.ephemeral else source.index_after(ref)

    def send(self, stream_id: int, most: int) -> None:
        """Send the next messages of a stream, and its end behind the last, as far as there are credits."""
        if not self.streaming:
            return
        assert self.connector is not None
        source, session = self.sources[stream_id], self.connector.session
        while most and source.next is not None and session.is_open(stream_id) and not source.ended:
            if session.credits.available < 1:
                return
            if source.next < len(source.ids):
                self.outbox += session.message(source.message(source.next))
                source.next += 1
            elif source.ephemeral:
                return
            else:
                self.outbox += session.end_of_stream(stream_id, source.ids[-1])
                source.ended = True
            most -= 1

    def deliver(self, count: int) -> None:
        """Some of the sent bytes arrive in one read, unless the worker does not read."""
        if self.connector is None or self.connector.paused or not self.outbox:
            return
        data, self.outbox = self.outbox[:count], self.outbox[count:]
        self.connector.send(data)
        self.react()


@dataclass
class Query:
    """Spark's state: committed batches, the planned batch, and the delivered rows."""

    offsets: list[dict[StreamKey, Reference]] = field(default_factory=lambda: [{}])
    delivered: list[dict[StreamKey, list[int]]] = field(default_factory=list)
    planned: dict[StreamKey, Reference] | None = None
    got: dict[StreamKey, list[int]] = field(default_factory=dict)

    @property
    def committed(self) -> dict[StreamKey, Reference]:
        return self.offsets[-1]

    def rows(self, key: StreamKey) -> list[int]:
        """All that was committed of a stream, in order."""
        return [value for batch in self.delivered for value in batch.get(key, [])]


class World:
    """One worker at a time, its connectors and its query."""

    def __init__(self, message_ids: str, budget: int) -> None:
        self.bench = Bench(message_ids=message_ids, memory_budget=budget, ready=False)
        self.bench.registry_answers = False
        self.query = Query()
        self.senders: list[Sender] = []
        self.told: dict[StreamKey, Reference] = {}
        self.now = 0.0
        self.restart_query()

    def add(self, instance: str, revision: Revision, sources: list[Source]) -> Sender:
        self.senders.append(Sender(self, instance, revision, sources))
        return self.senders[-1]

    def check_committed(self, key: StreamKey, reference: int) -> None:
        """A reference that a connector is told is one that Spark has committed, no older and no newer."""
        assert self.told.get(key) == reference, (key, reference, self.told.get(key))
        assert self.query.committed.get(key) is not None

    def answer_registry(self) -> None:
        """The registry answers the oldest question."""
        if self.bench.held_back:
            self.bench.answer(self.bench.held_back.pop(0))
            self.react()

    def tick(self) -> None:
        """Time passes."""
        self.now += 0.25
        self.bench.do(e.Tick(self.now))
        self.react()

    def react(self) -> None:
        for sender in self.senders:
            sender.react()

    def plan(self, rows: int | None, size: int | None) -> None:
        """Spark writes the plan of the next batch."""
        if self.query.planned is None:
            self.bench.offsets = dict(self.query.committed)
            self.query.planned = self.bench.plan(rows, size) or None
            self.query.got = {}

    def read(self) -> bool:
        """A task reads the available rows of the planned batch, and waits for the rest. Returns whether it has all."""
        planned = self.query.planned
        if planned is None:
            return False
        start = self.query.committed
        missing = []
        for key, end in planned.items():
            if key in self.query.got:
                continue
            wanted = PlannedRange(key, start.get(key), end)
            found = self.bench.state.buffer.find(wanted)
            if found is None:
                missing.append(wanted)
            else:
                values = [value for part, _ in found.slices for value in part.stored["value"].to_pylist()]
                self.query.got[key] = [int.from_bytes(value[:4]) for value in values]
        self.bench.do(e.Wanted(tuple(missing)))
        self.react()
        return not missing

    def retry(self) -> None:
        """The task failed and starts again."""
        self.query.got = {}

    def commit(self) -> None:
        """Spark writes the commit, when all of the batch has been read."""
        query = self.query
        if query.planned is None or query.planned.keys() != query.got.keys():
            return
        query.offsets.append({**query.committed, **query.planned})
        query.delivered.append(query.got)
        query.planned, query.got = None, {}

    def tell(self) -> None:
        """The driver tells the worker the commits since its last notice."""
        committed = self.query.committed
        changed = {key: ref for key, ref in committed.items() if self.told.get(key) != ref}
        self.told = dict(committed)
        self.bench.told = dict(committed)
        self.bench.batch = len(self.query.delivered) - 1
        self.bench.do(e.Committed(self.bench.epoch, self.bench.batch, changed))
        self.react()

    def restart_query(self) -> None:
        """A new query on the checkpoint as it is; a planned batch runs again."""
        self.query.got = {}
        self.told = dict(self.query.committed)
        self.bench.do(e.Wanted(()))
        self.bench.rewind(self.query.committed, len(self.query.delivered) - 1)
        self.react()

    def go_back(self, batches: int) -> None:
        """A query on an older copy of the checkpoint."""
        keep = max(0, len(self.query.delivered) - batches)
        self.query = Query(self.query.offsets[: keep + 1], self.query.delivered[:keep])
        self.restart_query()

    def lose_worker(self, generation: int) -> None:
        """The worker dies with all it holds; another takes its place, which the driver tells where the query stands."""
        for sender in self.senders:
            sender.connector = None
            sender.outbox = b""
        self.bench.held_back.clear()
        epoch = self.bench.epoch
        self.bench.state = WorkerState(self.bench.options, Origin(0, generation), COOKIE)
        self.bench.epoch = epoch
        self.restart_query()

    def check(self) -> None:
        """The invariants after every step."""
        state = self.bench.state
        for number, connection in state.connections.by_number.items():
            full = state.buffer.used >= state.buffer.budget and connection.phase is ConnectionPhase.STREAMING
            assert self.bench.connectors[number].paused or connection.turn is not None or not full, connection
        for sender in self.senders:
            for source in sender.sources.values():
                self._check_rows(sender.key(source.stream_id), source)

    def _check_rows(self, key: StreamKey, source: Source) -> None:
        rows = self.query.rows(key)
        if source.ephemeral:
            assert rows == sorted(set(rows))
        else:
            assert rows == source.ids[: len(rows)]

    def finish(self) -> None:
        """Let everything run until all that was sent is committed; it must come to that."""
        for _ in range(400):
            if self._step():
                return
        held = {str(ledger): ledger.ended for ledger in self.bench.state.buffer.streams.values()}
        raise AssertionError((self.query.planned, self.query.got.keys(), held, self.bench.state.status()))

    def _step(self) -> bool:
        while self.bench.held_back:
            self.answer_registry()
        for sender in self.senders:
            if sender.connector is None or sender.over:
                sender.disconnect()
                sender.connect()
            for stream_id in sender.sources:
                sender.open(stream_id)
                sender.send(stream_id, 1_000)
            while sender.outbox and sender.connector is not None and not sender.connector.paused:
                sender.deliver(20_000)
        self.tick()
        self.plan(None, None)
        if self.read():
            self.commit()
            self.tell()
        self.check()
        return all(
            len(self.query.rows(sender.key(source.stream_id))) == len(source.ids)
            for sender in self.senders
            for source in sender.sources.values()
            if not source.ephemeral
        )
