"""The short form of ./scripts/soak: too short to judge memory, long enough to see that everything is watched."""

from __future__ import annotations

import json
from pathlib import Path

from tests.chaos.orders import CONNECTORS
from tests.chaos.soak import soak
from tests.conftest import StandaloneCluster

ALWAYS = ("driver", "Redis", "worker of slot 0", "worker of slot 1")


def test_a_steady_rate_is_committed_once_and_every_process_is_watched(
    tmp_path: Path, standalone_cluster: StandaloneCluster
) -> None:
    said: list[str] = []

    verdict, judged = soak(tmp_path, 0.3, 200, said.append, lambda line: None, cluster=standalone_cluster.state)

    assert verdict.clean, said
    assert verdict.sent == verdict.committed == verdict.acknowledged == 3600
    sizes = {growth.role: growth.last for growth in judged}
    watched = {role: size for role, size in sizes.items() if role in ALWAYS or role.startswith("connector ")}
    assert len(watched) == len(ALWAYS) + CONNECTORS, sizes
    assert all(size > 0 for size in watched.values()), sizes
    assert json.loads((tmp_path / "soak.json").read_text())
    assert (tmp_path / "soak.png").stat().st_size > 0
