"""The common part of both roles of a session: bytes in, frames out, states by table.

Pure: no socket, thread or clock. The roles are in ``worker_session.py`` and ``connector_session.py``.
"""

from __future__ import annotations

from abc import abstractmethod
from typing import Any, Generic, TypeVar

from wallaroo_spark.errors import LocalProtocolError, RemoteProtocolError
from wallaroo_spark.protocol.codecs import frame_name
from wallaroo_spark.protocol.faults import Fault, broken
from wallaroo_spark.protocol.frames import Error, Frame
from wallaroo_spark.protocol.framing import Finder, FrameBuffer, MessageRun, RawFrame
from wallaroo_spark.protocol.revisions import Revision
from wallaroo_spark.protocol.sessions.states import SESSION, Role, SessionState, StreamEvent
from wallaroo_spark.protocol.sessions.streams import CreditWindow, SessionStreams

DEFAULT_MAX_FRAME_BYTES = 4 << 20
"""Default limit of a frame's length in bytes. A choice; see the option ``maxFrameBytes``."""
DEFAULT_MAX_STREAMS = 65_536
"""Default limit of the streams of a session. A choice that bounds memory; each has a state and a name."""

_NOT_A_TAG = -1
E = TypeVar("E")

# States in which received bytes are discarded.
_DEAF = (SessionState.ERROR, SessionState.RESTARTING, SessionState.DISCONNECTED)


class FrameSession(Generic[E]):
    """What both sides of a connection have in common, also those of a connector sink: bytes in, frames out.

    Pass received bytes to :meth:`receive`, then call :meth:`next_event` until it returns None. After a
    :class:`RemoteProtocolError` the session is in state ERROR: send the bytes of :meth:`fail`, unless it returns None,
    and close the connection.
    """

    role: Role
    peer_role: Role
    table = SESSION

    def __init__(self, revision: Revision | None, max_frame_bytes: int, find: Finder | None = None) -> None:
        self.state = SessionState.CONNECTED
        self.revision = revision
        self._buffer = FrameBuffer(max_frame_bytes, find)

    @property
    def pending(self) -> int:
        """Received bytes that are not part of a returned frame."""
        return len(self._buffer)

    @property
    def missing(self) -> int:
        """Bytes that the incomplete frame still needs, as far as its header tells."""
        return self._buffer.missing

    def receive(self, data: bytes) -> None:
        """Process bytes from the transport. They are discarded once the session has ended."""
        if self.state not in _DEAF:
            self._buffer.feed(data)

    def receive_end(self) -> None:
        """The transport has ended. Raises :class:`RemoteProtocolError` when a frame is incomplete."""
        pending = self.pending if self.state not in _DEAF else 0
        self.close()
        if pending:
            raise broken(Fault.TRUNCATED_FRAME, f"the connection ended within a frame, {pending} bytes into it")

    def close(self) -> None:
        """The transport is closed."""
        self.state = SessionState.DISCONNECTED
        self._buffer.clear()

    def error(self, reason: str) -> bytes | None:
        """Return an ERROR frame; None when the peer's revision is unknown or the session has ended."""
        if self.revision is None or self.state in _DEAF:
            self.state = SessionState.ERROR if self.state is not SessionState.DISCONNECTED else self.state
            return None
        return self._send(Error(reason))

    def fail(self, reason: str) -> bytes | None:
        """Return the ERROR frame that answers a protocol violation, also after a :class:`RemoteProtocolError`."""
        data = self.revision.encode(Error(reason)) if self.revision and self.state not in _DEAF[1:] else None
        if self.state is not SessionState.DISCONNECTED:
            self.state = SessionState.ERROR
        self._buffer.clear()
        return data

    def next_event(self) -> E | None:
        """Return the next event, as the class says; None when more bytes are needed.

        Raises :class:`RemoteProtocolError`.
        """
        try:
            return self._next_event()
        except RemoteProtocolError:
            self.state = SessionState.ERROR
            raise

    @abstractmethod
    def _next_event(self) -> E | None: ...

    def _send(self, frame: Frame) -> bytes:
        if self.revision is None:
            raise LocalProtocolError(
                f"{frame_name(type(frame))} cannot be sent before the revision is known", code="wrong-state"
            )
        data = self.revision.encode(frame)
        self._move(type(frame))
        return data

    def _move(self, frame: type[Any]) -> None:
        """Change to the next state for our frame. Raises :class:`LocalProtocolError` if the table has none."""
        state = self.table[self.role].get(self.state, {}).get(frame)
        if state is None:
            raise LocalProtocolError(
                f"{frame_name(frame)} cannot be sent by a {self.role} in state {self.state}", code="wrong-state"
            )
        if state is not self.state:
            self.state = state
            if state in _DEAF:
                self._buffer.clear()

    def _next(self, *, runs: bool = False) -> RawFrame | MessageRun | None:
        """The next frame, or a run of MESSAGEs where these are to be found as ``runs``."""
        if self.state in _DEAF or self.revision is None:
            return None
        return self._buffer.next(self.revision, self.revision.message_tag if runs else _NOT_A_TAG)

    def _allow(self, frame: type[Any]) -> SessionState:
        """Return the next state for a peer's frame. Raises :class:`RemoteProtocolError` if the table has none."""
        tables = self.table[self.peer_role]
        state = tables.get(self.state, {}).get(frame)
        if state is not None:
            return state
        if not any(frame in row for row in tables.values()):
            raise broken(Fault.WRONG_SIDE, f"{frame_name(frame)} is not a frame that a {self.peer_role} sends")
        raise broken(Fault.WRONG_STATE, f"{frame_name(frame)} is not allowed in state {self.state}")


class Session(FrameSession[E]):
    """One side of one connection between connector and worker, with its streams and credits."""

    def __init__(
        self, revision: Revision | None, max_frame_bytes: int, max_streams: int, find: Finder | None = None
    ) -> None:
        super().__init__(revision, max_frame_bytes, find)
        self.credits = CreditWindow()
        self._max_streams = max_streams
        self._streams: SessionStreams | None = SessionStreams(revision, max_streams) if revision else None

    @property
    def streams(self) -> SessionStreams:
        """The session's streams. Raises :class:`LocalProtocolError` before the revision is recognised."""
        if self._streams is None:
            raise LocalProtocolError(
                "the session has no streams before the peer's revision is recognised", code="wrong-state"
            )
        return self._streams

    def _apply(self, stream_id: int, event: StreamEvent) -> None:
        """Apply our event to a stream. Raises :class:`LocalProtocolError` where its state does not allow the event."""
        try:
            self.streams.apply(stream_id, event)
        except RemoteProtocolError as error:
            raise LocalProtocolError(error.message, code=error.code) from None
