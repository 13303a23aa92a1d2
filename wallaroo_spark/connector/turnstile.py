"""Waiting: a signal that wakes everybody, and a turnstile that lets waiters through one by one."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable


class Signal:
    """Wakes all who wait for it, each time it fires; who waits looks again at what they wait for."""

    def __init__(self) -> None:
        self._waiters: set[asyncio.Future[None]] = set()

    def fire(self) -> None:
        """Wake everybody who waits now."""
        waiters, self._waiters = self._waiters, set()
        for waiter in waiters:
            if not waiter.done():
                waiter.set_result(None)

    async def wait(self) -> None:
        """Wait for the next :meth:`fire`."""
        waiter = asyncio.get_running_loop().create_future()
        self._waiters.add(waiter)
        try:
            await waiter
        finally:
            self._waiters.discard(waiter)


class _Waiter:
    def __init__(self, may_pass: Callable[[], bool]) -> None:
        self.may_pass = may_pass
        self.woken: asyncio.Future[None] = asyncio.get_running_loop().create_future()


class Turnstile:
    """Lets waiters through in the order in which they came, passing over those whose own condition does not hold.

    One is woken at a time: what it takes is gone before the next one looks.
    """

    def __init__(self) -> None:
        self._waiters: deque[_Waiter] = deque()
        self._woken: _Waiter | None = None

    @property
    def crowded(self) -> bool:
        """Whether anybody waits."""
        return bool(self._waiters) or self._woken is not None

    def turn(self) -> None:
        """Something has changed: wake the first waiter who may pass."""
        if self._woken is not None:
            return
        for waiter in self._waiters:
            if not waiter.woken.done() and waiter.may_pass():
                self._waiters.remove(waiter)
                self._woken = waiter
                waiter.woken.set_result(None)
                return

    async def wait(self, may_pass: Callable[[], bool], *, first: bool = False) -> None:
        """Wait for one's turn; on return ``may_pass()`` holds, until the caller awaits something.

        ``first`` is for one whose turn is not over: it goes to the front.
        """
        waiter = _Waiter(may_pass)
        if first:
            self._waiters.appendleft(waiter)
        else:
            self._waiters.append(waiter)
        # Those ahead may all be unable to pass.
        self.turn()
        while True:
            try:
                await waiter.woken
            except asyncio.CancelledError:
                self._leave(waiter)
                raise
            self._woken = None
            if may_pass():
                # The next one looks once this one has taken what it came for.
                asyncio.get_running_loop().call_soon(self.turn)
                return
            waiter.woken = asyncio.get_running_loop().create_future()
            self._waiters.appendleft(waiter)
            self.turn()

    def _leave(self, waiter: _Waiter) -> None:
        if self._woken is waiter:
            self._woken = None
            self.turn()
        else:
            self._waiters.remove(waiter)
