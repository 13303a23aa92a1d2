"""Simulated time: the agenda of events, and processes that may stop or die between two steps."""

from __future__ import annotations

import heapq
import random
from collections.abc import Callable, Generator
from typing import Any

from proving.simulator.engine.history import History

Action = Callable[[], None]
Steps = Generator[Any, Any, Any]
"""A process: it yields seconds to sleep, or a :class:`Promise` to wait for."""


class Violation(AssertionError):
    """A promise was broken."""


class Part:
    """A part of the world that may die or be stopped for a while; while it is stopped, its events are delayed."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.alive = True
        self.asleep = False
        self.woken_at = 0.0
        self.held: list[Action] = []


class Promise:
    """An answer that comes later, or an error in its place."""

    def __init__(self) -> None:
        self.settled = False
        self.value: Any = None
        self.error: Exception | None = None
        self._then: list[Action] = []

    def resolve(self, value: Any = None) -> None:
        """Settle it with an answer; only the first counts."""
        if not self.settled:
            self.settled, self.value = True, value
            self._tell()

    def fail(self, error: Exception) -> None:
        """Settle it with an error; ignored once it is settled."""
        if not self.settled:
            self.settled, self.error = True, error
            self._tell()

    def settle_as(self, other: Promise) -> None:
        """Settle it with the answer or error of another promise."""
        if other.error is not None:
            self.fail(other.error)
        else:
            self.resolve(other.value)

    def then(self, action: Action) -> None:
        """Call ``action`` once it is settled."""
        if self.settled:
            action()
        else:
            self._then.append(action)

    def _tell(self) -> None:
        for action in self._then:
            action()


class Simulation:
    """The agenda of events. ``calm`` is set once nothing fails any more."""

    def __init__(self, seed: int, history: History) -> None:
        self.random = random.Random(seed)
        self.history = history
        self.now = 0.0
        self.steps = 0
        self.calm = False
        self.slowness = self.random.choice((0.01, 0.03, 0.1))
        self.after_step: Action = lambda: None
        self._agenda: list[tuple[float, int, Part, Action]] = []
        self._number = 0

    def log(self, who: str, text: str) -> None:
        """Add a line to the history."""
        self.history.add(self.now, who, text)

    def chance(self, probability: float) -> bool:
        """Whether a fault with this probability happens; none does once ``calm`` is set."""
        return not self.calm and self.random.random() < probability

    def latency(self) -> float:
        """A delay in seconds: usually short, sometimes long."""
        seconds = self.random.expovariate(1 / self.slowness)
        return seconds + self.random.uniform(0.5, 3.0) if self.chance(0.01) else seconds

    def after(self, seconds: float, part: Part, action: Action) -> None:
        """Schedule an event of a part, ``seconds`` from now."""
        self.at(self.now + seconds, part, action)

    def at(self, time: float, part: Part, action: Action) -> None:
        """Schedule an event of a part at a time, after the events that are already scheduled for it."""
        self._number += 1
        heapq.heappush(self._agenda, (time, self._number, part, action))

    def spawn(self, part: Part, steps: Steps) -> None:
        """Run a process of a part from now on, as long as the part lives."""
        self.after(0.0, part, lambda: self._advance(part, steps, None))

    def _advance(self, part: Part, steps: Steps, promise: Promise | None) -> None:
        try:
            if promise is None:
                wanted = next(steps)
            elif promise.error is not None:
                wanted = steps.throw(promise.error)
            else:
                wanted = steps.send(promise.value)
        except StopIteration:
            return
        if isinstance(wanted, Promise):
            wanted.then(lambda: self.after(0.0, part, lambda: self._advance(part, steps, wanted)))
        else:
            self.after(wanted, part, lambda: self._advance(part, steps, None))

    def step(self) -> bool:
        """Run the next event; False when there is none."""
        if not self._agenda:
            return False
        self.now, _, part, action = heapq.heappop(self._agenda)
        if not part.alive:
            return True
        if part.asleep:
            part.held.append(action)
            return True
        self.steps += 1
        action()
        self.after_step()
        return True

    def put_to_sleep(self, part: Part, seconds: float) -> None:
        """Stop a part, as SIGSTOP does, and continue it later."""
        if part.asleep:
            return
        part.asleep = True
        self.log(part.name, f"is stopped for {seconds:.1f} s")
        self.after(seconds, Part("alarm"), lambda: self._wake(part))

    def _wake(self, part: Part) -> None:
        part.asleep = False
        part.woken_at = self.now
        if not part.alive:
            return
        self.log(part.name, "goes on")
        held, part.held = part.held, []
        for action in held:
            self.after(0.0, part, action)
