"""A defect of the engine ends the query; an operator sets the event aside, and everything else is done once."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from click.testing import CliRunner

from tests.engine.application import shop
from tests.engine.application.broken_engine import POISON
from tests.waiting import SECONDS, eventually
from wallaroo_spark import read_instances, read_stream
from wallaroo_spark.cli.main import cli
from wallaroo_spark.client import Client, Event
from wallaroo_spark.engine import Application
from wallaroo_spark.engine.isolation import FailedRows
from wallaroo_spark.errors import PipelineError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.timeout(6 * SECONDS)

SCHEMA = """
kind: Namespace
name: shop
---
kind: Stream
name: orders
namespace: shop
---
kind: Stream
name: letters
namespace: shop
---
kind: Pipeline
name: count
namespace: shop
inputStream: orders
startPoint: {location: beginning}
stages:
  - name: count
    run: tests.engine.application.broken_engine:count
    retry: {maxAttempts: 2, deadLetterStream: letters}
"""


def event(id_: str) -> Event:
    return Event("counted", {"id": id_}, id=id_, source="/tests")


def start(spark: SparkSession, folder: str) -> Application:
    application = Application(spark, folder, state_partitions=1, move_seconds=0.2)
    application.start()
    return application


def client_of(application: Application) -> Client:
    return Client(registry=application.registry_url, application=application.name, timeout=SECONDS)


def test_an_event_that_the_engine_cannot_process_is_set_aside_and_everything_else_is_done_once(
    spark: SparkSession, tmp_path: Path
) -> None:
    folder = tmp_path / "shop"
    shop.apply(folder, SCHEMA)
    application = start(spark, str(folder))
    try:
        with client_of(application) as client:
            client.publish("shop/orders", event("first"))
            eventually(lambda: read_instances(spark, str(folder)).where("outcome = 'done'").count() == 1)
            # The gateway answers when it has the events durably.
            client.publish("shop/orders", event("a"), event(POISON), event("b"), durability="received")
        with pytest.raises(PipelineError, match=f"events /tests {POISON}.*a defect of the engine") as failed:
            application.await_end(SECONDS)
        assert failed.value.code == "row-failed"
    finally:
        application.stop()

    with pytest.raises(PipelineError, match="row-failed"), Application(spark, str(folder), state_partitions=1) as again:
        again.await_end(SECONDS)
    shown = CliRunner().invoke(cli, ["pipelines", "set-aside", "--app", str(folder), "--list"])
    assert POISON in shown.stdout
    done = CliRunner().invoke(cli, ["pipelines", "set-aside", "--app", str(folder)])
    assert "1 event to shop/letters, at the next start" in done.stdout
    assert "No task has left" in CliRunner().invoke(cli, ["pipelines", "set-aside", "--app", str(folder)]).stdout

    application = start(spark, str(folder))
    try:
        with client_of(application) as client:
            client.publish("shop/orders", event("a"), event("b"), event("last"))
        eventually(lambda: read_stream(spark, str(folder), "shop/letters").count() == 1)
        eventually(lambda: read_instances(spark, str(folder)).where("outcome = 'done'").count() == 4)
        records = read_stream(spark, str(folder), "shop/orders").orderBy("offset").collect()
        assert [row["id"] for row in records] == ["first", "a", "b", "last"]
        (letter,) = read_stream(spark, str(folder), "shop/letters").collect()
        assert POISON in letter["id"]
        assert letter["extensions"]["failedreason"] == "it was set aside: RuntimeError: a defect of the engine"
        assert bytes(letter["data"]) == event(POISON).data
        assert FailedRows(str(folder)).all() == []
    finally:
        application.stop()
