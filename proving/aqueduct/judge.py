"""The promises of Aqueduct to its applications; a broken one raises :class:`Violation`."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from proving.aqueduct.ledger import Channel, Ledger, SentMessage
from proving.aqueduct.profile import Profile
from proving.simulator.engine.core import Violation
from wallaroo_spark.aqueduct.frames import ChannelId, Half, Side
from wallaroo_spark.aqueduct.machine import (
    Acked,
    ConnectionMachine,
    EndReason,
    Nacked,
    ReceiverEnded,
    SenderEnded,
    TakenMessage,
)

COST_BYTES = 2048
"""What a message and its attachments may cost beside its payload. One message of any size may be in flight alone."""


class Judge:
    """Observes the calls of both applications, and the notices that they get."""

    def __init__(self, profile: Profile) -> None:
        self.profile = profile
        self.ledger = Ledger()
        self.counts: Counter[str] = Counter()
        self.over = False
        """Whether the connection has ended before its channels did."""
        self._held: set[tuple[ChannelId, Half]] = set()

    # The calls of the applications.

    def gets(self, channel: ChannelId, half: Half) -> None:
        """An application has an end of a channel from now on."""
        if (channel, half) in self._held:
            raise Violation(f"an application gets the {half} of {channel} a second time")
        self._held.add((channel, half))

    def created(self, channel: ChannelId) -> None:
        """An application has created a channel."""
        if channel in self.ledger.channels:
            raise Violation(f"{channel} is created a second time")
        self.ledger.channels[channel] = found = Channel(channel)
        self.gets(channel, found.creator_half)

    def sent(self, message: SentMessage) -> None:
        """A machine has accepted a message."""
        channel = message.channel
        if message.number != (expected := channel.sent(reliable=message.reliable)):
            raise Violation(f"{message} is number {expected}")
        channel.messages[message.reliable, message.number] = message
        for attached in message.attachments:
            self.ledger.channels[attached].parent = message
        if channel.id.oneshot:
            channel.finished = True
        self._within_the_window(channel)
        self.counts["messages"] += 1
        self.counts["attachments"] += len(message.attachments)

    def _within_the_window(self, channel: Channel) -> None:
        if channel.parent is not None and channel.id.creator is channel.id.sender and channel.parent.fate != "acked":
            # Its acks are told when it is reachable.
            return
        open_ones = [one for one in channel.messages.values() if not one.fate]
        limits = self.profile.limits
        if len(open_ones) > limits.window_messages:
            raise Violation(f"{channel.id} has {len(open_ones)} unacked messages of {limits.window_messages}")
        size = sum(len(one.payload) for one in open_ones)
        if size > limits.window_bytes and len(open_ones) > 1:
            raise Violation(f"{channel.id} has {size} unacked bytes of {limits.window_bytes}")

    def finished(self, channel: ChannelId) -> None:
        """The application of a sender finishes it."""
        self.ledger.channels[channel].finished = True

    def cancelled(self, channel: ChannelId) -> None:
        """The application of a sender cancels it."""
        self.ledger.channels[channel].cancelled = True

    def closed(self, channel: ChannelId) -> None:
        """The application of a receiver closes it."""
        found = self.ledger.channels[channel]
        if Half.RECEIVER not in found.ends:
            found.closed = True
            self.ledger.drop_queue(found)

    def taken(self, side: Side, channel: ChannelId, taken: TakenMessage) -> None:
        """An application takes a message."""
        found = self.ledger.channels[channel]
        message = found.messages.get((taken.reliable, taken.number))
        if message is None or (message.payload, message.attachments) != (taken.payload, taken.attachments):
            raise Violation(f"{taken} of {channel} is taken, and {message} was sent")
        if message.taken:
            raise Violation(f"{message} is taken a second time")
        if not message.arrived:
            raise Violation(f"{message} is taken, and has not arrived at an open receiver")
        if message.fate not in ("", "acked"):
            raise Violation(f"{message} is taken, and its sender was told that it was {message.fate}")
        if found.closed or Half.RECEIVER in found.ends:
            raise Violation(f"{message} is taken behind the end of its receiver")
        if message.ordered and (missing := next(self._before(message), None)) is not None:
            raise Violation(f"{message} is taken before {missing}")
        message.taken = True
        self.counts["taken"] += 1
        for attached in message.attachments:
            if EndReason.LOST in self.ledger.channels[attached].ends.values():
                raise Violation(f"{attached} was told to be lost, and {message} with its end is taken")
            self.gets(attached, attached.half_at(side))

    def _before(self, message: SentMessage) -> Iterator[SentMessage]:
        for number in range(message.number - 1, -1, -1):
            earlier = message.channel.messages[True, number]
            if earlier.ordered:
                if not earlier.taken:
                    yield earlier
                return

    # The notices of the machines.

    def acked(self, notice: Acked) -> None:
        """A sender is told that messages are in a queue."""
        for message in self._told(notice):
            if not message.arrived:
                raise Violation(f"{message} is acked, and has not arrived at an open receiver")
            if not self.ledger.reachable(message.channel):
                raise Violation(f"{message} is acked, and nobody can get its receiver")
            message.fate = "acked"

    def nacked(self, notice: Nacked) -> None:
        """A sender is told that messages are not delivered."""
        for message in self._told(notice):
            channel, reason = message.channel, notice.reason
            if message.taken:
                raise Violation(f"{message} was taken, and its sender is told that it was {reason}")
            if reason is EndReason.FINISHED:
                raise Violation(f"{message} is nacked as {reason}")
            lost = self.ledger.may_be_lost(channel) or not message.reliable
            self._check(f"{message} is nacked", channel, Half.SENDER, reason, lost=lost)
            message.fate = reason.value
            self.counts[f"messages {reason}"] += 1

    def _told(self, notice: Acked | Nacked) -> Iterator[SentMessage]:
        channel = self.ledger.channels[notice.channel]
        if Half.SENDER in channel.ends:
            raise Violation(f"{notice} comes behind the end of its sender")
        if not notice.numbers:
            raise Violation(f"{notice} has no numbers")
        for number in notice.numbers:
            message = channel.messages.get((notice.reliable, number))
            if message is None:
                raise Violation(f"{notice} is about messages that were not sent")
            if message.fate:
                raise Violation(f"{message} is told {notice}, and was told {message.fate!r} before")
            yield message

    def ended(self, notice: SenderEnded | ReceiverEnded) -> None:
        """An end of a channel gets its last notice."""
        half = Half.SENDER if isinstance(notice, SenderEnded) else Half.RECEIVER
        channel, reason = self.ledger.channels[notice.channel], notice.reason
        if (channel.id, half) not in self._held:
            raise Violation(f"{notice} comes to an application that does not have the {half}")
        if half in channel.ends:
            raise Violation(f"{notice} comes, and {channel.ends[half]} was told before")
        self._check(f"the {half} of {channel.id} ends", channel, half, reason, lost=self.ledger.may_be_lost(channel))
        untold = [one for one in channel.messages.values() if not one.fate]
        if half is Half.SENDER and untold:
            raise Violation(f"{notice} comes, and nothing was told of {untold[0]}")
        if reason is EndReason.FINISHED:
            self._was_finished(channel, half)
        channel.ends[half] = reason
        if half is Half.RECEIVER:
            channel.deaf = True
        self.counts[f"{half}s {reason}"] += 1

    def _was_finished(self, channel: Channel, half: Half) -> None:
        for message in channel.messages.values():
            done = message.fate == "acked" if half is Half.SENDER else message.taken
            if message.reliable and not done:
                raise Violation(f"the {half} of {channel.id} is told that it is finished without {message}")

    def _check(self, what: str, channel: Channel, half: Half, reason: EndReason, *, lost: bool) -> None:
        """Raise where a reason is not true. What an end that was never taken is told, only its creator is told."""
        dropped = half is channel.creator_half and self.ledger.may_be_dropped(channel)
        true = {
            EndReason.FINISHED: channel.finished,
            EndReason.CANCELLED: channel.cancelled or (half is Half.RECEIVER and dropped),
            EndReason.CLOSED: channel.closed or (half is Half.SENDER and dropped),
            EndReason.LOST: lost,
        }
        if not true[reason]:
            known = [one for one in ("finished", "cancelled", "closed", "abandoned") if getattr(channel, one)]
            raise Violation(f"{what} as {reason}; its parent: {channel.parent}; the channel is {known}")

    # What is checked after steps, and at the end.

    def within_limits(self, machine: ConnectionMachine) -> None:
        """A machine holds no more than its windows."""
        counts, limits = machine.counts(), self.profile.limits
        most = limits.connection_window_bytes + max(limits.connection_window_bytes, limits.frame)
        if counts.unacked_bytes > max(limits.connection_window_bytes, limits.frame + COST_BYTES):
            raise Violation(f"a machine has {counts.unacked_bytes} unacked bytes of {limits.connection_window_bytes}")
        if counts.queued_bytes > most:
            raise Violation(f"a machine has {counts.queued_bytes} queued bytes of {most}")

    def unfinished(self) -> list[str]:
        """What somebody still waits for."""
        if self.over:
            return []
        messages = (one for channel in self.ledger.channels.values() for one in channel.messages.values())
        return [str(one) for one in messages if not one.fate] + [
            f"the {half} of {channel}"
            for channel, half in sorted(self._held)
            if half not in self.ledger.channels[channel].ends and not self._ended_itself(channel, half)
        ]

    def _ended_itself(self, channel: ChannelId, half: Half) -> bool:
        found = self.ledger.channels[channel]
        return found.closed if half is Half.RECEIVER else found.cancelled and found.parent is None and channel != 0

    def nothing_is_lost(self) -> None:
        """At the end: what was acked was taken, or its queue was dropped."""
        for channel in self.ledger.channels.values():
            if self.ledger.may_be_discarded(channel):
                continue
            for message in channel.messages.values():
                if message.fate == "acked" and message.reliable and not message.taken and not message.dropped:
                    raise Violation(f"{message} was acked, and was neither taken nor dropped")

    def nothing_is_left(self, side: Side, machine: ConnectionMachine) -> None:
        """At the end: a machine holds nothing."""
        left = {name: count for name, count in machine.counts()._asdict().items() if count}
        if left:
            raise Violation(f"the {side.name.lower()} still has {left}")
