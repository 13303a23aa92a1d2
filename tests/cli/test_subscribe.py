"""subscribe, as a process, against a real publisher whose batches the test commits."""

from __future__ import annotations

import json
import os
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import IO

import pytest

from tests.cli.conftest import PROGRAM, Run
from tests.pubsub.running import COOKIE, TOPIC, Stage, new_stage
from tests.waiting import SECONDS, eventually


@pytest.fixture
def stage(redis_url: str, tmp_path: Path) -> Iterator[Stage]:
    with new_stage(tmp_path, redis_url) as made:
        made.announce()
        yield made


def follow(stage: Stage, *arguments: str) -> subprocess.Popen[str]:
    """The command, started, and known to its publisher."""
    command = [*PROGRAM, "subscribe", TOPIC, "--registry", stage.registry, "--cookie", COOKIE, *arguments]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    eventually(lambda: stage.services[-1].machine.subscribers == 1 or process.poll() is not None)
    return process


def line_of(file: IO[str] | None) -> str:
    assert file is not None
    return file.readline()


def test_rows_are_lines_of_json_as_they_come(stage: Stage) -> None:
    with stage.publisher(), follow(stage, "--json", "--limit", "3", "--frontier") as process:
        assert json.loads(line_of(process.stdout)) == {"frontier": [0]}
        stage.publish(0, [1, 2])
        stage.commit(0)
        assert [json.loads(line_of(process.stdout)) for _ in range(3)] == [
            {"epoch": 0, "partition": 0, "row": {"n": 1}},
            {"epoch": 0, "partition": 0, "row": {"n": 2}},
            {"frontier": [1]},
        ]
        stage.publish(1, [3, 4])
        stage.commit(1)
        shown, errors = process.communicate(timeout=SECONDS)

    assert process.returncode == 0, errors
    assert [json.loads(line) for line in shown.splitlines()] == [{"epoch": 1, "partition": 0, "row": {"n": 3}}]
    assert errors == ""


def test_without_json_each_epoch_is_a_table(stage: Stage) -> None:
    with stage.publisher(), follow(stage, "--limit", "2") as process:
        stage.publish(0, [17])
        stage.commit(0)
        stage.publish(1, [18])
        stage.commit(1)
        shown, errors = process.communicate(timeout=SECONDS)

    assert process.returncode == 0, errors
    assert [line.split() for line in shown.splitlines() if line.strip()] == [
        ["epoch", "0,", "1", "row"], ["n"], ["17"], ["epoch", "1,", "1", "row"], ["n"], ["18"],
    ]  # fmt: skip


@pytest.mark.parametrize(("number", "status"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_signal_ends_it_in_good_order(stage: Stage, number: signal.Signals, status: int) -> None:
    with stage.publisher(), follow(stage, "--json", "--frontier") as process:
        assert "frontier" in line_of(process.stdout)
        os.kill(process.pid, number)
        _, errors = process.communicate(timeout=SECONDS)
        eventually(lambda: stage.services[-1].machine.subscribers == 0)

    assert process.returncode == status, errors
    assert "Traceback" not in errors


def test_a_reader_that_goes_away_ends_it(stage: Stage) -> None:
    with stage.publisher(), follow(stage, "--json", "--frontier") as process:
        assert process.stdout is not None
        line_of(process.stdout)
        process.stdout.close()
        for batch in range(2):
            stage.publish(batch, [1])
            stage.commit(batch)
        assert process.stderr is not None
        errors = process.stderr.read()
        process.wait(SECONDS)

    assert "Traceback" not in errors
    assert process.returncode == 1


def test_an_error_is_one_sentence(stage: Stage, run: Run) -> None:
    missing = run("subscribe", "others", "--registry", stage.registry)
    with stage.publisher():
        refused = run("subscribe", TOPIC, "--registry", stage.registry, "--cookie", "env:MINE", MINE="not-the-cookie")

    assert (missing.returncode, refused.returncode) == (1, 1)
    assert "Error: topic 'others' has no publisher" in missing.stderr
    assert "the cookie is not the one of this topic" in refused.stderr
    assert "not-the-cookie" not in refused.stderr
    assert "Traceback" not in missing.stderr + refused.stderr
