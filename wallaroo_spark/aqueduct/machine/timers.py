"""What a machine does later by itself."""

from __future__ import annotations

from collections.abc import Callable
from heapq import heappop, heappush
from itertools import count


class Timer:
    """One thing to do at a time, unless it is cancelled before."""

    __slots__ = ("_action",)

    def __init__(self, action: Callable[[float], None]) -> None:
        self._action: Callable[[float], None] | None = action

    def cancel(self) -> None:
        """Do nothing when the time comes."""
        self._action = None

    @property
    def cancelled(self) -> bool:
        """Whether nothing is to be done, or it is done."""
        return self._action is None

    def fire(self, now: float) -> None:
        """Do it, once."""
        action, self._action = self._action, None
        if action is not None:
            action(now)


class Timers:
    """Timers in the order of their times; those of the same time in the order in which they were made."""

    def __init__(self) -> None:
        self._heap: list[tuple[float, int, Timer]] = []
        self._order = count()

    def at(self, when: float, action: Callable[[float], None]) -> Timer:
        """Call ``action(now)`` at a time in monotonic seconds."""
        timer = Timer(action)
        heappush(self._heap, (when, next(self._order), timer))
        return timer

    def next(self) -> float | None:
        """The earliest time at which something is to be done."""
        while self._heap and self._heap[0][2].cancelled:
            heappop(self._heap)
        return self._heap[0][0] if self._heap else None

    def fire(self, now: float) -> None:
        """Do what is due."""
        while self._heap and self._heap[0][0] <= now:
            heappop(self._heap)[2].fire(now)

    def clear(self) -> None:
        """Forget all."""
        self._heap.clear()
