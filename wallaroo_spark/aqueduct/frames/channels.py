"""Channel ids: 64 bits that say where a channel flows, which side created it, and whether it is oneshot.

Source: ``docs/aqueduct/protocol.md#channel-ids``.
"""

from __future__ import annotations

from enum import IntEnum, StrEnum
from typing import Self


class Side(IntEnum):
    """The sides of a connection; the value is the bit that stands for the side in a channel id."""

    CLIENT = 0
    SERVER = 1

    @property
    def other(self) -> Side:
        """The side at the other end of the connection."""
        return Side(1 - self)


class Half(StrEnum):
    """The two ends of a channel."""

    SENDER = "sender"
    RECEIVER = "receiver"


class ChannelId(int):
    """The id of a channel. Two ids are equal where their numbers are."""

    __slots__ = ()

    @classmethod
    def of(cls, sender: Side, creator: Side, index: int, *, oneshot: bool = False) -> Self:
        """The id of the channel that flows away from ``sender`` and that ``creator`` created as number ``index``."""
        # The lowest bit is 0 where the channel flows from the client to the server.
        return cls(index << 3 | oneshot << 2 | creator << 1 | sender)

    @property
    def sender(self) -> Side:
        """The side that has the sender."""
        return Side(self & 1)

    @property
    def creator(self) -> Side:
        """The side that created the channel."""
        return Side(self >> 1 & 1)

    @property
    def oneshot(self) -> bool:
        """Whether the channel carries one message only."""
        return bool(self & 4)

    @property
    def index(self) -> int:
        """The number of the channel among those with the same three lowest bits."""
        return self >> 3

    def half_at(self, side: Side) -> Half:
        """The end of the channel that ``side`` has."""
        return Half.SENDER if self.sender is side else Half.RECEIVER

    def __repr__(self) -> str:
        kind = " oneshot" if self.oneshot else ""
        return f"<channel {int(self)} of the {self.creator.name.lower()}, sent by the {self.sender.name.lower()}{kind}>"

    __str__ = __repr__


ENTRYPOINT = ChannelId(0)
"""The channel that exists from the beginning, from the client to the server."""
