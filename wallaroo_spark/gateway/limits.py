"""The limits of a gateway, each of which bounds memory or work that a client can cause, and the errors of its calls.

All limits are choices unless a comment names a measurement. Source: ``docs/pipelines/gateway.md#limits``.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from typing import Generic, Protocol, TypeVar

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


STATUSES = {
    "call-failed": "UNKNOWN",
    "commit-timeout": "DEADLINE_EXCEEDED",
    "consumer-gone": "UNKNOWN",
    "folder-silent": "UNAVAILABLE",
    "gateway-busy": "RESOURCE_EXHAUSTED",
    "gateway-ends": "UNAVAILABLE",
    "join-refused": "FAILED_PRECONDITION",
    "no-consumer": "FAILED_PRECONDITION",
    "object-unknown": "NOT_FOUND",
    "permission-missing": "PERMISSION_DENIED",
    "publish-refused": "ABORTED",
    "request-invalid": "INVALID_ARGUMENT",
    "request-refused": "FAILED_PRECONDITION",
    "subscription-ended": "FAILED_PRECONDITION",
    "token-refused": "UNAUTHENTICATED",
}
"""Code of a refusal → name of the status of gRPC."""


class Refused(PipelineError):
    """A request is refused, or a channel ends. An error of another cause has its status in the field ``status``."""

    @property
    def status(self) -> str:
        """The name of the gRPC status."""
        return str(self.fields.get("status") or STATUSES[self.code])


def invalid(text: str) -> Refused:
    """The request itself is not valid, at any time."""
    return Refused(text, code="request-invalid")


def unknown(kind: str, name: str) -> Refused:
    """The named object is not declared."""
    return Refused(
        f"there is no {kind} {name[:200]!r}; apply a schema that declares it, and name it as namespace/name",
        code="object-unknown",
    )


def busy(text: str) -> Refused:
    """A limit is reached; the same request may succeed later."""
    return Refused(text, code="gateway-busy")


def try_again(text: str) -> Refused:
    """This gateway cannot go on with a call, and it or another one may with the next."""
    return Refused(text, code="gateway-ends")


def ends(reason: str) -> Refused:
    """The gateway ends."""
    return try_again(f"the gateway ends: {reason}; try again")


def ended(reason: str) -> Refused:
    """A channel ends, because its object is gone."""
    return Refused(reason, code="subscription-ended")


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
        """Reserve ``size`` bytes; a negative number releases them."""
        self.used += size


class Sized(Protocol):
    """A message of protobuf."""

    def ByteSize(self) -> int:  # the name of protobuf
        """The bytes of the message as it is sent."""


M = TypeVar("M", bound=Sized)


class WaitingMessages(Generic[M]):
    """The messages that wait for one client; their bytes are a part of ``budget``."""

    def __init__(self, budget: ByteBudget) -> None:
        self.bytes = 0
        """The bytes of the messages."""
        self._messages: deque[M] = deque()
        self._budget = budget

    def __len__(self) -> int:
        return len(self._messages)

    def has_room(self, size: int, most: int, most_bytes: int) -> bool:
        """Whether ``size`` more bytes may wait, within these limits of one client. One message may always wait."""
        fits = len(self._messages) < most and self.bytes + size <= most_bytes
        return self._budget.has_room(size) and (fits or not self._messages)

    def add(self, message: M) -> None:
        """Add a message behind the others."""
        self._messages.append(message)
        self._count(message.ByteSize())

    def take(self) -> M | None:
        """The first message, which waits no more; None when there is none."""
        if not self._messages:
            return None
        message = self._messages.popleft()
        self._count(-message.ByteSize())
        return message

    def clear(self) -> None:
        """Drop all messages."""
        self._messages.clear()
        self._count(-self.bytes)

    def _count(self, size: int) -> None:
        self.bytes += size
        self._budget.add(size)
