"""The connector's side of a session.

Source: ``docs/protocol.md#session-states`` and ``docs/protocol.md#stream-states``.
"""

from __future__ import annotations

from wallaroo_spark.errors import LocalProtocolError, RemoteProtocolError
from wallaroo_spark.protocol import frames
from wallaroo_spark.protocol.framing import LENGTH_BYTES, MessageRun
from wallaroo_spark.protocol.revisions import DRAFT_BE, Revision
from wallaroo_spark.protocol.runs import EncodedRun
from wallaroo_spark.protocol.sessions.session import DEFAULT_MAX_FRAME_BYTES, DEFAULT_MAX_STREAMS, Session
from wallaroo_spark.protocol.sessions.states import Role, SessionState, StreamEvent, StreamState

_EOS = int(frames.Flags.EOS)


class ConnectorSession(Session[frames.Frame]):
    """The connector's side of a session; its events are the worker's frames, applied to credits and streams already.

    Methods that send return the bytes to write. They raise :class:`LocalProtocolError` when the state of the session or
    of the stream does not allow the frame.
    """

    role = Role.CONNECTOR
    peer_role = Role.WORKER

    def __init__(
        self,
        revision: Revision = DRAFT_BE,
        *,
        max_frame_bytes: int = DEFAULT_MAX_FRAME_BYTES,
        max_streams: int = DEFAULT_MAX_STREAMS,
    ) -> None:
        super().__init__(revision, max_frame_bytes, max_streams)
        self._revision = revision
        self.max_frame_bytes = max_frame_bytes
        """The most bytes that a frame may have behind its length."""

    def hello(self, *, version: str, cookie: bytes, program: str, instance: str) -> bytes:
        """Send HELLO, the first frame."""
        return self._send(frames.Hello(version, cookie, program, instance))

    def notify(self, stream_id: int, name: str, ref: int = 0) -> bytes:
        """Send NOTIFY. It takes one credit, and the credits may become negative."""
        if self.state is not SessionState.STREAMING:
            raise LocalProtocolError(f"NOTIFY cannot be sent in state {self.state}", code="wrong-state")
        try:
            self.streams.notify(stream_id, name)
        except RemoteProtocolError as error:
            raise LocalProtocolError(error.message, code=error.code) from None
        self.credits.overdraw()
        return self._send(frames.Notify(stream_id, name, ref))

    def message(self, message: frames.Message) -> bytes:
        """Send one MESSAGE. It needs one credit."""
        data = self._revision.encode(message)
        self.messages(EncodedRun(self._revision, message.stream_id, (message.message_id or 0,), data))
        if int(message.flags) & _EOS:
            self._apply(message.stream_id, StreamEvent.EOS)
        return data

    def messages(self, run: EncodedRun) -> bytes:
        """Send many MESSAGEs of one stream. They need one credit each; either all are sent or none."""
        self._move(frames.Message)
        if len(run.data) - LENGTH_BYTES > self.max_frame_bytes:
            for message_id, size in zip(run.ids, run.frame_sizes(), strict=True):
                if size - LENGTH_BYTES > self.max_frame_bytes:
                    raise LocalProtocolError(
                        f"message {message_id} of stream {run.stream_id} makes a frame of {size - LENGTH_BYTES} bytes; "
                        f"at most {self.max_frame_bytes} are accepted (maxFrameBytes)",
                        code="frame-too-long",
                    )
        if self.credits.available < run.count:
            raise LocalProtocolError(
                f"MESSAGEs need a credit each, {run.count} in all, and there are {self.credits.available}; "
                "wait for an ACK",
                code="no-credit",
            )
        self._apply(run.stream_id, StreamEvent.MESSAGE)
        self.credits.spend(run.count)
        return run.data

    def end_of_stream(self, stream_id: int, last_id: int, *, ephemeral: bool = False) -> bytes:
        """Send the frame that closes a stream in this revision; ``last_id`` is the id of the stream's last message."""
        frame = self._revision.end_of_stream(stream_id, last_id, ephemeral=ephemeral)
        if isinstance(frame, frames.Message):
            return self.message(frame)
        self._apply(stream_id, StreamEvent.EOS)
        return self._send(frame)

    @property
    def end_costs_credit(self) -> bool:
        """Whether closing a stream takes a credit in this revision."""
        return not self._revision.has(frames.EosMessage)

    def _next_event(self) -> frames.Frame | None:
        raw = self._next()
        if raw is None:
            return None
        assert not isinstance(raw, MessageRun)
        frame = self._revision.decode(raw.tag, raw.body)
        state = self._allow(type(frame))
        self.streams.follow(frame)
        if isinstance(frame, frames.Ok | frames.Ack | frames.Nack):
            self.credits.grant(frame.credits)
        self.state = state
        if state is not SessionState.STREAMING:
            self._buffer.clear()
        return frame

    def is_open(self, stream_id: int) -> bool:
        """Whether messages of this stream may be sent, given enough credits."""
        return self.streams.get(stream_id).state is StreamState.OPEN
