"""The shop as a whole: Spark, gateways and workers in processes of their own, some of which are killed."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from proving.shop.run import ShopPlan, run
from tests.conftest import ROOT


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


@pytest.mark.long
@pytest.mark.spark
@pytest.mark.timeout(600)
@pytest.mark.parametrize("stage", ["starting a Spark cluster", "publishing"])
def test_an_interrupted_shop_leaves_no_process(tmp_path: Path, stage: str) -> None:
    output = str(tmp_path / "shop")
    command = [sys.executable, "-m", "proving.shop", "--orders", "5", "--no-javascript", "--output", output]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True, start_new_session=True) as shop:
        assert shop.stdout is not None
        for line in shop.stdout:
            if stage in line:
                break
        os.killpg(shop.pid, signal.SIGINT)
        rest = shop.stdout.read()

    assert shop.returncode == 130, rest
    assert "There is no verdict" in rest
    # A process that has ended, and that nobody has waited for, has no command line.
    commands = [one.info["cmdline"] or () for one in psutil.process_iter(["cmdline"])]
    assert [words for words in commands if output in " ".join(words)] == []
