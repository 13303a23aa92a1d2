"""The limits of a gateway. Each bounds memory or work that a client can cause.

All are choices unless a comment names a measurement. Source: ``docs/pipelines/gateway.md#limits``.
"""

from __future__ import annotations

from dataclasses import dataclass

from wallaroo_spark.api.limits import EVENT_BYTES, EVENTS, MESSAGE_BYTES

MIB = 1024 * 1024


@dataclass(frozen=True)
class GatewayLimits:
    """The limits of one gateway."""

    message_bytes: int = MESSAGE_BYTES
    """The most bytes of one message of a client: gRPC's own default."""
    event_bytes: int = EVENT_BYTES
    """The most bytes of one event, so that it also fits into a message with other fields."""
    events: int = EVENTS
    """The most events of one publish, ack or statement."""
    attributes: int = 100
    """The most optional attributes and extensions of one event."""
    requests: int = 10_000
    """The most calls at once that wait for their commit."""
    request_bytes: int = 256 * MIB
    """The most bytes of calls that wait for their commit; a call beyond it is refused."""
    file_seconds: float = 60.0
    """How long a call to the application's file system may take.

    A gateway that cannot write its inbox, or read commits, for so long ends, and is started again. It is longer than
    the retries of the clients of object stores and of HDFS.
    """
    request_seconds: float = 300.0
    """How long a call waits for its commit when its own deadline is later."""
    members: int = 1_000
    """The most members at once: channels of Subscribe, Work, Receive and Serve together."""
    concurrency: int = 1_000
    """The most deliveries at once of a member, and the most calls at once of a consumer."""
    records: int = 10_000
    """The most events of a delivery."""
    part_bytes: int = MIB
    """Bytes from which a delivery of a group is divided into several messages."""
    waiting_bytes: int = 16 * MIB
    """The most bytes of deliveries that wait in memory for one member.

    Events beyond it are read again from the table; a member of a stage is sent away.
    """
    replies: int = 1_000
    """Messages waiting for a client from which nothing more is read from it."""
    inbox_rows: int = 100_000
    """The most rows that wait for the inbox; a publish beyond it is refused."""
    inbox_bytes: int = 64 * MIB
    """The most bytes that wait for the inbox; a publish beyond it is refused."""
    file_rows: int = 20_000
    """The most rows of one file of the inbox."""
    delivery_bytes: int = 256 * MIB
    """The most bytes of deliveries that wait in memory for all members together, as ``waiting_bytes`` for one."""
    ephemeral_bytes: int = 256 * MIB
    """The most bytes of messages of exchanges and calls that wait for all clients together; later ones are refused."""
    exchange_messages: int = 1_000
    """The most messages of an exchange that wait for one receiver; later ones are dropped."""
    connectors: int = 1_000
    """The most sessions of connectors at once."""
    connector_streams: int = 10_000
    """The most connector streams that a session has open."""
    connector_messages: int = 200_000
    """Messages of connectors that are not committed, or may be sent, about; all sessions share them as credits."""
    connector_bytes: int = 64 * MIB
    """Bytes of messages of connectors that are not committed; beyond them no connector is read from."""
    unfinished_bytes: int = 64 * MIB
    """The most bytes of all connectors' incomplete frames."""
    call_messages: int = 100
    """The most messages of a call that wait for its caller, or for its consumer."""
