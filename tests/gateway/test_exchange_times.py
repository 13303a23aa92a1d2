"""Schedules that send to exchanges: their times with a given clock, and the messages of a real gateway."""

from __future__ import annotations

import contextlib
import dataclasses
import time
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any

import grpc
import pytest

from tests.gateway.memory import MemoryApplication, serving
from tests.gateway.shop import SHOP
from tests.waiting import SECONDS
from wallaroo_spark.api import pipelines_pb2 as pb
from wallaroo_spark.api import pipelines_pb2_grpc as rpc
from wallaroo_spark.gateway.state.exchanges import ExchangeTimes
from wallaroo_spark.gateway.state.schema_view import SchemaView
from wallaroo_spark.pipelines.schema.declarations import Declaration, ExchangeDeclaration, ScheduleDeclaration

pytestmark = pytest.mark.timeout(SECONDS)
BEGAN = "2026-01-05T09:10:00"
HOURLY = """
---
kind: Schedule
name: hourly
namespace: shop
exchange: prices
cron: 0 * * * *
type: shop.hour
data: tick
"""


def at(text: str) -> int:
    """A time in milliseconds."""
    return int(datetime.fromisoformat(text).replace(tzinfo=UTC).timestamp()) * 1000


def schedule(cron: str = "0 * * * *", name: str = "hourly") -> ScheduleDeclaration:
    """A schedule of an exchange."""
    return ScheduleDeclaration(name=name, namespace="shop", exchange="prices", cron=cron, type="shop.hour", data="tick")


def view(version: int, *objects: Declaration, applied: str = "2026-01-01T00:00:00") -> SchemaView:
    """A version of the schema."""
    exchange = ExchangeDeclaration(name="prices", namespace="shop")
    return SchemaView(version, {one.key: one for one in (exchange, *objects)}, at(applied))


def due(times: ExchangeTimes, schema: SchemaView, now: str) -> Sequence[str]:
    """The ids of the events that are due."""
    found = list(times.due(schema, at(now)))
    assert all((path, event.type, event.data) == ("shop/prices", "shop.hour", b"tick") for path, event in found)
    return [event.id for _, event in found]


def test_each_time_comes_once_and_times_before_the_gateway_began_do_not_count() -> None:
    times, schema = ExchangeTimes(at(BEGAN)), view(1, schedule())

    assert due(times, schema, BEGAN) == []
    assert times.next() == at("2026-01-05T10:00:00")
    assert due(times, schema, "2026-01-05T09:59:59") == []
    assert due(times, schema, "2026-01-05T10:00:00") == ["2026-01-05T10:00:00Z"]
    assert due(times, schema, "2026-01-05T10:00:01") == []
    assert due(times, schema, "2026-01-05T09:59:00") == [], "the clock was set back"
    assert due(times, schema, "2026-01-05T10:30:00") == []
    assert times.next() == at("2026-01-05T11:00:00")


def test_after_a_pause_only_the_newest_time_counts() -> None:
    times, schema = ExchangeTimes(at(BEGAN)), view(1, schedule(), schedule("30 6 * * *", "daily"))
    due(times, schema, BEGAN)

    assert sorted(due(times, schema, "2026-01-08T12:10:00")) == ["2026-01-08T06:30:00Z", "2026-01-08T12:00:00Z"]


def test_a_new_schedule_begins_when_it_was_applied_and_a_removed_one_ends() -> None:
    times = ExchangeTimes(at(BEGAN))
    due(times, view(1), BEGAN)
    assert times.next() is None
    new = view(2, schedule(), applied="2026-01-05T10:30:00")
    assert due(times, new, "2026-01-05T10:30:01") == []
    assert due(times, new, "2026-01-05T11:00:00") == ["2026-01-05T11:00:00Z"]

    changed = view(3, schedule("30 * * * *"), schedule(name="more"), applied="2026-01-05T11:10:00")
    assert due(times, changed, "2026-01-05T11:40:00") == ["2026-01-05T11:30:00Z"]
    assert due(times, view(4, schedule(name="more")), "2026-01-05T12:00:00") == ["2026-01-05T12:00:00Z"]
    assert due(times, view(5), "2026-01-05T15:00:00") == []


def test_a_zone_that_this_machine_does_not_know_stops_no_other_schedule() -> None:
    times = ExchangeTimes(at(BEGAN))
    far = dataclasses.replace(schedule(name="far"), time_zone="Mars/Olympus")
    due(times, view(1, far, schedule()), BEGAN)

    assert due(times, view(1, far, schedule()), "2026-01-05T10:00:00") == ["2026-01-05T10:00:00Z"]
    [problem] = times.problems
    assert problem.startswith("schedule shop/far: 'Mars/Olympus' is not a time zone of this machine")
    due(times, view(2, schedule()), "2026-01-05T10:00:01")
    assert times.problems == ()


async def test_the_gateway_that_owns_the_exchange_sends_each_message_once() -> None:
    application = MemoryApplication(SHOP + HOURLY)
    hour = 3600 * (int(time.time()) // 3600 + 1)
    clock = [float(hour - 1800)]
    kind: Any = rpc.ExchangesStub
    async with contextlib.AsyncExitStack() as stack:
        calls = []
        served = [await stack.enter_async_context(serving(application, name)) for name in ("g0", "g1")]
        for one in served:
            one.peers.update({f"g{other}": its.address for other, its in enumerate(served)})
            one.gateway.clock = lambda: clock[0]
        for number, one in enumerate(served):
            channel = await stack.enter_async_context(grpc.aio.insecure_channel(one.address))
            calls.append(kind(channel).Receive(pb.ReceiveRequest(exchange="shop/prices", group=f"group{number}")))
            await calls[-1].initial_metadata()
        for following in (hour, hour + 3600):
            clock[0] = float(following)
            expected = datetime.fromtimestamp(following, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
            for call in calls:
                message = await call.read()
                assert (message.id, message.source, message.type) == (expected, "/schedules/shop/hourly", "shop.hour")
                assert message.binary_data == b"tick"
    application.close()
