"""The instructions of a key's controller; they take effect when their batch is committed.

Source: ``docs/pipelines/design.md#instructions``. Times are milliseconds since 1970 UTC.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from enum import StrEnum
from typing import NamedTuple

from wallaroo_spark.pipelines.controller.messages import values
from wallaroo_spark.pipelines.controller.messages.events import Carried
from wallaroo_spark.pipelines.schema.cloud_event import CloudEvent, Payload


class Outcome(StrEnum):
    """How an instance ended."""

    DONE = "done"
    CANCELLED = "cancelled"
    FAILED = "failed"


class ForgetRecords(NamedTuple):
    """Remove the records before an offset from the table, because their stream is deleted."""

    first: int
    """The first offset that stays."""


class DeliverRecords(NamedTuple):
    """Give a group's member the records of a range."""

    member: str
    delivery: values.GroupDelivery
    first: int
    """First offset."""
    last: int
    """Last offset, inclusive."""
    missed: int = 0
    """Records that retention removed before the group had them, since its last delivery."""
    timeout: int = 0
    """Milliseconds within which it has to be settled; 0 for no limit."""


class DeliverInputs(NamedTuple):
    """Give a stage's member its inputs."""

    member: str
    delivery: values.StageDelivery
    root: CloudEvent | None
    """The root event, where the stage is given it."""
    outputs: tuple[tuple[str, Payload], ...]
    """The outputs of its dependencies, by stage."""
    timeout: int = 0
    """Milliseconds within which it has to be settled; 0 for no limit."""


class RunFunction(NamedTuple):
    """Run a stage's function in Spark; the result comes as DeliveryAcked or DeliveryNacked of the member IN_SPARK."""

    delivery: values.StageDelivery
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
    delivery: values.Delivery
    reason: str
    """Why, as a sentence."""
    timed_out: bool = False
    """Whether it was taken away, because its time was over or an operator said so. Its place is free once the member
    settles it all the same."""


class EndSubscription(NamedTuple):
    """A member's channel ends, because its stage or stream is gone."""

    member: str
    reason: str


class StoreOutput(NamedTuple):
    """A stage is done: a row of the instance's history."""

    delivery: values.StageDelivery
    """The delivery that was acked."""
    output: Payload | None
    """The output; None when the stage has none."""
    began_at: int
    """When the stage could begin."""
    ended_at: int
    """The time of the ack's batch."""


class DeliveryFailed(NamedTuple):
    """A delivery of a stage has not succeeded: a row of the instance's history."""

    delivery: values.StageDelivery
    attempts: int
    """How often the stage was delivered so far."""
    reason: str
    """Why, as a sentence; it is bounded."""
    began_at: int = 0
    """When the stage could begin."""


class StorePointer(NamedTuple):
    """A stream output of an instance is written: where its records are."""

    output: values.OutputId
    target: values.PartitionKey
    """The partition that has the records."""
    offsets: tuple[int, ...]
    """Their offsets; none when the target refused them."""
    reason: str = ""
    """Why the target refused; empty when it did not."""


class InstanceBegan(NamedTuple):
    """An instance has begun."""

    pipeline: str
    instance: int
    """Offset of the record that began it."""
    version: int
    """Version of the declaration whose stages it runs."""
    at: int
    """The time of the batch."""
    birth: int = 0
    """Version of the schema with which its pipeline was declared first."""


class InstanceEnded(NamedTuple):
    """An instance has ended, and its state is removed."""

    pipeline: str
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
    birth: int = 0
    """Version of the schema with which its pipeline was declared first."""


class CarryOut(NamedTuple):
    """Carry a message to a key; it arrives there as CarriedIn, in the order of its sequence."""

    target: values.PartitionKey
    """The key that it goes to."""
    sequence: int
    """Its number from this key to that one, from 1."""
    message: Carried


class Written(NamedTuple):
    """Where records were written."""

    target: values.PartitionKey
    """The partition to which they were sent."""
    offsets: tuple[int, ...]
    """The offset of each record."""
    reason: str = ""
    """Why nothing was written, though it was decided: the stream is deleted; empty when it was."""
    partitions: tuple[int, ...] = ()
    """The partition of each record, when one of them is in another partition of the stream than ``target``: it was
    written before partitions were added. Empty: all are in ``target``."""

    def places(self) -> Iterator[tuple[int, int]]:
        """Partition and offset of each record."""
        return zip(self.partitions or itertools.repeat(self.target.partition), self.offsets, strict=False)


class AnswerRequest(NamedTuple):
    """A request has succeeded."""

    reply_to: values.ReplyTo
    written: tuple[Written, ...] = ()
    """For a publish its records; for an ack the records of each statement, in their order."""


class RefuseRequest(NamedTuple):
    """A request has failed, and nothing of it is kept."""

    reply_to: values.ReplyTo
    reason: str
    """Why, and the remedy."""


class WarnClient(NamedTuple):
    """A message came too late or out of place, and was dropped."""

    reply_to: values.ReplyTo
    """The request."""
    text: str
    """What was dropped and why."""


class ReadRecords(NamedTuple):
    """Read committed records of this partition for a pipeline or a group; the answer is RecordsRead."""

    pipeline: str
    """Name of the pipeline, or of the group whose event is set aside; only that of a pipeline has a slash."""
    first: int
    """First offset."""
    limit: int
    """The most records."""


class SkippedRecords(NamedTuple):
    """Retention has removed records before a pipeline had them; they begin no instances."""

    pipeline: str
    first: int
    """First offset."""
    last: int
    """Last offset, inclusive."""


class ArmTimer(NamedTuple):
    """Call ``handle`` at this time, with no event if there is none; None: no timer is needed."""

    at: int | None


HistoryStep = InstanceBegan | StoreOutput | DeliveryFailed | StorePointer | InstanceEnded | SkippedRecords
"""The instructions that are rows of the history."""
ForMember = DeliverRecords | DeliverInputs | WithdrawDelivery | EndSubscription
Reply = AnswerRequest | RefuseRequest | WarnClient
ForGateway = ForMember | Reply
"""The instructions that are messages for a gateway."""
Instruction = HistoryStep | ForGateway | CarryOut | ForgetRecords | ReadRecords | RunFunction | ArmTimer
