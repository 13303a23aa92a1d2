"""The event of a schedule at one of its times. Pure. Source: ``docs/pipelines/schema.md#schedules``."""

from __future__ import annotations

from datetime import UTC, datetime

from wallaroo_spark.pipelines.controller.messages.values import CloudEvent
from wallaroo_spark.pipelines.declarations import ScheduleDeclaration


def occurrence(schedule: ScheduleDeclaration, at: int) -> CloudEvent:
    """The event of a schedule at a time; the same time has the same ``source`` and ``id``."""
    time = datetime.fromtimestamp(at // 1000, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    attributes = (("datacontenttype", schedule.content_type),) if schedule.data else ()
    data = schedule.data.encode() if schedule.data else None
    return CloudEvent(time, f"/schedules/{schedule.key.path}", schedule.type, data, (*attributes, ("time", time)))
