"""A gateway's port for connectors over a real folder and a real Redis: its lease, its address, and its end.

The controllers are played by the test: it reads the inbox and commits a batch with the answer.
"""

from __future__ import annotations

import threading
import uuid
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.gateway.test_service import Stage
from tests.waiting import SECONDS, eventually
from wallaroo_spark.connector import BlockingConnector
from wallaroo_spark.gateway.service import GatewayService
from wallaroo_spark.pipelines.controller.messages import events as e
from wallaroo_spark.pipelines.controller.messages import instructions as i
from wallaroo_spark.registry import EmbeddedRedis, application_registry, connectors_registry
from wallaroo_spark.slots.service import ServiceThread
from wallaroo_spark.slots.tenancy import Tenancy

pytestmark = pytest.mark.timeout(2 * SECONDS)


class BulkStage(Stage):
    """An application's folder whose gateways serve connectors."""

    def __init__(self, folder: Path, redis: EmbeddedRedis) -> None:
        super().__init__(folder, redis)
        self.doors = connectors_registry(redis.url, self.setup.application, lease_seconds=60.0)

    def gateway(self, **fields: Any) -> ServiceThread:
        """A gateway with a port for connectors."""
        submission = self.registry.next_submission()
        setup = replace(self.setup, submission=submission, connector_port=0, **fields)
        registry = application_registry(setup.registry, setup.application, lease_seconds=60.0)
        doors = connectors_registry(setup.registry, setup.application, lease_seconds=60.0)
        tenancy = Tenancy(registry, setup.number, setup.submission, uuid.uuid4().hex, "test")
        return ServiceThread(GatewayService(setup, registry, tenancy, doors), "test-gateway")


@pytest.fixture
def stage(tmp_path: Path, file_redis: EmbeddedRedis) -> Iterator[BulkStage]:
    made = BulkStage(tmp_path, file_redis)
    yield made
    made.registry.close()
    made.doors.close()


def test_a_connector_finds_gateways_by_the_registry_and_goes_on_at_the_next_one(stage: BulkStage) -> None:
    stage.files.commit()
    program = f"connectors:{stage.setup.application}"
    acknowledged = threading.Event()
    with (
        ThreadPoolExecutor(1) as pool,
        BlockingConnector(program, instance="till", registry=stage.setup.registry, revision="v3") as connector,
    ):
        with stage.gateway():
            opening = pool.submit(connector.open, "shop/orders")
            (opened,) = stage.event(e.ConnectorOpened)
            stage.commit(i.AnswerRequest(opened.reply_to, (), (i.ConnectorPosition("shop/orders", 1, None),)))
            stream = opening.result(SECONDS)
            stream.send(b'{"type": "t"}', id=4, on_delivery=lambda error, delivery: acknowledged.set())
            (sent,) = stage.event(e.MessagesSent)
            assert [(one.id, one.source) for one in sent.records] == [("shop/orders/4", "till")]
            stage.commit(i.AnswerRequest(sent.reply_to))
            assert acknowledged.wait(SECONDS)
            first = eventually(lambda: stage.doors.leases()[0].connect)
            assert first != stage.address()
        assert stage.doors.leases() == {}

        with stage.gateway():
            (_, again) = stage.event(e.ConnectorOpened, 2)
            assert again.reply_to.generation == 2
            stage.commit(i.AnswerRequest(again.reply_to, (), (i.ConnectorPosition("shop/orders", 1, 4),)))
            stream.send(b'{"type": "t"}', id=5)
            (_, more) = stage.event(e.MessagesSent, 2)
            assert more.ids == (5,)
            stage.commit(i.AnswerRequest(more.reply_to))
            connector.drain(SECONDS)
