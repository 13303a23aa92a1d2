"""The events of a key's controller, and the messages that keys carry to each other, with their answers.

Source: ``docs/pipelines/design.md#events`` and ``docs/pipelines/design.md#a-transactions-way``.
"""

from __future__ import annotations

from enum import StrEnum
from typing import NamedTuple

from wallaroo_spark.pipelines.controller.messages import values
from wallaroo_spark.pipelines.controller.messages.plans import PartitionPlan
from wallaroo_spark.pipelines.schema.cloud_event import CloudEvent, Payload
from wallaroo_spark.pipelines.schema.declarations import StartPoint


class AppendOutput(NamedTuple):
    """Append these records; the decision is made. The answer is OutputAppended or OutputRefused.

    ``output`` is a delivery of a group whose event is set aside, or an output of a stage.
    """

    output: values.OutputId | values.GroupDelivery
    records: tuple[CloudEvent, ...]


class ApplyStatement(NamedTuple):
    """Check and stage these records. The answer is StatementApplied or StatementRefused."""

    statement: values.StatementId
    records: tuple[CloudEvent, ...]


class CommitStatement(NamedTuple):
    """Append the staged records of this statement. The answer is StatementAppended."""

    statement: values.StatementId


class AbortStatement(NamedTuple):
    """Forget the staged records of this statement. There is no answer."""

    statement: values.StatementId


class OutputAppended(NamedTuple):
    """The records of an output are at these offsets."""

    output: values.OutputId | values.GroupDelivery
    """The output; a delivery of a group for its dead letter."""
    offsets: tuple[int, ...]
    """The offset of each record."""
    partitions: tuple[int, ...] = ()
    """As those of Written."""


class OutputRefused(NamedTuple):
    """The target does not exist any more."""

    output: values.OutputId | values.GroupDelivery
    reason: str


class StatementApplied(NamedTuple):
    """The target has staged the statement."""

    statement: values.StatementId


class StatementRefused(NamedTuple):
    """The target does not accept the statement, or has it no more because its stream is deleted."""

    statement: values.StatementId
    reason: str


class StatementAppended(NamedTuple):
    """The records of a statement are at these offsets."""

    statement: values.StatementId
    offsets: tuple[int, ...]
    """The offset of each record."""
    reason: str = ""
    """Why there are no offsets: the stream was deleted after the statement was applied; empty when there are."""
    partitions: tuple[int, ...] = ()
    """As those of Written."""


class GroupsExist(NamedTuple):
    """These durable groups existed before the partition did: each begins at its first record. There is no answer."""

    version: int
    """Version of the declaration that has added the partition."""
    groups: tuple[str, ...]


class IdsMoved(NamedTuple):
    """The source has records whose ids are published to the target since partitions were added. There is no answer."""

    version: int
    """Version of the declaration that has added partitions."""
    digests: bytes
    """The digests of the ids, one behind the other."""
    offsets: tuple[int, ...]
    """The offsets of the records in the source."""


class RecordsMoved(NamedTuple):
    """Records of a request that was divided before partitions were added; each is written where it belongs now.

    The message goes from partition to partition until all records have their places. The last one answers.
    """

    reply_to: values.ReplyTo | None
    """The publisher's request; None when it was answered already."""
    records: tuple[CloudEvent | None, ...]
    """The records in their order; None for one that has its place."""
    places: tuple[tuple[int, int] | None, ...]
    """Partition and offset of each record; None for one that has none yet."""
    durability: values.Durability = values.Durability.COMMITTED
    """When the publisher is answered."""
    version: int = -1
    """Version of the declaration that has added partitions last, for the sender."""


_Order = AppendOutput | ApplyStatement | CommitStatement | AbortStatement
_Answer = OutputAppended | OutputRefused | StatementApplied | StatementRefused | StatementAppended
Carried = _Order | _Answer | GroupsExist | IdsMoved | RecordsMoved
"""The messages of keys to each other."""


class PartitionDeclared(NamedTuple):
    """The declaration of this partition; None when its stream is deleted. An older version is ignored."""

    version: int
    plan: PartitionPlan | None


class RecordsPublished(NamedTuple):
    """Records to append, all or none."""

    reply_to: values.ReplyTo
    """The publisher's request."""
    records: tuple[CloudEvent, ...]
    """The records in their order."""
    durability: values.Durability = values.Durability.COMMITTED
    """When the publisher is answered."""
    partitions: int = 0
    """The number of partitions among which the gateway has divided the request; 0 when the publisher has named this
    one. Records that belong to a partition that was added meanwhile are passed on to it."""


class RecordsDelayed(NamedTuple):
    """Records to append at a later time, all or none. The answer has no offsets: it comes when they are stored."""

    reply_to: values.ReplyTo
    """The publisher's request."""
    records: tuple[CloudEvent, ...]
    """The records in their order."""
    due: int
    """When they are appended, at the earliest: milliseconds since 1970 UTC."""
    durability: values.Durability = values.Durability.COMMITTED
    """When the publisher is answered."""
    partitions: int = 0
    """As that of RecordsPublished."""


class GroupJoined(NamedTuple):
    """A member joins a group of this partition's subscribers."""

    reply_to: values.ReplyTo
    """The request of the member; its gateway is the member's gateway."""
    member: str
    """Name of the member, never used again by another channel."""
    group: str
    durable: bool = True
    """Whether the group outlives its members."""
    start: StartPoint = StartPoint()
    """Where a group begins that does not exist yet."""
    max_records: int = 1
    """The most records of a delivery to this member."""
    partitions: int = 0
    """The number of partitions that the gateway knows, all of which the member joins; 0 when it has named some."""


class StageJoined(NamedTuple):
    """A member joins the subscribers of a stage."""

    reply_to: values.ReplyTo
    """The request of the member; its gateway is the member's gateway."""
    member: str
    """Name of the member, never used again by another channel."""
    pipeline: str
    """Name of the pipeline as ``namespace/name``."""
    stage: str
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

    reply_to: values.ReplyTo | None
    """The request of the member; None for a function in Spark, which reads no answer."""
    member: str
    delivery: values.Delivery
    output: Payload | None = None
    """The output of a stage."""
    stream_outputs: tuple[values.StreamOutput, ...] = ()
    """The stream outputs of a stage, each stream at least once."""


class DeliveryNacked(NamedTuple):
    """A member has not processed a delivery."""

    reply_to: values.ReplyTo | None
    """The request of the member; None for a function in Spark, which reads no answer."""
    member: str
    delivery: values.Delivery
    delay: int = 0
    """Milliseconds until it is delivered again, at the earliest."""
    reason: str = ""
    """Why, as a sentence; it goes to the history of the instance and to the dead letter."""


class DeliveryExtended(NamedTuple):
    """A member works on a delivery: its time begins anew. There is no answer."""

    member: str
    delivery: values.Delivery


class DeliveriesTaken(NamedTuple):
    """An operator takes open deliveries away from their members: of an instance, or of a group."""

    reply_to: values.ReplyTo
    """The request of the operator."""
    group: str = ""
    """Name of the group; empty for an instance."""
    pipeline: str = ""
    """Name of the instance's pipeline."""
    instance: int = 0
    """Number of the instance."""
    stage: str = ""
    """Name of the stage; empty for all stages of the instance."""


class GroupAction(StrEnum):
    """The ways in which an operator changes a group."""

    DELETE = "delete"
    """Forget it, and end its members' subscriptions."""
    MOVE = "move"
    """Go on at a start point."""
    PAUSE = "pause"
    """Deliver nothing."""
    RESUME = "resume"
    """Deliver again."""


class GroupChanged(NamedTuple):
    """An operator changes a group."""

    reply_to: values.ReplyTo
    """The request of the operator."""
    group: str
    action: GroupAction
    """The change."""
    start: StartPoint = StartPoint()
    """Where it goes on, of a MOVE."""


class TransactionBegun(NamedTuple):
    """A member enters a transaction within a delivery."""

    reply_to: values.ReplyTo
    """The request of the member."""
    member: str
    delivery: values.Delivery


class StatementAdded(NamedTuple):
    """A member adds records for another stream to its transaction."""

    reply_to: values.ReplyTo
    """The request of the member."""
    member: str
    delivery: values.Delivery
    """The delivery of the transaction."""
    target: values.PartitionKey
    """Where the records are to be appended."""
    records: tuple[CloudEvent, ...]
    """The records in their order."""


class InstanceCancelled(NamedTuple):
    """An instance is to end."""

    reply_to: values.ReplyTo
    """The request of the operator."""
    pipeline: str
    instance: int
    """Number of the instance."""


class RecordsExpired(NamedTuple):
    """Retention has removed all records before ``first``."""

    first: int


class RecordsRead(NamedTuple):
    """The answer to ReadRecords: the records from ``first`` on, without gaps."""

    pipeline: str
    """Name of the pipeline, or of the group, that asked; see ReadRecords."""
    asked: int
    """The first offset that was asked for."""
    first: int
    """Offset of the first record; greater than ``asked`` when retention has removed the records before."""
    records: tuple[CloudEvent, ...]
    """The records, at least one unless retention has removed all; fewer than asked for are allowed."""


class CarriedIn(NamedTuple):
    """A message that another key (or this one) has carried here."""

    source: values.PartitionKey
    """The key that it comes from."""
    sequence: int
    """Its number from that key to this one, from 1."""
    message: Carried


_Records = RecordsPublished | RecordsDelayed | RecordsExpired | RecordsRead
_Member = GroupJoined | StageJoined | MemberLeft | GatewayStarted
_OfDelivery = DeliveryAcked | DeliveryNacked | DeliveryExtended | TransactionBegun | StatementAdded
_Operator = DeliveriesTaken | GroupChanged | InstanceCancelled
Event = PartitionDeclared | CarriedIn | _Records | _Member | _OfDelivery | _Operator
