"""The end of a client's stream and the cancellation of its call come in any order, and nothing of the client stays."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from typing import Any

import pytest

from tests.gateway.memory import ServedGateway
from tests.gateway.shop import event, join
from tests.waiting import SECONDS, until
from wallaroo_spark.api import pipelines_pb2 as pb
from wallaroo_spark.gateway.server.ephemeral import EndpointsService
from wallaroo_spark.gateway.server.services import StreamsService

pytestmark = pytest.mark.timeout(SECONDS)
STEPS = range(12)
"""Turns of the event loop between the end of the stream and the cancellation: more than the end of a call takes."""


class Context:
    """A call as a service sees it; what is written to its client is kept."""

    def __init__(self) -> None:
        self.written: list[Any] = []

    def time_remaining(self) -> None:
        return None

    def invocation_metadata(self) -> tuple[()]:
        return ()

    async def send_initial_metadata(self, metadata: Any) -> None:
        del metadata

    async def write(self, message: Any) -> None:
        self.written.append(message)


class Client:
    """The client's side of a call to one method, which gRPC ends as it does when the client cancels."""

    def __init__(self, method: Any, first: Any) -> None:
        self.context = Context()
        self._ended = asyncio.Event()
        self._first = first
        self._task = asyncio.create_task(method(self._messages(), self.context))

    async def _messages(self) -> AsyncIterator[Any]:
        yield self._first
        await self._ended.wait()

    async def cancel(self, steps: int) -> None:
        """The stream of messages ends, and the call is cancelled some turns of the loop later."""
        self._ended.set()
        for _ in range(steps):
            await asyncio.sleep(0)
        self._task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await self._task


@pytest.mark.parametrize("steps", STEPS)
async def test_a_consumer_that_cancels_has_gone_and_its_caller_is_told(served: ServedGateway, steps: int) -> None:
    endpoints = served.gateway.endpoints
    consumer = Client(EndpointsService(served.gateway).Serve, pb.ServeMessage(endpoint="shop/quote"))
    await until(lambda: endpoints.consumers)
    call = endpoints.call("shop/quote", event("q"), (True, True), lambda: None)
    await until(lambda: consumer.context.written)
    await consumer.cancel(steps)
    assert not endpoints.consumers
    assert call.problem is not None
    assert call.problem.code == "consumer-gone"


@pytest.mark.parametrize("steps", STEPS)
async def test_a_caller_that_cancels_has_gone_and_its_consumer_is_free(served: ServedGateway, steps: int) -> None:
    endpoints = served.gateway.endpoints
    consumer = endpoints.serve("shop/chat", 1, lambda: None)
    caller = Client(EndpointsService(served.gateway).Call, pb.CallMessage(endpoint="shop/chat", event=event("q")))
    await until(lambda: consumer.calls)
    assert consumer.take() is not None
    await caller.cancel(steps)
    assert not consumer.calls


@pytest.mark.parametrize("steps", STEPS)
async def test_a_member_that_cancels_has_left(served: ServedGateway, steps: int) -> None:
    member = Client(StreamsService(served.gateway).Subscribe, join())
    await until(lambda: member.context.written)
    await member.cancel(steps)
    assert (served.gateway.core.members, served.gateway.rules_changed) == ({}, {})
