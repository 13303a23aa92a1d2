"""send with a topic: a real publisher on one side, a real worker whose messages are committed on the other."""

from __future__ import annotations

import json
import os
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cli.conftest import COOKIE, PROGRAM, Desk, Run
from tests.pubsub.running import COOKIE as TOPIC_COOKIE
from tests.pubsub.running import TOPIC, Stage, new_stage
from tests.waiting import SECONDS, eventually
from wallaroo_spark.cli.send.view import InputProgress, summary


@pytest.fixture
def stage(redis_url: str, tmp_path: Path) -> Iterator[Stage]:
    with new_stage(tmp_path, redis_url) as made:
        made.announce()
        yield made


def acknowledged(desk: Desk) -> set[int]:
    return {reference for streams in desk.references.values() for reference in streams.values()}


def test_a_topic_continues_behind_the_acknowledged_message(desk: Desk, stage: Stage) -> None:
    command = [
        *PROGRAM, "send", f"topic:{TOPIC}", "--registry", desk.url, "--receiver", desk.receiver, "--cookie", COOKIE,
        "--topic-cookie", TOPIC_COOKIE, "--instance", "between", "--json",
    ]  # fmt: skip
    counts = []
    with stage.publisher():
        for batch in range(2):
            # Rows that are published between two runs are sent by the next run; the first run begins with the next
            # epoch.
            if batch:
                stage.publish(batch, [7])
                stage.commit(batch)
            with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
                if not batch:
                    eventually(lambda: stage.services[-1].machine.subscribers == 1)
                    stage.publish(0, [1, 2, 3])
                    stage.commit(0)
                last = (1 << 32) if batch else 2
                eventually(lambda last=last: last in acknowledged(desk))
                os.kill(process.pid, signal.SIGTERM)
                shown, errors = process.communicate(timeout=SECONDS)
            assert process.returncode == 143, errors
            (file,) = json.loads(shown.splitlines()[-1])["files"]
            assert file["file"] == "topic:totals:history"
            counts.append(file["messages"])

    assert counts == [3, 1]


def test_a_topic_needs_a_registry(run: Run) -> None:
    ended = run("send", "topic:totals", "--workers", "a:1")

    assert ended.returncode == 2
    assert "give --topic-registry URL" in ended.stderr


def test_a_summary_has_the_totals_of_a_topic() -> None:
    going, done = (
        InputProgress("topic:t", None, True, messages=3, bytes=30, outcome=outcome) for outcome in ("", "done")
    )

    assert summary(going, 1.0) == "topic:t: 3 messages (30 B) sent; it may go on"
    assert summary(done, 1.0) == "topic:t: 3 messages (30 B) sent and acknowledged"
