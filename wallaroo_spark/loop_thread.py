"""An event loop in a thread of its own, and calls of coroutines on it from other threads.

The blocking connector, subscriptions and the proxy of tests run on one.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import threading
from collections.abc import Callable, Coroutine
from typing import Any, Generic, TypeVar

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
        """Start the coroutine. If it cannot be made, because an argument is wrong, that is the outcome."""
        try:
            work = self._work()
        except Exception as error:
            self.outcome.set_exception(error)
            return
        self._task = asyncio.get_running_loop().create_task(work)
        self._task.add_done_callback(self._ended)

    def cancel(self) -> None:
        """Cancel the coroutine, or the call itself if it was never started."""
        if self._task is None:
            self.abandon()
        else:
            self._task.cancel()

    def _ended(self, task: asyncio.Task[T]) -> None:
        if task.cancelled():
            self.abandon()
        elif (error := task.exception()) is not None:
            self.outcome.set_exception(error)
        else:
            self.outcome.set_result(task.result())

    def abandon(self) -> None:
        """Cancel the outcome, unless there is one."""
        if not self.outcome.done():
            self.outcome.cancel()
            self.outcome.set_running_or_notify_cancel()


class LoopThread:
    """An event loop in a daemon thread called ``name``, which does not keep a script from ending."""

    def __init__(self, name: str) -> None:
        self._loop = asyncio.new_event_loop()
        self._calls: set[_Call[Any]] = set()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    def call(self, work: Callable[[], Coroutine[Any, Any, T]]) -> T:
        """Run a coroutine on the loop and return its result. An interrupt of the caller cancels it.

        Raises :class:`concurrent.futures.CancelledError` when the thread has ended, or ends before the coroutine does.
        To be called from other threads than this one.
        """
        call = _Call(work)
        self._calls.add(call)
        try:
            self._soon(call.start)
            return call.outcome.result()
        except BaseException:
            # KeyboardInterrupt may be raised at any point above. No thread waits for the result any more, but a
            # coroutine that was started must end.
            if not call.outcome.done():
                self._soon(call.cancel)
                concurrent.futures.wait([call.outcome], _FINISH_SECONDS)
            raise
        finally:
            self._calls.discard(call)

    def read(self, function: Callable[[], T]) -> T:
        """Call a plain function on the loop and return its result."""

        async def work() -> T:
            return function()

        return self.call(work)

    @property
    def stopped(self) -> bool:
        """Whether the thread has ended."""
        return self._loop.is_closed()

    @property
    def inside(self) -> bool:
        """Whether this is called from the thread itself."""
        return threading.current_thread() is self._thread

    def stop(self) -> None:
        """End the thread and wait for that. Coroutines that still run on it are cancelled."""
        with contextlib.suppress(concurrent.futures.CancelledError):
            self._soon(self._loop.stop)
        self.join(_FINISH_SECONDS)

    def stop_after(self, work: Callable[[], Coroutine[Any, Any, None]]) -> None:
        """Run a coroutine and end the thread when it has ended, without waiting. May be called from any thread."""

        async def end() -> None:
            try:
                await work()
            finally:
                self._loop.stop()

        tasks: list[asyncio.Task[None]] = []
        with contextlib.suppress(concurrent.futures.CancelledError):
            self._soon(lambda: tasks.append(self._loop.create_task(end())))

    def join(self, seconds: float) -> None:
        """Wait until the thread has ended, for so long at most; does nothing in the thread itself."""
        if not self.inside:
            self._thread.join(seconds)

    def _soon(self, action: Callable[[], object]) -> None:
        try:
            self._loop.call_soon_threadsafe(action)
        except RuntimeError:
            raise concurrent.futures.CancelledError from None

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        try:
            self._loop.run_forever()
            for task in (waiting := asyncio.all_tasks(self._loop)):
                task.cancel()
            self._loop.run_until_complete(asyncio.gather(*waiting, return_exceptions=True))
        finally:
            with contextlib.suppress(Exception):
                self._loop.run_until_complete(self._loop.shutdown_asyncgens())
            self._loop.close()
            # A call that has come too late to be started would be waited for without an end.
            for call in list(self._calls):
                call.abandon()
