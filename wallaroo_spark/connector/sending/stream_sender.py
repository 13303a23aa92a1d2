"""Sends the messages of one stream: each waits for its turn, is written to the connection, and is recorded.

Programs use it through :class:`~wallaroo_spark.connector.stream.Stream`.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from datetime import datetime
from functools import partial

from wallaroo_spark.connector.arguments import event_time_of, id_of, wrong_type
from wallaroo_spark.connector.reporting import OnDelivery, StreamDeliveries
from wallaroo_spark.connector.sending.connector_state import ConnectorState, WaitingFor
from wallaroo_spark.connector.sending.resend_buffer import OVERHEAD_BYTES, ResendBuffer, memory_cost
from wallaroo_spark.connector.sending.send_batches import OpenRun, SendBatch
from wallaroo_spark.connector.sending.stream_references import Refusals
from wallaroo_spark.connector.sending.unacknowledged import Due, UnacknowledgedMessages
from wallaroo_spark.connector.worker_connection import WorkerConnection
from wallaroo_spark.errors import ArgumentValueError, LocalProtocolError, WallarooError, one_line
from wallaroo_spark.protocol import HEAD_BYTES, U64_MAX, EncodedRun, Flags, encode_run, encode_single

TURN_MESSAGES = 256
"""Messages that a stream may send in one turn while others wait. It keeps its turn while it waits for credit.

A choice between fairness and the cost of a turn: in bulk, batches of 256 cost 0.79 µs a message, of 4,096 0.64 (see
``BATCH_MESSAGES``).
"""

_log = one_line("wallaroo_spark.connector")
RESENT = (Due.RESEND, Due.END)
"""The kinds of messages that a stream resends by itself when it resumes."""

SentCallback = Callable[[Sequence[int], Sequence[bytes]], None]
"""Called with ids and payloads of messages that were sent."""


class StreamSender:
    """The sending side of one stream, across sessions."""

    def __init__(self, state: ConnectorState, name: str, stream_id: int, messages: UnacknowledgedMessages) -> None:
        self.name = name
        self.id = stream_id
        self.ephemeral = messages.ephemeral
        self.opened = False
        """Whether a worker has ever opened the stream."""
        self.reference: int | None = None
        """The committed reference when the stream was first opened."""
        self.failure: Exception | None = None
        """The error that has ended this stream alone."""
        self.refusals = Refusals(name, stream_id, state.retry)
        """NOTIFYs that the worker has refused; counted by the open streams."""
        self._state = state
        self._messages = messages
        flags = Flags.EPHEMERAL if self.ephemeral else Flags.NONE
        increasing = state.increasing and not self.ephemeral
        self.open_run = OpenRun(state.revision, stream_id, int(flags), increasing=increasing)
        """Messages that are sent and not recorded yet. While it is open, a message may be added without a turn."""
        self._buffer = messages if isinstance(messages, ResendBuffer) else None
        self.deliveries = StreamDeliveries(name, state.deliveries)
        """The messages sent and acknowledged, and their callbacks."""
        self._turn_left = 0
        self._ticket: int | None = None
        self._resending_on: WorkerConnection | None = None

    @property
    def messages(self) -> UnacknowledgedMessages:
        """The bookkeeping of sent and unacknowledged messages."""
        self._state.record()
        return self._messages

    @property
    def last(self) -> int | None:
        """The id that the next message follows; any thread may read it."""
        return self.open_run.last if self.open_run.count else self._messages.last

    @property
    def kept(self) -> int:
        """Number of messages kept until they are acknowledged; any thread may read it."""
        return self._messages.kept + (0 if self._buffer is None else self.open_run.count)

    @property
    def done(self) -> bool:
        """Whether every message is acknowledged or, for an ephemeral stream, written to the connection."""
        connection = self._state.connection
        return self.messages.done and (not self.ephemeral or connection is None or connection.idle)

    def resume(self, ref: int | None) -> None:
        """The stream is open in a session and resumes after ``ref``. Raises :class:`ReplayError`."""
        known, anew = self.messages.reference, self.messages.begun_anew
        self.messages.resume(ref)
        if self.messages.begun_anew and not anew:
            _log.warning(
                "stream %r: the worker was at reference %s and has none now; the stream continues as a new one. "
                "That is correct where the receiver forgets ended streams (streamRetention); otherwise its query "
                "went back to an older checkpoint, and the messages up to %s are missing there",
                self.name,
                known,
                known,
            )
        if not self.opened:
            self.opened = True
            self.reference = self.messages.start if ref is None else ref

    async def send_one(
        self, payload: bytes | None, id: int | None, flags: Flags, event_time: int | datetime | None, key: bytes | None
    ) -> int:
        """Send one message, or a boundary without a ``payload``; return its id. Raises as :meth:`Stream.send` does."""
        if event_time is not None:
            event_time = event_time_of(event_time)
        if id is not None:
            id = id_of(id)
        added = self.open_run.add_any(payload, id, int(flags), event_time, key)
        if added is not None:
            return added
        messages = self.messages
        self._check_not_ended()
        messages.next_id(id)
        connection = await self._message_turn(memory_cost(HEAD_BYTES + len(payload or b"") + len(key or b"")))
        message_id = messages.next_id(id)
        if self.ephemeral:
            flags |= Flags.EPHEMERAL
        run = encode_single(self._state.revision, self.id, message_id, payload, flags, event_time, key)
        connection.send_messages(run)
        self._append(run)
        self._open_run(message_id, connection)
        return message_id

    def _open_run(self, sent: int, connection: WorkerConnection) -> None:
        """Let more messages follow the one with the id ``sent`` in the same turn, up to the turn's limit."""
        room, most, following = connection.room, connection.session.credits.available, self._messages.last or 0
        if self._buffer is not None:
            room = min(room, self._state.budget.room - OVERHEAD_BYTES)
        if self._state.queue.contended:
            most = min(most, self._turn_left)
        if room > 0 and most > 0 and following < U64_MAX:
            self.open_run.open(sent, self._messages.next_id(None), most, room, connection.session.max_frame_bytes)
            connection.collect(self.open_run.close, self._recorded)

    def _append(self, run: EncodedRun) -> None:
        self._messages.append(run)
        self.deliveries.appended(run.count)
        if self._buffer is not None and self._buffer.kept < run.count:
            # Messages of an earlier process may be committed already.
            self.report_acknowledged()

    def report_acknowledged(self) -> None:
        """Report messages that were acknowledged; called after each change of the messages."""
        if self._buffer is not None:
            self.deliveries.advance(self.deliveries.sent - self._buffer.kept, self._buffer.reference)

    def expect_delivery(self, message_id: int, callback: OnDelivery) -> None:
        """Call back when the message that was sent last is acknowledged."""
        self.deliveries.expect(self.deliveries.sent + self.open_run.count, message_id, callback)

    def expecting(self, callback: OnDelivery | None) -> SentCallback | None:
        """For :meth:`send_batch`: call back for each of its messages. Raises as :meth:`check_delivery` does."""
        if callback is None:
            return None
        self.check_delivery(callback)

        def sent(ids: Sequence[int], _: Sequence[bytes]) -> None:
            for number, message_id in enumerate(ids, self.deliveries.sent - len(ids) + 1):
                self.deliveries.expect(number, message_id, callback)

        return sent

    def check_delivery(self, callback: OnDelivery) -> None:
        """Raise :class:`ArgumentTypeError` or :class:`ArgumentValueError` if ``callback`` cannot be called later."""
        if not callable(callback) or inspect.iscoroutinefunction(callback):
            expected = "on_delivery is a plain function of an error and a delivery"
            remedy = "for a coroutine, read connector.acknowledgements()"
            raise wrong_type(expected, callback, "on_delivery", remedy)
        if self._buffer is None:
            raise ArgumentValueError(
                f"stream {self.name!r} is ephemeral, and no message of it is acknowledged; send without on_delivery, "
                "or open the stream without ephemeral",
                code="options-conflict",
                argument="on_delivery",
            )

    def _recorded(self, run: EncodedRun) -> None:
        self._append(run)
        self._turn_left -= run.count

    async def send_batch(self, batch: SendBatch, flags: Flags, sent: SentCallback | None = None) -> int | None:
        """Send the rest of a batch, as many messages at a time as possible, and call ``sent``. Returns the last id.

        Raises as :meth:`Stream.send_many` does.
        """
        if self.ephemeral:
            flags |= Flags.EPHEMERAL
        last, most = self.messages.last, batch.left
        while batch.left:
            try:
                run, payloads = await self._send_some(batch, most, flags)
            except LocalProtocolError as error:
                # Halving the number finds the first message that cannot be sent, and sends those before it.
                most //= 2
                if not most or self._state.over or self.messages.ended:
                    raise batch.located(error) from None
                continue
            except WallarooError as error:
                raise batch.located(error) from None
            last = run.last
            batch.sent(run.count)
            if sent is not None:
                sent(run.ids, payloads)
        return last

    async def _send_some(self, batch: SendBatch, most: int, flags: Flags) -> tuple[EncodedRun, Sequence[bytes]]:
        state = self._state
        connection = await self._message_turn(batch.next_cost)
        memory = state.budget.room if self._buffer is not None else None
        count = batch.fitting(min(most, self._most(connection)), connection.room, memory)
        columns = batch.take(count)
        ids = self.messages.next_ids(columns.ids, count)
        run = encode_run(state.revision, self.id, ids, columns.payloads, flags, columns.event_times, columns.keys)
        connection.send_messages(run)
        self._append(run)
        self._turn_left -= count - 1
        return run, columns.payloads

    async def end(self) -> None:
        """Send the end, once. Later messages are refused."""
        if self.messages.ended:
            return
        connection = await self._turn(self._end_blocker)
        # Another task may have ended the stream meanwhile.
        if connection is not None and not self.messages.ended:
            self.messages.ended = True
            self._send_end(connection)

    async def flushed(self) -> None:
        """Wait until the stream is done. Raises the error if the connector or the stream ends first."""
        await self.until(lambda: self.done)

    async def until(self, holds: Callable[[], bool]) -> None:
        """Wait until a condition holds. Raises the error if the connector or the stream ends first."""
        await self._state.until(lambda: holds() or self.failure is not None)
        if self.failure is not None and not holds():
            raise self.failure

    async def resend(self, connection: WorkerConnection) -> None:
        """Resend the unacknowledged messages of an earlier session, then the end if there was one."""
        if self._resending_on is connection:
            return
        self._resending_on = connection
        messages, buffer = self.messages, self._buffer
        try:
            while (due := messages.due) in RESENT:
                await self._turn(partial(self._resend_blocker, due))
                # An ACK for these messages may have arrived meanwhile, or a NACK while the end waited.
                if messages.due is not due:
                    continue
                if due is Due.END:
                    self._send_end(connection)
                elif buffer is not None and (run := buffer.next_resend(self._most(connection))) is not None:
                    connection.send_messages(run)
                    buffer.resent()
                    self._turn_left -= run.count - 1
        finally:
            if self._resending_on is connection:
                self._resending_on = None
            self._state.wake()

    def _check_not_ended(self) -> None:
        if self.messages.ended:
            raise LocalProtocolError(
                f"stream {self.name!r} has ended; open it again to send more", code="stream-ended", stream=self.name
            )

    def _send_end(self, connection: WorkerConnection) -> None:
        connection.send_end(self.id, self.messages.last or 0, ephemeral=self.ephemeral)
        self.messages.end_written = True
        self._state.wake()

    # Taking turns with the other streams.

    def _most(self, connection: WorkerConnection) -> int:
        """Number of messages that may be sent in the turn that has just begun."""
        credits = connection.session.credits.available
        return min(credits, self._turn_left + 1) if self._state.queue.contended else credits

    async def _message_turn(self, size: int) -> WorkerConnection:
        """Wait until a message of ``size`` counted bytes may be sent. Raises :class:`LocalProtocolError` once the
        stream has ended."""
        self._check_not_ended()
        connection = await self._turn(lambda: self._blocker(size))
        self._check_not_ended()
        assert connection is not None
        return connection

    async def _turn(self, blocker: Callable[[], WaitingFor | None]) -> WorkerConnection | None:
        """Wait until sending is not blocked, and return the connection. That holds until the caller's next await."""
        state = self._state
        while True:
            state.check()
            if self.failure is not None:
                raise self.failure
            if (self._turn_left > 0 or not state.queue.contended) and blocker() is None:
                self._turn_left -= 1
                return state.connection
            unfinished = self._turn_left > 0
            self._ticket = await state.turn(
                blocker,
                lambda: state.over or self.failure is not None or blocker() is None,
                self._ticket if unfinished else None,
            )
            if not unfinished:
                self._turn_left = TURN_MESSAGES

    def _blocker(self, size: int) -> WaitingFor | None:
        """The reason for which a message of ``size`` counted bytes must wait; None once the stream has ended."""
        state = self._state
        if self.messages.ended:
            return None
        if state.connection is None:
            return WaitingFor.CONNECTION
        if not state.connection.session.is_open(self.id):
            return WaitingFor.NOTIFY
        if self.messages.due is not Due.NEW or self._resending_on is not None:
            return WaitingFor.RESEND
        if self._buffer is not None and not state.budget.admits(size):
            return WaitingFor.MEMORY
        return state.blocker()

    def _end_blocker(self) -> WaitingFor | None:
        if self.messages.ended:
            return None
        found = self._blocker(0)
        return self._state.end_blocker() if found in (WaitingFor.CREDIT, WaitingFor.MEMORY, None) else found

    def _resend_blocker(self, due: Due) -> WaitingFor | None:
        connection = self._state.connection
        if connection is not None and not connection.session.is_open(self.id):
            return WaitingFor.NOTIFY
        if self.messages.due is not due:
            return None
        return self._state.end_blocker() if due is Due.END else self._state.blocker()
