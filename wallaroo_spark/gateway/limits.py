"""The limits of a gateway. Each bounds memory or work that a client can cause.

All are choices unless a comment names a measurement. Source: ``docs/pipelines/gateway.md#limits``.

A request that a gateway refuses: the status of gRPC, the code for the trailing metadata, and the text.
"""

from __future__ import annotations

from dataclasses import dataclass

from wallaroo_spark.api.limits import EVENT_BYTES, EVENTS, MESSAGE_BYTES
from wallaroo_spark.errors import PipelineError
from wallaroo_spark.pipelines.schema.cloud_event import MOST_ATTRIBUTES

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
    transaction_events: int = 100_000
    """The most events of a transaction, so that the answer to its ack, with a place for each, fits into a message."""
    attributes: int = MOST_ATTRIBUTES
    """The most optional attributes and extensions of one event."""
    calls: int = 22_000
    """The most open calls at once: twice those of ``requests`` and ``members``, so that these limits come first."""
    client_calls: int = 10_000
    """The most open calls of one client: of a token, or of an address where no Token is declared."""
    silent_calls: int = 10_000
    """The most calls that have sent no message yet; the oldest ends when another one comes."""
    first_seconds: float = 30.0
    """How long a call may take until its first message."""
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
    transaction_bytes: int = 32 * MIB
    """The most bytes of the events of one transaction, which one batch writes together."""
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
    file_bytes: int = 16 * MIB
    """The bytes from which a file of the inbox takes no more rows; a batch reads whole files."""
    unread_bytes: int = 256 * MIB
    """The most bytes that the gateway has received and no committed batch has read; a publish beyond it is refused."""
    delivery_bytes: int = 256 * MIB
    """The most bytes of deliveries that wait in memory for all members together, as ``waiting_bytes`` for one."""
    ephemeral_bytes: int = 256 * MIB
    """The most bytes of messages of exchanges and calls that wait for all clients together; later ones are refused."""
    exchange_messages: int = 1_000
    """The most messages of an exchange that wait for one receiver; later ones are dropped."""
    call_messages: int = 100
    """The most messages of a call that wait for its caller, or for its consumer."""


class Refused(PipelineError):
    """A request is refused, or a channel ends. The field ``status`` is the name of a status of gRPC."""

    @property
    def status(self) -> str:
        """The name of the gRPC status."""
        return str(self.fields["status"])


def invalid(text: str) -> Refused:
    """The request itself is not valid, at any time."""
    return Refused(text, code="request-invalid", status="INVALID_ARGUMENT")


def unknown(kind: str, name: str) -> Refused:
    """The named object is not declared."""
    return Refused(
        f"there is no {kind} {name[:200]!r}; apply a schema that declares it, and name it as namespace/name",
        code="object-unknown",
        status="NOT_FOUND",
    )


def busy(text: str) -> Refused:
    """A limit is reached; the same request may succeed later."""
    return Refused(text, code="gateway-busy", status="RESOURCE_EXHAUSTED")


def ends(reason: str) -> Refused:
    """The gateway ends."""
    return Refused(f"the gateway ends: {reason}; try again", code="gateway-ends", status="UNAVAILABLE")


def ended(reason: str) -> Refused:
    """A channel ends, because its object is gone."""
    return Refused(reason, code="subscription-ended", status="FAILED_PRECONDITION")


class ByteBudget:
    """Counts bytes that wait in the memory of a gateway, for all of its clients together, up to a limit.

    One part that alone is larger has room while nothing else waits.
    """

    def __init__(self, limit: int) -> None:
        self.used = 0
        """The bytes that wait."""
        self._limit = limit

    def has_room(self, size: int) -> bool:
        """Whether ``size`` more bytes may wait."""
        return not self.used or self.used + size <= self._limit

    def add(self, size: int) -> None:
        """Reserve ``size`` bytes."""
        self.used += size

    def remove(self, size: int) -> None:
        """Release ``size`` bytes."""
        self.used -= size
