"""A session between a worker and a connector sink: v3 with reversed roles, both sides, without I/O.

The worker connects, announces only stream 1 (rows), and sends MESSAGEs on it and on stream 0 (control), which is open
from OK on and never announced. The sink sends MESSAGEs only on stream 0. The id of a row's MESSAGE is the byte offset
in the sink's output in front of the row; the first row begins at the end of the last committed row. There are no
credits. Source: ``docs/protocol.md#sinks``.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Any

from wallaroo_spark.errors import LocalProtocolError, RemoteProtocolError
from wallaroo_spark.protocol import frames
from wallaroo_spark.protocol.codecs import frame_name
from wallaroo_spark.protocol.faults import Fault, broken
from wallaroo_spark.protocol.framing import LENGTH_BYTES, MessageRun, RawFrame
from wallaroo_spark.protocol.revisions import RECOGNITION_BYTES, V3, recognise
from wallaroo_spark.protocol.runs import encode_run, encode_single
from wallaroo_spark.protocol.sessions.session import E, FrameSession
from wallaroo_spark.protocol.sessions.states import Role, SessionState
from wallaroo_spark.protocol.sessions.worker_session import read_hello
from wallaroo_spark.protocol.sinks import messages

CREDITS = 2**32 - 1
"""The credits in OK, for peers that count them: the greatest u32, because a sink session has no credits."""
SUPERSEDED = "superseded by another session of this worker"
"""The reason with which a sink ends a session when its worker has opened another one."""


_SAYS: Mapping[Role, tuple[type[Any], ...]] = {
    Role.WORKER: (messages.ListUncommitted, messages.Phase1, messages.Phase2, messages.WorkersLeft),
    Role.SINK: (messages.ReplyUncommitted, messages.Reply),
}
_HEAD = struct.Struct(">QQqH")


@dataclass(frozen=True, slots=True)
class RowsReceived:
    """Rows of the sink's output, in order, without gaps or repetitions."""

    rows: Sequence[bytes]
    start: int
    """Offset in the output in front of the first row."""
    end: int
    """Offset behind the last row."""


class SinkSession(FrameSession[E]):
    """The common part of both sides."""

    table = messages.SINK_SESSION

    def __init__(self, max_frame_bytes: int) -> None:
        super().__init__(V3, max_frame_bytes)
        self.phase = messages.Phase.WRITING
        self.committed = 0
        """Committed bytes of the output, as this side knows them; the rows of this session begin here."""
        self.offset = 0
        """Bytes of the output with all rows of this session."""
        self._transaction = ""
        self._max_frame_bytes = max_frame_bytes
        self._open = False

    def fail(self, reason: str) -> bytes:
        """Return the ERROR frame that ends the session."""
        self.state = SessionState.ERROR
        self._buffer.clear()
        return V3.encode(frames.Error(reason))

    def control(self, message: messages.SinkMessage) -> bytes:
        """Send a message of the control stream. Raises :class:`LocalProtocolError`."""
        if type(message) not in _SAYS[self.role]:
            raise LocalProtocolError(
                f"{frame_name(type(message))} is not a message that a {self.role} sends", code="wrong-side"
            )
        self._apply_control(message, LocalProtocolError)
        self._move(frames.Message)
        return self._fitting(encode_single(V3, messages.CONTROL_STREAM, 0, messages.encode_control(message)).data)

    def _fitting(self, data: bytes) -> bytes:
        if len(data) - LENGTH_BYTES > self._max_frame_bytes:
            raise LocalProtocolError(
                f"a MESSAGE makes a frame of {len(data) - LENGTH_BYTES} bytes; at most {self._max_frame_bytes} are "
                "accepted (maxFrameBytes)",
                code="frame-too-long",
            )
        return data

    def _allow(self, frame: type[Any]) -> SessionState:
        """Return the next state for a frame from the peer. Raises :class:`RemoteProtocolError` if there is none."""
        state = self.table[self.peer_role].get(self.state, {}).get(frame)
        if state is None:
            name = frame_name(frame)
            raise broken(Fault.WRONG_STATE, f"{name} is not allowed from a {self.peer_role} in state {self.state}")
        return state

    def _decode(self, raw: RawFrame) -> frames.Frame:
        self.state = self._allow(V3.row(raw.tag).frame)
        return V3.decode(raw.tag, raw.body)

    def _control_received(self, payload: bytes) -> messages.SinkMessage:
        message = messages.decode_control(payload)
        if type(message) not in _SAYS[self.peer_role]:
            name = frame_name(type(message))
            raise broken(Fault.WRONG_SIDE, f"{name} is not a message that a {self.peer_role} sends")
        self._apply_control(message, RemoteProtocolError)
        return message

    def _apply_control(
        self, message: messages.SinkMessage, error: type[RemoteProtocolError | LocalProtocolError]
    ) -> None:
        """Apply a control message to the session's own transaction."""
        match message:
            case messages.Phase1():
                self._phase(messages.PhaseEvent.PHASE1, error)
                self._transaction = message.transaction
            case messages.Reply():
                if message.transaction != self._transaction:
                    problem = f"REPLY for {message.transaction!r}, and PHASE1 was for {self._transaction!r}"
                    raise error(problem, fault=Fault.WRONG_PHASE)
                self._phase(messages.PhaseEvent.REPLY, error)
            case messages.Phase2() if message.transaction == self._transaction:
                self._phase(messages.PhaseEvent.PHASE2, error)
                self._transaction = ""
                self.committed, self.offset = (self.offset,) * 2 if message.commit else (self.committed,) * 2

    def _phase(self, event: messages.PhaseEvent, error: type[RemoteProtocolError | LocalProtocolError]) -> None:
        phase = messages.PHASES[self.phase].get(event)
        if phase is None:
            raise error(
                f"{event} while transaction {self._transaction!r} is {self.phase}; between a PHASE1 and its PHASE2 "
                "there are no rows and no other transaction",
                fault=Fault.WRONG_PHASE,
            )
        self.phase = phase


class SinkWorkerSession(SinkSession[frames.Frame | messages.SinkMessage]):
    """The worker's side; its events are the sink's frames and control messages.

    Methods that send return the bytes, or raise :class:`LocalProtocolError`.
    """

    role, peer_role = Role.WORKER, Role.SINK

    reference = 0
    """Reference in the sink's NOTIFY_ACK. It may include uncommitted rows, and may be 0 after a restart."""

    def hello(self, *, version: str, cookie: bytes, program: str, worker: str) -> bytes:
        """Send HELLO, the first frame. The sink names its output after ``worker``."""
        return self._send(frames.Hello(version, cookie, program, worker))

    def notify(self, name: str, reference: int = 0) -> bytes:
        """Send NOTIFY of stream 1 with the worker's reference; again to request the sink's reference once more."""
        self._open = False
        return self._send(frames.Notify(messages.DATA_STREAM, name, reference))

    def begin(self, offset: int) -> None:
        """Set the offset of the next row: the end of the last committed row, according to the worker's log."""
        if self.phase is not messages.Phase.WRITING or self.offset != self.committed:
            raise LocalProtocolError(
                "the offset of the rows cannot change after the first row; set it before", code="wrong-state"
            )
        self.committed = self.offset = offset

    def rows(self, rows: Sequence[bytes]) -> bytes:
        """Send the rows as MESSAGEs of stream 1. Empty rows are skipped."""
        if not self._open:
            raise LocalProtocolError(
                f"stream {messages.DATA_STREAM} is not open; send NOTIFY, and wait for NOTIFY_ACK",
                code="stream-not-open",
            )
        self._phase(messages.PhaseEvent.ROWS, LocalProtocolError)
        filled = [row for row in rows if row]
        if not filled:
            return b""
        self._move(frames.Message)
        longest = max(map(len, filled))
        if 1 + _HEAD.size + longest > self._max_frame_bytes:
            raise LocalProtocolError(
                f"a row of {longest} bytes makes a frame of {1 + _HEAD.size + longest}; at most "
                f"{self._max_frame_bytes} are accepted (maxFrameBytes)",
                code="frame-too-long",
            )
        *ids, self.offset = accumulate(map(len, filled), initial=self.offset)
        return encode_run(V3, messages.DATA_STREAM, ids, filled).data

    def _next_event(self) -> frames.Frame | messages.SinkMessage | None:
        # A sink sends few frames, so runs of messages bring nothing here.
        raw = self._next()
        if raw is None:
            return None
        assert isinstance(raw, RawFrame)
        return self._take(self._decode(raw))

    def _take(self, frame: frames.Frame) -> frames.Frame | messages.SinkMessage:
        match frame:
            case frames.NotifyAck() if frame.success and frame.stream_id == messages.DATA_STREAM:
                self._open = True
                self.reference = 0 if frame.ref == frames.NOTHING_PROCESSED else frame.ref
            case frames.Message():
                if frame.stream_id != messages.CONTROL_STREAM:
                    raise broken(Fault.STREAM_NOT_OPEN, f"a sink sends MESSAGE on stream {frame.stream_id}, not on 0")
                return self._control_received(frame.payload or b"")
        return frame


class SinkServerSession(SinkSession[frames.Frame | RowsReceived | messages.SinkMessage]):
    """The sink's side. ``version`` and ``cookie`` must equal those in HELLO.

    Its events are HELLO, NOTIFY, EOS_MESSAGE and ERROR as frames, rows, and control messages.
    """

    role, peer_role = Role.SINK, Role.WORKER

    def __init__(self, max_frame_bytes: int, *, version: str, cookie: bytes = b"") -> None:
        super().__init__(max_frame_bytes)
        self._version = version
        self._cookie = cookie
        self._recognised = False
        self._walking: Iterator[RowsReceived | messages.SinkMessage] = iter(())
        self._gap = ""

    def ok(self) -> bytes:
        """Accept HELLO."""
        return self._send(frames.Ok(CREDITS))

    def notify_ack(self, committed: int) -> bytes:
        """Accept NOTIFY of stream 1. ``committed`` is the number of committed bytes of the output."""
        self._open, self._gap = True, ""
        self.committed = self.offset = committed
        return self._send(frames.NotifyAck(True, messages.DATA_STREAM, committed))

    def decided(self, committed: int) -> None:
        """A transaction of an earlier session was decided during this one: the output now ends at ``committed``.

        Rows that arrived before the decision no longer follow the committed ones.
        """
        if self.phase is not messages.Phase.WRITING or committed == self.committed:
            return
        if self.offset != self.committed:
            self._gap = f"rows arrived before the decision after which the output ends at {committed}"
        self.committed = self.offset = committed

    def gap(self) -> str:
        """Why rows are missing since the last vote; empty when none are. Read it before a vote."""
        gap, self._gap = self._gap, ""
        return gap

    def _next_event(self) -> frames.Frame | RowsReceived | messages.SinkMessage | None:
        while True:
            for event in self._walking:
                return event
            if not self._recognised and not self._recognise():
                return None
            raw = self._next(runs=self.state is SessionState.STREAMING)
            if raw is None:
                return None
            if not isinstance(raw, MessageRun):
                return self._frame(raw)
            self._walking = self._walk(raw)

    def _recognise(self) -> bool:
        if self.state is SessionState.ERROR:
            return False
        revision = recognise(self._buffer.peek(RECOGNITION_BYTES))
        if revision is not None and revision is not V3:
            raise broken(Fault.NOT_THIS_PROTOCOL, f"a sink accepts v3 only, and this is {revision.name}")
        self._recognised = revision is not None
        return self._recognised

    def _frame(self, raw: RawFrame) -> frames.Frame:
        if raw.tag != V3.by_frame[frames.Hello].tag:
            frame = self._decode(raw)
            if isinstance(frame, frames.Notify):
                self._check_notify(frame.stream_id)
            return frame
        self.state = self._allow(frames.Hello)
        return read_hello(V3, raw.body, self._version, self._cookie)

    def _check_notify(self, stream_id: int) -> None:
        if stream_id != messages.DATA_STREAM:
            raise broken(
                Fault.STREAM_NOT_OPEN,
                f"NOTIFY of stream {stream_id}; a sink accepts NOTIFY of stream {messages.DATA_STREAM} only, and "
                f"stream {messages.CONTROL_STREAM} needs none",
            )
        if self.phase is not messages.Phase.WRITING:
            raise broken(Fault.WRONG_PHASE, f"NOTIFY of stream {messages.DATA_STREAM} between a PHASE1 and its PHASE2")

    def _walk(self, run: MessageRun) -> Iterator[RowsReceived | messages.SinkMessage]:
        """Yield lots of rows and the control messages between them. Each result must be handled before the next."""
        rows: list[bytes] = []
        start, data = self.offset, run.data
        for index, at in enumerate(run.starts):
            end = run.end_of(index)
            if end - at < _HEAD.size:
                raise broken(Fault.TRUNCATED_FRAME, f"MESSAGE frame ends within its head, {end - at} bytes into it")
            stream_id, message_id, _, key_bytes = _HEAD.unpack_from(data, at)
            first = at + _HEAD.size + key_bytes
            if first > end:
                raise broken(Fault.TRUNCATED_FRAME, "MESSAGE frame ends within its key")
            if stream_id not in (messages.CONTROL_STREAM, messages.DATA_STREAM) or (
                stream_id == messages.DATA_STREAM and not self._open
            ):
                raise broken(
                    Fault.STREAM_NOT_OPEN,
                    f"MESSAGE for stream {stream_id}; NOTIFY opens {messages.DATA_STREAM}, 0 needs none",
                )
            if stream_id == messages.DATA_STREAM:
                if self._is_next(message_id, end - first):
                    rows.append(data[first:end])
                continue
            if rows:
                yield RowsReceived(rows, start, self.offset)
            yield self._control_received(data[first:end])
            rows, start = [], self.offset
        if rows:
            yield RowsReceived(rows, start, self.offset)

    def _is_next(self, message_id: int, size: int) -> bool:
        """Whether a row follows the last one. A row behind a gap is dropped, and the next vote is a no.

        A worker whose connection was lost continues at its own offset; the vote notifies it that rows are missing.
        """
        if self.phase is not messages.Phase.WRITING:
            self._phase(messages.PhaseEvent.ROWS, RemoteProtocolError)
        if message_id < self.offset:
            raise broken(
                Fault.WRONG_OFFSET,
                f"MESSAGE {message_id}, and the output has {self.offset} bytes with all rows of this session, "
                f"{self.committed} of them committed; an id is the offset in front of the row, and rows begin where "
                "the committed ones end",
            )
        if message_id > self.offset:
            self._gap = self._gap or _gap(message_id, self.offset, size)
            return False
        self.offset += size
        return True


def _gap(message_id: int, offset: int, size: int) -> str:
    if message_id == offset + size:
        return (
            f"MESSAGE {message_id} has {size} bytes and follows {offset}: its id is the offset behind the row, and "
            "must be the offset in front of it; correct the program that sends it"
        )
    return f"MESSAGE {message_id} follows {offset}: the bytes between them did not arrive"
