"""Sessions brought to where a test begins, and a joined pair of them."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from tests.protocol.spans import spans
from wallaroo_spark.errors import RemoteProtocolError
from wallaroo_spark.protocol import (
    DRAFT_LE,
    REVISIONS,
    V3,
    Ack,
    Admission,
    ConnectorSession,
    EosMessage,
    Error,
    Flags,
    Frame,
    FrameBuffer,
    Hello,
    Message,
    MessageRun,
    Nack,
    Notify,
    NotifyAck,
    NotifyReceived,
    Ok,
    Restart,
    Revision,
    SessionState,
    StreamReference,
    StreamState,
    WorkerEvent,
    WorkerSession,
)

VERSION, COOKIE = "0.0.1", b"cookie"
HELLO = Hello(VERSION, COOKIE, "program", "shop-1")
STREAM = 7
VECTORS = Path(__file__).resolve().parents[1] / "vectors"


class Pair:
    """A connector's and a worker's session of one revision, joined: each receives the frames of the other at once."""

    def __init__(self, revision: Revision, *, credits: int = 100, max_streams: int = 100) -> None:
        self.revision = revision
        self.connector = ConnectorSession(revision)
        self.worker = WorkerSession(version=VERSION, cookie=COOKIE, max_streams=max_streams)
        self.credits = credits

    def handshake(self) -> Pair:
        """HELLO arrives."""
        self.to_worker(self.connector.hello(version=VERSION, cookie=COOKIE, program="program", instance="shop-1"))
        return self

    def start(self) -> Pair:
        """HELLO and OK arrive."""
        self.handshake().to_connector(self.worker.ok(self.credits))
        return self

    def to_worker(self, data: bytes) -> list[WorkerEvent]:
        """Pass bytes to the worker; return its events, after admitting the messages."""
        self.worker.receive(data)
        return worker_events(self.worker)

    def to_connector(self, data: bytes | None) -> list[Frame]:
        """Pass bytes to the connector; return its frames."""
        self.connector.receive(data or b"")
        return connector_events(self.connector)

    def open(self, stream_id: int = STREAM, name: str = "orders") -> Pair:
        """A stream is notified, and accepted where the revision asks for that."""
        self.to_worker(self.connector.notify(stream_id, name))
        if self.revision is V3:
            self.to_connector(self.worker.notify_ack(stream_id, None, success=True))
        return self

    def send(self, *messages: Message) -> list[WorkerEvent]:
        """Messages reach the worker."""
        return self.to_worker(b"".join(self.connector.message(message) for message in messages))

    def close(self, stream_id: int = STREAM) -> Pair:
        """The end of a stream reaches the worker."""
        self.to_worker(self.connector.end_of_stream(stream_id, 1))
        return self

    def bring(self, state: StreamState, stream_id: int = STREAM) -> Pair:
        """The stream is brought to a state on both sides."""
        if state is StreamState.NOTIFY_SENT:
            self.to_worker(self.connector.notify(stream_id, "orders"))
        elif state is not StreamState.START:
            self.open(stream_id)
        if state is StreamState.CLOSED:
            self.close(stream_id)
        elif state is StreamState.RESET:
            self.to_connector(self.worker.nack(stream_id, 3))
        elif state is StreamState.TERMINATED:
            self.to_connector(self.worker.restart())
        assert self.connector.streams.get(stream_id).state is state
        assert self.worker.streams.get(stream_id).state is state
        return self


def worker_events(session: WorkerSession) -> list[WorkerEvent]:
    """Everything that has happened to a worker, each run admitted; raises what admission raises."""
    found = []
    while (event := session.next_event()) is not None:
        found.append(event)
        if isinstance(event, MessageRun):
            admission = admit(session, event)
            if admission.error:
                raise admission.error
    return found


def admit(session: WorkerSession, event: MessageRun) -> Admission:
    """A run held against the stream states, its messages decoded one by one as far as they are sound."""
    messages, error = sound_messages(event)
    rows = [(m.stream_id, bool(m.flags & Flags.EOS), bool(m.flags & Flags.EPHEMERAL)) for m in messages]
    return session.admit(spans(rows), len(rows), error)


def sound_messages(run: MessageRun) -> tuple[list[Message], RemoteProtocolError | None]:
    """Messages up to the first that the revision refuses, and the refusal."""
    found: list[Message] = []
    try:
        for message in run.messages():
            found.append(message)
    except RemoteProtocolError as error:
        return found, error
    return found, None


def connector_events(session: ConnectorSession) -> list[Frame]:
    """Everything that has happened to a connector."""
    found = []
    while (frame := session.next_event()) is not None:
        found.append(frame)
    return found


def expecting(frame: Frame, revision: Revision) -> WorkerSession | ConnectorSession:
    """A session for which this frame comes next."""
    if isinstance(frame, Hello):
        return WorkerSession(version=frame.version, cookie=frame.cookie)
    pair = Pair(revision)
    if isinstance(frame, Ok):
        return pair.handshake().connector
    pair.start()
    if isinstance(frame, Message | EosMessage):
        return pair.open(frame.stream_id).worker
    if isinstance(frame, NotifyAck):
        return pair.bring(StreamState.NOTIFY_SENT, frame.stream_id).connector
    if isinstance(frame, Nack):
        return pair.open(frame.stream_id).connector
    return pair.connector if isinstance(frame, Ack | Restart) else pair.worker


def heard(session: WorkerSession | ConnectorSession) -> list[Frame]:
    """The frames that a session has received, out of its events."""
    if isinstance(session, ConnectorSession):
        return connector_events(session)
    return [frame for event in worker_events(session) for frame in _frames(event)]


def _frames(event: WorkerEvent) -> list[Frame]:
    match event:
        case MessageRun() as run:
            return list(run.messages())
        case NotifyReceived(notify):
            return [notify]
        case _:
            return [event]


def vectors() -> list[tuple[Revision, Frame, bytes]]:
    """All wire vectors: revision, frame, bytes."""
    return [
        (revision, _vector_frame(entry, revision), bytes.fromhex(entry["hex"]))
        for revision in REVISIONS.values()
        for entry in json.loads((VECTORS / f"{revision.name}.json").read_text(encoding="utf-8"))
    ]


def _vector_frame(entry: dict[str, Any], revision: Revision) -> Frame:
    match entry["frame"]:
        case "HELLO":
            return Hello(entry["version"], entry["cookie"].encode(), entry["program"], entry["instance"])
        case "OK":
            return Ok(entry["credits"], tuple(StreamReference(**stream) for stream in entry.get("streams", ())))
        case "ERROR":
            return Error(entry["reason"])
        case "NOTIFY":
            return Notify(entry["stream_id"], entry["name"], entry["ref"])
        case "NOTIFY_ACK":
            return NotifyAck(entry["success"], entry["stream_id"], entry["ref"])
        case "MESSAGE":
            return _vector_message(entry, revision)
        case "EOS_MESSAGE":
            return EosMessage(entry["stream_id"], entry.get("message_id"))
        case "ACK":
            return Ack(entry["credits"], tuple((stream, ref) for stream, ref in entry["refs"]))
        case "NACK":
            return Nack(entry["credits"], entry["stream_id"], entry["ref"])
        case "RESTART":
            return Restart(entry.get("address", ""))
    raise AssertionError(f"a vector for {entry['frame']}, which no revision has")


def _vector_message(entry: dict[str, Any], revision: Revision) -> Message:
    flags = Flags(entry.get("flags", 0))
    payload = None if flags & Flags.BOUNDARY else bytes.fromhex(entry["payload"])
    key = bytes.fromhex(entry["key"]) if "key" in entry else None
    assert "message_id" in entry or flags & Flags.EPHEMERAL
    assert revision is not DRAFT_LE or key is None
    return Message(entry["stream_id"], entry.get("message_id"), payload, flags, entry.get("event_time"), key)


def bytes_held(buffer: FrameBuffer) -> int:
    """Memory of all bytes that a buffer refers to."""
    values = list(vars(buffer).values())
    pieces = [piece for value in values if isinstance(value, list) for piece in value]
    return sum(sys.getsizeof(value) for value in values + pieces if isinstance(value, bytes))


def in_state(session: WorkerSession | ConnectorSession, state: SessionState) -> bool:
    """Whether a session stands there; keeps type checkers from narrowing ``state`` for the rest of a test."""
    return session.state is state
