"""Checkpoints on a real HDFS and a real S3: connectors are acknowledged, and a driver that dies changes nothing."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path
from typing import Any

import pytest
import redis

from tests.receiver.drivers import Drivers
from tests.receiver.support import Feeders, payload
from tests.storage.servers import HdfsServer, S3Server
from tests.waiting import eventually
from wallaroo_spark.registry import EmbeddedRedis
from wallaroo_spark.registry.embedded import lasting_port

SECONDS = 180.0

Server = HdfsServer | S3Server

pytestmark = [pytest.mark.spark, pytest.mark.no_cover]


def test_a_driver_that_is_killed_goes_on_from_a_checkpoint_elsewhere(server: Server, tmp_path: Path) -> None:
    port = lasting_port()
    with (
        EmbeddedRedis() as store,
        Feeders() as feeders,
        Drivers(tmp_path, "tests.storage.driver") as drivers,
    ):
        found = redis.Redis.from_url(store.url)
        arguments = (server.checkpoint, store.url, json.dumps(server.settings))
        driver = drivers.start(port, *arguments, **server.variables)
        shown = f"checkpoint {server.shown}\n"
        eventually(lambda: shown in drivers.log(driver) or driver.poll() is not None, seconds=SECONDS)
        assert driver.poll() is None, drivers.log(driver)
        connector = feeders.connect("shop-1", f"127.0.0.1:{port}")
        stream = feeders.run(lambda: connector.open("s")).result(SECONDS)
        for number in range(1, 201):
            stream.send(payload("s", number), id=number)
        eventually(lambda: stream.acknowledged or driver.poll() is not None, seconds=SECONDS)
        assert stream.acknowledged, drivers.log(driver)

        os.killpg(driver.pid, signal.SIGKILL)
        driver.wait()
        driver = drivers.start(port, *arguments, **server.variables)
        for number in range(201, 301):
            stream.send(payload("s", number), id=number)
        eventually(lambda: stream.acknowledged == 300 or driver.poll() is not None, seconds=SECONDS)
        assert stream.acknowledged == 300, drivers.log(driver)
        drivers.end(driver)
        answer: Any = found.xrange("orders")
        entries = [fields[b"value"] for _, fields in answer]
    assert entries == [payload("s", number) for number in range(1, 301)]
