"""The pings of clients that a gateway tolerates."""

from __future__ import annotations

import asyncio

import grpc
import pytest

from tests.gateway.memory import ServedGateway
from tests.gateway.shop import publish
from tests.gateway.test_server import streams
from tests.waiting import SECONDS
from wallaroo_spark.gateway.server.listener import PING_SECONDS

pytestmark = [pytest.mark.timeout(SECONDS), pytest.mark.long]


async def test_a_client_may_ping_every_five_seconds_without_a_call(served: ServedGateway) -> None:
    options = (
        ("grpc.keepalive_time_ms", int(PING_SECONDS * 1000) + 100),
        ("grpc.keepalive_permit_without_calls", 1),
        ("grpc.http2.max_pings_without_data", 0),
        ("grpc.use_local_subchannel_pool", 1),
    )
    async with grpc.aio.insecure_channel(served.address, options=options) as channel:
        await streams(channel).Publish(publish("a"))
        assert PING_SECONDS == 5
        changed = asyncio.ensure_future(channel.wait_for_state_change(grpc.ChannelConnectivity.READY))
        # Three pings too many would end the connection.
        await asyncio.wait([changed], timeout=5 * PING_SECONDS)
        assert not changed.done()
        changed.cancel()
        await streams(channel).Publish(publish("b"))
