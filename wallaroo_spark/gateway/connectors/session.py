"""One session of the connector protocol at a gateway. Pure: bytes and answers in; bytes and events out.

The messages of a connector stream become events of its partition's controller, many in one event. The connector is
acknowledged when the controller has answered, which is behind the commit. Source: ``docs/pipelines/bulk.md``.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from enum import StrEnum

from wallaroo_spark.errors import RemoteProtocolError
from wallaroo_spark.gateway.connectors.decoding import PlainMessage, messages_of
from wallaroo_spark.gateway.connectors.gateway_side import GatewaySide
from wallaroo_spark.gateway.connectors.names import target_of
from wallaroo_spark.gateway.connectors.payloads import event_of_payload
from wallaroo_spark.gateway.refusals import Refused
from wallaroo_spark.gateway.state.requests import Answer, ToInbox, reason_of
from wallaroo_spark.pipelines.controller.messages.events import ConnectorAsked, ConnectorOpened, MessagesSent
from wallaroo_spark.pipelines.controller.messages.instructions import AnswerRequest, ConnectorPosition, WarnClient
from wallaroo_spark.pipelines.controller.messages.values import CloudEvent, PartitionKey
from wallaroo_spark.protocol import (
    EosReceived,
    ErrorReceived,
    Fault,
    Flags,
    HelloReceived,
    MessageRun,
    MessagesReceived,
    Notify,
    NotifyAck,
    NotifyReceived,
    Restart,
    Revision,
    StreamReference,
    StreamState,
    WorkerSession,
    broken,
    reasons,
)
from wallaroo_spark.protocol.sessions.streams import spans

VERSION = "0.0.1"
"""The protocol's version, as the default of the workers' option ``version``."""
LONGEST_HELLO = 5 + 4 * (2 + 0xFFFF)
"""Bytes of the longest HELLO: four fields of the greatest length, with length field and tag."""
ROW_MESSAGES = 2_000
"""The most messages of one row of the inbox. A choice: few rows for many messages, and small ones for its memory."""
ROW_BYTES = 1 << 20
"""Bytes of payloads from which a row of the inbox is closed. A choice, as above."""
MOST_UNSTABLE = 10_000
"""The most messages in a row with UNSTABLE_REFERENCE; they wait for the next one without. A choice."""
UNSTABLE_BYTES = 4 << 20
"""The most bytes of such messages. A choice: the longest message of a client."""
_EPHEMERAL, _UNSTABLE, _EOS = int(Flags.EPHEMERAL), int(Flags.UNSTABLE_REFERENCE), int(Flags.EOS)


class DoorPhase(StrEnum):
    """The phase of a session."""

    GREETING = "greeting"
    """HELLO has not come."""
    ASKING = "asking"
    """The partitions are asked for the positions of the instance's streams, which OK has in the drafts."""
    STREAMING = "streaming"
    """OK was sent."""
    ENDED = "ended"
    """The session has ended; the connection is to be closed."""


@dataclass(slots=True)
class MessageRow:
    """Messages of one stream that become one event."""

    ids: list[int] = field(default_factory=list)
    """Ids of the messages with a record."""
    records: list[CloudEvent] = field(default_factory=list)
    """The records."""
    last: int | None = None
    """Id of the last message."""
    messages: int = 0
    """Number of messages."""
    bytes: int = 0
    """Bytes of their payloads."""

    def join(self, more: MessageRow) -> None:
        """Add the messages of another row behind its own."""
        self.ids += more.ids
        self.records += more.records
        self.last, self.messages, self.bytes = more.last, self.messages + more.messages, self.bytes + more.bytes


@dataclass(slots=True)
class SentStream:
    """A connector stream that the session has opened."""

    stream_id: int
    """Its id."""
    name: str
    """Its name."""
    key: PartitionKey
    """The partition that its messages go to."""
    opening: int
    """Number of the request that opened it."""
    last: int | None = None
    """Id of the last accepted message; None before the first."""
    waiting: MessageRow = field(default_factory=MessageRow)
    """The messages behind the last one that can be resumed from."""


@dataclass(slots=True)
class _Uncommitted:
    """A row whose commit is waited for."""

    stream_id: int
    """Id of its stream."""
    last: int | None
    """Id of the last message that the stream has behind it."""
    messages: int
    """Number of its messages."""
    bytes: int
    """Bytes of their payloads."""
    ended: bool
    """Whether its stream ends behind it."""


class DoorSession:
    """One session. ``changed`` is called when there is something to write, or the session has ended.

    The events that methods return are to be written to the inbox, in order.
    """

    def __init__(self, number: int, peer: str, outside: GatewaySide, changed: Callable[[], None]) -> None:
        self.number = number
        self.peer = peer
        self.phase = DoorPhase.GREETING
        self.uncommitted = 0
        """Messages that are not committed."""
        self.token = ""
        """The cookie, which is a token where the schema declares Tokens."""
        self._outside = outside
        self._changed = changed
        limits = outside.limits
        self._protocol = WorkerSession(
            version=VERSION,
            max_frame_bytes=limits.message_bytes,
            max_streams=limits.connector_streams,
            cookie_problem=self._cookie_problem,
            find=outside.find,
        )
        self._streams: dict[int, SentStream] = {}
        self._names: dict[str, int] = {}
        self._openings: dict[int, SentStream] = {}
        self._asked: set[int] = set()
        self._positions: list[ConnectorPosition] = []
        self._rows: dict[int, _Uncommitted] = {}
        self._acks: dict[int, int] = {}
        self._output: list[bytes] = []
        self._waiting = 0

    @property
    def instance(self) -> str:
        """Name of the connector's instance; empty before HELLO."""
        return self._protocol.hello.instance if self._protocol.hello else ""

    @property
    def pending(self) -> int:
        """Received bytes of an incomplete frame, and of messages that wait for one that can be resumed from."""
        return self._protocol.pending + self._waiting

    @property
    def streaming(self) -> bool:
        """Whether OK was sent and the session has not ended."""
        return self.phase is DoorPhase.STREAMING

    def __str__(self) -> str:
        return f"{self.instance or 'a connector'} at {self.peer}"

    def receive(self, data: bytes) -> list[ToInbox]:
        """Take bytes of the connector."""
        events: list[ToInbox] = []
        try:
            self._protocol.receive(data)
            while self.phase is not DoorPhase.ENDED and (found := self._protocol.next_event()) is not None:
                self._take(found, events)
            if self.phase is DoorPhase.GREETING and self._protocol.pending > LONGEST_HELLO:
                raise broken(
                    Fault.FRAME_TOO_LONG,
                    f"{self._protocol.pending} bytes came without a whole HELLO; none is longer than {LONGEST_HELLO}",
                )
        except RemoteProtocolError as error:
            self.fail(error.message)
        except Refused as error:
            self.fail(error.message)
        self._changed()
        return events

    def _take(self, found: object, events: list[ToInbox]) -> None:
        match found:
            case MessagesReceived():
                self._messages(found.run, events)
            case NotifyReceived():
                self._notify(found, events)
            case EosReceived():
                self._end_stream(self._streams[found.stream_id], events)
            case HelloReceived():
                self._hello(events)
            case ErrorReceived():
                self._outside.log(self, f"gave up: {found.reason}", warning=True)
                self.close()

    def _cookie_problem(self, cookie: bytes) -> str:
        try:
            token = cookie.decode()
            self._outside.check_token(token)
        except UnicodeDecodeError:
            return "the cookie is no token: it is not UTF-8"
        except Refused as error:
            return f"the cookie is no token that is accepted here: {error.message}"
        self.token = token
        return ""

    def _hello(self, events: list[ToInbox]) -> None:
        self._outside.require_room()
        if self._revision.has(NotifyAck):
            self._begin()
            return
        self.phase = DoorPhase.ASKING
        for key in self._outside.keys(self.token):
            reply = self._outside.requests.open(self)
            self._asked.add(reply.request)
            events.append((key, ConnectorAsked(reply, self.instance)))
        if not self._asked:
            self._begin()

    def _begin(self) -> None:
        """Send OK."""
        self.phase = DoorPhase.STREAMING
        self._outside.log(self, f"begins a session in {self._revision.name}")
        references = [
            StreamReference(one.stream_id, one.reference, one.name)
            for one in self._positions
            if one.reference is not None
        ]
        self._positions = []
        self._output.append(self._protocol.ok(self._outside.window(), references))

    def _notify(self, event: NotifyReceived, events: list[ToInbox]) -> None:
        notify = event.notify
        if event.already_open:
            stream = self._streams[notify.stream_id]
            self._output.append(self._protocol.notify_ack(stream.stream_id, stream.last, success=False))
            return
        key = self._key(notify)
        same = self._names.setdefault(notify.name, notify.stream_id)
        if same != notify.stream_id:
            raise broken(
                Fault.STREAM_ALREADY_OPEN,
                f"{notify.name} is open already in this session, as stream {same}; give each stream a name of its "
                "own, with another producer behind a colon",
            )
        before = self._streams.get(notify.stream_id)
        if before is not None and before.name != notify.name:
            del self._names[before.name]
        reply = self._outside.requests.open(self)
        stream = SentStream(notify.stream_id, notify.name, key, reply.request)
        self._streams[notify.stream_id] = stream
        self._openings[reply.request] = stream
        self._outside.opened(self, notify.name)
        events.append((key, ConnectorOpened(reply, self.instance, notify.name, notify.stream_id)))

    def _has_ended(self, stream: SentStream) -> bool:
        return self._protocol.streams.get(stream.stream_id).state is StreamState.CLOSED

    def _key(self, notify: Notify) -> PartitionKey:
        """The partition of a stream. Raises :class:`Refused` for a name that is not valid or not permitted."""
        target = target_of(notify.name)
        self._outside.check(self.token, target.stream)
        self._outside.require_partition(target.stream, target.partition)
        return PartitionKey(target.stream, target.partition)

    def _messages(self, run: MessageRun, events: list[ToInbox]) -> None:
        found, error = messages_of(run)
        streams = {one.stream_id for one in found}
        end = len(found)
        if error is not None or any(one.flags for one in found) or not self._protocol.admit_plain(streams):
            flags = [(one.stream_id, bool(one.flags & _EOS), bool(one.flags & _EPHEMERAL)) for one in found]
            admission = self._protocol.admit(spans(flags), end, error)
            end, error = admission.end, admission.error
        rows: dict[int, MessageRow] = {}
        try:
            for message in found[:end]:
                self._message(self._streams[message.stream_id], message, rows, events)
        finally:
            # The messages in front of one that is not accepted are kept.
            for stream_id, row in rows.items():
                self._write(self._streams[stream_id], row, events)
        if error is not None:
            raise error

    def _message(
        self, stream: SentStream, message: PlainMessage, rows: dict[int, MessageRow], events: list[ToInbox]
    ) -> None:
        id, flags = message.id, message.flags
        if flags & _EPHEMERAL or id is None:
            raise broken(
                Fault.MIXED_EPHEMERAL,
                f"{stream.name} has EPHEMERAL messages, and a durable stream needs ids to apply each message once; "
                "send them without EPHEMERAL",
            )
        row = rows.get(stream.stream_id)
        if row is None:
            row = rows[stream.stream_id] = MessageRow()
        stable = not flags & _UNSTABLE or flags & _EOS
        if stream.last is None or id > stream.last:
            self._add(stream, row if stable and not stream.waiting.messages else stream.waiting, id, message.payload)
        if stable and stream.waiting.messages:
            self._waiting -= stream.waiting.bytes
            row.join(stream.waiting)
            stream.waiting = MessageRow()
        elif stream.waiting.messages > MOST_UNSTABLE or stream.waiting.bytes > UNSTABLE_BYTES:
            raise broken(
                Fault.WRONG_STATE,
                f"{stream.name} has {stream.waiting.messages} messages of {stream.waiting.bytes} bytes in a row that "
                f"cannot be resumed from; {MOST_UNSTABLE} of {UNSTABLE_BYTES} bytes are permitted, so send a boundary "
                "without UNSTABLE_REFERENCE more often",
            )
        if flags & _EOS:
            self._write(stream, rows.pop(stream.stream_id), events, ended=True)
        elif row.messages >= ROW_MESSAGES or row.bytes >= ROW_BYTES:
            self._write(stream, rows.pop(stream.stream_id), events)

    def _add(self, stream: SentStream, row: MessageRow, id: int, payload: bytes | None) -> None:
        if payload is not None:
            event = event_of_payload(
                payload,
                f"{stream.name}/{id}",
                self.instance,
                self._outside.limits,
                f"message {id} of {stream.name}",
            )
            row.ids.append(id)
            row.records.append(event)
            row.bytes += len(payload)
            if row is stream.waiting:
                self._waiting += len(payload)
        row.messages += 1
        row.last = stream.last = id

    def _end_stream(self, stream: SentStream, events: list[ToInbox]) -> None:
        """v3: the stream has ended."""
        row, stream.waiting = stream.waiting, MessageRow()
        self._waiting -= row.bytes
        self._write(stream, row, events, ended=True)

    def _write(self, stream: SentStream, row: MessageRow, events: list[ToInbox], *, ended: bool = False) -> None:
        if row.last is None and not ended:
            return
        reply = self._outside.requests.open(self)
        last = stream.last if row.last is None else row.last
        self._rows[reply.request] = _Uncommitted(stream.stream_id, last, row.messages, row.bytes, ended)
        self.uncommitted += row.messages
        self._outside.uncommitted(row.messages, row.bytes)
        event = MessagesSent(
            reply, stream.opening, self.instance, stream.name, last, tuple(row.ids), tuple(row.records), ended
        )
        events.append((stream.key, event))

    def answered(self, request: int, answer: Answer) -> list[ToInbox]:
        """Take the answer of a controller."""
        if request in self._asked:
            self._asked.discard(request)
            if isinstance(answer, AnswerRequest):
                self._positions += answer.positions
            if not self._asked and self.phase is DoorPhase.ASKING:
                self._begin()
        elif (opened := self._openings.pop(request, None)) is not None:
            self._opened(opened, answer)
        elif (row := self._rows.pop(request, None)) is not None:
            self.uncommitted -= row.messages
            self._outside.uncommitted(-row.messages, -row.bytes)
            self._committed(row, answer)
        self._changed()
        return []

    def _opened(self, stream: SentStream, answer: Answer) -> None:
        if not self.streaming:
            return
        if not isinstance(answer, AnswerRequest):
            self.fail(reason_of(answer))
            return
        (position,) = answer.positions
        if self._revision.has(NotifyAck):
            stream.last = position.reference
            self._output.append(self._protocol.notify_ack(stream.stream_id, position.reference, success=True))
        elif position.reference is not None:
            # The messages that were committed between OK and NOTIFY are in no later ACK.
            self._acks[stream.stream_id] = max(position.reference, self._acks.get(stream.stream_id, 0))

    def _committed(self, row: _Uncommitted, answer: Answer) -> None:
        if not self.streaming:
            return
        if isinstance(answer, WarnClient):
            self.superseded("a newer session")
        elif not isinstance(answer, AnswerRequest):
            self.fail(reason_of(answer))
        else:
            if row.last is not None:
                self._acks[row.stream_id] = row.last
            if row.ended:
                self._finish(row.stream_id)

    def _finish(self, stream_id: int) -> None:
        """The end of a stream is committed. It may have been opened again meanwhile."""
        stream = self._streams.get(stream_id)
        if stream is not None and self._has_ended(stream):
            self._protocol.streams.finish(stream_id)
            del self._streams[stream_id]
            del self._names[stream.name]

    def output(self) -> bytes:
        """The bytes for the connector since the last call: frames, references and credits."""
        if self.streaming:
            credits = self._credits()
            if credits or self._acks:
                self._output.append(self._protocol.ack(credits, self._acks.items()))
        self._acks = {}
        data, self._output = b"".join(self._output), []
        return data

    def _credits(self) -> int:
        """Credits up to the window: for each message that is not committed there is one less."""
        window, available = self._outside.window(), self._protocol.credits.available
        return max(0, window - available - self.uncommitted) if available < window // 2 else 0

    def superseded(self, peer: str) -> None:
        """A newer session sends one of the streams."""
        self.fail(reasons.superseded(self.instance, peer))

    def rules_changed(self) -> None:
        """Permissions may have changed: a session that has lost its right ends."""
        if not self.streaming:
            return
        try:
            self._outside.check_token(self.token)
            for stream in self._streams.values():
                if not self._has_ended(stream):
                    self._outside.check(self.token, stream.key.stream)
        except Refused as error:
            self.fail(f"the cookie is no longer accepted: {error.message}")
            self._changed()

    def send_off(self, why: str) -> None:
        """The gateway ends: make the connector connect again, in the way of its revision."""
        if self.phase is DoorPhase.ENDED:
            return
        revision = self._protocol.revision if self.streaming else None
        if revision is not None and revision.back_after_close:
            self.close()
        elif revision is not None and revision.has(Restart):
            self._output.append(self._protocol.restart())
            self.close()
        else:
            self.fail(reasons.later(why))
        self._changed()

    def fail(self, reason: str) -> None:
        """End the session with an ERROR."""
        if self.phase is DoorPhase.ENDED:
            return
        self._outside.log(self, f"is sent away: {reason}", warning=True)
        data = self._protocol.fail(reason)
        if data is not None:
            self._output.append(data)
        self.close()

    def close(self) -> None:
        """The session has ended. The answers to its rows are still counted."""
        self.phase = DoorPhase.ENDED
        for request in (*self._asked, *self._openings):
            self._outside.requests.forget(request)
        self._asked.clear()
        self._openings.clear()
        self._streams.clear()
        self._protocol.close()

    @property
    def _revision(self) -> Revision:
        assert self._protocol.revision is not None
        return self._protocol.revision
