"""Checks of gateways: a real one passes, with and without tokens, and one that answers wrongly does not."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import grpc
import pytest

from tests.gateway.shop import SHOP, TOKENS
from tests.waiting import SECONDS
from wallaroo_spark.api import pipelines_pb2 as pb
from wallaroo_spark.api import pipelines_pb2_grpc as rpc
from wallaroo_spark.conformance import gateways
from wallaroo_spark.conformance.checks import CheckOutcome, CheckResult
from wallaroo_spark.testing import FakeApplication

STREAM = "shop/shipments"


def run(address: str, *names: str, token: str = "", seconds: float = SECONDS) -> dict[str, CheckResult]:
    setting = gateways.CheckedGateway(address, STREAM, token, seconds=seconds)
    checks = [check for check in gateways.CHECKS if not names or check.name in names]
    return {one.check: one for one in gateways.plan(setting, checks).results()}


def failures(results: dict[str, CheckResult]) -> list[str]:
    found = [one for one in results.values() if one.outcome is CheckOutcome.FAILED]
    return [f"{one.check}: expected {one.expected}; came {one.came}" for one in found]


def left_out(results: dict[str, CheckResult]) -> set[str]:
    return {one.check for one in results.values() if one.outcome is CheckOutcome.LEFT_OUT}


def test_a_gateway_passes_every_check() -> None:
    with FakeApplication(SHOP) as application:
        results = run(application.address)

    assert failures(results) == []
    assert left_out(results) == {"no-token"}


def test_a_gateway_with_tokens_passes_every_check() -> None:
    with FakeApplication(SHOP + TOKENS) as application:
        results = run(application.address, token=application.create_token("everything"))
        wrong = run(application.address, "publish", token="wst_of_nobody")

    assert failures(results) == []
    assert left_out(results) == {"unknown-stream"}
    assert "UNAUTHENTICATED, code token-refused" in wrong["publish"].came


class Wrong(rpc.StreamsServicer):
    """A gateway that gives every event the same place, and every member a delivery before it has joined."""

    def Publish(self, request: Any, context: Any) -> pb.PublishReply:
        return pb.PublishReply(places=[pb.Place(partition=0, offset=1) for _ in request.events])

    def Subscribe(self, request: Any, context: Any) -> Iterator[pb.SubscriberEvent]:
        yield pb.SubscriberEvent(delivery=pb.GroupDelivery(delivery=1, first=1))


@pytest.fixture
def wrong() -> Iterator[str]:
    server = grpc.server(ThreadPoolExecutor(2))
    rpc.add_StreamsServicer_to_server(Wrong(), server)
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    yield f"127.0.0.1:{port}"
    server.stop(None).wait()


def test_a_gateway_that_answers_wrongly_is_found(wrong: str) -> None:
    results = run(wrong, "describe", "publish", "published-again", "invalid-events", "consume")

    assert set(left_out(results)) == set()
    assert {name: one.outcome.value for name, one in results.items()} == dict.fromkeys(results, "failed")
    assert results["describe"].came.startswith("UNIMPLEMENTED, without a code")
    assert "one behind the other" in results["publish"].expected
    assert results["invalid-events"].expected == "INVALID_ARGUMENT with the code request-invalid"
    assert results["invalid-events"].came == "an answer without an error"
    assert results["consume"].expected == "`joined` behind `join`, before anything else"
    assert results["consume"].page.endswith("#the-order-of-messages-of-subscribe-and-work")
