"""A fake gateway for each test."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from tests.client.fake_gateway import PARTITIONS, FakeGateway


@pytest.fixture
async def gateway() -> AsyncIterator[FakeGateway]:
    """A gateway with the streams shop/orders and shop/paid, of two partitions each."""
    made = FakeGateway()
    for stream in ("shop/orders", "shop/paid"):
        made.memory.streams[stream] = [[] for _ in range(PARTITIONS)]
    await made.start()
    yield made
    await made.stop()
