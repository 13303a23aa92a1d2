"""scripts/cluster with a real Spark: what it tells of a cluster that runs, and a start that fails."""

from __future__ import annotations

from pathlib import Path

from tests.conftest import StandaloneCluster, run_cluster


def test_status_and_url_tell_of_the_running_cluster(standalone_cluster: StandaloneCluster) -> None:
    status = run_cluster(standalone_cluster.state, "status")

    assert status.returncode == 0, status.stdout + status.stderr
    assert "2 of 2 workers registered, 0 of 4 cores in use" in status.stdout
    assert run_cluster(standalone_cluster.state, "url").stdout == f"{standalone_cluster.url}\n"


def test_a_start_that_fails_leaves_nothing_behind(tmp_path: Path) -> None:
    failed = run_cluster(tmp_path, "start", "--workers", "1", "--memory", "0g")

    assert failed.returncode == 1
    assert "ended before all 1 workers are registered" in failed.stderr
    assert not (tmp_path / "cluster.json").exists()
