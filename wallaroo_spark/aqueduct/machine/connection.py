"""One connection as a pure machine: events in, instructions out. Source: ``docs/aqueduct/protocol.md``."""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from wallaroo_spark.aqueduct.errors import (
    ConnectionLost,
    MessageTooLarge,
    NoRoom,
    ProtocolViolation,
    SenderClosed,
)
from wallaroo_spark.aqueduct.frames import (
    ENTRYPOINT,
    AckNackUnreliable,
    AckReliable,
    ChannelControl,
    ChannelId,
    ClosedChannelLost,
    CloseReceiver,
    ConnectionControl,
    FinishSender,
    Frame,
    FrameLimits,
    Half,
    Headers,
    MessageFrame,
    SentUnreliable,
    Side,
    Version,
    encode,
)
from wallaroo_spark.aqueduct.machine.channels.context import ChannelContext
from wallaroo_spark.aqueduct.machine.channels.links import Links
from wallaroo_spark.aqueduct.machine.channels.receiving import ReceivingHalf, TakenMessage
from wallaroo_spark.aqueduct.machine.channels.sending import SendingHalf
from wallaroo_spark.aqueduct.machine.channels.window import ReceiveQueues, SendWindow, message_cost
from wallaroo_spark.aqueduct.machine.incoming import EVENTS, ChannelHalf, IncomingStream
from wallaroo_spark.aqueduct.machine.instructions import (
    CloseConnection,
    Ended,
    EndReason,
    HeadersExchanged,
    HeadersReceived,
    Instruction,
    MessageAvailable,
    ReceiverEnded,
    ResetCode,
    RoomAgain,
    SenderEnded,
)
from wallaroo_spark.aqueduct.machine.limits import AqueductLimits
from wallaroo_spark.aqueduct.machine.outgoing import BIDIRECTIONAL, VERSION, Outgoing
from wallaroo_spark.aqueduct.machine.states import MACHINE, MachineEvent, MachineState, ReadEvent, ReadState
from wallaroo_spark.aqueduct.machine.timers import Timers
from wallaroo_spark.aqueduct.violations import CloseCode, Rule, violation
from wallaroo_spark.errors import ArgumentValueError

DATAGRAM = -1
"""Stands for the stream of a datagram."""
HELD_DATAGRAM_COST = 64
"""Bytes that a held datagram costs beside its content: a choice, what its object takes."""


class Counts(NamedTuple):
    """What a connection holds. All is 0 when the channels have ended, but for the connection's own stream."""

    senders: int
    receivers: int
    lost_links: int
    """Ends of channels that have ended here, and of which the message that carried the other end is undecided."""
    links: int
    """Attachments of messages that are undecided."""
    streams: int
    """Streams that are not ended in both directions, without the connection's own."""
    unacked_messages: int
    unacked_bytes: int
    queued_messages: int
    queued_bytes: int
    unfinished_bytes: int
    """Bytes of incomplete frames and of frames that are held."""


class ConnectionMachine:
    """One side of a connection.

    ``now`` is a monotonic clock in seconds. ``headers`` are this side's; a server that gives None answers the client's
    headers with :meth:`answer_headers`. After each call :meth:`instructions` has what is to be done.

    Events of the network never raise: a violation by the peer makes the instruction ``CloseConnection``. Calls of the
    application raise the errors of :mod:`wallaroo_spark.aqueduct.errors`, and change nothing then.
    """

    def __init__(
        self, side: Side, *, now: float, limits: AqueductLimits | None = None, headers: Headers | None = ()
    ) -> None:
        self.side = side
        self.limits = limits or AqueductLimits()
        self.state = MachineState.CONNECTING
        self._now = now
        self._frame_limits = FrameLimits(self.limits.frame, self.limits.headers, self.limits.attachments)
        self._headers = None if headers is None else self._checked(headers)
        self._outgoing = Outgoing(side)
        self._timers = Timers()
        self._context = ChannelContext(
            side,
            self.limits,
            self._outgoing,
            self._timers,
            Links(self._outgoing),
            SendWindow(self.limits),
            ReceiveQueues(self.limits),
            self._half_ended,
        )
        self._halves: dict[ChannelId, ChannelHalf] = {}
        self._streams: dict[int, IncomingStream] = {}
        self._held: deque[bytes] = deque()
        """Datagrams that came before the headers."""
        self._unfinished = 0
        self._discarded: OrderedDict[ChannelId, float] = OrderedDict()
        """Receivers of the other side's channels that were discarded, and when."""
        self._draining: set[ChannelId] = set()
        """Those of them whose sender has not ended the control stream: it would take a ghost for the receiver."""
        self._minted: dict[tuple[Side, bool], int] = {}
        self._control: int | None = None
        """The connection control stream."""
        self._datagram_bytes: int | None = None
        self._reads_held = False
        self._handshake_timer = self._timers.at(now + self.limits.handshake, self._handshake_is_late)
        if side is Side.CLIENT:
            self._greet_server()

    def _greet_server(self) -> None:
        self._control = self._outgoing.open_stream(BIDIRECTIONAL, ConnectionControl(self._headers or ()))
        self._streams[self._control] = IncomingStream(self._control, ReadState.CONTROL_ANSWER)
        self._minted[Side.CLIENT, False] = 1
        self._halves[ENTRYPOINT] = SendingHalf(ENTRYPOINT, self._context, own=False, attached=True, handed=True)

    # The network.

    def handshake_completed(self, datagram_bytes: int, now: float) -> None:
        """TLS is complete. ``datagram_bytes``: the largest payload of a datagram; 0 where the peer takes none.

        A client that sends early data is told of the handshake before it is complete, with what it remembers.
        """
        self._event(now, self._handshake_completed, datagram_bytes)

    def stream_received(self, stream: int, data: bytes, ended: bool, now: float) -> None:
        """Bytes of a stream have come; ``ended``: they are its last."""
        self._event(now, self._stream_received, stream, data, ended)

    def stream_reset(self, stream: int, code: int, now: float) -> None:
        """The peer has sent RESET_STREAM."""
        self._event(now, self._stream_reset, stream, code)

    def stream_stopped(self, stream: int, code: int, now: float) -> None:
        """The peer has sent STOP_SENDING, which QUIC answers with a reset: nothing more is sent on the stream."""
        self._event(now, self._stream_stopped, stream, code)

    def datagram_received(self, data: bytes, now: float) -> None:
        """A datagram has come."""
        self._event(now, self._datagram_received, data)

    def connection_lost(self, code: int, reason: str, now: float) -> None:
        """The QUIC connection has ended: by the peer's close, a timeout, or an error of QUIC."""
        self._event(now, self._end, code, reason, True)

    def tick(self, now: float) -> None:
        """The time of :meth:`next_tick` has come."""
        self._event(now, self._timers.fire, now)

    def next_tick(self) -> float | None:
        """The time at which :meth:`tick` has something to do; None without one."""
        return self._timers.next()

    # The application.

    def answer_headers(self, headers: Headers, now: float) -> None:
        """Give a server's headers, after the notice HeadersReceived."""
        checked = self._checked(headers)
        self._call(now)
        if self.state is not MachineState.ANSWERING:
            raise ArgumentValueError(
                f"headers are given once, when the client's have come; the connection is {self.state}",
                code="channel-argument",
            )
        self._headers = checked
        self._answer()
        self._event(now, self._settle)

    def channel(self, half: Half, *, oneshot: bool = False) -> ChannelId:
        """Create a channel and keep its ``half`` here. The other half is attached to one message by its id.

        Raises NoRoom where there are too many channels.
        """
        self._call(self._now)
        self._check_open()
        count = len(self._halves) + self._context.links.ended
        if count >= self.limits.channels:
            raise NoRoom(f"the connection has {count} channels, the limit is {self.limits.channels}; end some")
        sender = self.side if half is Half.SENDER else self.side.other
        index = self._minted.get((sender, oneshot), 0)
        self._minted[sender, oneshot] = index + 1
        channel = ChannelId.of(sender, self.side, index, oneshot=oneshot)
        self._halves[channel] = self._new_half(channel, own=False, attached=False, handed=True)
        return channel

    def send(
        self,
        channel: ChannelId,
        payload: bytes,
        *,
        now: float,
        attach: Sequence[ChannelId] = (),
        reliable: bool = True,
        ordered: bool = True,
    ) -> int:
        """Send a message, and return its number among the reliable or the unreliable messages of the channel.

        Raises SenderClosed, NoRoom (before a notice RoomAgain), MessageTooLarge and ArgumentValueError.
        """
        self._call(now)
        half = self._sender(channel)
        if half is None:
            raise _unknown_sender(channel)
        if not half.attached:
            raise _bad_argument(f"{channel}: its receiver must be attached to a message before a message is sent on it")
        if channel.oneshot and not reliable:
            raise _bad_argument(f"{channel}: a oneshot channel has one reliable message")
        created = self._attachable(channel, attach)
        number = half.send(
            payload,
            [other.node for other in created],
            reliable=reliable,
            ordered=ordered,
            now=now,
            datagram_bytes=self._datagram_bytes,
        )
        for other in created:
            other.attached = True
        return number

    def has_room(self, channel: ChannelId, size: int) -> bool:
        """Whether a reliable message of ``size`` bytes would be sent now, and not raise NoRoom."""
        half = self._sender(channel)
        return half is not None and half.has_room(message_cost(b"", ()) + size)

    def finish(self, channel: ChannelId, now: float) -> None:
        """End a channel behind all messages that :meth:`send` has accepted. Raises SenderClosed."""
        self._call(now)
        half = self._sender(channel)
        if half is None:
            raise _unknown_sender(channel)
        half.finish()

    def cancel(self, channel: ChannelId, now: float) -> None:
        """Give up a channel, and its messages that are not delivered. It has no effect on a sender that has ended, or
        whose finish was sent already."""
        self._call(now)
        half = self._sender(channel)
        if half is not None:
            half.cancel()

    def take(self, channel: ChannelId, now: float) -> TakenMessage | None:
        """The next message of a receiver; None where there is none now, or none any more (notice ReceiverEnded)."""
        self._call(now)
        half = self._receiver(channel)
        message = None if half is None else half.take(now)
        if message is not None:
            for attachment in message.attachments:
                self._hand_over(attachment)
        return message

    def close_receiver(self, channel: ChannelId, now: float) -> None:
        """Close a receiver; messages that were not taken are dropped. It has no effect on one that has ended."""
        self._call(now)
        half = self._receiver(channel)
        if half is not None:
            half.close()
            self._settle()

    def close(self, reason: str, now: float, code: CloseCode = CloseCode.ORDERLY) -> None:
        """End the connection."""
        self._event(now, self._end, code, reason, False)

    # What is to be done, and what there is.

    def instructions(self) -> list[Instruction]:
        """What is to be done since the last call, in order."""
        return self._outgoing.take()

    def counts(self) -> Counts:
        """What the connection holds."""
        context = self._context
        senders = sum(isinstance(half, SendingHalf) for half in self._halves.values())
        streams = {*self._streams, *self._outgoing.open, *context.message_streams} - {self._control}
        return Counts(
            senders,
            len(self._halves) - senders,
            context.links.ended,
            context.links.count,
            len(streams),
            context.window.total.messages,
            context.window.total.bytes,
            context.queues.total.messages,
            context.queues.total.bytes,
            self._unfinished,
        )

    @property
    def queues(self) -> ReceiveQueues:
        """The queues of this side's receivers."""
        return self._context.queues

    def channels(self) -> list[ChannelId]:
        """The channels of which the application has a half that has not ended."""
        return [channel for channel, half in self._halves.items() if half.handed]

    @property
    def unacked_messages(self) -> int:
        """The number of messages of all channels that are neither acked nor nacked."""
        return self._context.window.total.messages

    @property
    def entrypoint(self) -> ChannelId:
        """The channel that exists from the beginning: the client sends on it."""
        return ENTRYPOINT

    def validate(self) -> None:
        """Raise AssertionError where an invariant does not hold."""
        context, halves = self._context, self._halves.values()
        senders = [half for half in halves if isinstance(half, SendingHalf)]
        receivers = [half for half in halves if isinstance(half, ReceivingHalf)]
        assert not context.dropped
        assert self._unfinished == sum(stream.held for stream in self._streams.values()) + sum(
            len(data) + HELD_DATAGRAM_COST for data in self._held
        )
        for total, parts in (
            (context.window.total, [half.in_flight for half in senders]),
            (context.queues.total, [half.queued for half in receivers]),
        ):
            assert total.messages == sum(part.messages for part in parts) >= 0
            assert total.bytes == sum(part.bytes for part in parts) >= 0
        for channel, half in self._halves.items():
            assert half.channel == channel
            assert half.own == (channel.creator is not self.side)
            assert half.ended is None or not half.handed, f"{channel} has ended and is not forgotten"
            assert half.ended is not None or half.node.half is half
            assert half.node.reachable or not half.own
        for sender in senders:
            sender.validate()
        for receiver in receivers:
            receiver.validate()
        for stream in self._streams.values():
            assert stream.half is None or (stream.half.stream == stream.id and stream.half.ended is None)
        assert set(context.message_streams.values()) <= set(senders)
        assert context.links.count >= sum(half.node.links for half in halves)

    # Events.

    def _event(self, now: float, action: Callable[..., None], *arguments: Any) -> None:
        """Do what an event asks for; a violation ends the connection."""
        if self.state is MachineState.ENDED:
            return
        self._now = now
        try:
            action(*arguments)
            self._settle()
        except ProtocolViolation as violated:
            rule: Rule = violated.fields["rule"]
            self._end(rule.close_code, violated.message, False)

    def _call(self, now: float) -> None:
        if self.state is MachineState.ENDED:
            raise ConnectionLost("the connection has ended; connect again")
        self._now = now

    def _settle(self) -> None:
        """Do what follows from the last event: read what was held, and end what was attached to dropped messages."""
        if self._reads_held:
            self._reads_held = False
            for stream in list(self._streams.values()):
                self._read(stream)
            while self._held and self.state is not MachineState.ENDED:
                data = self._held.popleft()
                self._unfinished -= len(data) + HELD_DATAGRAM_COST
                self._read_datagram(data)
        dropped = self._context.dropped
        while dropped:
            channel, lost = dropped.popleft()
            half = self._halves.get(channel)
            if half is not None:
                self._drop(half, lost=lost)
        self._context.queues.resume(self._now)

    def _drop(self, half: ChannelHalf, *, lost: bool) -> None:
        """The message that brought a half was dropped."""
        half.dropped = True
        if half.ended is not None:
            self._forget(half)
        elif lost:
            half.lost()
        elif isinstance(half, SendingHalf):
            half.cancel()
        else:
            half.close()

    def _end(self, code: int, reason: str, by_peer: bool) -> None:
        self.state = MACHINE[self.side][self.state][MachineEvent.END]
        if not by_peer:
            self._outgoing.add(CloseConnection(CloseCode(code), reason))
        self._outgoing.add(Ended(code, reason, by_peer))
        self._outgoing.open.clear()
        self._timers.clear()
        self._halves.clear()
        self._streams.clear()
        self._held.clear()
        self._discarded.clear()
        self._draining.clear()
        self._unfinished = 0
        self._reads_held = False
        self._context = ChannelContext(
            self.side,
            self.limits,
            self._outgoing,
            self._timers,
            Links(self._outgoing),
            SendWindow(self.limits),
            ReceiveQueues(self.limits),
            self._half_ended,
        )

    def _handshake_is_late(self, now: float) -> None:
        raise violation(
            Rule.HANDSHAKE_TIMEOUT, f"the connection is {self.state} after {self.limits.handshake:g} seconds"
        )

    def _handshake_completed(self, datagram_bytes: int) -> None:
        if datagram_bytes <= 0:
            raise violation(Rule.NO_DATAGRAMS, "the peer takes no datagrams, which every implementation must")
        self.state = MACHINE[self.side][self.state][MachineEvent.HANDSHAKE]
        self._datagram_bytes = datagram_bytes
        self._reads_held = True
        for channel in self._context.window.released():
            self._outgoing.add(RoomAgain(channel))

    def _stream_received(self, stream: int, data: bytes, ended: bool) -> None:
        incoming = self._stream(stream)
        if incoming is None:
            return
        incoming.receive(data, ended)
        self._read(incoming)
        self._count(incoming)
        self._check_unfinished()

    def _check_unfinished(self) -> None:
        if self._unfinished > self.limits.unfinished_bytes:
            raise violation(
                Rule.TOO_MUCH_UNFINISHED,
                f"{self._unfinished} bytes of frames are not complete or wait for the headers, "
                f"the limit is {self.limits.unfinished_bytes}",
            )

    def _count(self, stream: IncomingStream) -> None:
        """Count what a stream holds."""
        self._unfinished += stream.held - stream.counted
        stream.counted = stream.held

    def _over(self, stream: IncomingStream) -> None:
        """The peer has ended its direction of a stream."""
        del self._streams[stream.id]
        if stream.discarded is not None:
            self._draining.discard(stream.discarded)

    def _stream(self, stream: int) -> IncomingStream | None:
        """What is read from a stream; None where a stream of this side is over."""
        incoming = self._streams.get(stream)
        if incoming is None and stream & 1 != self.side:
            bidirectional = not stream & 2
            state = ReadState.BIDIRECTIONAL if bidirectional else ReadState.UNIDIRECTIONAL
            incoming = self._streams[stream] = IncomingStream(stream, state)
            if bidirectional:
                self._outgoing.open.add(stream)
        return incoming

    def _read(self, stream: IncomingStream) -> None:
        """Handle the whole frames of a stream, and its end behind them."""
        if self.state is MachineState.CONNECTING:
            return
        greeting = self.state is not MachineState.OPEN
        for frame in stream.frames(self._frame_limits, greeting=greeting):
            self._handle(stream, frame)
        self._count(stream)
        if stream.ended and not (greeting and stream.held):
            stream.check_end()
            self._over(stream)

    def _stream_reset(self, stream: int, code: int) -> None:
        incoming = self._stream(stream)
        if incoming is None:
            return
        undecided = incoming.state in (ReadState.BIDIRECTIONAL, ReadState.BIDIRECTIONAL_VERSION)
        incoming.advance(ReadEvent.RESET)
        half = incoming.half
        incoming.ignore()
        self._count(incoming)
        self._over(incoming)
        if undecided:
            self._outgoing.reset(stream, ResetCode.LOST)
        elif half is not None:
            half.answered()
            half.control_reset(code)

    def _stream_stopped(self, stream: int, code: int) -> None:
        if stream == self._control:
            raise violation(Rule.CONTROL_STREAM_ENDED, "the peer does not read the connection control stream any more")
        sender = self._context.message_streams.get(stream)
        if sender is not None:
            sender.messages_stopped(stream)
        elif stream in self._outgoing.open:
            # QUIC has reset the stream already.
            self._outgoing.open.discard(stream)
            incoming = self._streams.get(stream)
            if incoming is not None and incoming.half is not None:
                incoming.half.control_reset(code)

    def _datagram_received(self, data: bytes) -> None:
        if self.state is MachineState.OPEN:
            self._read_datagram(data)
            return
        self._held.append(data)
        self._unfinished += len(data) + HELD_DATAGRAM_COST
        self._check_unfinished()

    def _read_datagram(self, data: bytes) -> None:
        datagram = IncomingStream(DATAGRAM, ReadState.DATAGRAM)
        datagram.receive(data, True)
        for frame in datagram.frames(self._frame_limits, greeting=False):
            self._handle(datagram, frame)
        datagram.check_end()

    # Frames.

    def _handle(self, stream: IncomingStream, frame: Frame) -> None:
        if isinstance(frame, ChannelControl):
            self._channel_control(stream, frame.channel)
            return
        stream.advance(EVENTS[type(frame)])
        half = stream.half
        if half is not None:
            half.answered()
        match frame:
            case Version():
                self._check_version(frame)
            case ConnectionControl():
                self._connection_control(stream, frame)
            case MessageFrame():
                self._route(frame, reliable=stream.id != DATAGRAM)
            case ClosedChannelLost():
                self._closed_channel_lost(frame.channel)
            case SentUnreliable() | FinishSender():
                assert isinstance(half, ReceivingHalf)
                handle = half.finish if isinstance(frame, FinishSender) else half.sent_unreliable
                handle(frame.count, self._now)
            case AckReliable() | AckNackUnreliable() | CloseReceiver():
                assert isinstance(half, SendingHalf)
                self._acks(half, frame)

    def _acks(self, half: SendingHalf, frame: AckReliable | AckNackUnreliable | CloseReceiver) -> None:
        match frame:
            case AckReliable():
                half.ack_reliable(frame.ranges)
            case AckNackUnreliable():
                half.ack_nack_unreliable(frame.ranges)
            case CloseReceiver():
                half.close_receiver(frame.ranges)

    def _check_version(self, frame: Version) -> None:
        if frame.version != VERSION:
            raise violation(Rule.WRONG_VERSION, f"the peer has version {frame.version!r}, this side has {VERSION!r}")

    def _connection_control(self, stream: IncomingStream, frame: ConnectionControl) -> None:
        if self.side is Side.CLIENT and stream.id != self._control:
            raise violation(Rule.HEADERS_MISPLACED, "a server sends its headers on the client's stream")
        row = MACHINE[self.side][self.state]
        if MachineEvent.HEADERS not in row:
            raise violation(Rule.HEADERS_TWICE, "the client has sent its headers a second time")
        self.state = row[MachineEvent.HEADERS]
        self._handshake_timer.cancel()
        self._control = stream.id
        self._outgoing.add(HeadersReceived(frame.headers))
        if self.side is Side.CLIENT:
            self._outgoing.version_first = False
            self._has_opened()
        elif self._headers is not None:
            self._answer()

    def _answer(self) -> None:
        """Send a server's headers, and take the entrypoint."""
        assert self._control is not None
        self.state = MACHINE[self.side][self.state][MachineEvent.ANSWER]
        self._outgoing.send(self._control, Version(VERSION), ConnectionControl(self._headers or ()))
        self._create_remote(ENTRYPOINT, attached=True, handed=True)
        self._has_opened()

    def _has_opened(self) -> None:
        self._reads_held = True
        self._outgoing.add(HeadersExchanged())

    def _channel_control(self, stream: IncomingStream, channel: ChannelId) -> None:
        half = self._halves.get(channel)
        if half is None or half.stream is not None or not half.attached or half.ended is not None:
            half = None
            event = ReadEvent.CONTROL_UNKNOWN
        elif isinstance(half, SendingHalf):
            event = ReadEvent.CONTROL_FROM_RECEIVER
        else:
            event = ReadEvent.CONTROL_FROM_SENDER
        stream.advance(event)
        if channel.creator is not self.side:
            raise violation(Rule.WRONG_CREATOR, f"{channel}: its control stream is opened by the side that created it")
        if half is None:
            # A ghost, or a channel that is lost.
            self._outgoing.reset(stream.id, ResetCode.LOST)
            stream.ignore()
            return
        stream.half = half
        half.attach_control(stream.id, self._now)

    def _route(self, frame: MessageFrame, *, reliable: bool) -> None:
        """Find the receiver of a message, or create it."""
        channel = frame.channel
        if channel.sender is self.side:
            raise violation(Rule.WRONG_DIRECTION, f"{channel}: the side that receives has sent a message")
        half = self._halves.get(channel)
        if half is None:
            if channel.creator is self.side or self._is_discarded(channel):
                return
            half = self._create_remote(channel, attached=False)
        assert isinstance(half, ReceivingHalf)
        if half.admits(frame, reliable=reliable):
            self._create_attachments(frame)
            half.enqueue(frame, reliable=reliable, now=self._now)

    def _create_attachments(self, frame: MessageFrame) -> None:
        if len(set(frame.attachments)) < len(frame.attachments):
            raise violation(Rule.ATTACHED_TWICE, f"{frame.channel}: message {frame.number} has an attachment twice")
        for channel in frame.attachments:
            if channel.creator is self.side:
                raise violation(Rule.WRONG_CREATOR, f"{channel}: it was created by the side that gets its end")
            half = self._halves.get(channel)
            if channel == ENTRYPOINT or (half is not None and half.attached):
                raise violation(Rule.ATTACHED_TWICE, f"{channel}: its end was attached before")
            if half is None:
                self._create_remote(channel, attached=True)
            else:
                half.attached = True

    def _closed_channel_lost(self, channel: ChannelId) -> None:
        half = self._halves.get(channel)
        if half is None:
            return
        if half.ended is None:
            half.lost(told=True)
        elif not half.attached:
            self._forget(half)

    # Halves.

    def _sender(self, channel: ChannelId) -> SendingHalf | None:
        """The sender that the application has."""
        if channel.half_at(self.side) is Half.RECEIVER:
            raise _bad_argument(f"{channel}: this side has its receiver, which cannot send")
        half = self._halves.get(channel)
        return half if isinstance(half, SendingHalf) and half.handed else None

    def _receiver(self, channel: ChannelId) -> ReceivingHalf | None:
        """The receiver that the application has."""
        if channel.half_at(self.side) is Half.SENDER:
            raise _bad_argument(f"{channel}: this side has its sender, which cannot receive")
        half = self._halves.get(channel)
        return half if isinstance(half, ReceivingHalf) and half.handed else None

    def _attachable(self, sender: ChannelId, channels: Sequence[ChannelId]) -> list[ChannelHalf]:
        """The halves here of channels whose other halves are attached to a message."""
        if len(channels) > self.limits.attachments:
            raise MessageTooLarge(
                f"{sender}: {len(channels)} attachments are more than {self.limits.attachments}", channel=sender
            )
        if len(set(channels)) < len(channels):
            raise _bad_argument(f"{sender}: a message has the same channel twice")
        found = []
        for channel in channels:
            half = self._halves.get(channel)
            if half is None or half.own or half.attached:
                raise _bad_argument(f"{channel}: it was attached before, has ended, or was created by the other side")
            found.append(half)
        return found

    def _new_half(self, channel: ChannelId, *, own: bool, attached: bool, handed: bool) -> ChannelHalf:
        kind = SendingHalf if channel.half_at(self.side) is Half.SENDER else ReceivingHalf
        return kind(channel, self._context, own=own, attached=attached, handed=handed)

    def _create_remote(self, channel: ChannelId, *, attached: bool, handed: bool = False) -> ChannelHalf:
        """Create the half here of a channel that the other side has created, and open its control stream."""
        count = len(self._halves) + self._context.links.ended
        if count >= self.limits.channels:
            raise violation(Rule.TOO_MANY_CHANNELS, f"the connection has {count} of {self.limits.channels} channels")
        half = self._halves[channel] = self._new_half(channel, own=True, attached=attached, handed=handed)
        stream = half.open_control(ChannelControl(channel))
        state = ReadState.FROM_RECEIVER_START if isinstance(half, SendingHalf) else ReadState.FROM_SENDER_START
        self._streams[stream] = IncomingStream(stream, state, half)
        return half

    def _hand_over(self, channel: ChannelId) -> None:
        """The application has a half from now on, and is told what happened to it before."""
        half = self._halves.get(channel)
        if half is None:
            self._outgoing.add(self._lost_notice(channel))
            return
        half.handed = True
        if half.ended is not None:
            self._outgoing.add(half.ended)
            self._forget(half)
        elif isinstance(half, ReceivingHalf) and half.queued.messages:
            self._outgoing.add(MessageAvailable(channel))

    def _lost_notice(self, channel: ChannelId) -> SenderEnded | ReceiverEnded:
        if channel.half_at(self.side) is Half.SENDER:
            return SenderEnded(channel, EndReason.LOST)
        return ReceiverEnded(channel, EndReason.LOST)

    def _half_ended(self, channel: ChannelId, stream: int | None) -> None:
        """A half has ended: nothing is read from its control stream any more, and the application is told."""
        if stream is not None and stream in self._streams:
            self._streams[stream].ignore()
            self._count(self._streams[stream])
        half = self._halves[channel]
        assert half.ended is not None
        if half.handed:
            if isinstance(half.ended, SenderEnded):
                self._context.links.tell_ended(half.node, half.ended)
            else:
                self._outgoing.add(half.ended)
        # One that is lost and was not attached is a ghost. The others wait for the application.
        if half.handed or half.dropped or (half.ended.reason is EndReason.LOST and not half.attached):
            self._forget(half)

    def _forget(self, half: ChannelHalf) -> None:
        del self._halves[half.channel]
        if half.own and isinstance(half, ReceivingHalf):
            self._discarded[half.channel] = self._now
            if len(self._discarded) > self.limits.remembered_receivers:
                self._discarded.popitem(last=False)
            stream = None if half.stream is None else self._streams.get(half.stream)
            if stream is not None:
                stream.discarded = half.channel
                self._draining.add(half.channel)

    def _is_discarded(self, channel: ChannelId) -> bool:
        """Whether a receiver was discarded so recently that a message for it is a late one."""
        while self._discarded:
            first, when = next(iter(self._discarded.items()))
            if when + self.limits.remembered_seconds > self._now:
                break
            del self._discarded[first]
        return channel in self._discarded or channel in self._draining

    def _check_open(self) -> None:
        if self.side is Side.SERVER and self.state is not MachineState.OPEN:
            raise _bad_argument(f"a server creates channels when the connection is open; it is {self.state}")

    def _checked(self, headers: Headers) -> Headers:
        """Headers that can be sent."""
        for key, _ in headers:
            if not key or not key.isascii():
                raise _bad_argument(f"the key {key!r} of a header is empty or not ASCII")
        size = len(encode(ConnectionControl(headers)))
        if size > self.limits.headers:
            raise _bad_argument(f"headers of {size} bytes are more than {self.limits.headers}")
        return headers


def _bad_argument(text: str) -> ArgumentValueError:
    return ArgumentValueError(text, code="channel-argument")


def _unknown_sender(channel: ChannelId) -> SenderClosed:
    return SenderClosed(f"{channel}: there is no such sender any more", channel=channel)
