"""Processor time from /proc: which process plays which part, and whose time it is."""

from __future__ import annotations

import os
import subprocess
import sys
from itertools import pairwise
from pathlib import Path

import pytest

from proving.bench.usage import TICKS, Process, below, cpu_by_role, grown, memory, parse_stat, processes, role_of
from proving.ticker import Ticker
from tests.waiting import eventually

pytestmark = pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="there is no /proc")


def test_a_stat_line_is_read_whatever_the_name_holds() -> None:
    fields = " ".join(["0"] * 9 + [str(2 * TICKS), str(TICKS), str(TICKS), "0", *["0"] * 5])

    found = parse_stat(f"17 (a ) b (c) S 4 {fields}")

    assert found == Process(17, 4, "a ) b (c", 3.0, 1.0)


def test_children_of_children_are_found() -> None:
    known = {pid: Process(pid, parent, "", 0.0, 0.0) for pid, parent in ((1, 0), (2, 1), (3, 2), (4, 9))}

    assert sorted(process.pid for process in below(known, 1)) == [2, 3]
    assert below(known, 4) == []


@pytest.mark.parametrize(
    ("name", "line", "role"),
    [
        ("java", "java -cp …", "JVM"),
        ("python3", "python -m pyspark.daemon pyspark.worker", "reading tasks"),
        ("python3", "python -m pyspark.daemon pyspark.sql.streaming.python_streaming_source_runner", "planner"),
        ("redis-server", "redis-server 127.0.0.1:1", "Redis"),
        ("python3", "python -m proving.bench.load_generator {}", "sender"),
        ("bash", "bash", None),
    ],
)
def test_a_process_is_known_by_its_command(name: str, line: str, role: str | None) -> None:
    assert role_of(Process(7, 1, name, 0.0, 0.0), line, ()) == role


def test_a_worker_is_known_by_its_id() -> None:
    line = "python -m pyspark.daemon pyspark.worker"

    assert role_of(Process(7, 1, "python3", 0.0, 0.0), line, {7}) == "worker"


def test_the_processor_time_between_two_readings() -> None:
    assert grown({"worker": 1.0}, {"worker": 3.5, "JVM": 2.0}) == {"worker": 2.5, "JVM": 2.0}


def test_a_child_that_works_is_counted() -> None:
    code = "import time\nwhile time.process_time() < 0.1: pass\nprint(flush=True)\ninput()"
    with subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as child:
        assert child.stdout is not None
        child.stdout.readline()
        seconds = cpu_by_role({child.pid})
        resident, peak = memory(child.pid)
        child.communicate(b"\n")

    assert seconds["worker"] > 0
    assert seconds["driver"] > 0
    assert 0 < resident <= peak
    assert os.getpid() in processes()


def test_memory_of_a_process_that_is_gone_is_none() -> None:
    assert memory(2**22 + 1) == (0.0, 0.0)


def test_a_ticker_calls_until_its_end() -> None:
    seen: list[float] = []
    with Ticker(0.001, seen.append) as ticker:
        eventually(lambda: len(seen) > 1)
    count = len(seen)

    assert all(earlier < later for earlier, later in pairwise(seen))
    assert not ticker.alive
    assert len(seen) == count
