"""An application whose folder is on a real HDFS or S3: gateways and drivers die, and nothing is lost or twice."""

from __future__ import annotations

import json
import os
import signal
import subprocess
from pathlib import Path

import pytest

from tests.engine.application import shop
from tests.engine.application.test_application import take
from tests.receiver.drivers import Drivers
from tests.storage.servers import HdfsServer, S3Server
from tests.waiting import eventually
from wallaroo_spark.client import Client
from wallaroo_spark.registry import EmbeddedRedis, application_registry
from wallaroo_spark.registry.embedded import lasting_port

SECONDS = 240.0

Server = HdfsServer | S3Server

pytestmark = [pytest.mark.spark, pytest.mark.no_cover, pytest.mark.long, pytest.mark.timeout(4 * SECONDS)]


def test_orders_are_done_once_while_a_gateway_and_the_driver_are_killed(server: Server, tmp_path: Path) -> None:
    port = lasting_port()
    folder = server.checkpoint.replace("checkpoints/orders", "applications/shop")
    with EmbeddedRedis() as store, Drivers(tmp_path, "tests.storage.application_driver") as drivers:
        arguments = (folder, store.url, json.dumps(server.settings))

        def start() -> subprocess.Popen[bytes]:
            driver = drivers.start(port, *arguments, **server.variables)
            eventually(lambda: "runs\n" in drivers.log(driver) or driver.poll() is not None, seconds=SECONDS, pause=0.2)
            assert driver.poll() is None, drivers.log(driver)
            return driver

        driver = start()
        with Client(f"127.0.0.1:{port}", timeout=SECONDS) as client, shop.working(client):
            assert len(client.publish("shop/orders", *map(shop.order, range(10)))) == 10
            with application_registry(store.url, "shop") as registry:
                holder = registry.leases()[0].holder
            os.kill(int(holder.split("/")[1]), signal.SIGKILL)
            again = client.publish("shop/orders", *map(shop.order, range(5, 15)))
            assert len({(place.partition, place.offset) for place in again}) == 10
            assert len(take(client, "shop/shipments", "readers", 12)) >= 12

            os.killpg(driver.pid, signal.SIGKILL)
            driver.wait()
            driver = start()
            client.publish("shop/orders", *map(shop.order, range(10, 20)))
            shipped = take(client, "shop/shipments", "everything", 20)
        assert sorted(map(shop.number_of, shipped)) == list(range(20))
        drivers.end(driver)
        log = drivers.log(driver)
    found = json.loads(log.rpartition("tables ")[2].splitlines()[0])
    logged = {"delta": 20} if isinstance(server, S3Server) else {}
    assert found == {"orders": 20, "shipments": 20, "done": 20, "errors": [], **logged}
