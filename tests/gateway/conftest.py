"""A gateway of an application in memory, for the tests of this folder."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from typing import Any

import grpc
import pytest

from tests.gateway.memory import MemoryApplication, ServedGateway, serving
from tests.gateway.shop import SHOP


@pytest.fixture
def application() -> Iterator[MemoryApplication]:
    made = MemoryApplication(SHOP)
    yield made
    made.close()


@pytest.fixture
async def served(application: MemoryApplication) -> AsyncIterator[ServedGateway]:
    async with serving(application) as found:
        yield found


@pytest.fixture
async def channel(served: ServedGateway) -> AsyncIterator[Any]:
    async with grpc.aio.insecure_channel(served.address) as found:
        yield found
