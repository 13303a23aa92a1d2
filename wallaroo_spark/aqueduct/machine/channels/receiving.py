"""The receiver of a channel. Source: ``docs/aqueduct/protocol.md#receivers``."""

from __future__ import annotations

from collections import OrderedDict, deque
from typing import NamedTuple

from wallaroo_spark.aqueduct.frames import (
    U64_MAX,
    AckNackUnreliable,
    AckReliable,
    ChannelId,
    ClosedChannelLost,
    CloseReceiver,
    Frame,
    MessageFrame,
)
from wallaroo_spark.aqueduct.machine.channels.context import ChannelContext
from wallaroo_spark.aqueduct.machine.channels.links import LinkedChannel
from wallaroo_spark.aqueduct.machine.channels.range_set import RangeSet
from wallaroo_spark.aqueduct.machine.channels.window import Usage, message_cost
from wallaroo_spark.aqueduct.machine.instructions import EndReason, MessageAvailable, ReceiverEnded, ResetCode
from wallaroo_spark.aqueduct.machine.outgoing import BIDIRECTIONAL, UNIDIRECTIONAL
from wallaroo_spark.aqueduct.machine.states import RECEIVER, ReceiverEvent, ReceiverState
from wallaroo_spark.aqueduct.machine.timers import Timer
from wallaroo_spark.aqueduct.violations import Rule, violation

MOST_DECLARATIONS = 64
"""The most declarations whose times are kept apart: a sender makes 20 a second. Beyond it the newest two are one."""
EARLY_ACK = 4
"""Acks are sent without a delay when they free the window's 1/4: a choice, so that a sender never waits for a delay."""


class TakenMessage(NamedTuple):
    """A message for the application."""

    number: int
    reliable: bool
    payload: bytes
    attachments: tuple[ChannelId, ...]
    """The application has these ends of channels from now on: ``half_at(side)`` says which end it is."""


class ReceivingHalf:
    """The receiver of a channel.

    ``own`` says that the other side has created the channel, so that this side opens its control stream. ``attached``
    says whether a message has brought the receiver, or carries the sender to the other side.
    """

    def __init__(self, channel: ChannelId, context: ChannelContext, *, own: bool, attached: bool, handed: bool) -> None:
        self.channel = channel
        self.own = own
        self.attached = attached
        self.handed = handed
        """Whether the application has the receiver."""
        self.state = ReceiverState.OPEN
        self.stream: int | None = None
        """The control stream, when it is attached."""
        self.heard = False
        """Whether the peer has answered on the control stream that this side has opened."""
        self.node = LinkedChannel(channel, self)
        self.queued = Usage()
        self.dropped = False
        """Whether the message that brought the receiver was dropped, so that the application never gets it."""
        self.ended: ReceiverEnded | None = None
        self._context = context
        self._queue: OrderedDict[int, TakenMessage] = OrderedDict()
        """Messages by their order of arrival."""
        self._arrivals = 0
        self._unreliable: deque[int] = deque()
        """The keys of unreliable messages in the queue; some of them may be taken."""
        self._acked = RangeSet()
        self._to_ack = RangeSet()
        """Reliable messages that are in the queue or taken, and not acked."""
        self._to_ack_usage = Usage()
        self._received = 0
        """The number of reliable messages."""
        self._judged = 0
        """The number of unreliable messages that are acked or nacked."""
        self._arrived = RangeSet()
        """Unreliable messages that are not acked yet."""
        self._declared = 0
        self._declarations: deque[tuple[int, float]] = deque()
        """How many unreliable messages were declared at a time, and when those are nacked that have not arrived."""
        self._final: int | None = None
        """The number of reliable messages that were ever sent."""
        self._acking: Timer | None = None
        self._nacking: Timer | None = None

    # Calls of the application.

    def take(self, now: float) -> TakenMessage | None:
        """The next message; None without one."""
        if not self._queue:
            return None
        _, message = self._queue.popitem(last=False)
        self._remove(message)
        self._context.queues.resume(now)
        self._acks_are_due(now)
        if self.state is ReceiverState.FINISHED and not self._queue:
            self._end(ReceiverEvent.DRAINED, EndReason.FINISHED)
        return message

    def close(self) -> None:
        """Close the receiver: what is in the queue is dropped, and its attachments are closed."""
        if ReceiverEvent.CLOSE not in RECEIVER[self.state]:
            return
        self.state = RECEIVER[self.state][ReceiverEvent.CLOSE]
        self._drop_queue(lost=False)
        if self.state is ReceiverState.ENDED:
            self._has_ended(EndReason.CLOSED)
        elif self.stream is not None:
            self._send_close()
            self._end(ReceiverEvent.CLOSED, EndReason.CLOSED)
        elif not self.attached:
            self._end(ReceiverEvent.CLOSED, EndReason.CLOSED)

    # Events of the network.

    def open_control(self, frame: Frame) -> int:
        """Open the control stream of a channel that the other side has created."""
        self.stream = self._context.outgoing.open_stream(BIDIRECTIONAL, frame)
        return self.stream

    def attach_control(self, stream: int, now: float) -> None:
        """The sender has opened the control stream."""
        self.stream, self.heard = stream, True
        if self.state is ReceiverState.CLOSING:
            self._send_close()
            self._end(ReceiverEvent.CLOSED, EndReason.CLOSED)
        else:
            self._acks_are_due(now)

    def answered(self) -> None:
        """The peer has sent something on the control stream."""
        self.heard = True

    def admits(self, frame: MessageFrame, *, reliable: bool) -> bool:
        """Whether a message is processed: not behind a nack, not twice, and not when the receiver has ended."""
        if ReceiverEvent.MESSAGE not in RECEIVER[self.state]:
            return False
        number = frame.number
        if self.channel.oneshot and (number or not reliable):
            raise violation(Rule.ONESHOT, f"{self.channel}: more than one reliable message was sent on it")
        bound = self._final if reliable else self._declared if self._final is not None else None
        if number >= U64_MAX or (bound is not None and number >= bound):
            kind = "reliable" if reliable else "unreliable"
            raise violation(Rule.NUMBER_NOT_SENT, f"{self.channel}: {kind} message {number} of {bound} arrived")
        if reliable:
            if number in self._acked or number in self._to_ack:
                raise violation(Rule.NUMBER_TWICE, f"{self.channel}: message {number} arrived twice")
            self._to_ack.add(number, number + 1)
            self._received += 1
        else:
            if number < self._judged or number in self._arrived:
                return False
            self._arrived.add(number, number + 1)
        gaps = len(self._acked) + len(self._to_ack) + len(self._arrived)
        if gaps > 2 * self._context.limits.window_messages + 2:
            raise violation(Rule.TOO_MANY_GAPS, f"{self.channel}: {gaps} gaps are between the messages that arrived")
        return True

    def enqueue(self, frame: MessageFrame, *, reliable: bool, now: float) -> None:
        """Put a message into the queue."""
        message = TakenMessage(frame.number, reliable, frame.payload, frame.attachments)
        cost = message_cost(frame.payload, frame.attachments)
        was_empty = not self._queue
        self._arrivals += 1
        self._queue[self._arrivals] = message
        self.queued.add(cost)
        self._context.queues.total.add(cost)
        if reliable:
            self._to_ack_usage.add(cost)
            self._check_limits()
        else:
            self._unreliable.append(self._arrivals)
            self._evict()
        if was_empty and self._queue and self.handed:
            self._context.outgoing.add(MessageAvailable(self.channel))
        self._acks_are_due(now)

    def sent_unreliable(self, count: int, now: float) -> None:
        """The sender has declared unreliable messages."""
        if self.channel.oneshot and count:
            raise violation(Rule.ONESHOT, f"{self.channel}: an unreliable message was declared on it")
        self._declared += count
        if self._declared > U64_MAX:
            raise violation(Rule.NUMBER_NOT_SENT, f"{self.channel}: {self._declared} unreliable messages were declared")
        if self._declared > self._judged:
            if len(self._declarations) == MOST_DECLARATIONS:
                self._declarations.pop()
            self._declarations.append((self._declared, now + self._context.limits.nack_delay))
        self._acks_are_due(now)

    def finish(self, count: int, now: float) -> None:
        """The sender has finished behind ``count`` reliable messages."""
        highest = max(self._acked.end, self._to_ack.end)
        if highest > count:
            raise violation(
                Rule.NUMBER_NOT_SENT, f"{self.channel}: message {highest - 1} arrived, and {count} were sent"
            )
        if max(self._judged, self._arrived.end) > self._declared:
            raise violation(
                Rule.NUMBER_NOT_SENT, f"{self.channel}: an unreliable message arrived that is not declared at the end"
            )
        if self.channel.oneshot and count > 1:
            raise violation(Rule.ONESHOT, f"{self.channel}: {count} messages were sent on it")
        if self.channel.oneshot and count == 0:
            self.control_reset(ResetCode.CANCELLED)
            return
        self.state = RECEIVER[self.state][ReceiverEvent.FINISH]
        self._final = count
        self._acks_are_due(now)

    def control_reset(self, code: int) -> None:
        """The sender has reset the control stream."""
        if ReceiverEvent.CANCEL not in RECEIVER[self.state]:
            return
        lost = code == ResetCode.LOST
        self._drop_queue(lost=True)
        if self.stream is not None and self.stream in self._context.outgoing.open:
            if lost:
                self._context.outgoing.reset(self.stream, ResetCode.LOST)
            else:
                self._send_close()
        if lost:
            self._end(ReceiverEvent.CANCEL, EndReason.LOST)
        else:
            self._end(ReceiverEvent.CANCEL, EndReason.CANCELLED, code)

    def lost(self, *, told: bool = False) -> None:
        """The other half never arrives; ``told``: the peer says so."""
        if ReceiverEvent.LOSE not in RECEIVER[self.state]:
            return
        stream, outgoing = self.stream, self._context.outgoing
        if stream is not None:
            open_ = stream in outgoing.open
            if open_:
                outgoing.reset(stream, ResetCode.LOST)
            if not told and not (self.heard and (open_ or self.own)):
                # A reset may overtake ChannelControl, and nothing follows an end.
                outgoing.open_stream(UNIDIRECTIONAL, ClosedChannelLost(self.channel), end=True)
        self._drop_queue(lost=True)
        self._end(ReceiverEvent.LOSE, EndReason.LOST)

    # Its own.

    def _remove(self, message: TakenMessage) -> None:
        cost = message_cost(message.payload, message.attachments)
        self.queued.remove(cost)
        self._context.queues.total.remove(cost)

    def _drop_queue(self, *, lost: bool) -> None:
        for message in self._queue.values():
            self._drop(message, lost=lost)
        self._queue.clear()
        self._unreliable.clear()

    def _drop(self, message: TakenMessage, *, lost: bool) -> None:
        self._remove(message)
        self._context.dropped.extend((channel, lost) for channel in message.attachments)

    def _evict(self) -> None:
        """Drop the oldest unreliable messages beyond the limit."""
        limits, queues = self._context.limits, self._context.queues
        while self._unreliable and (
            self.queued.bytes > limits.window_bytes
            or self.queued.messages > limits.window_messages
            or not queues.has_room
        ):
            message = self._queue.pop(self._unreliable.popleft(), None)
            if message is not None:
                self._drop(message, lost=True)
                queues.lost += 1
        if len(self._unreliable) > 2 * len(self._queue) + 16:
            self._unreliable = deque(key for key in self._unreliable if key in self._queue)

    def _check_limits(self) -> None:
        limits, queues = self._context.limits, self._context.queues
        most = limits.window_bytes + max(limits.window_bytes, limits.frame)
        if self.queued.bytes > most or self.queued.messages > 2 * limits.window_messages:
            raise violation(
                Rule.WINDOW_EXCEEDED,
                f"{self.channel}: {self.queued.messages} messages of {self.queued.bytes} bytes are in the queue, "
                f"the limits are {2 * limits.window_messages} and {most}",
            )
        most = limits.connection_window_bytes + max(limits.connection_window_bytes, limits.frame)
        if queues.total.bytes > most:
            raise violation(
                Rule.WINDOW_EXCEEDED, f"{queues.total.bytes} bytes wait for the application, the limit is {most}"
            )

    @property
    def _has_room(self) -> bool:
        limits = self._context.limits
        return self.queued.bytes <= limits.window_bytes and self.queued.messages <= limits.window_messages

    def _acks_are_due(self, now: float) -> None:
        """Something may be acked or nacked, or the receiver may be complete."""
        if self.stream is None or self.stream not in self._context.outgoing.open:
            return
        self._set_nack_timer()
        if self._is_complete:
            self._complete()
            return
        limits = self._context.limits
        if (
            self._to_ack_usage.bytes * EARLY_ACK >= limits.window_bytes
            or self._to_ack_usage.messages * EARLY_ACK >= limits.window_messages
        ):
            self._ack(now)
        elif self._acking is None and (self._to_ack or self._arrived.run_end(self._judged) > self._judged):
            self._acking = self._context.timers.at(now + limits.ack_delay, self._ack)

    @property
    def _is_complete(self) -> bool:
        return (
            self.state is ReceiverState.FINISHING
            and self._received == self._final
            and self._arrived.run_end(self._judged) >= self._declared
        )

    def _complete(self) -> None:
        """All messages of a finished channel are decided: close, if the acks may be sent."""
        if not self._has_room:
            return
        if not self._context.queues.has_room:
            self._context.queues.wait(self.channel, self._acks_are_due)
            return
        self._send_close()
        self.state = RECEIVER[self.state][ReceiverEvent.COMPLETE]
        self._stop_timers()
        if not self._queue:
            self._end(ReceiverEvent.DRAINED, EndReason.FINISHED)

    def _ack(self, now: float) -> None:
        """Ack what has arrived."""
        if self._acking is not None:
            self._acking.cancel()
            self._acking = None
        self._judge(self._arrived.run_end(self._judged))
        if not self._to_ack or not self._has_room:
            return
        if not self._context.queues.has_room:
            self._context.queues.wait(self.channel, self._acks_are_due)
            return
        assert self.stream is not None
        self._context.outgoing.send(self.stream, AckReliable(self._to_ack.lengths(self._acked.run_end(0))))
        self._note_acked()

    def _note_acked(self) -> None:
        self._acked.update(self._to_ack)
        self._to_ack.clear()
        self._to_ack_usage = Usage()

    def _set_nack_timer(self) -> None:
        while self._declarations and self._declarations[0][0] <= self._judged:
            self._declarations.popleft()
        if self._nacking is None and self._declarations:
            self._nacking = self._context.timers.at(self._declarations[0][1], self._nack)

    def _nack(self, now: float) -> None:
        """Ack and nack what was declared so long ago that it would have arrived."""
        self._nacking = None
        end = self._judged
        while self._declarations and self._declarations[0][1] <= now:
            end = max(end, self._declarations.popleft()[0])
        self._judge(self._arrived.run_end(end))
        self._acks_are_due(now)

    def _judge(self, end: int) -> None:
        """Ack and nack the unreliable messages below a number."""
        if end <= self._judged or self.stream is None:
            return
        decided = RangeSet()
        for start, stop in self._arrived:
            if start >= end:
                break
            decided.add(start, min(stop, end))
        ranges = decided.lengths(self._judged)
        behind = end - max(decided.end, self._judged)
        if behind:
            ranges = (*ranges, behind) if ranges else (0, behind)
        self._context.outgoing.send(self.stream, AckNackUnreliable(ranges))
        self._context.queues.lost += end - self._judged - sum(stop - start for start, stop in decided)
        self._arrived.discard_below(end)
        self._judged = end

    def _send_close(self) -> None:
        """Send the last acks and nacks, and the end."""
        assert self.stream is not None
        self._judge(self._arrived.end)
        self._note_acked()
        self._context.outgoing.send(self.stream, CloseReceiver(self._acked.lengths(0)), end=True)

    def _stop_timers(self) -> None:
        for timer in (self._acking, self._nacking):
            if timer is not None:
                timer.cancel()
        self._acking = self._nacking = None

    def _end(self, event: ReceiverEvent, reason: EndReason, code: int = 0) -> None:
        self.state = RECEIVER[self.state][event]
        self._has_ended(reason, code)

    def _has_ended(self, reason: EndReason, code: int = 0) -> None:
        self._stop_timers()
        self._context.queues.stop_waiting(self.channel)
        self._context.links.half_ended(self.node)
        self.ended = ReceiverEnded(self.channel, reason, code)
        self._context.ended(self.channel, self.stream)

    def validate(self) -> None:
        """Raise AssertionError where an invariant does not hold."""
        costs = [message_cost(message.payload, message.attachments) for message in self._queue.values()]
        assert self.queued.messages == len(costs)
        assert self.queued.bytes == sum(costs)
        assert not costs or self.ended is None
        assert self._received == sum(end - start for numbers in (self._acked, self._to_ack) for start, end in numbers)
        assert all(start >= self._judged for start, _ in self._arrived)
        assert self._final is None or self._received <= self._final
