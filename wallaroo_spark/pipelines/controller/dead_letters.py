"""Dead letters: an event that was set aside, with what is known about its failure as extension attributes.

Source: ``docs/pipelines/design.md#changes-and-failures``.
"""

from __future__ import annotations

from datetime import UTC, datetime
from typing import NamedTuple

from wallaroo_spark.errors import bounded_reason
from wallaroo_spark.pipelines.controller.messages.values import PartitionKey
from wallaroo_spark.pipelines.schema.cloud_event import CloudEvent

DEAD_LETTER = -1
"""Place of a dead letter among the stream outputs of a delivery."""


class Failure(NamedTuple):
    """Why an event is set aside."""

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
