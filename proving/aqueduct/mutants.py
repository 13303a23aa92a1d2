"""Rules of Aqueduct's machine that are broken on purpose, one at a time, to test that the simulator finds each."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, ExitStack
from typing import Any
from unittest import mock

from wallaroo_spark.aqueduct.frames import ClosedChannelLost, FinishSender, Frame
from wallaroo_spark.aqueduct.machine.channels.links import LinkedChannel, Links
from wallaroo_spark.aqueduct.machine.channels.receiving import ReceivingHalf
from wallaroo_spark.aqueduct.machine.channels.sending import SendingHalf
from wallaroo_spark.aqueduct.machine.channels.window import ReceiveQueues, SendWindow
from wallaroo_spark.aqueduct.machine.instructions import EndReason, RoomAgain
from wallaroo_spark.aqueduct.machine.outgoing import Outgoing

Mutant = Callable[[], AbstractContextManager[Any]]


def _nothing(where: type, name: str) -> AbstractContextManager[Any]:
    """A method has no effect."""
    return mock.patch.object(where, name, return_value=None)


# Links.


def reaches_what_hangs_from_unreachable_senders() -> AbstractContextManager[Any]:
    """An ack makes the attached channels reachable, whether its sender is or not."""

    def ack(self: Links, sender: LinkedChannel, message: Any) -> None:
        self._reach(sender.undecided.pop(message, ()))

    return mock.patch.object(Links, "ack", ack)


def tells_acks_of_unreachable_senders() -> AbstractContextManager[Any]:
    """The application is told an ack though nobody may ever get the receiver."""
    tell = Links.tell_acked

    def at_once(self: Links, channel: LinkedChannel, reliable: bool, start: int, end: int) -> None:
        reachable, channel.reachable = channel.reachable, True
        tell(self, channel, reliable, start, end)
        channel.reachable = reachable

    return mock.patch.object(Links, "tell_acked", at_once)


def forgets_the_links_of_nacked_messages() -> AbstractContextManager[Any]:
    """The channels that a lost message has created are not lost."""
    return _nothing(Links, "nack")


def loses_only_the_first_generation() -> AbstractContextManager[Any]:
    """What hangs from a lost channel is not lost with it."""
    lose = Links._lose

    def shallow(self: Links, created: Any) -> None:
        for channel in created:
            channel.acked = []
        lose(self, created)

    return mock.patch.object(Links, "_lose", shallow)


def forgets_the_links_of_ended_senders() -> AbstractContextManager[Any]:
    """A sender that ends before it is reachable takes its links along."""
    ended = Links.half_ended

    def forget(self: Links, channel: LinkedChannel) -> None:
        ended(self, channel)
        channel.acked = []

    return mock.patch.object(Links, "half_ended", forget)


def tells_nobody_of_lost_channels_that_have_ended() -> AbstractContextManager[Any]:
    """ClosedChannelLost is not sent."""
    send = Outgoing.open_stream

    def without(self: Outgoing, kind: int, *frames: Frame, end: bool = False) -> int:
        if isinstance(frames[0], ClosedChannelLost):
            return -1
        return send(self, kind, *frames, end=end)

    return mock.patch.object(Outgoing, "open_stream", without)


# Senders.


def sends_beyond_the_window() -> AbstractContextManager[Any]:
    """A sender does not wait for acks."""
    return mock.patch.object(SendWindow, "channel_has_room", return_value=True)


def sends_beyond_the_window_of_the_connection() -> AbstractContextManager[Any]:
    """A sender looks at its own window only."""
    return mock.patch.object(SendWindow, "connection_has_room", return_value=True)


def tells_nobody_of_room() -> AbstractContextManager[Any]:
    """A sender that waits for room is not told that there is some."""
    add = Outgoing.add
    return mock.patch.object(Outgoing, "add", lambda self, one: None if isinstance(one, RoomAgain) else add(self, one))


def forgets_who_waits_for_the_connection() -> AbstractContextManager[Any]:
    """A sender that waits for room in the connection is not told that there is some."""
    return mock.patch.object(SendWindow, "wait", return_value=None)


def opens_a_stream_for_each_message() -> AbstractContextManager[Any]:
    """Messages that are to be in order are not."""
    return mock.patch.object(SendingHalf, "_send_ordered", lambda self, frame: self._open(frame, end=True))


def finishes_without_declaring() -> AbstractContextManager[Any]:
    """FinishSender comes before all unreliable messages are declared."""

    def finish(self: SendingHalf) -> None:
        assert self.stream is not None
        self._context.outgoing.send(self.stream, FinishSender(self.next[True]), end=True)

    return mock.patch.object(SendingHalf, "_send_finish", finish)


def declares_nothing() -> AbstractContextManager[Any]:
    """Unreliable messages are declared at the end only."""
    return _nothing(SendingHalf, "_declare")


def forgets_a_finish_without_a_control_stream() -> AbstractContextManager[Any]:
    """A finish or cancel that waits for the control stream is forgotten."""
    return _nothing(SendingHalf, "attach_control")


def cancels_silently() -> AbstractContextManager[Any]:
    """A cancelled sender does not reset its control stream."""
    return _nothing(SendingHalf, "_send_cancel")


def forgets_final_nacks() -> AbstractContextManager[Any]:
    """CloseReceiver settles nothing that it does not ack."""
    settle = SendingHalf._settle

    def only_acks(self: SendingHalf, number: int, *, reliable: bool, acked: bool) -> None:
        if acked or not reliable:
            settle(self, number, reliable=reliable, acked=acked)

    return mock.patch.object(SendingHalf, "_settle", only_acks)


def resets_lost_messages_as_cancelled_ones() -> AbstractContextManager[Any]:
    """A sender that is lost is said to be cancelled."""
    end = SendingHalf._end

    def other(self: SendingHalf, event: Any, reason: EndReason, code: int = 0) -> None:
        end(self, event, EndReason.CANCELLED if reason is EndReason.LOST else reason, code)

    return mock.patch.object(SendingHalf, "_end", other)


# Receivers.


def takes_messages_behind_a_nack() -> AbstractContextManager[Any]:
    """An unreliable message that was nacked is delivered when it comes."""
    admits = ReceivingHalf.admits

    def lax(self: ReceivingHalf, frame: Any, *, reliable: bool) -> bool:
        return admits(self, frame, reliable=reliable) or (not reliable and frame.number < self._judged)

    return mock.patch.object(ReceivingHalf, "admits", lax)


def delivers_doubled_datagrams_twice() -> AbstractContextManager[Any]:
    """A datagram that arrives twice is delivered twice, while it is not acked."""
    admits = ReceivingHalf.admits

    def lax(self: ReceivingHalf, frame: Any, *, reliable: bool) -> bool:
        return admits(self, frame, reliable=reliable) or (not reliable and frame.number in self._arrived)

    return mock.patch.object(ReceivingHalf, "admits", lax)


def nacks_at_once() -> AbstractContextManager[Any]:
    """An unreliable message has no time to arrive."""
    declared = ReceivingHalf.sent_unreliable

    def hasty(self: ReceivingHalf, count: int, now: float) -> None:
        declared(self, count, now - self._context.limits.nack_delay)

    return mock.patch.object(ReceivingHalf, "sent_unreliable", hasty)


def never_nacks() -> AbstractContextManager[Any]:
    """An unreliable message that was lost is waited for."""
    return _nothing(ReceivingHalf, "_set_nack_timer")


def acks_whatever_is_queued() -> AbstractContextManager[Any]:
    """Acks do not wait for the application."""
    stack = ExitStack()
    stack.enter_context(mock.patch.object(ReceivingHalf, "_has_room", True))
    stack.enter_context(mock.patch.object(ReceiveQueues, "has_room", True))
    return stack


def acks_no_more_once_it_has_waited() -> AbstractContextManager[Any]:
    """Acks that wait for the queues of the connection are forgotten."""
    return _nothing(ReceiveQueues, "wait")


def forgets_last_acks() -> AbstractContextManager[Any]:
    """CloseReceiver does not ack what was not acked yet."""
    note = ReceivingHalf._note_acked
    send = ReceivingHalf._send_close

    def close(self: ReceivingHalf) -> None:
        with mock.patch.object(ReceivingHalf, "_note_acked"):
            send(self)
        note(self)

    return mock.patch.object(ReceivingHalf, "_send_close", close)


def closes_queues_as_lost() -> AbstractContextManager[Any]:
    """What the application drops with a receiver is said to be lost."""
    drop = ReceivingHalf._drop_queue
    return mock.patch.object(ReceivingHalf, "_drop_queue", lambda self, *, lost: drop(self, lost=True))


def leaves_dropped_attachments_open() -> AbstractContextManager[Any]:
    """The channels attached to dropped messages are not ended."""
    return mock.patch.object(ReceivingHalf, "_drop", lambda self, message, *, lost: self._remove(message))


def evicts_nothing() -> AbstractContextManager[Any]:
    """Unreliable messages pile up in a queue."""
    return _nothing(ReceivingHalf, "_evict")


MUTANTS: dict[str, Mutant] = {
    mutant.__name__: mutant
    for mutant in (
        reaches_what_hangs_from_unreachable_senders,
        tells_acks_of_unreachable_senders,
        forgets_the_links_of_nacked_messages,
        loses_only_the_first_generation,
        forgets_the_links_of_ended_senders,
        tells_nobody_of_lost_channels_that_have_ended,
        sends_beyond_the_window,
        sends_beyond_the_window_of_the_connection,
        tells_nobody_of_room,
        forgets_who_waits_for_the_connection,
        opens_a_stream_for_each_message,
        finishes_without_declaring,
        declares_nothing,
        forgets_a_finish_without_a_control_stream,
        cancels_silently,
        forgets_final_nacks,
        resets_lost_messages_as_cancelled_ones,
        takes_messages_behind_a_nack,
        delivers_doubled_datagrams_twice,
        nacks_at_once,
        never_nacks,
        acks_whatever_is_queued,
        acks_no_more_once_it_has_waited,
        forgets_last_acks,
        closes_queues_as_lost,
        leaves_dropped_attachments_open,
        evicts_nothing,
    )
}
