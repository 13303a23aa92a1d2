"""The short form of ./scripts/chaos: a few real deaths on a standalone cluster."""

from __future__ import annotations

from pathlib import Path

from tests.chaos.report import Run
from tests.chaos.run import LIVENESS_SECONDS, Plan, passed, run
from tests.chaos.schedule import Kind
from tests.conftest import StandaloneCluster

PLAN_SEED = 1
"""This seed's first kills are of a worker, of Redis and of a connector: a driver takes too long to come back here."""


def test_nothing_is_lost_or_repeated_when_parts_die(tmp_path: Path, standalone_cluster: StandaloneCluster) -> None:
    plan = Plan(tmp_path, seed=PLAN_SEED, minutes=0.35, messages=20_000, kills=3, cluster=standalone_cluster.state)
    said: list[str] = []

    outcome: Run = run(plan, said.append, lambda line: None)

    figures = outcome.to_json()
    assert outcome.verdict.clean, said
    assert outcome.verdict.sent == plan.messages
    assert {blow.fault.kind for blow in outcome.blows} >= {Kind.WORKER, Kind.REDIS, Kind.CONNECTOR}
    assert figures["longest_wait_after_last_fault"] <= LIVENESS_SECONDS
    assert passed(outcome, plan.kills), figures
    assert (tmp_path / "chaos.png").stat().st_size > 0
