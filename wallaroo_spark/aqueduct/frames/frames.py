"""The ten frames as values. Source: ``docs/aqueduct/protocol.md#frames``."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from wallaroo_spark.aqueduct.frames.channels import ChannelId
from wallaroo_spark.aqueduct.frames.values import Headers, Ranges

SHOWN = 32
"""Bytes of a payload that the text of a message shows."""


@dataclass(frozen=True, slots=True)
class Version:
    """The version of the protocol, behind bytes that no other protocol begins with."""

    TYPE: ClassVar = 239
    version: bytes


@dataclass(frozen=True, slots=True)
class ConnectionControl:
    """The headers of a side, once a connection."""

    TYPE: ClassVar = 1
    headers: Headers


@dataclass(frozen=True, slots=True)
class ChannelControl:
    """Makes a stream the control stream of a channel that the other side has created."""

    TYPE: ClassVar = 2
    channel: ChannelId


@dataclass(frozen=True, slots=True)
class MessageFrame:
    """A message of a channel; whether it is a reliable one follows from where it comes."""

    TYPE: ClassVar = 3
    channel: ChannelId
    number: int
    payload: bytes
    attachments: tuple[ChannelId, ...] = ()

    def __repr__(self) -> str:
        more = f" and {len(self.payload) - SHOWN} bytes" if len(self.payload) > SHOWN else ""
        attached = f", {list(self.attachments)}" if self.attachments else ""
        return f"MessageFrame({self.channel}, {self.number}, {self.payload[:SHOWN]!r}{more}{attached})"


@dataclass(frozen=True, slots=True)
class SentUnreliable:
    """The number of unreliable messages since the last such frame."""

    TYPE: ClassVar = 4
    count: int


@dataclass(frozen=True, slots=True)
class AckReliable:
    """Acks, from the lowest number that is not acked yet. What is negative is not decided."""

    TYPE: ClassVar = 5
    ranges: Ranges


@dataclass(frozen=True, slots=True)
class AckNackUnreliable:
    """Acks and nacks, from where the last such frame ended."""

    TYPE: ClassVar = 6
    ranges: Ranges


@dataclass(frozen=True, slots=True)
class FinishSender:
    """The last frame of a sender: how many reliable messages it has sent."""

    TYPE: ClassVar = 7
    count: int


@dataclass(frozen=True, slots=True)
class CloseReceiver:
    """The last frame of a receiver: acks and nacks of reliable messages, from 0."""

    TYPE: ClassVar = 8
    ranges: Ranges


@dataclass(frozen=True, slots=True)
class ClosedChannelLost:
    """A channel that has ended on the sending side was lost."""

    TYPE: ClassVar = 9
    channel: ChannelId


Frame = (
    Version
    | ConnectionControl
    | ChannelControl
    | MessageFrame
    | SentUnreliable
    | AckReliable
    | AckNackUnreliable
    | FinishSender
    | CloseReceiver
    | ClosedChannelLost
)
