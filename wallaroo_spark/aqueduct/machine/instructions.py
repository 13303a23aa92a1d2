"""What a connection wants to be done: instructions for the network, and notices for the application.

Streams are numbered as QUIC numbers them, and a stream is opened by the first instruction that names it. Source:
``docs/aqueduct/protocol.md``.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum, StrEnum

from wallaroo_spark.aqueduct.frames import ChannelId, Headers
from wallaroo_spark.aqueduct.violations import CloseCode


class ResetCode(IntEnum):
    """The error codes of a stream's reset. Any other code is treated as :attr:`CANCELLED`."""

    CANCELLED = 1
    LOST = 2


class EndReason(StrEnum):
    """How a channel has ended."""

    FINISHED = "finished"
    """The sender has finished, and all its reliable messages were delivered."""
    CANCELLED = "cancelled"
    """The sender was cancelled."""
    CLOSED = "closed"
    """The receiver was closed before the sender was finished."""
    LOST = "lost"
    """The message that carried one end of the channel was lost."""


@dataclass(frozen=True, slots=True)
class SendStream:
    """Send ``data`` on a stream of this side, or on one of the peer's bidirectional streams; ``end`` finishes it."""

    stream: int
    data: bytes
    end: bool = False


@dataclass(frozen=True, slots=True)
class ResetStream:
    """Send RESET_STREAM. Nothing has to be done where all data and the end of the stream were acknowledged."""

    stream: int
    code: int


@dataclass(frozen=True, slots=True)
class SendDatagram:
    """Send a datagram; it may be lost."""

    data: bytes


@dataclass(frozen=True, slots=True)
class CloseConnection:
    """Close the QUIC connection with an error code of the application. It is the last instruction for the network."""

    code: CloseCode
    reason: str


@dataclass(frozen=True, slots=True)
class HeadersReceived:
    """The peer's headers have come. A server that has none yet must answer with ``answer_headers``."""

    headers: Headers


@dataclass(frozen=True, slots=True)
class HeadersExchanged:
    """Both sides have each other's headers. A server has the receiver of the entrypoint from now on."""


@dataclass(frozen=True, slots=True)
class MessageAvailable:
    """The queue of a receiver that the application has is not empty any more; ``take`` until it returns None."""

    channel: ChannelId


@dataclass(frozen=True, slots=True)
class Acked:
    """Messages are in the queue of a receiver that the peer's application has, or gets by taking messages."""

    channel: ChannelId
    numbers: range
    reliable: bool


@dataclass(frozen=True, slots=True)
class Nacked:
    """Messages will never be delivered; ``reason`` is LOST for datagrams that did not arrive, and else how the channel
    has ended."""

    channel: ChannelId
    numbers: range
    reliable: bool
    reason: EndReason


@dataclass(frozen=True, slots=True)
class RoomAgain:
    """A sender whose ``send`` had no room may try again."""

    channel: ChannelId


@dataclass(frozen=True, slots=True)
class SenderEnded:
    """The last notice of a sender: all its messages were acked or nacked before."""

    channel: ChannelId
    reason: EndReason
    code: int = 0
    """The code of the reset by the peer; 0 without one, and of a lost channel."""


@dataclass(frozen=True, slots=True)
class ReceiverEnded:
    """The last notice of a receiver: its queue is empty, and no message follows."""

    channel: ChannelId
    reason: EndReason
    code: int = 0
    """The code of the reset by the peer; 0 without one, and of a lost channel."""


@dataclass(frozen=True, slots=True)
class Ended:
    """The connection has ended, and all its channels with it, without a notice for each."""

    code: int
    reason: str
    by_peer: bool
    """Whether the peer or the network ended it."""


Instruction = (
    SendStream
    | ResetStream
    | SendDatagram
    | CloseConnection
    | HeadersReceived
    | HeadersExchanged
    | MessageAvailable
    | Acked
    | Nacked
    | RoomAgain
    | SenderEnded
    | ReceiverEnded
    | Ended
)
