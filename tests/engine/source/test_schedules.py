"""Events of schedules: once for each time, the same when a batch runs again, and the newest one after a pause."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path

import pytest

from wallaroo_spark.engine.application.housekeeping import SchemaWatch
from wallaroo_spark.engine.source.inputs import InputFiles
from wallaroo_spark.engine.source.plan import (
    Calendar,
    InputOffset,
    MadeRows,
    UpcomingTimes,
    next_offset,
    occurrences,
    zone_problems,
)
from wallaroo_spark.pipelines.controller.messages.events import RecordsPublished
from wallaroo_spark.pipelines.controller.messages.values import Durability
from wallaroo_spark.pipelines.controller.stored.encoding import decode
from wallaroo_spark.pipelines.schema.cloud_event import CloudEvent
from wallaroo_spark.pipelines.schema.declarations import Declaration, ScheduleDeclaration, StreamDeclaration
from wallaroo_spark.pipelines.schema.store import SchemaStore, StoredSchema
from wallaroo_spark.streams.rows import Rank

APPLIED = "2026-01-01T00:00:00"


def at(text: str) -> int:
    return int(datetime.fromisoformat(text).replace(tzinfo=UTC).timestamp()) * 1000


def schedule(cron: str = "0 * * * *", name: str = "hourly", data: str = "tick") -> ScheduleDeclaration:
    return ScheduleDeclaration(name=name, namespace="shop", stream="orders", cron=cron, type="shop.hour", data=data)


def schema(version: int, *objects: Declaration, applied: str = APPLIED) -> StoredSchema:
    stream = StreamDeclaration(name="orders", namespace="shop", partitions=3)
    return StoredSchema(version, {one.key: one for one in (stream, *objects)}, {}, at(applied) / 1000)


def events(rows: Sequence[MadeRows]) -> list[CloudEvent]:
    found: list[CloudEvent] = []
    for row in rows:
        event = decode(row.event or b"")
        assert isinstance(event, RecordsPublished)
        assert (row.rank, len(row.partitions), row.stream) == (Rank.RECEIVED, 1, "shop/orders")
        assert (event.reply_to.gateway, event.durability) == ("driver", Durability.RECEIVED)
        found += event.records
    return found


def rows(known: StoredSchema, new: StoredSchema, begin: str, end: str, *others: StoredSchema) -> list[MadeRows]:
    versions = {one.version: one for one in (StoredSchema(), known, new, *others)}
    return list(occurrences(versions.__getitem__, Calendar(at(begin), known.version), Calendar(at(end), new.version)))


def between(known: StoredSchema, new: StoredSchema, begin: str, end: str, *others: StoredSchema) -> list[str]:
    return [event.id for event in events(rows(known, new, begin, end, *others))]


def test_a_time_is_in_exactly_one_batch() -> None:
    hourly = schema(1, schedule())

    assert between(hourly, hourly, "2026-01-05T09:10:00", "2026-01-05T10:00:00") == ["2026-01-05T10:00:00Z"]
    assert between(hourly, hourly, "2026-01-05T10:00:00", "2026-01-05T10:59:59") == []


def test_the_event_of_a_time_is_always_the_same() -> None:
    hourly = schema(1, schedule(data='{"a": 1}'))
    (event,) = events(rows(hourly, hourly, "2026-01-05T09:10:00", "2026-01-05T10:20:00"))

    assert event == CloudEvent(
        "2026-01-05T10:00:00Z",
        "/schedules/shop/hourly",
        "shop.hour",
        b'{"a": 1}',
        (("datacontenttype", "text/plain"), ("time", "2026-01-05T10:00:00Z")),
    )


def test_after_a_pause_only_the_newest_time_counts() -> None:
    hourly = schema(1, schedule(), schedule("30 6 * * *", "daily"))
    found = between(hourly, hourly, "2026-01-05T09:10:00", "2026-01-08T12:10:00")
    assert found == ["2026-01-08T06:30:00Z", "2026-01-08T12:00:00Z"]


def test_a_new_schedule_begins_when_it_was_applied() -> None:
    before, new = schema(1), schema(2, schedule(), applied="2026-01-05T10:30:00")

    assert between(before, new, "2026-01-05T09:10:00", "2026-01-05T10:40:00") == []
    assert between(before, new, "2026-01-05T09:10:00", "2026-01-05T11:10:00") == ["2026-01-05T11:00:00Z"]
    assert between(StoredSchema(), new, "1970-01-01T00:00:00", "2026-01-05T10:40:00", before) == []


def test_a_schedule_that_is_applied_while_the_application_is_down_begins_then_although_other_versions_follow() -> None:
    known, added = schema(1), schema(2, schedule(), applied="2026-01-05T10:30:00")
    other = schema(3, schedule(), schedule("0 0 1 1 *", "yearly"), applied="2026-01-05T11:30:00")
    same = schema(4, *(one for one in other.objects.values()), applied="2026-01-05T11:40:00")

    assert between(known, same, "2026-01-05T09:10:00", "2026-01-05T11:50:00", added, other) == ["2026-01-05T11:00:00Z"]
    # Also before the first batch of an application.
    nothing = StoredSchema()
    assert between(nothing, same, "1970-01-01T00:00:00", "2026-01-05T11:50:00", known, added, other) == [
        "2026-01-05T11:00:00Z"
    ]
    # One that was away in between begins when it came back.
    gone = schema(3, applied="2026-01-05T11:30:00")
    again = schema(4, schedule(), applied="2026-01-05T11:40:00")
    assert between(added, again, "2026-01-05T09:10:00", "2026-01-05T11:50:00", gone) == []


def test_a_zone_that_this_machine_does_not_know_stops_its_schedules_alone() -> None:
    """The machine on which it was applied knows more zones."""
    far = ScheduleDeclaration(
        name="far", namespace="shop", stream="orders", cron="0 * * * *", type="shop.hour", time_zone="Mars/Olympus"
    )
    both = schema(1, schedule(), far)

    assert between(both, both, "2026-01-05T09:10:00", "2026-01-05T10:00:00") == ["2026-01-05T10:00:00Z"]
    assert UpcomingTimes().first(both, at("2026-01-05T06:10:00")) == at("2026-01-05T07:00:00")
    [problem] = zone_problems(both)
    assert problem.startswith("schedule shop/far has no times: 'Mars/Olympus' is not a time zone of this machine")
    assert "pip install tzdata" in problem
    assert UpcomingTimes().first(schema(1, far), 0) is None


def test_a_changed_time_does_not_reach_back() -> None:
    before, new = schema(1, schedule("0 0 1 * *")), schema(2, schedule(), applied="2026-01-05T10:30:00")
    assert between(before, new, "2026-01-05T09:10:00", "2026-01-05T10:40:00") == []


def test_the_next_time_is_that_of_the_first_schedule(monkeypatch: pytest.MonkeyPatch) -> None:
    upcoming = UpcomingTimes()
    both = schema(1, schedule(), schedule("30 6 * * *", "daily"))

    assert upcoming.first(both, at("2026-01-05T06:10:00")) == at("2026-01-05T06:30:00")
    assert upcoming.first(both, at("2026-01-05T06:30:00")) == at("2026-01-05T07:00:00")
    # Known times are not computed again.
    monkeypatch.setattr("wallaroo_spark.engine.source.plan.next_time", None)
    assert upcoming.first(both, at("2026-01-05T06:50:00")) == at("2026-01-05T07:00:00")
    assert upcoming.first(schema(2), 0) is None


def test_a_schedule_makes_a_batch_when_its_time_has_come(tmp_path: Path) -> None:
    """With the files of an application: the first version is known to the source, and a minute has passed."""
    SchemaStore(str(tmp_path)).write(schema(1, schedule("* * * * *")))
    source = InputFiles(str(tmp_path))
    before = at("2026-01-05T10:00:30")
    start = InputOffset(time=before, schema=1, calendar=Calendar(before, 1))

    end = next_offset(start, source.look(start), 100)

    assert end.time >= at("2026-01-05T10:01:00")
    minute = end.time // 60_000 * 60_000
    (row,) = source.content(start, end)
    assert isinstance(row, MadeRows)
    assert row.sequence == minute
    later = end.time + 3_600_000
    calm = InputOffset(time=later, schema=1, calendar=Calendar(later, 1))
    assert next_offset(calm, source.look(calm), 100) is calm


def test_a_new_version_with_a_zone_that_the_driver_does_not_know_is_among_the_errors(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    store = SchemaStore(str(tmp_path))
    far = ScheduleDeclaration(
        name="far", namespace="shop", stream="orders", cron="0 * * * *", type="shop.hour", time_zone="Mars/Olympus"
    )
    store.write(schema(1, schedule()))
    watch = SchemaWatch(SchemaStore(str(tmp_path)), "shop")
    watch.look()
    assert watch.problems == ()
    store.write(schema(2, schedule(), far))
    for _ in range(2):
        watch.look()

    [problem] = watch.problems
    assert "Mars/Olympus" in problem
    logged = f"application shop, version 2 of its schema: {problem}; everything else goes on"
    assert [record.message for record in caplog.records] == [logged]
    store.write(schema(3, schedule()))
    watch.look()
    assert watch.problems == ()
