"""The open streams of a connector, and the effect of each frame of the worker on them.

When a session begins, every stream is announced by NOTIFY and resumes at its committed reference. A NACK rewinds a
stream; an ACK advances its reference.
"""

from __future__ import annotations

import asyncio
from functools import partial

from wallaroo_spark.connector.sending.connector_state import ConnectorState
from wallaroo_spark.connector.sending.resend_buffer import ResendBuffer
from wallaroo_spark.connector.sending.stream_references import StreamReferences, acknowledge
from wallaroo_spark.connector.sending.stream_sender import RESENT, StreamSender
from wallaroo_spark.connector.worker_connection import WorkerConnection
from wallaroo_spark.errors import LocalProtocolError, RemoteProtocolError, one_line
from wallaroo_spark.event_loop import BackgroundTasks
from wallaroo_spark.protocol import Ack, Frame, Nack, NotifyAck, Ok

_log = one_line("wallaroo_spark.connector")


class OpenStreams:
    """The streams by id. The session keeper reports sessions and frames to it."""

    def __init__(self, state: ConnectorState) -> None:
        self.streams: dict[int, StreamSender] = {}
        self._state = state
        self._references = StreamReferences()
        self._abandoned: set[int] = set()
        self._tasks = BackgroundTasks(self._task_ended)

    # Called by the connector.

    def add(self, stream: StreamSender) -> None:
        """Open a stream. Raises :class:`LocalProtocolError` when its id is in use."""
        other = self.streams.get(stream.id)
        if other is not None and not (other.messages.ended and other.messages.done):
            conflict = "is open already" if other.name == stream.name else f"would have the id of stream {other.name!r}"
            raise LocalProtocolError(
                f"stream {stream.name!r} (id {stream.id}) {conflict}; end the other one and wait until it is flushed, "
                "or give this one an id of its own",
                code="stream-already-open",
                stream=stream.name,
                id=stream.id,
            )
        if stream.id in self._abandoned and not self._state.increasing:
            raise LocalProtocolError(
                f"stream {stream.name!r} was given up in this session with messages unacknowledged, and with opaque "
                "ids the worker could not tell them from new ones; close this connector and use another one",
                code="stream-given-up",
                stream=stream.name,
                id=stream.id,
            )
        self.streams[stream.id] = stream
        if self._state.connection is not None:
            self._announce(stream, self._state.connection)

    def remove(self, stream: StreamSender) -> None:
        """Remove a stream; its kept messages are dropped."""
        if self.streams.get(stream.id) is stream:
            del self.streams[stream.id]
            if not stream.messages.all_acknowledged:
                self._abandoned.add(stream.id)
        if isinstance(stream.messages, ResendBuffer):
            stream.messages.clear()
        self._state.wake()

    # Called by the session keeper.

    def session_began(self, connection: WorkerConnection, ok: Ok) -> None:
        """Announce all streams. Raises :class:`ReplayError` for a stream that cannot resume from its reference."""
        state = self._state
        state.connection = connection
        self._references.began(state.revision, ok)
        self._abandoned.clear()
        for stream in list(self.streams.values()):
            stream.refusals.clear()
            if not stream.messages.settled:
                self._announce(stream, connection)
        state.wake()

    def session_ended(self, connection: WorkerConnection) -> None:
        """Stop the tasks of the ended session."""
        connection.record()
        if self._state.connection is connection:
            self._state.connection = None
        self._tasks.cancel()
        self._state.wake()

    def received(self, connection: WorkerConnection, frame: Frame) -> None:
        """Apply a frame of the running session. Raises :class:`ReplayError` as :meth:`session_began` does."""
        match frame:
            case Ack():
                for stream_id, ref in frame.refs:
                    self._acknowledge(connection, stream_id, ref)
                if frame.refs:
                    self._state.wake_waiting()
                self._state.queue.wake_next()
            case Nack():
                self._rewind(connection, frame)
            case NotifyAck():
                self._answer(connection, frame)

    def written(self) -> None:
        """The connection has written its frames: waiting sends may continue, and ephemeral streams may be done."""
        state = self._state
        state.queue.wake_next()
        idle = state.connection is not None and state.connection.idle
        if idle and any(stream.ephemeral for stream in self.streams.values()):
            state.wake_waiting()

    def lost(self, messages: int) -> None:
        """Messages of ephemeral streams were lost on the way."""
        self._state.lost_messages += messages

    def failed(self, error: Exception) -> None:
        """No further session is attempted: end the connector."""
        self._state.fail(error)

    # Announcing and resuming.

    def _announce(self, stream: StreamSender, connection: WorkerConnection) -> None:
        """Open a stream in this session, and resume it if it is open."""
        notify = partial(connection.send_notify, stream.id, stream.name)
        if self._references.announce(connection.session, stream.id, stream.messages, notify):
            self._resume(stream, connection)

    def _resume(self, stream: StreamSender, connection: WorkerConnection) -> None:
        stream.resume(self._references.get(stream.id))
        stream.report_acknowledged()
        if stream.messages.due in RESENT:
            self._tasks.start(stream.resend(connection))
        self._state.wake()

    def _acknowledge(self, connection: WorkerConnection, stream_id: int, ref: int) -> None:
        connection.progressed = True
        self._references.acknowledged(stream_id, ref)
        stream = self.streams.get(stream_id)
        if stream is not None and stream.opened:
            acknowledge(connection.session, stream_id, stream.messages, ref)
            stream.report_acknowledged()
            if stream.messages.settled:
                del self.streams[stream_id]
                self._references.settled(self._state.revision, stream_id)

    def _rewind(self, connection: WorkerConnection, nack: Nack) -> None:
        self._references.rewound(nack)
        stream = self.streams.get(nack.stream_id)
        if stream is None:
            _log.warning(
                "the worker requests stream id %d again behind reference %d, and this connector no longer sends it; "
                "open or feed it again",
                nack.stream_id,
                nack.ref,
            )
        else:
            _log.info("the worker rewinds stream %r to reference %d", stream.name, nack.ref)
            self._announce(stream, connection)
        self._state.queue.wake_next()

    def _answer(self, connection: WorkerConnection, answer: NotifyAck) -> None:
        self._references.answered(answer)
        stream = self.streams.get(answer.stream_id)
        if stream is None:
            return
        if answer.success:
            stream.refusals.clear()
            self._resume(stream, connection)
        else:
            self._refused(stream, connection)

    def _refused(self, stream: StreamSender, connection: WorkerConnection) -> None:
        """v3: the stream is active in another session, perhaps an older one of this connector; NOTIFY again later."""
        try:
            delay = stream.refusals.refused(asyncio.get_running_loop().time())
        except RemoteProtocolError as error:
            stream.failure = error
            stream.deliveries.fail(error)
            self._state.wake()
            return
        _log.info("stream %r is active in another session; asking again in %.1f s", stream.name, delay)
        self._tasks.start(self._announce_again(stream, connection, delay))

    async def _announce_again(self, stream: StreamSender, connection: WorkerConnection, delay: float) -> None:
        await asyncio.sleep(delay)
        if self._state.connection is connection and self.streams.get(stream.id) is stream:
            self._announce(stream, connection)

    def _task_ended(self, error: BaseException | None) -> None:
        if isinstance(error, Exception) and not self._state.over:
            self._state.fail(error)
