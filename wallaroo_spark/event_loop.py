"""Event loops: tasks that nobody awaits one by one, and a loop in a thread of its own, which other threads call.

The blocking connector and client are made of :class:`Blocking` and the functions beside it. Subscriptions and the proxy
of tests run on such a thread, too.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import functools
import logging
import os
import threading
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from typing import Any, Concatenate, Generic, ParamSpec, TypeVar

from wallaroo_spark.errors import LocalProtocolError, WallarooError, one_line

log = one_line(logging.getLogger("wallaroo_spark.calls"))

P = ParamSpec("P")
R = TypeVar("R")
T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)

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


class BackgroundTasks:
    """Keeps the tasks alive while they run, because asyncio itself has only weak references to them.

    ``ended`` is called after each task: with its error, or with None when it has finished or was cancelled. Without
    ``ended``, asyncio logs an error that nobody has retrieved.
    """

    def __init__(self, ended: Callable[[BaseException | None], None] | None = None) -> None:
        self._running: set[asyncio.Task[None]] = set()
        self._ended = ended

    def start(self, work: Coroutine[Any, Any, None]) -> None:
        """Run a coroutine as a task of the running loop."""
        task = asyncio.get_running_loop().create_task(work)
        self._running.add(task)
        task.add_done_callback(self._done)

    def cancel(self) -> None:
        """Cancel all tasks that run; :meth:`wait` waits for their ends."""
        for task in list(self._running):
            task.cancel()

    async def wait(self, seconds: float | None = None) -> None:
        """Wait until all tasks have ended, except the caller's own one, for so long at most; None: without a limit."""
        if others := self._running - {asyncio.current_task()}:
            await asyncio.wait(others, timeout=seconds)

    def _done(self, task: asyncio.Task[None]) -> None:
        self._running.discard(task)
        if self._ended is not None:
            self._ended(None if task.cancelled() else task.exception())


async def end_tasks(*tasks: asyncio.Future[Any]) -> None:
    """Cancel tasks, and wait until they have ended; their errors are dropped."""
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


class LoopThread:
    """An event loop in a daemon thread called ``name``, which does not keep a script from ending."""

    def __init__(self, name: str) -> None:
        self._loop = asyncio.new_event_loop()
        self._calls: set[_Call[Any]] = set()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    def call(self, work: Callable[[], Coroutine[Any, Any, T]]) -> T:
        """Run a coroutine on the loop and return its result. An interrupt of the caller cancels it.

        An error of this package is raised without the frames of the loop, which are in the log at level DEBUG. Raises
        :class:`concurrent.futures.CancelledError` when the thread has ended, or ends before the coroutine does.
        To be called from other threads than this one.
        """
        call = _Call(work)
        self._calls.add(call)
        try:
            self._soon(call.start)
            return call.outcome.result()
        except WallarooError as error:
            log.debug("a call has failed", exc_info=True)
            raise _without_frames(error) from error.__cause__
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


def _without_frames(error: WallarooError) -> WallarooError:
    cause = error.__cause__
    if cause is not None:
        cause.__traceback__ = cause.__context__ = None
    return error.with_traceback(None)


class CallerThread(LoopThread):
    """The thread of a blocking object. It refuses calls after its end, calls from itself, and calls from a fork.

    ``owner`` is what the object is, such as ``client``; ``closed`` and ``forked`` are the codes of the refusals, and
    ``remedy`` says what to do in a fork.
    """

    def __init__(self, owner: str, *, closed: str, forked: str, remedy: str) -> None:
        self._owner, self._closed_code, self._forked_code, self._remedy = owner, closed, forked, remedy
        self._process = os.getpid()
        super().__init__(f"wallaroo-{owner}")

    @property
    def forked(self) -> bool:
        """Whether this process was forked from the one that has the thread."""
        return os.getpid() != self._process

    def stop(self) -> None:
        """As :meth:`LoopThread.stop`; nothing in a fork, which has no such thread."""
        if not self.forked:
            super().stop()

    def call(self, work: Callable[[], Coroutine[Any, Any, T]]) -> T:
        """As :meth:`LoopThread.call`. Raises :class:`LocalProtocolError` when the object is closed, also meanwhile, or
        the caller is this thread, or a fork of the process that made the object."""
        owner = self._owner
        if self.forked:
            raise LocalProtocolError(
                f"this {owner} was made by process {self._process}, and process {os.getpid()} is a fork of it, without "
                f"its thread and its connection; {self._remedy}",
                code=self._forked_code,
            )
        if self.stopped or self.inside:
            why = f"the {owner} is closed" if self.stopped else f"this is called from the {owner}'s thread"
            raise LocalProtocolError(
                f"{why}; a blocking {owner} serves other threads while it is open", code=self._closed_code
            )
        try:
            return super().call(work)
        except concurrent.futures.CancelledError:
            raise LocalProtocolError(
                f"the {owner} was closed by another thread while this call waited; close it when no call runs",
                code=self._closed_code,
            ) from None


@contextlib.contextmanager
def beside(work: Callable[[], None], name: str, stop: Callable[[], object], seconds: float | None) -> Iterator[None]:
    """Run ``work`` in a daemon thread called ``name`` beside the block; ``stop``, which makes it end, is called at the
    end of the block, and the thread is waited for: ``seconds`` at most, None: without a limit."""
    thread = threading.Thread(target=work, name=name, daemon=True)
    thread.start()
    try:
        yield
    finally:
        stop()
        thread.join(seconds)


class Blocking(Generic[T_co]):
    """The blocking form of an object with asynchronous methods, and the thread in which these run."""

    def __init__(self, asynchronous: T_co, thread: CallerThread) -> None:
        self._asynchronous: T_co = asynchronous
        self._thread = thread


def blocking(
    method: Callable[Concatenate[T, P], Coroutine[Any, Any, R]],
) -> Callable[Concatenate[Blocking[T], P], R]:
    """The blocking form of an asynchronous method, with its parameters and its docstring."""

    @functools.wraps(method)
    def call(self: Blocking[T], /, *args: P.args, **kwargs: P.kwargs) -> R:
        return self._thread.call(lambda: method(self._asynchronous, *args, **kwargs))

    return call


def blocking_iterator(
    method: Callable[Concatenate[T, P], AsyncIterator[R]],
) -> Callable[Concatenate[Blocking[T], P], Iterator[R]]:
    """The blocking form of an asynchronous generator, which is closed when its iterator is."""

    @functools.wraps(method)
    def iterate(self: Blocking[T], /, *args: P.args, **kwargs: P.kwargs) -> Iterator[R]:
        steps: Any = method(self._asynchronous, *args, **kwargs)
        try:
            while (found := self._thread.call(lambda: next_of(steps))) is not None:
                yield found[0]
        finally:
            if not self._thread.stopped:
                self._thread.call(steps.aclose)

    return iterate


async def next_of(steps: AsyncIterator[T]) -> tuple[T] | None:
    """The next value; None at the end, because StopAsyncIteration cannot pass through a future."""
    try:
        return (await anext(steps),)
    except StopAsyncIteration:
        return None
