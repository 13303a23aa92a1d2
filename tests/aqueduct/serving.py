"""A server on the loopback, and clients of it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Any

from tests.pems import Pems
from wallaroo_spark import aqueduct
from wallaroo_spark.aqueduct.connection import AqueductConnection

Work = Callable[[AqueductConnection], Awaitable[None]]


async def idle(connection: AqueductConnection) -> None:
    """A handler that waits until its connection is over."""
    await asyncio.Event().wait()


class Serving:
    """A server, the connections that it has accepted, and the settings of its clients."""

    def __init__(self, server: aqueduct.Server, ca: str) -> None:
        self.server = server
        self.accepted: asyncio.Queue[AqueductConnection] = asyncio.Queue()
        self._ca = ca

    def connect(self, **settings: Any) -> Any:
        """A client, to be entered."""
        return aqueduct.connect(self.server.address, ca=settings.pop("ca", self._ca), **settings)


@asynccontextmanager
async def serving(pems: Pems, work: Work = idle, **settings: Any) -> AsyncIterator[Serving]:
    """Serve on a port of the loopback."""

    async def handler(connection: AqueductConnection) -> None:
        made.accepted.put_nowait(connection)
        await work(connection)

    files = {"certificate": pems.server, "key": pems.server_key}
    async with aqueduct.serve(handler, "127.0.0.1", 0, **{**files, **settings}) as server:
        made = Serving(server, pems.ca)
        yield made


def empty(connection: AqueductConnection) -> bool:
    """Whether nothing is left of the connection's channels, at this side."""
    connection._driver.machine.validate()
    return connection._driver.idle and not connection._driver.halves


async def send_on(sender: aqueduct.Sender, payload: bytes = b"more") -> None:
    """Send, and wait for each ack, until an error ends it."""
    while True:
        await (await sender.send(payload)).acked


async def receive_on(receiver: aqueduct.Receiver) -> None:
    """Receive to the end of the channel."""
    while await receiver.receive() is not None:
        pass


async def fail(block: AbstractAsyncContextManager[Any]) -> None:
    """Leave a block by an error."""
    async with block:
        raise ZeroDivisionError
