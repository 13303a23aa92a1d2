"""The history of one seed: two sides, the network between them, and what is checked at its end."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from proving.aqueduct.judge import Judge
from proving.aqueduct.network import Network
from proving.aqueduct.profile import draw_profile
from proving.aqueduct.side import SimulatedSide
from proving.aqueduct.surroundings import Surroundings
from proving.aqueduct.wire import Wire
from proving.simulator.engine.core import Part, Simulation, Violation
from proving.simulator.engine.history import History
from wallaroo_spark.aqueduct.frames import Headers, Side

PATIENCE_SECONDS = 300.0
"""Seconds after the applications' last action within which all channels have ended."""
REST_SECONDS = 400.0
"""Further seconds after which a machine holds nothing, longer than the latest arrival and all memories."""
MOST_STEPS = 200_000


@dataclass(frozen=True)
class Report:
    """The result of one history."""

    seed: int
    """The seed of the history."""
    steps: int
    """How many steps it took."""
    counts: Counter[str]
    """How often each thing happened, by its name."""
    digest: str
    """A fingerprint of the history; two runs of one seed have the same."""
    violation: str = ""
    """The broken promise; empty when every promise was kept."""
    history: str = ""
    """The end of the history; empty when every promise was kept."""


class World:
    """All parts of one history."""

    def __init__(self, seed: int, *, verbose: bool = False, **changes: Any) -> None:
        self.seed = seed
        self.history = History(verbose=verbose, shown=120)
        self.sim = Simulation(seed, self.history)
        self.profile = replace(draw_profile(self.sim.random), **changes)
        self.judge = Judge(self.profile)
        self.network = Network(self.sim, self.profile)
        wire = Wire(self.sim, self.judge.ledger, self.profile.limits.nack_delay)
        headers: dict[Side, Headers] = {side: ((side.name.lower(), bytes(range(side, 20))),) for side in Side}
        around = Surroundings(self.sim, self.profile, self.judge, wire, self.network, headers)
        self.sides = {side: SimulatedSide(around, side) for side in Side}
        self.network.join(*self.sides.values())

    def run(self) -> Report:
        """Run the history to its end."""
        try:
            self._begin()
            self._run_until(lambda: not self._waiting(), PATIENCE_SECONDS)
            if waiting := self._waiting():
                raise Violation(f"not done after {self.sim.now:.0f} s: {'; '.join(waiting)}")
            end = self.sim.now + REST_SECONDS
            self._run_until(lambda: self.sim.now > end, REST_SECONDS + 1)
            self._check_the_end()
        except Exception as error:
            what = str(error) if isinstance(error, Violation) else f"{type(error).__name__}: {error}"
            self.sim.log("VIOLATION", what)
            return self._report(what)
        return self._report("")

    def _begin(self) -> None:
        client, server = self.sides[Side.CLIENT], self.sides[Side.SERVER]
        client.follow()
        server.follow()
        hello = self.sim.latency()
        self.sim.after(0.0 if self.profile.early else hello, client.part, client.handshake_completes)
        self.sim.after(hello + self.sim.latency(), server.part, server.handshake_completes)
        nobody = Part("fate")
        if self.profile.cut is not None:
            self.sim.at(self.profile.cut, nobody, lambda: self.network.end(0, "the network is gone", None))
        if self.profile.closes is not None:
            closing = self.sim.random.choice((client, server))
            self.sim.at(self.profile.closes, nobody, lambda: None if closing.over else closing.event("close", "bye"))

    def _all_left(self) -> bool:
        return all(side.application.leaving or side.over for side in self.sides.values())

    def _waiting(self) -> list[str]:
        unfinished = self.judge.unfinished()
        if self.judge.over:
            return [f"the {side.part.name}" for side in self.sides.values() if not side.over]
        return unfinished if self._all_left() else ["an application", *unfinished]

    def _run_until(self, done: Callable[[], bool], seconds: float) -> None:
        look, end = self.sim.now, None
        while True:
            if self.sim.now >= look:
                look = self.sim.now + 0.5
                if done():
                    return
                if end is None and self._all_left():
                    end = self.sim.now + seconds
                if end is not None and self.sim.now > end:
                    return
            if not self.sim.step():
                return
            if self.sim.steps > MOST_STEPS:
                raise Violation(f"more than {MOST_STEPS} steps and no end")

    def _check_the_end(self) -> None:
        if not self.judge.over:
            self.judge.nothing_is_lost()
        for side in self.sides.values():
            self.judge.nothing_is_left(side.side, side.machine)

    def _report(self, violation: str) -> Report:
        counts = self.history.counts + self.judge.counts
        counts["channels"] = len(self.judge.ledger.channels)
        counts["connections lost" if self.judge.over else "connections without a fault"] += 1
        history = self.history.last_lines() if violation else ""
        return Report(self.seed, self.sim.steps, counts, self.history.digest, violation, history)


def simulate(seed: int, *, verbose: bool = False, **changes: Any) -> Report:
    """Run the history of a seed, with ``changes`` to the profile that it draws."""
    return World(seed, verbose=verbose, **changes).run()
