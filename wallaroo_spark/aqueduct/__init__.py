"""Channels over QUIC, whose messages may carry the ends of further channels. Source: ``docs/aqueduct.md``.

:func:`connect` opens a connection, and :func:`serve` accepts those of others.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from wallaroo_spark.lazy_names import lazy_names

if TYPE_CHECKING:
    from wallaroo_spark.aqueduct.names import (
        Attachment,
        Cancelled,
        Connection,
        ConnectionLost,
        Limits,
        Lost,
        Message,
        MessageTooLarge,
        ProtocolViolation,
        Receiver,
        ReceiverClosed,
        Sender,
        SenderClosed,
        SentMessage,
        Server,
        connect,
        serve,
    )

__all__ = [
    "Attachment",
    "Cancelled",
    "Connection",
    "ConnectionLost",
    "Limits",
    "Lost",
    "Message",
    "MessageTooLarge",
    "ProtocolViolation",
    "Receiver",
    "ReceiverClosed",
    "Sender",
    "SenderClosed",
    "SentMessage",
    "Server",
    "connect",
    "serve",
]

__getattr__, __dir__ = lazy_names(
    __name__, {"wallaroo_spark.aqueduct.names": __all__}, dict.fromkeys(__all__, ("quic",))
)
