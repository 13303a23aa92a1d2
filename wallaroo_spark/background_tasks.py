"""The tasks of an event loop that an object starts, and that nobody awaits one by one."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any


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
