"""The limits of a connection, and the times after which it acts by itself."""

from __future__ import annotations

from dataclasses import dataclass

MIB = 1024 * 1024


@dataclass(frozen=True, slots=True)
class AqueductLimits:
    """The limits of a connection. Both sides need the same windows.

    Source: ``docs/aqueduct/protocol.md#back-pressure``.
    """

    frame: int = 16 * MIB
    """The most bytes of a frame."""
    attachments: int = 1024
    """The most attachments of a message."""
    headers: int = 64 * 1024
    """The most bytes of the headers of a side."""
    channels: int = 65_536
    """The most channels at a time."""
    window_bytes: int = 4 * MIB
    """The most bytes of a channel that a sender has in flight, and above which a receiver delays its acks."""
    window_messages: int = 10_000
    """The same in messages."""
    connection_window_bytes: int = 16 * MIB
    """As ``window_bytes``, for all channels of the connection together."""
    unfinished_bytes: int = 32 * MIB
    """The most bytes that are held because their frame is incomplete, or because the peer's headers are missing."""
    ack_delay: float = 0.05
    """Seconds by which a receiver delays an ack in the hope of more messages."""
    declare_delay: float = 0.05
    """Seconds by which a sender delays the declaration of unreliable messages."""
    nack_delay: float = 1.0
    """Seconds after which an unreliable message that was declared and has not arrived is nacked."""
    handshake: float = 10.0
    """Seconds within which the handshake and the headers of the peer must be complete."""
    remembered_receivers: int = 1024
    """The most discarded receivers of which late messages are dropped without a ghost."""
    remembered_seconds: float = 30.0
    """Seconds for which a discarded receiver is remembered."""
