"""The disk of an application is full for a while: nothing is lost or twice, and it goes on when there is room."""

from __future__ import annotations

import base64
import os
import random
import shutil
import subprocess
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.engine.application import shop
from tests.waiting import SECONDS, eventually
from wallaroo_spark import read_instances, read_stream
from wallaroo_spark.client import Client, Event, EventPlace
from wallaroo_spark.engine import Application
from wallaroo_spark.errors import PipelineError, WallarooError
from wallaroo_spark.registry import EmbeddedRedis

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [
    pytest.mark.long,
    pytest.mark.timeout(10 * SECONDS),
    pytest.mark.skipif(os.geteuid() != 0, reason="only root mounts a file system of a fixed size"),
]
ORDERS, BYTES = 200, 90_000
SMALL, LARGE = "24m", "1g"


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    """A small file system of its own."""
    folder = tmp_path / "disk"
    folder.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={SMALL}", "tmpfs", str(folder)], check=True)
    yield folder
    subprocess.run(["umount", "--lazy", str(folder)], check=True)


def order(number: int) -> Event:
    """An order that takes much room and cannot be compressed."""
    content = base64.b64encode(random.Random(number).randbytes(BYTES)).decode()
    return Event(shop.ORDER, {"order": number, "content": content}, id=f"order-{number}", source="/tests/disk")


def publish(client: Client, number: int) -> EventPlace:
    """Publish an order until that succeeds, as a publisher does that must not lose it."""
    while True:
        try:
            [place] = client.publish("shop/orders", order(number))
            return place
        except WallarooError as error:
            print(f"order {number}: {error}")


def test_orders_are_done_once_though_the_disk_was_full(
    spark: SparkSession, disk: Path, own_redis: EmbeddedRedis
) -> None:
    folder, registry = shop.declare(disk), own_redis.url

    def start() -> Application:
        application = Application(
            spark, folder, registry=registry, state_partitions=2, move_seconds=0.2, lease_seconds=3.0
        )
        application.start()
        return application

    application = start()
    try:
        with (
            Client(registry=registry, application=application.name, timeout=SECONDS) as client,
            ThreadPoolExecutor(8) as publishers,
            shop.working(client),
        ):
            places = publishers.map(lambda number: publish(client, number), range(ORDERS))
            eventually(lambda: application.status()["errors"], seconds=4 * SECONDS, pause=0.2)
            assert shutil.disk_usage(disk).free < BYTES, application.status()["errors"]
            subprocess.run(["mount", "-o", f"remount,size={LARGE}", str(disk)], check=True)

            until = time.monotonic() + 6 * SECONDS
            while read_instances(spark, folder).where("outcome = 'done'").count() < ORDERS:
                assert time.monotonic() < until, application.status()
                try:
                    application.await_end(1)
                except PipelineError as error:
                    # Spark could not write a file of its checkpoint, which ends the query and so the application.
                    print(error)
                    application.stop()
                    application = start()
            answered = [(place.partition, place.offset) for place in places]
    finally:
        application.stop()

    orders = read_stream(spark, folder, "shop/orders").select("id", "partition", "offset").collect()
    found = {row.id: (row.partition, row.offset) for row in orders}
    assert found == {f"order-{number}": place for number, place in enumerate(answered)}
    assert len(orders) == ORDERS
    for partition in (0, 1):
        offsets = sorted(row.offset for row in orders if row.partition == partition)
        assert offsets == list(range(1, len(offsets) + 1))
    assert read_stream(spark, folder, "shop/shipments").count() == ORDERS
    instances = read_instances(spark, folder).select("outcome").collect()
    assert [row.outcome for row in instances] == ["done"] * ORDERS
