"""A worker's state with connectors: real bytes both ways, no socket, and a registry and a query in a few lines."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from proving.simulator.worker_validation import validate_worker
from wallaroo_spark.errors import RemoteProtocolError
from wallaroo_spark.options import Options
from wallaroo_spark.protocol import (
    V3,
    Ack,
    ConnectorSession,
    Error,
    Flags,
    Frame,
    Message,
    Nack,
    Notify,
    NotifyAck,
    Ok,
    Restart,
    Revision,
    frame_name,
)
from wallaroo_spark.references import PlannedRange, Reference, StreamKey
from wallaroo_spark.worker.buffer.buffer import Buffer
from wallaroo_spark.worker.buffer.ephemeral import Origin
from wallaroo_spark.worker.buffer.found import FoundRange
from wallaroo_spark.worker.buffer.held_stream import Extent
from wallaroo_spark.worker.machine import events as e
from wallaroo_spark.worker.machine.state import WorkerState

COOKIE = "a secret"
NOON = 1_700_000_000_000_000
"""A time of receipt, in microseconds since 1970 UTC."""


class Connector:
    """One connection to the bench, with the connector's side of the session."""

    def __init__(self, bench: Bench, number: int, revision: Revision, instance: str) -> None:
        self.bench = bench
        self.number = number
        self.revision = revision
        self.instance = instance
        self.session = ConnectorSession(revision, max_frame_bytes=64 << 20)
        self.frames: list[Frame] = []
        self.paused = False
        self.closed: e.Close | None = None

    def send(self, *frames: bytes) -> list[Frame]:
        """Have bytes received by the worker; the frames that it answers with."""
        return self.bench.answered(self, e.Received(((self.number, b"".join(frames)),), NOON))

    def raw(self, frame: Frame) -> list[Frame]:
        """Send a frame whether the session's state allows it or not."""
        return self.send(self.revision.encode(frame))

    def hello(self, version: str = "0.0.1", cookie: str = COOKIE, program: str = "a test") -> list[Frame]:
        hello = self.session.hello(version=version, cookie=cookie.encode(), program=program, instance=self.instance)
        return self.send(hello)

    def open(self, stream_id: int, ref: int = 0, name: str = "a stream") -> list[Frame]:
        return self.send(self.session.notify(stream_id, name, ref))

    def message(self, stream_id: int, message_id: int | None, flags: Flags = Flags.NONE, size: int = 10) -> bytes:
        payload = None if flags & Flags.BOUNDARY else b"x" * size
        return self.session.message(Message(stream_id, message_id, payload, flags))

    def messages(
        self, stream_id: int, ids: Iterable[int | None], flags: Flags = Flags.NONE, size: int = 10
    ) -> list[Frame]:
        return self.send(*(self.message(stream_id, message_id, flags, size) for message_id in ids))

    def end(self, stream_id: int, last_id: int) -> list[Frame]:
        return self.send(self.session.end_of_stream(stream_id, last_id))

    def leave(self, reason: str = "") -> None:
        self.bench.do(e.Disconnected(self.number, reason))

    def take(self, data: bytes) -> None:
        self.session.receive(data)
        while (frame := self.session.next_event()) is not None:
            self.frames.append(frame)

    def said(self, kind: type[Any]) -> list[Any]:
        """All frames of a kind that the worker has sent."""
        return [frame for frame in self.frames if isinstance(frame, kind)]

    @property
    def error(self) -> str:
        """The reason of the ERROR that was received; empty when there was none."""
        return "".join(frame.reason for frame in self.said(Error))


class Bench:
    """A worker's state, its connectors, its registry and its query.

    The registry grants everything unless ``claims_of_others`` has the stream or ``slot_of`` names another slot.
    """

    def __init__(self, slot: int = 0, ready: bool = True, **options: Any) -> None:
        self.options = Options(cookie=COOKIE, **options)
        self.state = WorkerState(self.options, Origin(slot, 7), COOKIE)
        self.connectors: dict[int, Connector] = {}
        self.slot_of: dict[str, tuple[int, str | None]] = {}
        self.claims_of_others: set[int] = set()
        self.released: list[int] = []
        self.unassigned: list[str] = []
        self.logged: list[e.Log] = []
        self.held_back: list[e.Instruction] = []
        self.registry_answers = True
        self.driver_answers = True
        self.records = True
        """Whether the driver records ranges that are given up."""
        self.woken = 0
        self.offsets: dict[StreamKey, Reference] = {}
        self.told: dict[StreamKey, Reference] = {}
        """The committed references of the last notice."""
        self.batch = -1
        self.epoch = 0
        if ready:
            self.rewind({})

    def connect(
        self, revision: Revision = V3, instance: str = "shop-1", now: float = 0.0, certified: tuple[str, ...] = ()
    ) -> Connector:
        """A peer that has said nothing yet."""
        number = len(self.connectors)
        connector = self.connectors[number] = Connector(self, number, revision, instance)
        self.do(e.Connected(number, f"10.0.0.1:{number}", now, certified))
        return connector

    def join(self, revision: Revision = V3, instance: str = "shop-1") -> Connector:
        """A connector that has been told OK."""
        connector = self.connect(revision, instance)
        answers = connector.hello()
        assert [type(answer) for answer in answers] == [Ok], answers
        return connector

    def answered(self, connector: Connector, event: e.Event) -> list[Frame]:
        """Pass an event to the state, and return the bytes that one connector was sent meanwhile."""
        before = len(connector.frames)
        self.do(event)
        return connector.frames[before:]

    def do(self, event: e.Event) -> list[e.Instruction]:
        """Do an event, and the registry's part in it; the instructions of the event itself."""
        instructions = self.state.handle(event)
        self.carry_out(instructions)
        return instructions

    def validate(self) -> None:
        """Check the invariants of the state."""
        validate_worker(self.state)

    def carry_out(self, instructions: Iterable[e.Instruction]) -> None:
        """Carry out the instructions of the state, then check its invariants."""
        self.validate()
        for instruction in instructions:
            self._carry_out(instruction)

    def _carry_out(self, instruction: e.Instruction) -> None:
        match instruction:
            case e.Send():
                self.connectors[instruction.connection].take(instruction.data)
            case e.Close():
                self.connectors[instruction.connection].closed = instruction
            case e.SetReading():
                assert self.connectors[instruction.connection].paused is instruction.reading
                self.connectors[instruction.connection].paused = not instruction.reading
            case e.AskAssignment() | e.AskClaims():
                if self.registry_answers:
                    self.answer(instruction)
                else:
                    self.held_back.append(instruction)
            case e.ReleaseClaims():
                self.released.extend(instruction.streams)
            case e.ReleaseInstances():
                self.unassigned.extend(instruction.instances)
            case e.Log():
                self.logged.append(instruction)
            case e.WakeReaders():
                self.woken += 1
            case e.WakeDriver():
                if self.driver_answers:
                    self.tell_scopes()
                else:
                    self.held_back.append(instruction)

    def answer(self, ask: e.Instruction) -> None:
        """The registry's answer to a question."""
        if isinstance(ask, e.WakeDriver):
            self.tell_scopes()
        elif isinstance(ask, e.AskAssignment):
            slot, address = self.slot_of.get(ask.instance, (self.state.connections.slot, "here:1"))
            self.do(e.Assigned(ask.connection, ask.instance, slot, address))
        else:
            assert isinstance(ask, e.AskClaims)
            self.do(e.Claimed(ask.connection, ask.streams, frozenset(ask.streams) - self.claims_of_others))

    def rewind(self, references: Mapping[StreamKey, Reference], batch: int = -1) -> None:
        """A query starts from these references."""
        self.epoch += 1
        self.batch = batch
        self.offsets = dict(references)
        self.told = dict(references)
        self.do(e.Rewound(self.epoch, batch, dict(references)))

    def tell_scopes(self) -> None:
        """The driver asks which scopes the worker follows, and tells it all of their references."""
        answer = self.state.connections.following.answer(0, everything=False)
        mine = {key: reference for key, reference in self.told.items() if key.scope in answer.new}
        given_up = answer.give_up if self.records else ()
        self.do(e.Committed(self.epoch, self.batch, mine, scopes=answer.new, cursor=answer.cursor, given_up=given_up))

    def plan(self, rows: int | None = None, size: int | None = None) -> dict[StreamKey, Reference]:
        """The ends of the next batch."""
        return {key: extent.end for key, extent in extents(self.state.buffer, self.offsets, rows, size).items()}

    def find(self, ends: Mapping[StreamKey, Reference]) -> dict[StreamKey, FoundRange | None]:
        """The rows of a planned batch that the worker has."""
        return {key: self.state.buffer.find(PlannedRange(key, self.offsets.get(key), end)) for key, end in ends.items()}

    def commit(self, ends: Mapping[StreamKey, Reference]) -> None:
        """Spark has committed a batch with these ends."""
        self.batch += 1
        changed = {key: end for key, end in ends.items() if self.offsets.get(key) != end}
        self.offsets.update(ends)
        self.told.update(ends)
        self.do(e.Committed(self.epoch, self.batch, changed))

    def run_batch(self, rows: int | None = None, size: int | None = None) -> dict[StreamKey, list[int | None]]:
        """Plan, read and commit one batch; the message ids that it delivers, by stream."""
        ends = self.plan(rows, size)
        found = self.find(ends)
        delivered = {key: ids_of(range_) for key, range_ in found.items()}
        self.commit(ends)
        return delivered

    @property
    def counts(self) -> Mapping[str, int]:
        counts: Mapping[str, int] = self.state.status()["counts"]
        return counts

    def warnings(self) -> list[str]:
        """The log lines that an operator should see."""
        return [line.text for line in self.logged if line.warning]


def ids_of(found: FoundRange | None) -> list[int | None]:
    """The message ids of a range that must be here."""
    assert found is not None
    return [value for part, _ in found.slices for value in part.stored["message_id"].to_pylist()]


def names(frames: Iterable[Frame]) -> list[str]:
    """The kinds of these frames."""
    return [frame_name(type(frame)) for frame in frames]


__all__ = [
    "COOKIE",
    "NOON",
    "Ack",
    "Bench",
    "Connector",
    "Error",
    "Flags",
    "Message",
    "Nack",
    "Notify",
    "NotifyAck",
    "Ok",
    "RemoteProtocolError",
    "Restart",
    "StreamKey",
    "ids_of",
    "names",
]


def extents(
    buffer: Buffer,
    start: Mapping[StreamKey, Reference | None],
    max_rows: int | None = None,
    max_bytes: int | None = None,
) -> dict[StreamKey, Extent]:
    """The part of each stream that a batch with this start may take."""
    return buffer.extents(buffer.with_rows(), start, max_rows, max_bytes)[0]
