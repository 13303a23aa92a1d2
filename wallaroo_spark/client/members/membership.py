"""A member that joins again, with another gateway too, whenever its connection is lost."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable
from types import TracebackType
from typing import Any, Generic, Self, TypeVar

import grpc

from wallaroo_spark.client.gateways import Attempts, GatewayConnection, Gateways
from wallaroo_spark.client.members.channel import MembershipChannel
from wallaroo_spark.client.members.deliveries import DeliveryBase
from wallaroo_spark.client.refusals import may_try_again, refusal
from wallaroo_spark.client.settings import ClientSettings
from wallaroo_spark.errors import RegistryError, TransportError, one_line

log = one_line(logging.getLogger("wallaroo_spark.client"))
D = TypeVar("D", bound=DeliveryBase)


class Membership(Generic[D]):
    """An asynchronous iterator of deliveries. It joins at the first one, and leaves at :meth:`close`.

    ``open_call`` makes the call, ``join`` is the first message, ``message`` the class of the messages, ``make`` makes
    the delivery of a program. Iterating raises the error of a request that is refused for good, and goes on for ever
    otherwise: without a gateway it waits for one.
    """

    def __init__(
        self,
        gateways: Gateways,
        settings: ClientSettings,
        name: str,
        open_call: Callable[[GatewayConnection], Any],
        message: type[Any],
        join: Any,
        make: Callable[[MembershipChannel, Any], D],
    ) -> None:
        self._gateways = gateways
        self._attempts = Attempts(settings, for_ever=True)
        self._name = name
        self._open_call = open_call
        self._message = message
        self._join = join
        self._make = make
        self._queue: asyncio.Queue[D | Exception | None] = asyncio.Queue()
        self._task: asyncio.Task[None] | None = None
        self._closed = False
        self.joined = asyncio.Event()
        """Whether the member is taken in by every partition; it is cleared while there is no connection."""

    @property
    def closed(self) -> bool:
        """Whether the member has left, or was refused."""
        return self._closed

    def start(self) -> None:
        """Join, without waiting for it. Iterating does so, too."""
        if self._task is None and not self._closed:
            self._task = asyncio.get_running_loop().create_task(self._run())

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> D:
        self.start()
        while True:
            if self._closed and self._queue.empty():
                raise StopAsyncIteration
            found = await self._queue.get()
            if found is None:
                raise StopAsyncIteration
            if isinstance(found, Exception):
                self._closed = True
                raise found
            # A delivery whose connection is lost already comes again.
            if not found.over:
                return found

    async def __aenter__(self) -> Self:
        self.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def close(self) -> None:
        """Leave; deliveries that are open are given to another member. May be called again."""
        self._closed = True
        if self._task is not None:
            self._task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await asyncio.wait([self._task])
        self._queue.put_nowait(None)

    async def _run(self) -> None:
        try:
            while True:
                failure = await self._once()
                self.joined.clear()
                delay = self._attempts.next_delay() or 0.0
                log.warning("%s: joining again in %.1f s: %s", self._name, delay, failure)
                await asyncio.sleep(delay)
        except Exception as error:
            self._queue.put_nowait(error)

    async def _once(self) -> str:
        """One connection, until it is lost; the reason. Raises when joining again cannot help."""
        try:
            gateway = await self._gateways.connected()
        except (TransportError, RegistryError) as error:
            return error.message
        channel = MembershipChannel(self._open_call(gateway), self._message, self._name, self._has_joined)
        try:
            async for message in channel.deliveries(self._join):
                self._queue.put_nowait(self._make(channel, message))
        except grpc.aio.AioRpcError as error:
            if not may_try_again(error) and error.code() is not grpc.StatusCode.CANCELLED:
                raise refusal(error, self._name) from error
            await self._gateways.failed(gateway)
            return f"{gateway.address}: {error.details()}"
        except TransportError as error:
            await self._gateways.failed(gateway)
            return f"{gateway.address}: {error.message}"
        return f"{gateway.address} has ended the connection"

    def _has_joined(self) -> None:
        self._attempts.succeeded()
        self.joined.set()
