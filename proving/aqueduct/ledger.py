"""What the applications did and what the network delivered: the truth that the judge compares notices with."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from wallaroo_spark.aqueduct.frames import ENTRYPOINT, ChannelId, Half
from wallaroo_spark.aqueduct.machine import EndReason


@dataclass(eq=False)
class SentMessage:
    """A message that a machine has accepted."""

    channel: Channel
    number: int
    reliable: bool
    ordered: bool
    payload: bytes
    attachments: tuple[ChannelId, ...]
    arrived: bool = False
    """Whether its frame has come to a receiver that had neither closed nor refused it."""
    refused: bool = False
    """Whether the receiver has sent a nack for it."""
    taken: bool = False
    dropped: bool = False
    """Whether the application dropped the queue in which it was."""
    fate: str = ""
    """What its sender was told: "acked", or why it was not delivered."""

    def __str__(self) -> str:
        kind = "reliable" if self.reliable else "unreliable"
        return f"{kind} message {self.number} of {self.channel.id}"


@dataclass(eq=False)
class Channel:
    """A channel, and what its two applications did with it."""

    id: ChannelId
    parent: SentMessage | None = None
    """The message that carried one of its ends to the other side."""
    messages: dict[tuple[bool, int], SentMessage] = field(default_factory=dict)
    finished: bool = False
    cancelled: bool = False
    closed: bool = False
    """Whether the receiver's application closed it."""
    abandoned: bool = False
    """Whether an end of it was in a queue that its application dropped."""
    deaf: bool = False
    """Whether its receiver takes no message any more."""
    ends: dict[Half, EndReason] = field(default_factory=dict)
    """What each side was told at the end."""

    @property
    def creator_half(self) -> Half:
        """The end that its creator kept."""
        return self.id.half_at(self.id.creator)

    def sent(self, *, reliable: bool) -> int:
        """How many messages of a kind were sent."""
        return sum(1 for kind, _ in self.messages if kind is reliable)

    def queued(self) -> Iterator[SentMessage]:
        """The messages that have arrived and were not taken."""
        return (one for one in self.messages.values() if one.arrived and not one.taken and not one.dropped)


class Ledger:
    """All channels and messages of one connection."""

    def __init__(self) -> None:
        self.channels: dict[ChannelId, Channel] = {ENTRYPOINT: Channel(ENTRYPOINT)}

    def drop_queue(self, channel: Channel) -> None:
        """The application of a receiver drops what has arrived, and with it the ends that came along."""
        side = channel.id.sender.other
        channel.deaf = True
        for message in list(channel.queued()):
            message.dropped = True
            for attached in map(self.channels.__getitem__, message.attachments):
                attached.abandoned = True
                if attached.id.half_at(side) is Half.RECEIVER:
                    self.drop_queue(attached)

    def ancestors(self, channel: Channel) -> Iterator[Channel]:
        """The channels through which the end of a channel was sent, from the nearest one on."""
        while channel.parent is not None:
            channel = channel.parent.channel
            yield channel

    def reachable(self, channel: Channel) -> bool:
        """Whether the receiver's application has the receiver, or gets it by taking messages, or had it once."""
        if channel.id == ENTRYPOINT or channel.id.creator is channel.id.sender.other:
            return True
        parent = channel.parent
        return parent is not None and (parent.taken or (parent.arrived and self.reachable(parent.channel)))

    def may_be_lost(self, channel: Channel) -> bool:
        """Whether the message that carried an end of a channel may be lost."""
        parent = channel.parent
        if parent is None or parent.taken:
            return False
        return not (parent.dropped and parent.reliable and not self.may_be_discarded(parent.channel))

    def may_be_discarded(self, channel: Channel) -> bool:
        """Whether a machine may have discarded the queue of a channel after acks, which is a loss.

        It does so where a sender was cancelled, and with the oldest unreliable messages of a queue that is full.
        """
        return any(
            one.cancelled or (one.parent is not None and not one.parent.reliable and not one.parent.taken)
            for one in (channel, *self.ancestors(channel))
        )

    def may_be_dropped(self, channel: Channel) -> bool:
        """Whether the other application may have dropped an end of a channel that it never took."""
        parent = channel.parent
        if parent is None or parent.taken or not parent.arrived:
            return False
        return channel.abandoned
