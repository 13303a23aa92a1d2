"""Events and functions that break programs, in a real application: nothing stops, and each ends done or as a dead
letter."""

from __future__ import annotations

import threading
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tests import evil_values as evil
from tests.engine.application import shop
from tests.engine.application.evil_stages import work
from tests.engine.application.test_application import take
from tests.waiting import SECONDS, eventually
from wallaroo_spark import read_instances, read_stream
from wallaroo_spark.client import Client, Event
from wallaroo_spark.engine import Application
from wallaroo_spark.errors import WallarooError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.long, pytest.mark.timeout(6 * SECONDS)]

SCHEMA = """
kind: Namespace
name: shop
---
kind: Stream
name: events
namespace: shop
partitions: 2
---
kind: Stream
name: wild
namespace: shop
---
kind: Stream
name: more
namespace: shop
---
kind: Stream
name: letters
namespace: shop
---
kind: Pipeline
name: all
namespace: shop
inputStream: events
startPoint: {location: beginning}
stages:
  - name: pass
    run: tests.engine.application.evil_stages:pass_on
    retry: {maxAttempts: 2, delay: 0s, deadLetterStream: letters}
  - name: work
    dependencies: [root_event, pass]
    retry: {maxAttempts: 2, delay: 0s, deadLetterStream: letters}
---
kind: Pipeline
name: wild
namespace: shop
inputStream: wild
startPoint: {location: beginning}
stages:
  - name: wild
    run: tests.engine.application.evil_stages:wild
    streamOutputs: [more]
    retry: {maxAttempts: 2, delay: 0s, deadLetterStream: letters}
"""


def events() -> list[Event]:
    """Events with every payload, and with attributes that are long, strange or at the end of time."""
    common: dict[str, Any] = {"source": "/evil", "datacontenttype": "application/json"}
    found = [Event("evil", payload, id=name, **common) for name, payload in evil.PAYLOADS.items()]
    found += [Event("evil", b"1", id=f"time {at.year}", time=at, **common) for at in TIMES]
    found += [
        Event("evil", b"1", id=f"text {name}", subject=text, **common)
        for name, text in evil.TEXTS.items()
        if text != evil.LONE
    ]
    full = {name: text[:31_000] for name, text in [*evil.EXTENSIONS.items()][:90]}
    found.append(Event("evil", b"1", id="extensions", extensions=full, **common))
    return found


TIMES = (datetime(1, 1, 1, tzinfo=UTC), datetime(9999, 12, 31, 23, 59, 59, 999_999, tzinfo=UTC))


def test_nothing_stops_and_every_event_ends_done_or_as_a_dead_letter(spark: SparkSession, tmp_path: Path) -> None:
    folder = str(tmp_path / "shop")
    shop.apply(Path(folder), SCHEMA)
    published, subjects = events(), [f"error/{name}" for name in evil.ERRORS]
    subjects += [f"value/{name}" for name in (*evil.VALUES, "nested")] + ["event/e", "event/E"]
    with Application(spark, folder, state_partitions=2, move_seconds=0.2) as application:
        registry, name = application.registry_url, application.name
        with Client(registry=registry, application=name, timeout=SECONDS) as client:
            worker = threading.Thread(target=lambda: client.work(work), daemon=True)
            worker.start()
            for event in published:
                client.publish("shop/events", event)
            with pytest.raises(WallarooError, match="permitted"):
                client.publish("shop/events", Event("evil", b"x" * (3 << 20), extensions={"a": "b"}))
            wild = [Event("wild", b"1", id=subject, source="/evil", subject=subject) for subject in subjects]
            client.publish("shop/wild", *wild)
            seen = take(client, "shop/events", "everybody", len(published))
            assert sorted(one.id for one in seen) == sorted(one.id for one in published)
            assert all(one.value is not None for one in seen)
            total = len(published) + len(subjects)
            eventually(lambda: read_instances(spark, folder).where("outcome is not null").count() == total)
            ended = read_instances(spark, folder).collect()
            failed = [row for row in ended if row["outcome"] == "failed"]
            assert {row["outcome"] for row in ended} == {"done", "failed"}
            assert len(failed) >= len(evil.ERRORS)
            assert all(0 < len(row["reason"]) < 1500 and row["reason"].isprintable() for row in failed)
            eventually(lambda: read_stream(spark, folder, "shop/letters").count() == len(failed))
            for letter in read_stream(spark, folder, "shop/letters").collect():
                assert letter["extensions"]["failedreason"]
                assert letter["extensions"]["failedattempts"] == "2"
            records = read_stream(spark, folder, "shop/events").collect()
            assert {row["id"]: bytes(row["data"]) for row in records} == {one.id: one.data for one in published}
            client.stop()
            worker.join(SECONDS)
        status = application.status()
        assert status["running"]
        assert status["errors"] == []
