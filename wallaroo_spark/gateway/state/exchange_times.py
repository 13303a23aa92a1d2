"""The times of schedules that send to exchanges: which have come, and when the next one is. Pure.

Source: ``docs/pipelines/schema.md#schedules``.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from wallaroo_spark.gateway.state.schema_view import SchemaView
from wallaroo_spark.pipelines.controller.messages.values import CloudEvent
from wallaroo_spark.pipelines.cron import newest_time, next_time
from wallaroo_spark.pipelines.declarations import ScheduleDeclaration
from wallaroo_spark.pipelines.names import ObjectKey
from wallaroo_spark.pipelines.schedules import occurrence


@dataclass
class _Times:
    """The times of one schedule."""

    cron: str
    """The five fields."""
    zone: str
    """The time zone."""
    next: int | None
    """The next time, in milliseconds since 1970 UTC; None: there is none within nine years."""


class ExchangeTimes:
    """The schedules of exchanges, as a gateway that began at ``began`` sees them.

    Times are milliseconds since 1970 UTC. A time that has passed before the gateway began, or before the schedule or
    its times were applied, does not count. Every gateway counts the times of all schedules, so the next owner of an
    exchange goes on where the last one has gone. Methods raise ValueError for a time zone that this machine does not
    know.
    """

    def __init__(self, began: int) -> None:
        self._began = began
        self._version = 0
        self._schedules: dict[ObjectKey, ScheduleDeclaration] = {}
        self._times: dict[ObjectKey, _Times] = {}

    def due(self, schema: SchemaView, now: int) -> Iterator[tuple[str, CloudEvent]]:
        """The exchange and the event of each schedule whose time has come; of several times only the newest counts."""
        self._follow(schema)
        for key, schedule in self._schedules.items():
            times = self._times[key]
            if times.next is None or now < times.next:
                continue
            at = newest_time(times.cron, times.zone, times.next - 1, now)
            times.next = next_time(times.cron, times.zone, now)
            if at is not None:
                yield schedule.target_key.path, occurrence(schedule, at)

    def next(self) -> int | None:
        """The earliest time to come; None without one."""
        return min((one.next for one in self._times.values() if one.next is not None), default=None)

    def _follow(self, schema: SchemaView) -> None:
        if schema.version == self._version:
            return
        schedules = {
            key: one for key, one in schema.objects.items() if isinstance(one, ScheduleDeclaration) and one.exchange
        }
        times: dict[ObjectKey, _Times] = {}
        for key, one in schedules.items():
            old = self._times.get(key)
            if old is not None and (old.cron, old.zone) == (one.cron, one.time_zone):
                times[key] = old
            else:
                since = max(self._began, schema.applied_at)
                times[key] = _Times(one.cron, one.time_zone, next_time(one.cron, one.time_zone, since))
        self._version, self._schedules, self._times = schema.version, schedules, times
