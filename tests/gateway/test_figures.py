"""The figures of a gateway: its calls, its commits, its refused tokens and its open deliveries."""

from __future__ import annotations

from typing import Any

import grpc
import pytest

from tests.gateway.shop import publish, work
from tests.gateway.test_server import joined, stub
from tests.waiting import SECONDS
from wallaroo_spark.api import pipelines_pb2_grpc as rpc
from wallaroo_spark.gateway.state.figures import GatewayFigures

pytestmark = pytest.mark.timeout(SECONDS)


def test_seconds_to_a_commit_are_counted_in_buckets_and_the_oldest_call_is_known() -> None:
    figures = GatewayFigures()
    for call, began in (("a", 10.0), ("b", 11.0)):
        figures.waits(call, began)
    assert figures.oldest_call(12.5) == 2.5
    figures.waited("a", 10.3, committed=True)
    figures.waited("b", 11.5, committed=False)

    assert {name: one for name, one in figures.counts.items() if name.startswith("commit:")} == {"commit:0.5": 1}
    assert figures.counts["commit-seconds"] == pytest.approx(0.3)
    assert figures.oldest_call(20.0) is None


async def test_a_report_has_calls_by_outcome_members_and_open_deliveries(served: Any) -> None:
    async with grpc.aio.insecure_channel(served.address) as channel:
        streams, pipelines = stub(rpc.StreamsStub, channel), stub(rpc.PipelinesStub, channel)
        await streams.Publish(publish("a"), timeout=SECONDS)
        with pytest.raises(grpc.aio.AioRpcError):
            await streams.Publish(publish("a", stream="shop/none"), timeout=SECONDS)
        call = await joined(pipelines.Work(timeout=SECONDS), work("charge"))
        await call.read()
        served.gateway.report()
        found = served.gateway.report()
        call.cancel()

    counts = found["counts"]
    assert (counts["calls:Publish:ok"], counts["calls:Publish:object-unknown"], counts["deliveries"]) == (1, 1, 1)
    assert sum(value for name, value in counts.items() if name.startswith("commit:")) == 1
    assert (found["members"], found["deliveries"], found["requests"], found["generation"]) == (1, 1, 0, 1)
    assert found["open_stages"].keys() == {"shop/fulfil charge"}
    assert counts["inbox-events"] >= 2
    assert counts["inbox-bytes"] > 0
