"""The history of one seed, from its first fault to its last acknowledgement, and its report."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any
from unittest import mock

from proving.simulator.chaos import Chaos
from proving.simulator.engine.core import Violation
from proving.simulator.parts.worker import Worker
from proving.simulator.world import World
from wallaroo_spark.worker.buffer import delivery

LIVENESS_SECONDS = 60.0
"""Seconds after the last fault within which all messages are committed and acknowledged, without a row limit."""
BATCH_SECONDS = 2.0
"""Further seconds for each batch where a row limit makes many batches."""
RUN_AGAIN_SECONDS = 20.0
"""When the operator lets all sources be sent again, in seconds after the last fault.

The registry is away for 8 s at most, so the driver has told every worker by then that the query went back. A connector
that is acknowledged before that has no reason to send again.
"""
FAREWELL_SECONDS = 45.0
"""Seconds after which nothing of a door's clients is left: their sessions end when nothing was asked for 30 s."""
MOST_STEPS = 300_000
ROWS_A_BATCH = 7
STORY_LINES = 20
"""Events of each worker that a failed history shows."""


@dataclass(frozen=True)
class Report:
    """The result of one history."""

    seed: int
    """The seed of the history."""
    steps: int
    """How many steps it took."""
    seconds: float
    """Its length in simulated seconds."""
    recovery: float
    """Simulated seconds from the last fault to its end."""
    messages: int
    """Messages that were committed."""
    batches: int
    """Batches that were committed."""
    counts: Counter[str]
    """How often each fault happened, by its name."""
    digest: str
    """A fingerprint of the history; two runs of one seed have the same."""
    violation: str = ""
    """The broken promise; empty when every promise was kept."""
    history: str = ""
    """The end of the history; empty when every promise was kept."""


class Run:
    """Runs one world with faults and reports the result."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.sim = world.sim
        self.profile = world.profile
        Chaos(world)
        world.begin_to_produce()

    def run(self) -> Report:
        """Run the history: first with faults, then without, until all messages are acknowledged."""
        try:
            self._run_until(self.profile.fault_seconds, lambda: False)
            self.sim.calm = True
            self.sim.log("chaos", "ends; from here on nothing fails")
            self._make_peace()
            seconds = self._patience()
            if not self._run_until(self.sim.now + seconds, lambda: not self.world.judge.unfinished()):
                raise Violation(f"not done after {seconds:.0f} s of peace: {'; '.join(self.world.judge.unfinished())}")
            if self.profile.doors:
                self._run_until(self.sim.now + FAREWELL_SECONDS, lambda: False)
                self.world.judge.doors.nothing_is_left()
        except Exception as error:
            what = str(error) if isinstance(error, Violation) else f"{type(error).__name__}: {error}"
            self.sim.log("VIOLATION", what)
            return self._report(what)
        return self._report("")

    def _patience(self) -> float:
        limit = self.profile.max_rows
        batches = sum(len(source.ids) for source in self.world.sources.values()) / limit if limit else 0
        return LIVENESS_SECONDS + BATCH_SECONDS * batches

    def _make_peace(self) -> None:
        if self.profile.goes_back:
            # Messages that were acknowledged before the query went back are sent again by an operator.
            for program in self.world.programs:
                self.sim.after(RUN_AGAIN_SECONDS, self.world.fate, program.kill)
                self.sim.after(RUN_AGAIN_SECONDS + 0.1, self.world.fate, program.start)

    def _run_until(self, end: float, done: Callable[[], bool]) -> bool:
        look = 0.0
        while self.sim.now < end:
            if self.sim.now >= look:
                if done():
                    return True
                look = self.sim.now + 0.5
            if not self.sim.step():
                raise Violation("no event is left, and the history is not done")
            if self.sim.steps > MOST_STEPS:
                raise Violation(f"more than {MOST_STEPS} steps and no end")
        return done()

    def _report(self, violation: str) -> Report:
        sim = self.sim
        return Report(
            self.world.seed,
            sim.steps,
            sim.now,
            max(0.0, sim.now - self.profile.fault_seconds),
            self.world.judge.messages + self.world.judge.doors.messages,
            self.world.checkpoint.last_committed + 1,
            sim.history.counts,
            sim.history.digest,
            violation,
            f"{sim.history.last_lines()}\n{self._stories()}" if violation else "",
        )

    def _stories(self) -> str:
        """The last events of every live worker."""
        workers = [port for port in self.world.inner.ports.values() if isinstance(port, Worker)]
        lines = [
            f"{worker.name}: {line}"
            for worker in workers
            if worker.state is not None
            for line in worker.state.story.lines()[-STORY_LINES:]
        ]
        return "\n".join(["\nthe last events of its workers:", *lines]) if lines else ""


def simulate(seed: int, *, verbose: bool = False, **changes: Any) -> Report:
    """Run the history of a seed, with ``changes`` to the profile that it draws."""
    # Small batches, so that a read may break in the middle of a range.
    with mock.patch.object(delivery, "ROWS_A_BATCH", ROWS_A_BATCH):
        return Run(World(seed, verbose=verbose, **changes)).run()
