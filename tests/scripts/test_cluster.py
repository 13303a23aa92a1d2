"""scripts/cluster ends only the processes that it started, reports the running ones, and starts none twice."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import run_cluster
from tests.waiting import SECONDS

SLEEPER = "import sys; print('up', flush=True); sys.stdin.read()"


@pytest.fixture
def bystander() -> Iterator[subprocess.Popen[str]]:
    """A process of somebody else's, which runs until its standard input is closed."""
    with subprocess.Popen(
        [sys.executable, "-c", SLEEPER], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "up\n"
        yield process
        process.kill()


def write_down(state: Path, pid: int, start: str) -> None:
    daemon = {"name": "master", "pid": pid, "start": start}
    saved: dict[str, Any] = {"url": "spark://127.0.0.1:1", "ui": "http://127.0.0.1:1", "daemons": [daemon]}
    (state / "cluster.json").write_text(json.dumps(saved), encoding="utf-8")


def start_of(pid: int) -> str:
    """The start time as scripts/cluster.py sees it, asked in a process of its own as the script is no module."""
    script = Path(__file__).parents[2] / "scripts" / "cluster.py"
    program = "import runpy, sys; print(runpy.run_path(sys.argv[1])['start_stamp'](int(sys.argv[2])))"
    return subprocess.run(
        [sys.executable, "-c", program, str(script), str(pid)], capture_output=True, text=True, check=True
    ).stdout.strip()


def test_stop_leaves_a_process_alone_that_only_inherited_the_id(
    tmp_path: Path, bystander: subprocess.Popen[str]
) -> None:
    write_down(tmp_path, bystander.pid, start="1")

    stopped = run_cluster(tmp_path, "stop")

    assert stopped.returncode == 0, stopped.stderr
    assert bystander.poll() is None
    assert not (tmp_path / "cluster.json").exists()


def test_stop_ends_the_process_that_was_written_down(tmp_path: Path, bystander: subprocess.Popen[str]) -> None:
    write_down(tmp_path, bystander.pid, start=start_of(bystander.pid))

    stopped = run_cluster(tmp_path, "stop")

    assert stopped.returncode == 0, stopped.stderr
    assert bystander.wait(timeout=SECONDS) == -15


def test_start_refuses_a_second_cluster_in_the_same_directory(tmp_path: Path, bystander: subprocess.Popen[str]) -> None:
    write_down(tmp_path, bystander.pid, start=start_of(bystander.pid))

    refused = run_cluster(tmp_path, "start")

    assert refused.returncode == 1
    assert "runs already" in refused.stderr
    assert "stop it first" in refused.stderr
    assert bystander.poll() is None


@pytest.mark.parametrize("verb", ["url", "status"])
def test_without_a_cluster_the_way_to_start_one_is_named(tmp_path: Path, verb: str) -> None:
    asked = run_cluster(tmp_path, verb)

    assert asked.returncode == 1
    assert asked.stdout == ""
    assert "scripts/cluster start" in asked.stderr


def test_stop_is_content_when_there_is_nothing_to_stop(tmp_path: Path) -> None:
    stopped = run_cluster(tmp_path, "stop")

    assert stopped.returncode == 0
    assert stopped.stdout == "nothing to stop\n"


@pytest.mark.parametrize("option", ["--workers", "--cores"])
def test_a_cluster_without_workers_or_cores_is_refused(tmp_path: Path, option: str) -> None:
    refused = run_cluster(tmp_path, "start", option, "0")

    assert refused.returncode == 2
    assert "must be at least 1" in refused.stderr


def test_a_memory_size_without_a_unit_is_refused(tmp_path: Path) -> None:
    refused = run_cluster(tmp_path, "start", "--memory", "plenty")

    assert refused.returncode == 2
    assert "--memory plenty cannot be read" in refused.stderr
