"""Why a channel or a connection has ended, as errors.

    AqueductError
    ├── Cancelled               the sender of the channel has cancelled it
    ├── LostInTransit           the message, or the one to which the channel was attached, was lost
    ├── ReceiverClosed          the receiver of the channel is closed
    ├── SenderClosed            this side has finished or cancelled the sender
    ├── ConnectionLost          the connection has ended; a TransportError, too
    ├── NoRoom                  the window is full; a later call may succeed
    ├── MessageTooLarge         the message fits into no frame, or into no datagram
    └── ProtocolViolation       one of the two sides has violated the protocol

Each is raised at every call that waits on the channel or on the connection.
"""

from __future__ import annotations

from typing import Any, ClassVar

from wallaroo_spark.errors import AqueductError, TransportError


class _ChannelError(AqueductError):
    """The base of the errors here: each kind has its own code."""

    usual_code: ClassVar[str]

    def __init__(self, message: str, *, code: str = "", **fields: Any) -> None:
        super().__init__(message, code=code or self.usual_code, **fields)


class Cancelled(_ChannelError):
    """The sender has cancelled the channel; messages in the queue are dropped."""

    usual_code = "channel-cancelled"


class LostInTransit(_ChannelError):
    """A message, or the one to which the channel was attached, was lost: nobody at the other side will see it."""

    usual_code = "channel-lost"


class ReceiverClosed(_ChannelError):
    """The other side has closed the receiver, or dropped it."""

    usual_code = "channel-receiver-closed"


class SenderClosed(_ChannelError):
    """This side has finished or cancelled the sender, or has sent the one message of a channel for one."""

    usual_code = "channel-sender-closed"


class ConnectionLost(_ChannelError, TransportError):
    """The connection has ended; channels and messages end with it."""

    usual_code = "quic-connection-lost"


class NoRoom(_ChannelError):
    """The window of the channel or of the connection is full; the notice ``RoomAgain`` says when to send again."""

    usual_code = "channel-no-room"
    retryable = True


class MessageTooLarge(_ChannelError):
    """The message does not fit into a frame, or an unreliable one not into a datagram of this connection."""

    usual_code = "channel-message-too-large"


class ProtocolViolation(_ChannelError):
    """The peer, or this side, has violated the protocol; the connection is closed. The message names the rule."""

    usual_code = "aqueduct-violation"
