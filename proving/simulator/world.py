"""Everything together: a seed becomes a history, and a history an account of itself."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any
from unittest import mock

from proving.simulator.chaos import Chaos
from proving.simulator.checkpoint import Checkpoint
from proving.simulator.connector import Program
from proving.simulator.core import Part, Simulation, Steps, Violation
from proving.simulator.driver import Driver
from proving.simulator.flight import InnerNetwork
from proving.simulator.history import History
from proving.simulator.invariants import Judge
from proving.simulator.network import Network
from proving.simulator.profile import Profile, draw_profile
from proving.simulator.registry import SimulatedRegistry
from proving.simulator.sources import Source, make_source
from proving.simulator.worker import Worker
from wallaroo_spark.options import Options
from wallaroo_spark.protocol import REVISIONS, V3
from wallaroo_spark.references import StreamKey
from wallaroo_spark.worker.buffer import delivery

LIVENESS_SECONDS = 60.0
"""By when, after the last fault, all that was sent is committed and acknowledged, if batches are of any size."""
BATCH_SECONDS = 2.0
"""What each batch may take beside that, where a limit makes many of them."""
RUN_AGAIN_SECONDS = 5.0
MOST_STEPS = 300_000
ROWS_A_BATCH = 7


@dataclass(frozen=True)
class Report:
    """How a history went. ``seconds`` are simulated; ``violation`` is empty when every promise was kept."""

    seed: int
    steps: int
    seconds: float
    recovery: float
    messages: int
    batches: int
    counts: Counter[str]
    digest: str
    violation: str = ""
    history: str = ""


STORY_LINES = 20
"""Events of each worker that a failed history shows."""


class World:
    """One history as it unfolds; ``changes`` are of its profile."""

    def __init__(self, seed: int, *, verbose: bool = False, **changes: Any) -> None:
        self.seed = seed
        self.sim = Simulation(seed, History(verbose=verbose))
        self.profile: Profile = replace(draw_profile(self.sim.random), **changes)
        self.cookie = "a secret"
        self._number = 0
        self.fate = Part("fate")
        self.network = Network(self.sim)
        self.inner = InnerNetwork(self.sim)
        self.registry = SimulatedRegistry(self.sim, self.profile.lease_seconds)
        self.checkpoint = Checkpoint()
        self.sources: dict[StreamKey, Source] = {}
        self.programs: list[Program] = []
        self.judge = Judge(self)
        self.sim.after_step = self.judge.after_step
        self.sim.log("seed", f"{seed}: {self.profile}")
        self._make_programs()
        self.driver = Driver(self, self.profile.slots)
        self.chaos = Chaos(self)
        self.sim.spawn(self.fate, self._produce())

    def next_number(self) -> int:
        """A number that no part has had before."""
        self._number += 1
        return self._number

    def options(self, workers: int) -> Options:
        """What the workers of a fleet are given."""
        profile = self.profile
        return Options(
            cookie=self.cookie,
            workers=workers,
            memory_budget=profile.memory_budget,
            message_ids=profile.message_ids,
            lease_seconds=profile.lease_seconds,
        )

    def _make_programs(self) -> None:
        random, profile = self.sim.random, self.profile
        for number in range(random.randint(1, 4)):
            revision = random.choice([REVISIONS[name] for name in sorted(REVISIONS)])
            draft = revision is not V3
            replayable = profile.goes_back or random.random() < 0.4
            program = Program(self, f"shop-{number}", revision, replayable)
            for place in range(random.choice((1, 1, 2, 3))):
                scope = program.instance if draft else ""
                # In the drafts ids belong to the instance, so that several may well use the same.
                key = StreamKey(scope, place + 1 if draft else 100 * number + place + 1)
                name = f"{'draft' if draft else 'v3'}-{number}-{place}"
                opaque = draft and profile.message_ids == "opaque"
                source = make_source(random, key, name, draft=draft, opaque=opaque, large=profile.large)
                self.sources[key] = source
                program.sources.append(source)
            self.programs.append(program)
            self.sim.after(random.uniform(0.0, 3.0), self.fate, program.start)

    def _produce(self) -> Steps:
        """Messages come into being, all of them before the faults end."""
        random = self.sim.random
        sources = list(self.sources.values())
        while self.sim.now < self.profile.fault_seconds * 0.9:
            yield random.expovariate(len(sources) / 2.0)
            source = random.choice(sources)
            source.produced = min(len(source.ids), source.produced + random.choice((1, 3, 10)))
            self._poke()
        for source in sources:
            source.produced = len(source.ids)
        self._poke()

    def _poke(self) -> None:
        for program in self.programs:
            if program.process is not None:
                program.process.poke()

    def start_driver(self, workers: int) -> None:
        """Another driver, unless there is one."""
        if not self.driver.alive:
            self.driver = Driver(self, workers)

    def lost_since(self, worker: Worker) -> float | None:
        """Since when a worker could have known that its lease is another's; None when it is not, or cannot."""
        lost = self.registry.model.lost.get(worker.holder)
        if lost is None or self.registry.away:
            return None
        return max(lost, self.registry.back_since, worker.woken_at, worker.unanswered_at)

    def run(self) -> Report:
        """Let it unfold: faults first, then peace, in which all must come to its end."""
        try:
            self._run_until(self.profile.fault_seconds, lambda: False)
            self.sim.calm = True
            self.sim.log("chaos", "ends; from here on nothing fails")
            self._make_peace()
            seconds = self._patience()
            if not self._run_until(self.sim.now + seconds, lambda: not self.judge.unfinished()):
                raise Violation(f"not done after {seconds:.0f} s of peace: {'; '.join(self.judge.unfinished())}")
        except Exception as error:
            what = str(error) if isinstance(error, Violation) else f"{type(error).__name__}: {error}"
            self.sim.log("VIOLATION", what)
            return self._report(what)
        return self._report("")

    def _patience(self) -> float:
        limit = self.profile.max_rows
        batches = sum(len(source.ids) for source in self.sources.values()) / limit if limit else 0
        return LIVENESS_SECONDS + BATCH_SECONDS * batches

    def _make_peace(self) -> None:
        if self.profile.goes_back:
            # What was acknowledged before the query went back is for an operator to send again.
            for program in self.programs:
                self.sim.after(RUN_AGAIN_SECONDS, self.fate, program.kill)
                self.sim.after(RUN_AGAIN_SECONDS + 0.1, self.fate, program.start)

    def _run_until(self, end: float, done: Callable[[], bool]) -> bool:
        look = 0.0
        while self.sim.now < end:
            if self.sim.now >= look:
                if done():
                    return True
                look = self.sim.now + 0.5
            if not self.sim.step():
                raise Violation("nothing will ever happen again")
            if self.sim.steps > MOST_STEPS:
                raise Violation(f"more than {MOST_STEPS} steps and no end")
        return done()

    def _report(self, violation: str) -> Report:
        sim = self.sim
        return Report(
            self.seed,
            sim.steps,
            sim.now,
            max(0.0, sim.now - self.profile.fault_seconds),
            self.judge.messages,
            self.checkpoint.last_committed + 1,
            sim.history.counts,
            sim.history.digest,
            violation,
            f"{sim.history.last_lines()}\n{self._stories()}" if violation else "",
        )

    def _stories(self) -> str:
        """The last events of every worker that lives."""
        workers = [worker for worker in self.inner.ports.values() if worker.state is not None]
        lines = [
            f"{worker.name}: {line}"
            for worker in workers
            for line in worker.state.story.lines()[-STORY_LINES:]  # type: ignore[union-attr]
        ]
        return "\n".join(["\nthe last events of its workers:", *lines]) if lines else ""


def simulate(seed: int, *, verbose: bool = False, **changes: Any) -> Report:
    """The history of a seed, with ``changes`` of the profile that it draws."""
    # Small batches, so that a read may break in the middle of a range.
    with mock.patch.object(delivery, "ROWS_A_BATCH", ROWS_A_BATCH):
        return World(seed, verbose=verbose, **changes).run()
