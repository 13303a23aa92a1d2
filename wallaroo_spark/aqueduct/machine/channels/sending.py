"""The sender of a channel. Source: ``docs/aqueduct/protocol.md#senders``."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from wallaroo_spark.aqueduct.errors import MessageTooLarge, NoRoom, SenderClosed
from wallaroo_spark.aqueduct.frames import (
    U64_MAX,
    ChannelId,
    ClosedChannelLost,
    FinishSender,
    Frame,
    MessageFrame,
    Ranges,
    SentUnreliable,
    encode,
)
from wallaroo_spark.aqueduct.machine.channels.context import ChannelContext
from wallaroo_spark.aqueduct.machine.channels.links import LinkedChannel
from wallaroo_spark.aqueduct.machine.channels.range_set import RangeSet
from wallaroo_spark.aqueduct.machine.channels.window import Usage, message_cost
from wallaroo_spark.aqueduct.machine.instructions import EndReason, Nacked, ResetCode, RoomAgain, SenderEnded
from wallaroo_spark.aqueduct.machine.outgoing import BIDIRECTIONAL, UNIDIRECTIONAL
from wallaroo_spark.aqueduct.machine.states import SENDER, SenderEvent, SenderState
from wallaroo_spark.aqueduct.machine.timers import Timer
from wallaroo_spark.aqueduct.violations import Rule, violation


class InFlight(NamedTuple):
    """A message that is neither acked nor nacked."""

    cost: int
    """Bytes of the window."""
    stream: int | None
    """The stream of an unordered message."""


class SendingHalf:
    """The sender of a channel.

    ``own`` says that the other side has created the channel, so that this side opens its control stream. ``attached``
    says whether the receiver is on its way to the application of the other side.
    """

    def __init__(self, channel: ChannelId, context: ChannelContext, *, own: bool, attached: bool, handed: bool) -> None:
        self.channel = channel
        self.own = own
        self.attached = attached
        self.handed = handed
        """Whether the application has the sender."""
        self.state = SenderState.OPEN
        self.stream: int | None = None
        """The control stream, when it is attached."""
        self.heard = False
        """Whether the peer has answered on the control stream that this side has opened."""
        self.node = LinkedChannel(channel, self)
        self.in_flight = Usage()
        self.sent: dict[bool, dict[int, InFlight]] = {True: {}, False: {}}
        """Messages that are neither acked nor nacked: reliable ones, and the others."""
        self.next = {True: 0, False: 0}
        """The next number of reliable messages, and of the others."""
        self.dropped = False
        """Whether the message that brought the sender was dropped, so that the application never gets it."""
        self.ended: SenderEnded | None = None
        self._context = context
        self._ordered: int | None = None
        self._acked_below = 0
        self._judged = 0
        """The number of unreliable messages that are acked or nacked."""
        self._declared = 0
        self._declaring: Timer | None = None
        self._waits = False

    # Calls of the application.

    def send(
        self, payload: bytes, attachments: Sequence[LinkedChannel], *, reliable: bool, ordered: bool, now: float,
        datagram_bytes: int | None,
    ) -> int:  # fmt: skip
        """Send a message, and return its number."""
        self._may(SenderEvent.SEND)
        number, created = self.next[reliable], tuple(other.channel for other in attachments)
        frame = MessageFrame(self.channel, number, payload, created)
        self._check_size(frame, reliable, datagram_bytes)
        cost = message_cost(payload, created)
        self._check_room(cost, known=reliable or datagram_bytes is not None)
        self.next[reliable] += 1
        stream = None
        if not reliable:
            self._context.outgoing.datagram(frame)
            self._declare_later(now)
        elif ordered and not self.channel.oneshot:
            self._send_ordered(frame)
        else:
            stream = self._open(frame, end=True)
        self.sent[reliable][number] = InFlight(cost, stream)
        self.in_flight.add(cost)
        self._context.window.total.add(cost)
        self._context.links.link(self.node, (reliable, number), attachments)
        if self.channel.oneshot:
            self.finish()
        return number

    def has_room(self, cost: int) -> bool:
        """Whether a reliable message of this cost would be sent now."""
        window = self._context.window
        return window.channel_has_room(self.in_flight, cost) and window.connection_has_room(cost)

    def finish(self) -> None:
        """End the channel behind what was sent."""
        if self.channel.oneshot and not self.next[True]:
            raise SenderClosed(
                f"{self.channel}: it ends with its one message; send this message, or cancel", channel=self.channel
            )
        self.state = self._may(SenderEvent.FINISH)
        self._stop_waiting()
        if self._ordered is not None:
            self._context.outgoing.send(self._ordered, end=True)
        if self.stream is not None:
            self._send_finish()

    def cancel(self) -> None:
        """Give up what is not delivered; without effect where the finish is on its way, or the sender has ended."""
        if SenderEvent.CANCEL not in SENDER[self.state] or self._finish_is_sent:
            return
        self.state = SENDER[self.state][SenderEvent.CANCEL]
        self._stop_waiting()
        self._reset_messages(ResetCode.CANCELLED)
        if not self.attached:
            self._end(SenderEvent.CLOSED, EndReason.CANCELLED)
        elif self.stream is not None:
            self._send_cancel()

    # Events of the network.

    def open_control(self, frame: Frame) -> int:
        """Open the control stream of a channel that the other side has created."""
        self.stream = self._context.outgoing.open_stream(BIDIRECTIONAL, frame)
        return self.stream

    def attach_control(self, stream: int, now: float) -> None:
        """The receiver has opened the control stream."""
        self.stream, self.heard = stream, True
        if self.state is SenderState.OPEN:
            self._declare(now)
        elif self.state is SenderState.FINISHING:
            self._send_finish()
        elif self.state is SenderState.CANCELLING:
            self._send_cancel()

    def answered(self) -> None:
        """The peer has sent something on the control stream."""
        if not self.heard:
            self.heard = True
            if self.state is SenderState.CANCELLING:
                self._send_cancel()

    def ack_reliable(self, ranges: Ranges) -> None:
        """Acks from the lowest number that was not acked."""
        sent = self.sent[True]
        start = self._acked_below
        self._check_sent(start + sum(ranges), reliable=True)
        for at, length in enumerate(ranges):
            if at % 2 == 0:
                for number in range(start, start + length):
                    if number not in sent:
                        raise violation(Rule.ACKED_TWICE, f"{self.channel}: message {number} was acked before")
                    self._settle(number, reliable=True, acked=True)
                self._tell_acked(True, start, start + length)
            start += length
        while self._acked_below < self.next[True] and self._acked_below not in sent:
            self._acked_below += 1
        self._tell_room()

    def ack_nack_unreliable(self, ranges: Ranges) -> None:
        """Acks and nacks from where the last ones ended."""
        start = self._judged
        self._check_sent(start + sum(ranges), reliable=False)
        sent = self.sent[False]
        for at, length in enumerate(ranges):
            acked = at % 2 == 0
            numbers = RangeSet()
            for number in range(start, start + length):
                # One that was only declared, to be answered, is no message.
                if number in sent:
                    self._settle(number, reliable=False, acked=acked)
                    numbers.add(number, number + 1)
            for first, end in numbers:
                if acked:
                    self._tell_acked(False, first, end)
                else:
                    self._tell_nacked(False, first, end, EndReason.LOST)
            start += length
        self._judged = start
        self._tell_room()

    def close_receiver(self, ranges: Ranges) -> None:
        """The receiver has closed: what it has not acked is nacked."""
        self._check_sent(sum(ranges), reliable=True)
        bounds, start = [], 0
        for at, length in enumerate(ranges):
            bounds.append((start, start + length, at % 2 == 0))
            start += length
        numbers, at, newly_acked = sorted(self.sent[True]), 0, RangeSet()
        for start, end, acked in bounds:
            first = at
            while at < len(numbers) and numbers[at] < end:
                at += 1
            if acked:
                for number in numbers[first:at]:
                    self._settle(number, reliable=True, acked=True)
                    newly_acked.add(number, number + 1)
            elif at - first != end - start:
                raise violation(
                    Rule.NACK_OF_ACKED, f"{self.channel}: of the nacked messages {start} to {end - 1} some were acked"
                )
        for start, end in newly_acked:
            self._tell_acked(True, start, end)
        if self.state in (SenderState.CANCELLING, SenderState.CANCELLED):
            reason = EndReason.CANCELLED
        elif self.state is SenderState.FINISHING and not self.sent[True]:
            reason = EndReason.FINISHED
        else:
            reason = EndReason.CLOSED
        self._end(SenderEvent.CLOSED, reason)

    def control_reset(self, code: int) -> None:
        """The receiver has reset the control stream, or does not read it any more."""
        if self.stream is not None and self.stream in self._context.outgoing.open:
            self._context.outgoing.reset(self.stream, code)
        if self.state in (SenderState.CANCELLING, SenderState.CANCELLED):
            self._end(SenderEvent.CLOSED, EndReason.CANCELLED)
        elif code == ResetCode.LOST:
            self._end(SenderEvent.CLOSED, EndReason.LOST)
        else:
            self._end(SenderEvent.CLOSED, EndReason.CLOSED, code)

    def messages_stopped(self, stream: int) -> None:
        """The peer does not read a stream of messages any more, which is the end of the channel."""
        self._context.message_streams.pop(stream, None)
        if stream == self._ordered:
            self._ordered = None
        self.cancel()

    def lost(self, *, told: bool = False) -> None:
        """The other half never arrives; ``told``: the peer says so."""
        stream, outgoing = self.stream, self._context.outgoing
        if stream is not None:
            open_ = stream in outgoing.open
            if open_:
                outgoing.reset(stream, ResetCode.LOST)
            if not told and not (self.heard and (open_ or self.own)):
                # A reset may overtake ChannelControl, and nothing follows an end.
                outgoing.open_stream(UNIDIRECTIONAL, ClosedChannelLost(self.channel), end=True)
        self._context.links.tell_lost(self.node)
        self._end(SenderEvent.LOSE, EndReason.LOST)

    # Its own.

    @property
    def _finish_is_sent(self) -> bool:
        return self.state is SenderState.FINISHING and self.stream is not None

    def _may(self, event: SenderEvent) -> SenderState:
        row = SENDER[self.state]
        if event not in row:
            raise SenderClosed(
                f"{self.channel}: the sender takes no {event}, because it is {self.state}", channel=self.channel
            )
        return row[event]

    def _check_size(self, frame: MessageFrame, reliable: bool, datagram_bytes: int | None) -> None:
        size = len(encode(frame)) if reliable else len(self._context.outgoing.in_datagram(frame))
        most = self._context.limits.frame if reliable else datagram_bytes
        if most is not None and size > most:
            kind, remedy = ("frame", "send several messages") if reliable else ("datagram", "send it reliably")
            raise MessageTooLarge(
                f"{self.channel}: the message makes a {kind} of {size} bytes, the limit is {most}; {remedy}",
                channel=self.channel,
                size=size,
                limit=most,
            )

    def _check_room(self, cost: int, *, known: bool) -> None:
        """``known``: whether the size of datagrams is known, or does not matter."""
        window = self._context.window
        if not window.channel_has_room(self.in_flight, cost):
            self._waits = True
            raise NoRoom(
                f"{self.channel}: {self.in_flight.messages} messages of {self.in_flight.bytes} bytes are not acked; "
                "send again at RoomAgain",
                channel=self.channel,
            )
        if not (known and window.connection_has_room(cost)):
            window.wait(self.channel)
            why = f"{window.total.bytes} bytes of all channels are not acked" if known else "the handshake is not over"
            raise NoRoom(f"{self.channel}: {why}; send again at RoomAgain", channel=self.channel)

    def _open(self, frame: Frame, *, end: bool) -> int:
        stream = self._context.outgoing.open_stream(UNIDIRECTIONAL, frame, end=end)
        self._context.message_streams[stream] = self
        return stream

    def _send_ordered(self, frame: Frame) -> None:
        if self._ordered is None:
            self._ordered = self._open(frame, end=False)
        else:
            self._context.outgoing.send(self._ordered, frame)

    def _declare_later(self, now: float) -> None:
        if self.stream is not None and self._declaring is None:
            self._declaring = self._context.timers.at(now + self._context.limits.declare_delay, self._declare)

    def _undeclared(self) -> list[Frame]:
        count, self._declared = self.next[False] - self._declared, self.next[False]
        if self._declaring is not None:
            self._declaring.cancel()
            self._declaring = None
        return [SentUnreliable(count)] if count else []

    def _declare(self, now: float) -> None:
        frames = self._undeclared()
        if frames and self.stream is not None:
            self._context.outgoing.send(self.stream, *frames)

    def _send_finish(self) -> None:
        assert self.stream is not None
        self._context.outgoing.send(self.stream, *self._undeclared(), FinishSender(self.next[True]), end=True)

    def _send_cancel(self) -> None:
        """Reset the control stream, as soon as it is sure that the reset cannot overtake ChannelControl."""
        assert self.stream is not None
        outgoing = self._context.outgoing
        if self.heard:
            self.state = SENDER[self.state][SenderEvent.RESET]
            self._undeclared()
            if self.stream in outgoing.open:
                outgoing.reset(self.stream, ResetCode.CANCELLED)
        elif self.channel.oneshot:
            # A oneshot channel that is finished without its message is a cancelled one.
            self.state = SENDER[self.state][SenderEvent.RESET]
            outgoing.send(self.stream, FinishSender(0), end=True)
        else:
            # A declared message that was never sent makes the receiver answer.
            if self._judged == self.next[False]:
                self.next[False] += 1
            outgoing.send(self.stream, *self._undeclared())

    def _reset_messages(self, code: ResetCode) -> None:
        """Reset the streams of messages, whose frames nobody needs any more."""
        outgoing, streams = self._context.outgoing, self._context.message_streams
        unordered = [message.stream for message in self.sent[True].values() if message.stream is not None]
        for stream in (*([self._ordered] if self._ordered is not None else []), *unordered):
            if streams.pop(stream, None) is not None:
                outgoing.reset(stream, code)
        self._ordered = None

    def _check_sent(self, end: int, *, reliable: bool) -> None:
        if end > self.next[reliable] or end > U64_MAX:
            kind = "reliable" if reliable else "unreliable"
            raise violation(
                Rule.ACK_NOT_SENT,
                f"{self.channel}: acks and nacks go up to {kind} message {end - 1}, {self.next[reliable]} were sent",
            )

    def _settle(self, number: int, *, reliable: bool, acked: bool) -> None:
        """A message is acked or nacked."""
        message = self.sent[reliable].pop(number)
        self.in_flight.remove(message.cost)
        self._context.window.total.remove(message.cost)
        if message.stream is not None:
            self._context.message_streams.pop(message.stream, None)
        if acked:
            self._context.links.ack(self.node, (reliable, number))
        else:
            self._context.links.nack(self.node, (reliable, number))

    def _tell_acked(self, reliable: bool, start: int, end: int) -> None:
        if start < end:
            self._context.links.tell_acked(self.node, reliable, start, end)

    def _tell_nacked(self, reliable: bool, start: int, end: int, reason: EndReason) -> None:
        self._context.outgoing.add(Nacked(self.channel, range(start, end), reliable, reason))

    def _tell_room(self) -> None:
        if self._waits and self._context.window.half_is_free(self.in_flight):
            self._waits = False
            self._context.outgoing.add(RoomAgain(self.channel))
        for channel in self._context.window.released():
            self._context.outgoing.add(RoomAgain(channel))

    def _stop_waiting(self) -> None:
        self._waits = False
        self._context.window.stop_waiting(self.channel)

    def _end(self, event: SenderEvent, reason: EndReason, code: int = 0) -> None:
        """The sender is no more, and what is not acked is nacked."""
        self.state = SENDER[self.state][event]
        self._stop_waiting()
        if reason is EndReason.FINISHED and self._ordered is not None:
            self._context.message_streams.pop(self._ordered, None)
        else:
            self._reset_messages(ResetCode.LOST if reason is EndReason.LOST else ResetCode.CANCELLED)
        self._undeclared()
        outgoing = self._context.outgoing
        if self.stream is not None and self.stream in outgoing.open:
            outgoing.reset(self.stream, ResetCode.CANCELLED)
        for reliable, sent in self.sent.items():
            nacked = RangeSet()
            for number in list(sent):
                self._settle(number, reliable=reliable, acked=False)
                nacked.add(number, number + 1)
            for start, end in nacked:
                # What a finished channel has not delivered are datagrams.
                self._tell_nacked(reliable, start, end, EndReason.LOST if reason is EndReason.FINISHED else reason)
        self._context.links.half_ended(self.node)
        self.ended = SenderEnded(self.channel, reason, code)
        self._context.ended(self.channel, self.stream)
        self._tell_room()

    def validate(self) -> None:
        """Raise AssertionError where an invariant does not hold."""
        messages = [message for sent in self.sent.values() for message in sent.values()]
        assert self.in_flight.messages == len(messages)
        assert self.in_flight.bytes == sum(message.cost for message in messages)
        assert not messages or self.ended is None
        assert all(number < self.next[reliable] for reliable, sent in self.sent.items() for number in sent)
        assert self._acked_below == min(self.sent[True], default=self.next[True])
        assert self._judged <= self.next[False]
        assert self._declared <= self.next[False]
        assert all(number >= self._judged for number in self.sent[False])
