"""Waiting: a signal that wakes everybody, and a turnstile that lets waiters through one by one."""

from __future__ import annotations

import asyncio
from bisect import insort
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
    def __init__(self, may_pass: Callable[[], bool], place: int) -> None:
        self.may_pass = may_pass
        self.place = place
        self.woken: asyncio.Future[None] = asyncio.get_running_loop().create_future()


class Turnstile:
    """Lets waiters through in the order in which they came, passing over those whose own condition does not hold.

    One is woken at a time: what it takes is gone before the next one looks.
    """

    def __init__(self) -> None:
        self._waiters: list[_Waiter] = []
        self._woken: _Waiter | None = None
        self._places = 0

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

    async def wait(self, may_pass: Callable[[], bool], place: int | None = None) -> int:
        """Wait for one's turn; on return ``may_pass()`` holds, until the caller awaits something.

        Returns the place that the waiter had. One whose turn is not over hands it in again, however long it was away:
        it goes before all who came after it.
        """
        if place is None:
            self._places = place = self._places + 1
        waiter = _Waiter(may_pass, place)
        self._queue(waiter)
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
                return place
            waiter.woken = asyncio.get_running_loop().create_future()
            self._queue(waiter)
            self.turn()

    def _queue(self, waiter: _Waiter) -> None:
        insort(self._waiters, waiter, key=lambda other: other.place)

    def _leave(self, waiter: _Waiter) -> None:
        if self._woken is waiter:
            self._woken = None
            self.turn()
        else:
            self._waiters.remove(waiter)
