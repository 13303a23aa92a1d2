"""Checkpoints on a real HDFS: connectors are acknowledged, and a driver that dies changes nothing."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
import redis

from tests.checkpoint.servers import HdfsServer
from tests.receiver.drivers import Drivers
from tests.receiver.support import Feeders, eventually, free_ports, payload
from wallaroo_spark.registry import EmbeddedRedis

SECONDS = 180.0

pytestmark = [pytest.mark.spark, pytest.mark.no_cover]


@pytest.fixture
def server() -> Iterator[HdfsServer]:
    made = HdfsServer()
    try:
        made.start()
        yield made
    finally:
        made.remove()


def test_a_driver_that_is_killed_goes_on_from_a_checkpoint_elsewhere(server: HdfsServer, tmp_path: Path) -> None:
    checkpoint = "/checkpoints/orders"
    port = free_ports(1)
    with (
        EmbeddedRedis() as store,
        Feeders() as feeders,
        Drivers(tmp_path, "tests.checkpoint.driver") as drivers,
    ):
        found = redis.Redis.from_url(store.url)
        arguments = (checkpoint, store.url, json.dumps(server.settings))
        driver = drivers.start(port, *arguments)
        connector = feeders.connect("shop-1", f"127.0.0.1:{port}")
        stream = feeders.run(lambda: connector.open("s")).result(SECONDS)
        for number in range(1, 201):
            stream.send(payload("s", number), id=number)
        eventually(lambda: stream.acknowledged or driver.poll() is not None, SECONDS)
        assert stream.acknowledged, drivers.log(driver)
        assert f"checkpoint {server.root}{checkpoint}" in drivers.log(driver)

        os.killpg(driver.pid, signal.SIGKILL)
        driver.wait()
        driver = drivers.start(port, *arguments)
        for number in range(201, 301):
            stream.send(payload("s", number), id=number)
        eventually(lambda: stream.acknowledged == 300 or driver.poll() is not None, SECONDS)
        assert stream.acknowledged == 300, drivers.log(driver)
        drivers.end(driver)
        entries = [fields[b"value"] for _, fields in found.xrange("orders")]
    assert entries == [payload("s", number) for number in range(1, 301)]
