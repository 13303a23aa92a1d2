"""The streams of one session and their states, driven by the revision's table, and its credit window.

Source: ``docs/protocol.md#stream-states``, ``docs/protocol.md#rewinding`` and ``docs/protocol.md#credits``.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import NamedTuple

from wallaroo_spark.errors import LocalProtocolError
from wallaroo_spark.protocol.faults import Fault, broken
from wallaroo_spark.protocol.frames import EosMessage, Flags, Frame, Message, Nack, Notify, NotifyAck, Restart
from wallaroo_spark.protocol.revisions import Revision
from wallaroo_spark.protocol.sessions.states import StreamEvent, StreamState


@dataclass(slots=True)
class SessionStream:
    """One stream in a session."""

    stream_id: int
    name: str = ""
    """Name in the last NOTIFY."""
    state: StreamState = StreamState.START
    resets: int = 0
    """NACKs that were not yet followed by a NOTIFY."""
    ephemeral: bool | None = None
    """Whether its messages are EPHEMERAL; None before the first message."""


class StreamSpan(NamedTuple):
    """The messages of one stream in a run, as indexes in the run. None: there is no such message."""

    stream_id: int
    first: int
    """Index of its first message."""
    eos: int | None = None
    """Index of its first message with the EOS flag."""
    after_eos: int | None = None
    """Index of its first message behind that one."""
    first_ephemeral: int | None = None
    """Index of its first message with EPHEMERAL."""
    first_lasting: int | None = None
    """Index of its first message without EPHEMERAL."""


class RefusedMessage(NamedTuple):
    """A message of a run that violates the protocol."""

    at: int
    """Its index in the run."""
    fault: Fault
    reason: str
    """The violation as a sentence for the peer."""


class SessionStreams:
    """All streams of a session. Raises :class:`RemoteProtocolError` for events that their states do not allow."""

    def __init__(self, revision: Revision, max_streams: int) -> None:
        self._revision = revision
        self._max_streams = max_streams
        self._streams: dict[int, SessionStream] = {}
        self._finished: dict[int, None] = {}
        self._sending = frozenset(
            state
            for state, events in revision.streams.items()
            if StreamEvent.MESSAGE in events and state is not StreamState.RESET
        )

    def __iter__(self) -> Iterator[SessionStream]:
        return iter(self._streams.values())

    def __len__(self) -> int:
        return len(self._streams)

    def get(self, stream_id: int) -> SessionStream:
        """Return the stream, in state START if it was never announced."""
        return self._streams.get(stream_id) or SessionStream(stream_id)

    def notify(self, stream_id: int, name: str) -> SessionStream:
        """Apply a NOTIFY and return the stream."""
        stream = self.get(stream_id)
        if stream_id not in self._streams and len(self._streams) >= self._max_streams and not self._forget_one():
            raise broken(
                Fault.TOO_MANY_STREAMS,
                f"stream {stream_id} would be one more than the {self._max_streams} that a session may have open; end "
                "streams that are complete, or use several connector instances",
            )
        if self._revision.streams[stream.state].get(StreamEvent.NOTIFY) is None:
            raise broken(Fault.STREAM_ALREADY_OPEN, f"NOTIFY of stream {stream_id}, which is {stream.state}")
        self._streams[stream_id] = stream
        self._finished.pop(stream_id, None)
        if stream.state is StreamState.RESET:
            stream.resets -= 1
            if stream.resets:
                return stream
        if stream.state is not StreamState.OPEN:
            stream.name, stream.ephemeral = name, None
        stream.state = self._revision.streams[stream.state][StreamEvent.NOTIFY]
        return stream

    def finish(self, stream_id: int) -> None:
        """Record that a stream's end is acknowledged. A closed stream may be forgotten when a new one needs its
        place."""
        if self.get(stream_id).state is StreamState.CLOSED:
            self._finished[stream_id] = None

    def _forget_one(self) -> bool:
        """Forget the stream that finished first and was not opened again. Returns False when there is none."""
        while self._finished:
            stream_id = next(iter(self._finished))
            del self._finished[stream_id]
            if self._streams[stream_id].state is StreamState.CLOSED:
                del self._streams[stream_id]
                return True
        return False

    def apply(self, stream_id: int, event: StreamEvent) -> SessionStream:
        """Apply any other event and return the stream."""
        stream = self.get(stream_id)
        state = self._revision.streams[stream.state].get(event)
        if state is None:
            raise broken(
                Fault.STREAM_NOT_OPEN, f"{event} for stream {stream_id}, which is {stream.state}; NOTIFY opens a stream"
            )
        if event is StreamEvent.NACK:
            stream.resets += 1
        stream.state = state
        return stream

    def follow(self, frame: Frame) -> None:
        """Apply a frame, of either side, to the streams that it is about."""
        match frame:
            case Notify(stream_id=stream_id, name=name):
                self.notify(stream_id, name)
            case Message(stream_id=stream_id, flags=flags):
                self.apply(stream_id, StreamEvent.MESSAGE)
                if flags & Flags.EOS:
                    self.apply(stream_id, StreamEvent.EOS)
            case EosMessage(stream_id=stream_id):
                self.apply(stream_id, StreamEvent.EOS)
            case Nack(stream_id=stream_id):
                self.apply(stream_id, StreamEvent.NACK)
            case NotifyAck(success=success, stream_id=stream_id):
                self.apply(stream_id, StreamEvent.ACCEPTED if success else StreamEvent.REFUSED)
            case Restart():
                self.restart()

    def restart(self) -> None:
        """Apply RESTART: every stream whose state allows it becomes terminated."""
        for stream in self:
            stream.state = self._revision.streams[stream.state].get(StreamEvent.RESTART, stream.state)

    def admit(self, span: StreamSpan) -> Verdict:
        """Check one stream of a run, without changing its state.

        The verdict says whether the messages are ignored (state RESET), and names the first message that violates the
        protocol.
        """
        stream = self.get(span.stream_id)
        if StreamEvent.MESSAGE not in self._revision.streams[stream.state]:
            return Verdict(span, refusal=RefusedMessage(span.first, Fault.STREAM_NOT_OPEN, _not_open(stream)))
        if stream.state is StreamState.RESET:
            return Verdict(span, ignored=True)
        ephemeral = stream.ephemeral
        if ephemeral is None:
            ephemeral = span.first_ephemeral == span.first
        other = span.first_lasting if ephemeral else span.first_ephemeral
        found = [at for at in (span.after_eos, other) if at is not None]
        if not found:
            return Verdict(span, ephemeral=ephemeral)
        if min(found) == span.after_eos:
            reason = f"MESSAGE for stream {span.stream_id} after its end; NOTIFY opens it again"
            refusal = RefusedMessage(min(found), Fault.STREAM_NOT_OPEN, reason)
        else:
            reason = f"stream {span.stream_id} mixes EPHEMERAL messages with others; send them on separate streams"
            refusal = RefusedMessage(min(found), Fault.MIXED_EPHEMERAL, reason)
        return Verdict(span, refusal=refusal, ephemeral=ephemeral)

    def admit_plain(self, stream_ids: Iterable[int]) -> bool:
        """Admit and settle messages without flags, of streams that all may send messages.

        Returns False, and changes nothing, when one of the streams may not send.
        """
        known, sending = self._streams, self._sending
        new = []
        for stream_id in stream_ids:
            stream = known.get(stream_id)
            if stream is None or stream.ephemeral or stream.state not in sending:
                return False
            if stream.ephemeral is None:
                new.append(stream)
        for stream in new:
            stream.ephemeral = False
        return True

    def settle(self, verdict: Verdict, end: int) -> None:
        """Apply a verdict to the stream's state, for the first ``end`` messages of the run."""
        span = verdict.span
        if verdict.ignored or span.first >= end:
            return
        stream = self._streams[span.stream_id]
        stream.ephemeral = verdict.ephemeral
        if span.eos is not None and span.eos < end:
            stream.state = self._revision.streams[stream.state][StreamEvent.EOS]


@dataclass(frozen=True, slots=True)
class Verdict:
    """The result of checking a :class:`StreamSpan`."""

    span: StreamSpan
    """The checked span."""
    ignored: bool = False
    """Whether all its messages are ignored, because the stream is in state RESET."""
    refusal: RefusedMessage | None = None
    """The first message that violates the protocol; None when there is none."""
    ephemeral: bool = False
    """Whether its messages are EPHEMERAL."""


def _not_open(stream: SessionStream) -> str:
    if stream.state is StreamState.START:
        return (
            f"MESSAGE for stream {stream.stream_id}, which was never announced: send NOTIFY for it first; if that is "
            "no stream of yours, check that a MESSAGE has flags (u16, in the drafts alone), then the stream id (u64), "
            "then the message id, in the byte order of HELLO's length"
        )
    return f"MESSAGE for stream {stream.stream_id}, which is {stream.state}; NOTIFY opens a stream"


CREDIT_LIMIT = 2**32 - 1
"""Greatest number of credits in one frame (u32)."""


@dataclass
class CreditWindow:
    """The number of frames that the connector may still send.

    A NOTIFY may make the number negative; later grants pay the debt. A MESSAGE may not.
    """

    available: int = 0
    granted: int = 0
    spent: int = 0

    def grant(self, credits: int) -> None:
        """Add the credits of an OK, ACK or NACK, from 0 to 2^32-1."""
        if not 0 <= credits <= CREDIT_LIMIT:
            raise LocalProtocolError(
                f"a grant of {credits} credits does not fit a frame; it is 0 to {CREDIT_LIMIT}",
                code="value-does-not-fit",
            )
        self.available += credits
        self.granted += credits

    def spend(self, messages: int) -> int:
        """Charge ``messages``, at most as many as there are credits. Returns the number that was charged."""
        covered = max(0, min(messages, self.available))
        self.available -= covered
        self.spent += covered
        return covered

    def overdraw(self) -> None:
        """Charge one NOTIFY; the number of credits may become negative."""
        self.available -= 1
        self.spent += 1
