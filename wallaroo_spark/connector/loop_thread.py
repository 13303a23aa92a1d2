"""An event loop in a thread of its own, and calls of coroutines on it from other threads."""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import threading
from collections.abc import Callable, Coroutine
from typing import Any, Generic, TypeVar

from wallaroo_spark.errors import LocalProtocolError

T = TypeVar("T")

_FINISH_SECONDS = 15.0
"""Limit in seconds of the wait for the end of the thread or of a cancelled call.

A choice: longer than closing a connection takes at most (``FLUSH_SECONDS`` twice, and lingering).
"""


class _Call(Generic[T]):
    """A coroutine for whose result another thread waits. ``start`` and ``cancel`` run on the loop, in that order."""

    def __init__(self, work: Callable[[], Coroutine[Any, Any, T]]) -> None:
        self.outcome: concurrent.futures.Future[T] = concurrent.futures.Future()
        self._work = work
        self._task: asyncio.Task[T] | None = None

    def start(self) -> None:
        """Start the coroutine."""
        self._task = asyncio.get_running_loop().create_task(self._work())
        self._task.add_done_callback(self._ended)

    def cancel(self) -> None:
        """Cancel the coroutine, or the call itself if it was never started."""
        if self._task is None:
            self._abandon()
        else:
            self._task.cancel()

    def _ended(self, task: asyncio.Task[T]) -> None:
        if task.cancelled():
            self._abandon()
        elif (error := task.exception()) is not None:
            self.outcome.set_exception(error)
        else:
            self.outcome.set_result(task.result())

    def _abandon(self) -> None:
        self.outcome.cancel()
        self.outcome.set_running_or_notify_cancel()


class LoopThread:
    """An event loop in a daemon thread, which does not keep a script from ending."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._run, name="wallaroo-connector", daemon=True)
        self._thread.start()

    def call(self, work: Callable[[], Coroutine[Any, Any, T]]) -> T:
        """Run a coroutine on the loop and return its result. An interrupt of the caller cancels it."""
        if self._loop.is_closed() or threading.current_thread() is self._thread:
            why = "the connector is closed" if self._loop.is_closed() else "this is called from the connector's thread"
            raise LocalProtocolError(f"{why}; a BlockingConnector serves other threads while it is open")
        call = _Call(work)
        try:
            self._loop.call_soon_threadsafe(call.start)
            return call.outcome.result()
        except BaseException:
            # KeyboardInterrupt may be raised at any point above. No thread waits for the result any more, but a
            # coroutine that was started must end.
            if not call.outcome.done():
                self._loop.call_soon_threadsafe(call.cancel)
                concurrent.futures.wait([call.outcome], _FINISH_SECONDS)
            raise

    def read(self, function: Callable[[], T]) -> T:
        """Call a plain function on the loop and return its result."""

        async def work() -> T:
            return function()

        return self.call(work)

    @property
    def stopped(self) -> bool:
        """Whether the thread has ended."""
        return self._loop.is_closed()

    def stop(self) -> None:
        """End the thread. Everything that ran on the loop must have ended."""
        if not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._thread.join(_FINISH_SECONDS)

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        try:
            self._loop.run_forever()
        finally:
            with contextlib.suppress(Exception):
                self._loop.run_until_complete(self._loop.shutdown_asyncgens())
            self._loop.close()
