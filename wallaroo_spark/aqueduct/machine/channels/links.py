"""Which channels are lost with which messages.

A channel is created by the message to which its other half is attached. The local half is not *reachable* until this
message was acked, and the sender of this message is reachable itself; a nack anywhere in this chain loses all that
hangs from it. Source: ``docs/aqueduct/protocol.md#lost-channels``.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import Protocol

from wallaroo_spark.aqueduct.frames import ChannelId, ClosedChannelLost
from wallaroo_spark.aqueduct.machine.channels.range_set import RangeSet
from wallaroo_spark.aqueduct.machine.instructions import Acked, EndReason, Nacked, SenderEnded
from wallaroo_spark.aqueduct.machine.outgoing import UNIDIRECTIONAL, Outgoing

Message = tuple[bool, int]
"""Whether a message is reliable, and its number."""


class LinkedHalf(Protocol):
    """A half of a channel that exists."""

    def lost(self) -> None:
        """The half ends: its other half never arrived."""


class LinkedChannel:
    """The links of the local half of a channel. They outlive the half as long as its fate is open."""

    def __init__(self, channel: ChannelId, half: LinkedHalf) -> None:
        self.channel = channel
        self.half: LinkedHalf | None = half
        """None when the half has ended."""
        self.reachable = True
        """False from the message that carries the other half, until this message is sure to be delivered."""
        self.undecided: dict[Message, tuple[LinkedChannel, ...]] = {}
        """The channels that messages of this one have created, where the message is neither acked nor nacked."""
        self.acked: list[tuple[LinkedChannel, ...]] = []
        """The same of messages that are acked, while this channel is not reachable."""
        self.notices: dict[bool, RangeSet] = {}
        """Acks that the application is told when this channel is reachable: of reliable messages, and of the others."""
        self.ended: SenderEnded | None = None
        """The last notice, which waits for the same."""

    @property
    def links(self) -> int:
        """The number of channels that hang from this one."""
        return sum(map(len, self.undecided.values())) + sum(map(len, self.acked))


class Links:
    """The links of all channels of a connection."""

    def __init__(self, outgoing: Outgoing) -> None:
        self._outgoing = outgoing
        self.count = 0
        """Links in all."""
        self._losing: deque[LinkedChannel] = deque()
        self.ended = 0
        """Channels whose half has ended, and whose fate is open."""

    def link(self, sender: LinkedChannel, message: Message, created: Sequence[LinkedChannel]) -> None:
        """A message carries the other halves of these channels."""
        for channel in created:
            channel.reachable = False
        if created:
            sender.undecided[message] = tuple(created)
            self.count += len(created)

    def ack(self, sender: LinkedChannel, message: Message) -> None:
        """A message is in the queue of a receiver."""
        created = sender.undecided.pop(message, ())
        if sender.reachable:
            self._reach(created)
        elif created:
            sender.acked.append(created)

    def nack(self, sender: LinkedChannel, message: Message) -> None:
        """A message will never be delivered."""
        self._lose(sender.undecided.pop(message, ()))

    def half_ended(self, channel: LinkedChannel) -> None:
        """The half of a channel has ended. The application is told when nothing can change any more."""
        if channel.half is not None and not channel.reachable:
            self.ended += 1
        channel.half = None

    def tell_acked(self, channel: LinkedChannel, reliable: bool, start: int, end: int) -> None:
        """Tell the application of acks, at once or when the channel is reachable."""
        if channel.reachable:
            self._outgoing.add(Acked(channel.channel, range(start, end), reliable))
        else:
            channel.notices.setdefault(reliable, RangeSet()).add(start, end)

    def tell_ended(self, channel: LinkedChannel, notice: SenderEnded) -> None:
        """Tell the application of the end of a sender, at once or when the channel is reachable."""
        if channel.reachable:
            self._outgoing.add(notice)
        else:
            channel.ended = notice

    def tell_lost(self, channel: LinkedChannel) -> None:
        """Tell the application that acked messages of a lost sender are lost."""
        for reliable, numbers in channel.notices.items():
            for start, end in numbers:
                self._outgoing.add(Nacked(channel.channel, range(start, end), reliable, EndReason.LOST))
        channel.notices = {}

    def _reach(self, created: Sequence[LinkedChannel]) -> None:
        """The channels are reachable, and all whose chain of messages is acked with them."""
        todo = deque(created)
        while todo:
            channel = todo.popleft()
            self.count -= 1
            channel.reachable = True
            if channel.half is None:
                self.ended -= 1
            for reliable, numbers in channel.notices.items():
                for start, end in numbers:
                    self._outgoing.add(Acked(channel.channel, range(start, end), reliable))
            if channel.ended is not None:
                self._outgoing.add(channel.ended)
            channel.notices, channel.ended = {}, None
            for more in channel.acked:
                todo.extend(more)
            channel.acked = []

    def _lose(self, created: Sequence[LinkedChannel]) -> None:
        """The channels are lost, and all that hang from them, whether these have ended or not.

        A half that is lost nacks its messages, which comes back to this method: so one loop does it all.
        """
        busy = bool(self._losing)
        self._losing.extend(created)
        while self._losing and not busy:
            channel = self._losing[0]
            self.count -= 1
            # What is decided is not counted when the half ends.
            channel.reachable = True
            half, channel.half = channel.half, None
            if half is not None:
                half.lost()
            else:
                self.ended -= 1
                self._outgoing.open_stream(UNIDIRECTIONAL, ClosedChannelLost(channel.channel), end=True)
                self.tell_lost(channel)
                if channel.ended is not None:
                    self._outgoing.add(SenderEnded(channel.channel, EndReason.LOST))
            for more in channel.acked:
                self._losing.extend(more)
            channel.acked = []
            self._losing.popleft()
