"""Values that events, instructions and the state of a key share.

Source: ``docs/pipelines/design.md#words``. All are immutable. The order of their fields is part of the stored format,
so a new field stands at the end and has a default.
"""

from __future__ import annotations

from datetime import UTC, datetime
from enum import StrEnum
from typing import NamedTuple

from wallaroo_spark.errors import bounded_reason
from wallaroo_spark.pipelines.schema.cloud_event import CloudEvent

IN_SPARK = ""
"""The member of a delivery whose stage is a function that runs in Spark."""


class PartitionKey(NamedTuple):
    """One partition of one stream: the unit that has a controller of its own."""

    stream: str
    """Name as ``namespace/name``."""
    partition: int
    """Number of the partition, from 0."""

    def __str__(self) -> str:
        return f"{self.stream}/{self.partition}"


class ReplyTo(NamedTuple):
    """The request of a client that an answer belongs to."""

    gateway: str
    generation: int
    """Which start of the gateway; an answer to an earlier one has no reader."""
    request: int
    """Number of the request at that gateway."""


class GroupDelivery(NamedTuple):
    """Name of one delivery to a group."""

    group: str
    number: int
    """Number of the delivery; no other delivery of the key has it, so a redelivery has a new one."""


class StageDelivery(NamedTuple):
    """Name of one delivery of a stage."""

    pipeline: str
    """Name of the pipeline as ``namespace/name``."""
    instance: int
    """Offset of the record that began the instance."""
    stage: str
    number: int
    """Number of the delivery; no other delivery of the key has it, so a redelivery has a new one."""
    birth: int = 0
    """Version of the schema with which the pipeline was declared first on this partition. A pipeline that is deleted
    and declared anew has another one, and may have instances of the same numbers."""


Delivery = GroupDelivery | StageDelivery


class DelayedRecords(NamedTuple):
    """Records that are to be appended at a later time. It stands among delayed deliveries, in one order with them."""

    kind: str = ""
    """Empty. No group and no pipeline has this name, so names of both kinds can be compared."""
    number: int = 0
    """Number of the records, as of a delivery of the key."""


class OutputId(NamedTuple):
    """One carried stream output: which ack it came with, and its place there. Place -1 is a dead letter."""

    delivery: StageDelivery
    place: int


class StatementId(NamedTuple):
    """One statement of a transaction."""

    delivery: Delivery
    """The delivery that the transaction belongs to."""
    place: int
    """Place of the statement in its transaction, from 0."""


class StreamOutput(NamedTuple):
    """Records that an ack wants to append to another stream."""

    target: PartitionKey
    records: tuple[CloudEvent, ...]


class Durability(StrEnum):
    """When a publisher is answered."""

    COMMITTED = "committed"
    """By the controller, once the records are committed, with their offsets."""
    RECEIVED = "received"
    """By the gateway, once it has them; the controller sends no answer."""


DEAD_LETTER = -1
"""Place of a dead letter among the stream outputs of a delivery."""


class Failure(NamedTuple):
    """Why an event is set aside. Source: ``docs/pipelines/design.md#changes-and-failures``."""

    reason: str
    """The reason of the last delivery that failed."""
    attempts: int
    """How often it was delivered."""
    at: int
    """The time of the batch that sets it aside: milliseconds since 1970 UTC."""
    key: PartitionKey
    """The partition that has the event."""
    offset: int
    """Its offset there."""
    pipeline: str = ""
    """The pipeline whose instance has failed."""
    birth: int = 0
    """Its birth: the version of the schema with which it was declared first."""
    stage: str = ""
    """The stage that has failed."""
    group: str = ""
    """The group that could not process it."""

    @property
    def attributes(self) -> dict[str, str]:
        """The extension attributes of the dead letter; the empty ones are left out."""
        found = {
            "failedreason": bounded_reason(self.reason),
            "failedattempts": str(self.attempts),
            "failedtime": datetime.fromtimestamp(self.at / 1000, UTC).strftime("%Y-%m-%dT%H:%M:%S.%f")[:-3] + "Z",
            "failedstream": self.key.stream,
            "failedpartition": str(self.key.partition),
            "failedoffset": str(self.offset),
            "failedpipeline": self.pipeline,
            "failedbirth": str(self.birth or ""),
            "failedstage": self.stage,
            "failedgroup": self.group,
        }
        return {name: text for name, text in found.items() if text}


def dead_letter(event: CloudEvent, failure: Failure) -> CloudEvent:
    """The record that goes to a dead-letter stream in place of an event.

    It is the event with another id, because an event that fails in two pipelines or groups, or in two partitions, or in
    a pipeline that was deleted and declared anew, is two dead letters. Groups of two streams may have one name.
    """
    by = f"{failure.pipeline}@{failure.birth}" if failure.pipeline else f"{failure.group}@{failure.key.stream}"
    identity = f"{event.id}:{by}:{failure.key.partition}/{failure.offset}"
    added = failure.attributes
    kept = tuple((name, text) for name, text in event.attributes if name not in added)
    return event._replace(id=identity, attributes=(*kept, *added.items()))
