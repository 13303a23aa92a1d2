"""The worker's side of a session.

Source: ``docs/protocol.md#session-states``, ``docs/protocol.md#stream-states``, ``docs/protocol.md#rewinding`` and
``docs/protocol.md#credits``.
"""

from __future__ import annotations

import hmac
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from wallaroo_spark.errors import RemoteProtocolError
from wallaroo_spark.protocol import frames
from wallaroo_spark.protocol.faults import Fault, broken
from wallaroo_spark.protocol.framing import Finder, MessageRun, RawFrame
from wallaroo_spark.protocol.revisions import RECOGNITION_BYTES, Revision, recognise
from wallaroo_spark.protocol.sessions.session import DEFAULT_MAX_FRAME_BYTES, DEFAULT_MAX_STREAMS, Session
from wallaroo_spark.protocol.sessions.states import Role, SessionState, StreamEvent, StreamState
from wallaroo_spark.protocol.sessions.streams import SessionStreams, StreamSpan

MAX_INSTANCE_BYTES = 255
"""Limit of an instance's name in bytes."""
MAX_NAME_BYTES = 1024
"""Limit of a stream's name in bytes.

A choice: the field itself would let a peer make the worker store 64 KiB for each stream.
"""


@dataclass(frozen=True, slots=True)
class NotifyReceived:
    """A NOTIFY. With ``already_open`` (v3) it must be refused, and the stream does not change."""

    notify: frames.Notify
    already_open: bool = False
    """Whether the stream is open already, in this session."""


WorkerEvent = frames.Hello | NotifyReceived | MessageRun | frames.EosMessage | frames.Error
"""An event of a session: a HELLO, to be answered with ``ok``, ``restart`` or ``error``; a NOTIFY; messages; in v3 the
end of a stream; or the connector's ERROR.

The messages of a run are charged and not decoded. Decode them and call :meth:`WorkerSession.admit` before the next
event.
"""


@dataclass(frozen=True, slots=True)
class Admission:
    """The accepted part of a run."""

    end: int
    """Number of accepted messages at the beginning of the run."""
    ignored: frozenset[int] = frozenset()
    """Streams whose messages in this part are ignored."""
    error: RemoteProtocolError | None = None
    """The protocol violation behind the accepted messages; None when there is none."""


_OK_BYTES = 1 << 20
"""Limit in bytes of the references in OK. A choice: a quarter of the frame length that every connector accepts."""
_REFERENCE_BYTES = 18
"""Bytes of a reference in OK without its name, in the revision with the longest references (draft-be)."""
_ACK_REFERENCES = _OK_BYTES // 16
"""Maximum number of references in an ACK that follows OK; each takes 16 bytes."""


def _fitting(streams: Sequence[frames.StreamReference]) -> int:
    """Return how many references fit into OK, counted from the first one."""
    size = 0
    for number, stream in enumerate(streams):
        size += _REFERENCE_BYTES + len(stream.name.encode())
        if size > _OK_BYTES:
            return number
    return len(streams)


def read_hello(revision: Revision, body: bytes, version: str, cookie: bytes) -> frames.Hello:
    """Decode a HELLO, and check its version before its cookie, and its cookie before the fields behind it.

    Raises :class:`RemoteProtocolError`. The comparison of cookies takes a time that does not depend on their bytes.
    """
    read = frames.Reader(body, revision.byte_order, "HELLO")
    given = read.short_text("the version")
    if given != version:
        raise broken(Fault.WRONG_VERSION, f"version {given[:64]!r} is not spoken here; {version!r} is")
    if not hmac.compare_digest(read.short_bytes("the cookie"), cookie):
        raise broken(Fault.WRONG_COOKIE, "the cookie is not the one that is expected here")
    hello = revision.decode(revision.by_frame[frames.Hello].tag, body)
    assert isinstance(hello, frames.Hello)
    size = len(hello.instance.encode("utf-8"))
    if not 0 < size <= MAX_INSTANCE_BYTES:
        raise broken(Fault.BAD_INSTANCE, f"the instance name has {size} bytes; it has 1 to {MAX_INSTANCE_BYTES}")
    return hello


class WorkerSession(Session[WorkerEvent]):
    """The worker's side of a session. ``version`` and ``cookie`` must equal those in HELLO; ``find`` finds frames."""

    role = Role.WORKER
    peer_role = Role.CONNECTOR

    def __init__(
        self,
        *,
        version: str,
        cookie: bytes = b"",
        max_frame_bytes: int = DEFAULT_MAX_FRAME_BYTES,
        max_streams: int = DEFAULT_MAX_STREAMS,
        find: Finder | None = None,
    ) -> None:
        super().__init__(None, max_frame_bytes, max_streams, find)
        self._version = version
        self._cookie = cookie
        self.hello: frames.Hello | None = None

    def _next_event(self) -> WorkerEvent | None:
        if self.revision is None and not self._recognise():
            return None
        assert self.revision is not None
        found = self._next(runs=self.state is SessionState.STREAMING)
        if found is None:
            return None
        if isinstance(found, MessageRun):
            covered = self.credits.spend(found.count)
            if covered < found.count:
                # The session ends behind the messages that credits cover, so all later bytes are discarded.
                self._overdrawn = found.count - covered
                if covered == 0:
                    raise self._no_credit(found.count)
                self._buffer.clear()
            return found.head(covered)
        return self._frame(self.revision, found)

    _overdrawn = 0

    def _no_credit(self, messages: int) -> RemoteProtocolError:
        return broken(Fault.NO_CREDIT, f"{messages} MESSAGE frames were sent with no credit left; wait for an ACK")

    def _recognise(self) -> bool:
        if self.state is not SessionState.CONNECTED:
            return False
        self.revision = recognise(self._buffer.peek(RECOGNITION_BYTES))
        if self.revision is None:
            return False
        self._streams = SessionStreams(self.revision, self._max_streams)
        return True

    def _frame(self, revision: Revision, raw: RawFrame) -> WorkerEvent:
        kind = revision.row(raw.tag).frame
        state = self._allow(kind)
        if kind is frames.Hello:
            self.hello = read_hello(revision, raw.body, self._version, self._cookie)
            self.state = state
            return self.hello
        frame = revision.decode(raw.tag, raw.body)
        self.state = state
        return self._event(frame)

    def _event(self, frame: frames.Frame) -> WorkerEvent:
        match frame:
            case frames.Notify():
                self._check_notify(frame)
                already_open = self.streams.get(frame.stream_id).state is StreamState.OPEN
                self.streams.notify(frame.stream_id, frame.name)
                self.credits.overdraw()
                return NotifyReceived(frame, already_open)
            case frames.EosMessage():
                self.streams.apply(frame.stream_id, StreamEvent.EOS)
                return frame
            case frames.Error():
                self._buffer.clear()
                return frame
        raise AssertionError(f"the session table allows {frame!r} from a connector, and the worker has no event for it")

    def _check_notify(self, notify: frames.Notify) -> None:
        """Check the limits that bound the memory for NOTIFYs, because a NOTIFY may overdraw the credits."""
        size = len(notify.name.encode("utf-8"))
        if size > MAX_NAME_BYTES:
            raise broken(Fault.NAME_TOO_LONG, f"a stream name has {size} bytes; at most {MAX_NAME_BYTES} are accepted")
        if self.credits.available <= -self._max_streams:
            raise broken(Fault.NO_CREDIT, f"NOTIFY frames are {self._max_streams} credits in debt; wait for an ACK")

    def lost(self, messages: int) -> None:
        """Charge EPHEMERAL messages that were sent and will never come."""
        self.credits.spend(messages)

    def admit(self, found: Sequence[StreamSpan], count: int, error: RemoteProtocolError | None = None) -> Admission:
        """Check a run of ``count`` decoded messages against the states of their streams.

        ``found`` has one span for each stream; ``error`` is the error that ended decoding after ``count`` messages. The
        first protocol violation ends the session: messages in front of it are accepted, messages behind it are not.
        """
        verdicts = [self.streams.admit(span) for span in found]
        end = count
        refusals = [v.refusal for v in verdicts if v.refusal is not None and v.refusal.at < count]
        if refusals:
            end, fault, reason = min(refusals)
            error = broken(fault, reason)
        for verdict in verdicts:
            self.streams.settle(verdict, end)
        if error is None and self._overdrawn:
            error = self._no_credit(self._overdrawn)
        if error is not None:
            self.state = SessionState.ERROR
        return Admission(end, frozenset(v.span.stream_id for v in verdicts if v.ignored), error)

    def admit_plain(self, stream_ids: Iterable[int]) -> bool:
        """:meth:`admit` for a run of messages without flags. Returns False, and changes nothing, unless all are
        accepted.

        ``stream_ids`` has each stream once.
        """
        return not self._overdrawn and self.streams.admit_plain(stream_ids)

    def ok(self, credits: int, streams: Iterable[frames.StreamReference] = ()) -> bytes:
        """Send OK with the first credits and, in the drafts, committed references.

        References that do not fit into the limit of OK follow in ACKs without credits.
        """
        streams = list(streams)
        listed = _fitting(streams)
        data = self._send(frames.Ok(credits, tuple(streams[:listed])))
        for begin in range(listed, len(streams), _ACK_REFERENCES):
            part = streams[begin : begin + _ACK_REFERENCES]
            data += self._send(frames.Ack(0, tuple((stream.stream_id, stream.ref) for stream in part)))
        self.credits.grant(credits)
        return data

    def ack(self, credits: int = 0, refs: Iterable[tuple[int, int]] = ()) -> bytes:
        """Send ACK with credits, references that Spark has committed, or both."""
        data = self._send(frames.Ack(credits, tuple(refs)))
        self.credits.grant(credits)
        return data

    def notify_ack(self, stream_id: int, ref: int | None, *, success: bool) -> bytes:
        """v3: answer NOTIFY. ``ref`` is the last committed reference, None when there is none."""
        data = self._send(frames.NotifyAck(success, stream_id, frames.NOTHING_PROCESSED if ref is None else ref))
        self._apply(stream_id, StreamEvent.ACCEPTED if success else StreamEvent.REFUSED)
        return data

    def nack(self, stream_id: int, ref: int | None, credits: int = 0) -> bytes:
        """draft-le: rewind a stream to ``ref``; None when no message of it is committed."""
        data = self._send(frames.Nack(credits, stream_id, ref or 0))
        self._apply(stream_id, StreamEvent.NACK)
        self.credits.grant(credits)
        return data

    def restart(self, address: str = "") -> bytes:
        """Ask the connector to reconnect, to ``address`` if given. Later bytes are discarded."""
        data = self._send(frames.Restart(address))
        self.streams.restart()
        return data
