"""The instructions of a key's controller; they take effect when their batch is committed.

Source: ``docs/pipelines/design.md#instructions``. Times are milliseconds since 1970 UTC.
"""

from __future__ import annotations

from enum import StrEnum
from typing import NamedTuple

from wallaroo_spark.pipelines.controller.messages.carried import Carried
from wallaroo_spark.pipelines.controller.messages.values import (
    CloudEvent,
    Delivery,
    GroupDelivery,
    OutputId,
    PartitionKey,
    Payload,
    ReplyTo,
    StageDelivery,
)


class Outcome(StrEnum):
    """How an instance ended."""

    DONE = "done"
    CANCELLED = "cancelled"
    FAILED = "failed"


class AppendRecords(NamedTuple):
    """Write these records at the offsets ``first``, ``first + 1`` and so on."""

    first: int
    records: tuple[CloudEvent, ...]


class ForgetRecords(NamedTuple):
    """Remove the records before an offset from the table, because their stream is deleted."""

    first: int
    """The first offset that stays."""


class DeliverRecords(NamedTuple):
    """Give a group's member the records of a range."""

    member: str
    """Name of the member."""
    delivery: GroupDelivery
    """The delivery."""
    first: int
    """First offset."""
    last: int
    """Last offset, inclusive."""
    missed: int = 0
    """Records that retention removed before the group had them, since its last delivery."""


class DeliverInputs(NamedTuple):
    """Give a stage's member its inputs."""

    member: str
    """Name of the member."""
    delivery: StageDelivery
    """The delivery."""
    root: CloudEvent | None
    """The root event, where the stage is given it."""
    outputs: tuple[tuple[str, Payload], ...]
    """The outputs of its dependencies, by stage."""


class RunFunction(NamedTuple):
    """Run a stage's function in Spark; the result comes as DeliveryAcked or DeliveryNacked of the member IN_SPARK."""

    delivery: StageDelivery
    """The delivery."""
    function: str
    """``package.module:function``."""
    root: CloudEvent | None
    """The root event, where the stage is given it."""
    outputs: tuple[tuple[str, Payload], ...]
    """The outputs of its dependencies, by stage."""
    targets: tuple[tuple[str, int], ...] = ()
    """The streams of its stream outputs, each with its number of partitions."""
    dependencies: tuple[str, ...] = ()
    """The stages that it depends on; one that has no output is not in ``outputs``."""
    output_required: bool = False
    """Whether an ack without an output is a nack."""
    partition: int = 0
    """Number of the partition; the number of an instance is unique within it only."""


class WithdrawDelivery(NamedTuple):
    """A delivery has ended without the member's doing; its ack would be dropped."""

    member: str
    """Name of the member."""
    delivery: Delivery
    """The delivery."""
    reason: str
    """Why, as a sentence."""


class EndSubscription(NamedTuple):
    """A member's channel ends, because its stage or stream is gone."""

    member: str
    reason: str


class StoreOutput(NamedTuple):
    """A stage is done: a row of the instance's history."""

    delivery: StageDelivery
    """The delivery that was acked."""
    output: Payload | None
    """The output; None when the stage has none."""
    began_at: int
    """When the stage could begin."""
    ended_at: int
    """The time of the ack's batch."""


class StorePointer(NamedTuple):
    """A stream output of an instance is written: where its records are."""

    output: OutputId
    """Which output."""
    target: PartitionKey
    """The partition that has the records."""
    offsets: tuple[int, ...]
    """Their offsets; none when the target refused them."""
    reason: str = ""
    """Why the target refused; empty when it did not."""


class InstanceBegan(NamedTuple):
    """An instance has begun."""

    pipeline: str
    """Name of the pipeline."""
    instance: int
    """Offset of the record that began it."""
    version: int
    """Version of the declaration whose stages it runs."""
    at: int
    """The time of the batch."""


class InstanceEnded(NamedTuple):
    """An instance has ended, and its state is removed."""

    pipeline: str
    """Name of the pipeline."""
    instance: int
    """Number of the instance."""
    outcome: Outcome
    """How it ended."""
    began_at: int
    """When it began."""
    at: int
    """The time of the batch."""
    reason: str = ""
    """Why it failed or was cancelled."""


class CarryOut(NamedTuple):
    """Carry a message to a key; it arrives there as CarriedIn, in the order of its sequence."""

    target: PartitionKey
    """The key that it goes to."""
    sequence: int
    """Its number from this key to that one, from 1."""
    message: Carried
    """The message."""


class Written(NamedTuple):
    """Where records were written."""

    target: PartitionKey
    offsets: tuple[int, ...]


class ConnectorPosition(NamedTuple):
    """The position of a connector stream."""

    name: str
    """Name of the connector stream."""
    stream_id: int
    """Its id in the protocol."""
    reference: int | None
    """Id of the last message that is applied; None before the first."""


class AnswerRequest(NamedTuple):
    """A request has succeeded."""

    reply_to: ReplyTo
    """The request."""
    written: tuple[Written, ...] = ()
    """For a publish its records; for an ack the records of each statement, in their order."""
    positions: tuple[ConnectorPosition, ...] = ()
    """For a connector's question, or the opening of its stream: the positions."""


class RefuseRequest(NamedTuple):
    """A request has failed, and nothing of it is kept."""

    reply_to: ReplyTo
    """The request."""
    reason: str
    """Why, and the way out."""


class WarnClient(NamedTuple):
    """A message came too late or out of place, and was dropped."""

    reply_to: ReplyTo
    """The request."""
    text: str
    """What was dropped and why."""


class ReadRecords(NamedTuple):
    """Read committed records of this partition for a pipeline; the answer is RecordsRead."""

    pipeline: str
    """Name of the pipeline."""
    first: int
    """First offset."""
    limit: int
    """The most records."""


class SkippedRecords(NamedTuple):
    """Retention has removed records before a pipeline had them; they begin no instances."""

    pipeline: str
    """Name of the pipeline."""
    first: int
    """First offset."""
    last: int
    """Last offset, inclusive."""


class ArmTimer(NamedTuple):
    """Call ``handle`` at this time, with no event if there is none; None: no timer is needed."""

    at: int | None


Instruction = (
    AppendRecords
    | ForgetRecords
    | DeliverRecords
    | DeliverInputs
    | RunFunction
    | WithdrawDelivery
    | EndSubscription
    | StoreOutput
    | StorePointer
    | InstanceBegan
    | InstanceEnded
    | CarryOut
    | AnswerRequest
    | RefuseRequest
    | WarnClient
    | ReadRecords
    | SkippedRecords
    | ArmTimer
)
