"""The events of schedules: which are due in a batch, and when the next one is. Pure.

Source: ``docs/pipelines/schema.md#schedules``.
"""

from __future__ import annotations

from collections.abc import Iterator

from wallaroo_spark.engine.source.plan import MadeRows
from wallaroo_spark.pipelines.controller.messages.events import RecordsPublished
from wallaroo_spark.pipelines.controller.messages.values import Durability, ReplyTo
from wallaroo_spark.pipelines.controller.stored.encoding import encode
from wallaroo_spark.pipelines.cron import newest_time, next_time
from wallaroo_spark.pipelines.declarations import ScheduleDeclaration, StreamDeclaration
from wallaroo_spark.pipelines.names import ObjectKey
from wallaroo_spark.pipelines.partitioning import partition_of
from wallaroo_spark.pipelines.schedules import occurrence
from wallaroo_spark.pipelines.schema.store import StoredSchema
from wallaroo_spark.streams.inbox import DRIVER
from wallaroo_spark.streams.rows import Rank


class UpcomingTimes:
    """The next time of each schedule; a time is computed once."""

    def __init__(self) -> None:
        self._known: dict[tuple[str, str], tuple[int, int | None]] = {}

    def first(self, schema: StoredSchema, after: int) -> int | None:
        """The earliest time of a schedule behind ``after``, in milliseconds since 1970 UTC; None without one."""
        wanted = {(one.cron, one.time_zone) for one in _schedules(schema).values()}
        self._known = {times: self._next(times, after) for times in wanted}
        return min((following for _, following in self._known.values() if following is not None), default=None)

    def _next(self, times: tuple[str, str], after: int) -> tuple[int, int | None]:
        known = self._known.get(times)
        if known is not None and known[0] <= after and (known[1] is None or after < known[1]):
            return known
        return after, next_time(*times, after)


def occurrences(known: StoredSchema, schema: StoredSchema, begin: int, end: int) -> Iterator[MadeRows]:
    """The events of a batch that covers the time behind ``begin`` until ``end``; at most one for each schedule.

    Of several times of a schedule only the newest counts. ``known`` is the schema before the batch, ``schema`` the one
    that it applies. A schedule that is new, or has other times, begins when its version was applied.
    """
    before = _schedules(known)
    for key, schedule in sorted(_schedules(schema).items()):
        old = before.get(key)
        same = old is not None and (old.cron, old.time_zone) == (schedule.cron, schedule.time_zone)
        since = begin if same else round(schema.applied_at * 1000)
        at = newest_time(schedule.cron, schedule.time_zone, since, end) if since < end else None
        stream = schema.objects.get(schedule.target_key)
        if at is not None and isinstance(stream, StreamDeclaration):
            yield _row(schedule, stream, at)


def _row(schedule: ScheduleDeclaration, stream: StreamDeclaration, at: int) -> MadeRows:
    event = occurrence(schedule, at)
    # The answer has no reader, so the controller is told to send none.
    published = RecordsPublished(ReplyTo(DRIVER, 0, 0), (event,), Durability.RECEIVED)
    partition = partition_of(event, stream.partitions)
    origin = f"schedule/{schedule.key.path}"
    return MadeRows(stream.key.path, (partition,), Rank.RECEIVED, origin, at, encode(published))


def _schedules(schema: StoredSchema) -> dict[ObjectKey, ScheduleDeclaration]:
    """The schedules of streams; those of exchanges are the gateways'."""
    return {key: one for key, one in schema.objects.items() if isinstance(one, ScheduleDeclaration) and one.stream}
