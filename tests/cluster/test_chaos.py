"""The short form of ./scripts/chaos, a few real deaths on a standalone cluster, watched as ./scripts/soak does."""

from __future__ import annotations

from pathlib import Path

from proving.chaos.memory import Sampler, draw_memory, growths
from proving.chaos.orders import CONNECTORS
from proving.chaos.report import Run
from proving.chaos.run import LIVENESS_SECONDS, Plan, passed, run
from proving.chaos.schedule import Kind
from proving.chaos.stage import Stage
from tests.conftest import StandaloneCluster

PLAN_SEED = 379
"""This seed's first kills are of a worker, of Redis and of a connector: a driver takes too long to come back here."""


def test_nothing_is_lost_or_repeated_when_parts_die(tmp_path: Path, standalone_cluster: StandaloneCluster) -> None:
    plan = Plan(tmp_path, seed=PLAN_SEED, minutes=0.35, messages=20_000, kills=3, cluster=standalone_cluster.state)
    said: list[str] = []
    samplers: list[Sampler] = []

    def watch(stage: Stage) -> Sampler:
        samplers.append(Sampler(stage))
        return samplers[0]

    outcome: Run = run(plan, said.append, lambda line: None, watch)

    figures = outcome.to_json()
    assert outcome.verdict.clean, said
    assert outcome.verdict.to_json()["sent"] == plan.messages
    assert {blow.fault.kind for blow in outcome.blows} >= {Kind.WORKER, Kind.REDIS, Kind.CONNECTOR}
    assert figures["longest_wait_after_last_fault"] <= LIVENESS_SECONDS
    assert passed(outcome, plan.kills), figures
    assert (tmp_path / "chaos.png").stat().st_size > 0

    # A connector that has sent all ends, and may be looked at while it does.
    watched = {one.role for one in samplers[0].series.values() if max(one.sizes, default=0) > 0}
    assert watched >= {"driver", "Redis", "worker of slot 0", "worker of slot 1"}
    assert len([role for role in watched if role.startswith("connector ")]) == CONNECTORS
    judged = growths(samplers[0].series, 0.0, 1.0)
    draw_memory(samplers[0].series, judged, 0.0, "a short run", tmp_path / "memory.png")
    assert (tmp_path / "memory.png").stat().st_size > 0
