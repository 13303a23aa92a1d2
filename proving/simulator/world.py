"""One simulated world: the surroundings and the parts of a history, drawn from a seed."""

from __future__ import annotations

from typing import Any

from proving.simulator.engine.core import Steps
from proving.simulator.invariants import Judge
from proving.simulator.parts.connector import Program
from proving.simulator.parts.driver import Driver
from proving.simulator.parts.producers import BUSY_REQUESTS, HttpProducer, KafkaProducer
from proving.simulator.parts.sources import make_source
from proving.simulator.parts.surroundings import Surroundings
from wallaroo_spark.protocol import REVISIONS, V3
from wallaroo_spark.references import StreamKey


class World(Surroundings):
    """The world of one history; ``changes`` are to its profile."""

    def __init__(self, seed: int, *, verbose: bool = False, **changes: Any) -> None:
        super().__init__(seed, verbose=verbose, **changes)
        self.programs: list[Program] = []
        self.judge: Judge = Judge(self, self.programs)
        self.sim.after_step = self.judge.after_step
        self.sim.log("seed", f"{seed}: {self.profile}")
        self._make_programs()
        if self.profile.doors:
            self._make_producers()
        self.driver = Driver(self, self.profile.slots)

    def _make_programs(self) -> None:
        random, profile = self.sim.random, self.profile
        for number in range(random.randint(1, 4)):
            revision = random.choice([REVISIONS[name] for name in sorted(REVISIONS)])
            draft = revision is not V3
            replayable = profile.goes_back or random.random() < 0.4
            program = Program(self, f"shop-{number}", revision, replayable)
            for place in range(random.choice((1, 1, 2, 3))):
                scope = program.instance if draft else ""
                # In the drafts stream ids belong to the instance, so several instances may use the same id.
                key = StreamKey(scope, place + 1 if draft else 100 * number + place + 1)
                name = f"{'draft' if draft else 'v3'}-{number}-{place}"
                opaque = draft and profile.message_ids == "opaque"
                source = make_source(random, key, name, draft=draft, opaque=opaque, large=profile.large)
                self.sources[key] = source
                program.sources.append(source)
            self.programs.append(program)
            self.sim.after(random.uniform(0.0, 3.0), self.fate, program.start)

    def _make_producers(self) -> None:
        random, judge, profile = self.sim.random, self.judge.doors, self.profile
        for number in range(random.randint(2, 6)):
            name, requests, once = f"producer-{number}", random.randint(2, 12), random.random() < 0.7
            if random.random() < 0.5:
                judge.producers.append(HttpProducer(self, judge, name, requests, tokens=once))
            else:
                requests = BUSY_REQUESTS if profile.busy else requests
                judge.producers.append(KafkaProducer(self, judge, name, requests, idempotent=once))
            self.sim.after(random.uniform(0.0, 3.0), self.fate, judge.producers[-1].start)

    def begin_to_produce(self) -> None:
        """Programs have new messages from now on."""
        self.sim.spawn(self.fate, self._produce())

    def _produce(self) -> Steps:
        """Give the programs new messages, all of them before the faults end."""
        random = self.sim.random
        sources = list(self.sources.values())
        if self.profile.retention:
            # Streams that end early are forgotten while there are faults.
            for source in sources:
                if source.ends:
                    source.produced = len(source.ids)
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
        """Start another driver unless one lives."""
        if not self.driver.alive:
            self.driver = Driver(self, workers)
