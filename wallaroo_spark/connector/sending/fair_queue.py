"""Waiting on one event loop: a broadcast that wakes all waiters, and a queue that serves them one by one."""

from __future__ import annotations

import asyncio
from bisect import insort
from collections.abc import Callable


class Broadcast:
    """Wakes all waiters after each change; each waiter then checks its own condition."""

    def __init__(self) -> None:
        self._waiters: set[asyncio.Future[None]] = set()

    def notify_all(self) -> None:
        """Wake all current waiters."""
        waiters, self._waiters = self._waiters, set()
        for waiter in waiters:
            if not waiter.done():
                waiter.set_result(None)

    async def wait(self) -> None:
        """Wait for the next :meth:`notify_all`."""
        waiter = asyncio.get_running_loop().create_future()
        self._waiters.add(waiter)
        try:
            await waiter
        finally:
            self._waiters.discard(waiter)


class _Waiter:
    def __init__(self, may_pass: Callable[[], bool], ticket: int) -> None:
        self.may_pass = may_pass
        self.ticket = ticket
        self.woken: asyncio.Future[None] = asyncio.get_running_loop().create_future()


class FairQueue:
    """Serves waiters in order of arrival, and skips those whose own condition does not hold.

    One waiter is woken at a time, so that the next one sees the credits and memory that are left.
    """

    def __init__(self) -> None:
        self._waiters: list[_Waiter] = []
        self._woken: _Waiter | None = None
        self._tickets = 0

    @property
    def contended(self) -> bool:
        """Whether any waiter is in the queue."""
        return bool(self._waiters) or self._woken is not None

    def wake_next(self) -> None:
        """Wake the first waiter whose condition holds. Call it after every change."""
        if self._woken is not None:
            return
        for waiter in self._waiters:
            if not waiter.woken.done() and waiter.may_pass():
                self._waiters.remove(waiter)
                self._woken = waiter
                waiter.woken.set_result(None)
                return

    async def wait(self, may_pass: Callable[[], bool], ticket: int | None = None) -> int:
        """Wait for a turn. On return ``may_pass()`` holds, until the caller awaits something.

        Returns the waiter's ticket. A waiter that needs to wait again within its turn passes the ticket, and is served
        before all who arrived after it.
        """
        if ticket is None:
            self._tickets = ticket = self._tickets + 1
        waiter = _Waiter(may_pass, ticket)
        self._queue(waiter)
        # Perhaps no waiter ahead may pass.
        self.wake_next()
        while True:
            try:
                await waiter.woken
            except asyncio.CancelledError:
                self._leave(waiter)
                raise
            self._woken = None
            if may_pass():
                # The next waiter is woken once this one has used its turn.
                asyncio.get_running_loop().call_soon(self.wake_next)
                return ticket
            waiter.woken = asyncio.get_running_loop().create_future()
            self._queue(waiter)
            self.wake_next()

    def _queue(self, waiter: _Waiter) -> None:
        insort(self._waiters, waiter, key=lambda other: other.ticket)

    def _leave(self, waiter: _Waiter) -> None:
        if self._woken is waiter:
            self._woken = None
            self.wake_next()
        else:
            self._waiters.remove(waiter)
