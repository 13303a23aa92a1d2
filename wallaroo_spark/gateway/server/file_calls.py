"""Calls to the application's files, each in a thread of its own and with a limit in time.

A hung network mount answers no call. The threads are no part of the event loop's pool: one that never ends would hold
up the others, and the end of the gateway.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Callable
from typing import Any, TypeVar

from wallaroo_spark.gateway.refusals import Refused

T = TypeVar("T")

MOST_READS = 32
"""The most calls at once, beside the one that writes the inbox. A choice: as many as the event loop's own pool has."""


class FileCalls:
    """Makes calls that block, each for at most ``seconds``."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._room = asyncio.Semaphore(MOST_READS)

    async def read(self, function: Callable[..., T], *arguments: Any) -> T:
        """Make a call once fewer than ``MOST_READS`` others run. It raises as :meth:`call`."""
        async with self._room:
            return await self.call(function, *arguments)

    async def call(self, function: Callable[..., T], *arguments: Any) -> T:
        """Make a call. Raises its error, and :class:`Refused` when it does not return in time."""
        loop = asyncio.get_running_loop()
        done: asyncio.Future[T] = loop.create_future()

        def tell(outcome: Callable[[Any], None], value: Any) -> None:
            def told() -> None:
                if not done.done():
                    outcome(value)

            # The loop has ended when nobody waits any more.
            with contextlib.suppress(RuntimeError):
                loop.call_soon_threadsafe(told)

        def run() -> None:
            try:
                value = function(*arguments)
            except BaseException as error:
                tell(done.set_exception, error)
            else:
                tell(done.set_result, value)

        threading.Thread(target=run, name="wallaroo-gateway-files", daemon=True).start()
        await asyncio.wait([done], timeout=self._seconds)
        if not done.done():
            name = getattr(function, "__name__", "a call")
            raise Refused(
                f"the file system of the application's folder has not answered for {self._seconds:g} seconds "
                f"({name}); check that it is mounted and reachable from this machine",
                code="folder-silent",
                status="UNAVAILABLE",
            )
        return done.result()
