"""The events of a key's controller. Source: ``docs/pipelines/design.md#events``."""

from __future__ import annotations

from typing import NamedTuple

from wallaroo_spark.pipelines.controller.messages.carried import Carried
from wallaroo_spark.pipelines.controller.messages.plans import PartitionPlan
from wallaroo_spark.pipelines.controller.messages.values import (
    CloudEvent,
    Delivery,
    Durability,
    PartitionKey,
    Payload,
    ReplyTo,
    StreamOutput,
)
from wallaroo_spark.pipelines.declarations import StartPoint


class PartitionDeclared(NamedTuple):
    """The declaration of this partition; None when its stream is deleted. An older version is ignored."""

    version: int
    plan: PartitionPlan | None


class RecordsPublished(NamedTuple):
    """Records to append, all or none."""

    reply_to: ReplyTo
    """The publisher's request."""
    records: tuple[CloudEvent, ...]
    """The records in their order."""
    durability: Durability = Durability.COMMITTED
    """When the publisher is answered."""


class RecordsDelayed(NamedTuple):
    """Records to append at a later time, all or none. The answer has no offsets: it comes when they are stored."""

    reply_to: ReplyTo
    """The publisher's request."""
    records: tuple[CloudEvent, ...]
    """The records in their order."""
    due: int
    """When they are appended, at the earliest: milliseconds since 1970 UTC."""
    durability: Durability = Durability.COMMITTED
    """When the publisher is answered."""


class ConnectorAsked(NamedTuple):
    """A gateway asks for the positions of a connector instance's streams in this partition."""

    reply_to: ReplyTo
    """The request of the session."""
    instance: str
    """Name of the connector's instance."""


class ConnectorOpened(NamedTuple):
    """A session opens a connector stream. From now on only messages of this opening are applied."""

    reply_to: ReplyTo
    """The request of the session; it is also the name of the opening."""
    instance: str
    """Name of the connector's instance."""
    name: str
    """Name of the connector stream; it is the stream's own within the instance."""
    stream_id: int
    """Id of the connector stream in the protocol."""


class MessagesSent(NamedTuple):
    """Messages of one connector stream, in their order."""

    reply_to: ReplyTo
    """The request of the session."""
    opening: int
    """The number of the request that opened the stream, of the same gateway and generation."""
    instance: str
    """Name of the connector's instance."""
    name: str
    """Name of the connector stream."""
    last: int | None
    """Id of the last message, which may have no record; None when there is only the end of the stream."""
    ids: tuple[int, ...] = ()
    """The id of each record's message; they increase."""
    records: tuple[CloudEvent, ...] = ()
    """The records."""
    ended: bool = False
    """Whether the stream has ended behind these messages."""


class GroupJoined(NamedTuple):
    """A member joins a group of this partition's subscribers."""

    reply_to: ReplyTo
    """The request of the member; its gateway is the member's gateway."""
    member: str
    """Name of the member, never used again by another channel."""
    group: str
    """Name of the group."""
    durable: bool = True
    """Whether the group outlives its members."""
    start: StartPoint = StartPoint()
    """Where a group begins that does not exist yet."""
    max_records: int = 1
    """The most records of a delivery to this member."""


class StageJoined(NamedTuple):
    """A member joins the subscribers of a stage."""

    reply_to: ReplyTo
    """The request of the member; its gateway is the member's gateway."""
    member: str
    """Name of the member, never used again by another channel."""
    pipeline: str
    """Name of the pipeline as ``namespace/name``."""
    stage: str
    """Name of the stage."""
    concurrency: int = 1
    """The most deliveries that this member has at once from this partition."""


class MemberLeft(NamedTuple):
    """A member's channel has ended."""

    member: str


class GatewayStarted(NamedTuple):
    """A gateway has started; the members of its earlier generations are gone."""

    gateway: str
    generation: int


class DeliveryAcked(NamedTuple):
    """A member has processed a delivery. This commits the delivery's transaction, if it has one."""

    reply_to: ReplyTo | None
    """The request of the member; None for a function in Spark, which reads no answer."""
    member: str
    """Name of the member."""
    delivery: Delivery
    """The delivery."""
    output: Payload | None = None
    """The output of a stage."""
    stream_outputs: tuple[StreamOutput, ...] = ()
    """The stream outputs of a stage, each stream at least once."""


class DeliveryNacked(NamedTuple):
    """A member has not processed a delivery."""

    reply_to: ReplyTo | None
    """The request of the member; None for a function in Spark, which reads no answer."""
    member: str
    """Name of the member."""
    delivery: Delivery
    """The delivery."""
    delay: int = 0
    """Milliseconds until it is delivered again, at the earliest."""
    reason: str = ""
    """Why, as a sentence; it becomes a part of the reason of an instance that fails."""


class TransactionBegun(NamedTuple):
    """A member enters a transaction within a delivery."""

    reply_to: ReplyTo
    """The request of the member."""
    member: str
    """Name of the member."""
    delivery: Delivery
    """The delivery."""


class StatementAdded(NamedTuple):
    """A member adds records for another stream to its transaction."""

    reply_to: ReplyTo
    """The request of the member."""
    member: str
    """Name of the member."""
    delivery: Delivery
    """The delivery of the transaction."""
    target: PartitionKey
    """Where the records are to be appended."""
    records: tuple[CloudEvent, ...]
    """The records in their order."""


class InstanceCancelled(NamedTuple):
    """An instance is to end."""

    reply_to: ReplyTo
    """The request of the operator."""
    pipeline: str
    """Name of the pipeline."""
    instance: int
    """Number of the instance."""


class RecordsExpired(NamedTuple):
    """Retention has removed all records before ``first``."""

    first: int


class RecordsRead(NamedTuple):
    """The answer to ReadRecords: the records from ``first`` on, without gaps."""

    pipeline: str
    """Name of the pipeline that asked."""
    asked: int
    """The first offset that was asked for."""
    first: int
    """Offset of the first record; greater than ``asked`` when retention has removed the records before."""
    records: tuple[CloudEvent, ...]
    """The records, at least one unless retention has removed all; fewer than asked for are allowed."""


class CarriedIn(NamedTuple):
    """A message that another key (or this one) has carried here."""

    source: PartitionKey
    """The key that it comes from."""
    sequence: int
    """Its number from that key to this one, from 1."""
    message: Carried
    """The message."""


Event = (
    PartitionDeclared
    | RecordsPublished
    | RecordsDelayed
    | ConnectorAsked
    | ConnectorOpened
    | MessagesSent
    | GroupJoined
    | StageJoined
    | MemberLeft
    | GatewayStarted
    | DeliveryAcked
    | DeliveryNacked
    | TransactionBegun
    | StatementAdded
    | InstanceCancelled
    | RecordsExpired
    | RecordsRead
    | CarriedIn
)
