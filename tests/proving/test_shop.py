"""The shop as a whole: Spark, gateways and workers in processes of their own, some of which are killed."""

from __future__ import annotations

from pathlib import Path

import pytest

from proving.shop.run import ShopPlan, run


@pytest.mark.long
@pytest.mark.spark
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("cluster", [False, True], ids=["local", "cluster"])
def test_the_shop_keeps_its_promises_while_its_parts_are_killed(tmp_path: Path, cluster: bool) -> None:
    lines: list[str] = []

    plan = ShopPlan(
        tmp_path / "shop", orders=30, kills=5, seed=1, pause=5, limit=600, javascript=cluster, cluster=cluster
    )
    done = run(plan, lines.append)

    assert done.passed, (done, lines)
    assert sum(done.kills.values()) >= 3
