"""The entries of a Redis Stream, from a real server."""

from __future__ import annotations

import json
import uuid
from pathlib import Path

import pytest
from redis import Redis

from tests.bridges.support import Bridging, refused
from tests.cli.conftest import Run
from wallaroo_spark.bridges.sources.redis_stream import EntryStream, RedisBridge
from wallaroo_spark.errors import ConfigurationError, ReplayError
from wallaroo_spark.registry.embedded import lasting_port
from wallaroo_spark.testing import FakeWorker


def test_entries_are_sent_once_although_the_bridge_is_killed(
    redis_url: str, worker: FakeWorker, tmp_path: Path
) -> None:
    name = f"clicks-{uuid.uuid4().hex[:8]}"
    bridging = Bridging(worker, tmp_path, "redis", redis_url, name)
    with Redis.from_url(redis_url) as server:
        for number in range(1000):
            server.xadd(name, {"number": number, b"raw": b"\xff"})
        bridging.killed_before_the_commit(100)
        with bridging.again():
            server.xadd(name, {"number": 1000, b"raw": b"\xff"})
            bridging.wait(1001)

    assert [json.loads(one) for one in bridging.values()] == [
        {"number": str(number), "raw": "\\xff"} for number in range(1001)
    ]


def test_evil_entries_are_sent_as_they_are(redis_url: str, worker: FakeWorker, tmp_path: Path) -> None:
    name = f"clicks-{uuid.uuid4().hex[:8]}"
    entries: list[tuple[bytes | str, ...]] = [
        ("1-1", "a", "1", "a", "2"),
        ("1-2", b"\xff", "1", "\\xff", "2"),
        ("1-3", "", b"\0\xed\xa0\x80"),
        # Milliseconds behind the year 2262.
        ("9300000000000-0", "a", "late"),
    ]
    bridging = Bridging(worker, tmp_path, "redis", redis_url, name)
    with Redis.from_url(redis_url) as server:
        for entry in entries:
            server.execute_command("XADD", name, *entry)
        with bridging.running(), worker.committing():
            bridging.wait(4)

    assert [json.loads(one, object_pairs_hook=list) for one in bridging.values()] == [
        [("a", "1"), ("a", "2")],
        [("\\xff", "1"), ("\\xff", "2")],
        [("", "\0\\xed\\xa0\\x80")],
        [("a", "late")],
    ]
    assert worker.committed["event_time"].to_pylist()[3] is None


def test_a_key_that_is_no_stream_is_refused(redis_url: str, worker: FakeWorker, tmp_path: Path) -> None:
    name = f"clicks-{uuid.uuid4().hex[:8]}"
    with Redis.from_url(redis_url) as server:
        server.set(name, "a text")
        said = refused(Bridging(worker, tmp_path, "redis", redis_url, name))

    assert f"Redis does not read '{name}' as a stream: WRONGTYPE" in said
    assert "[source-setup]" in said


async def test_latest_begins_behind_what_is_there(redis_url: str) -> None:
    name = f"clicks-{uuid.uuid4().hex[:8]}"
    with Redis.from_url(redis_url) as server:
        server.xadd(name, {"number": 1}, id="7-3")
        groups = EntryStream(RedisBridge(redis_url, name, begin="latest")).records(None)
        assert await anext(groups) == []
        server.xadd(name, {"number": 2}, id="7-4")
        while not (group := await anext(groups)):
            pass
        await groups.aclose()

    assert [(one.id, one.payload) for one in group] == [(7 << 20 | 4, b'{"number": "2"}')]


async def test_entries_that_are_gone_are_an_error() -> None:
    stream = EntryStream(RedisBridge("redis://nowhere", "clicks"))

    stream._check(b"7-3", 7 << 20 | 3)
    with pytest.raises(ReplayError, match="'clicks' was trimmed up to 7-4, and the entries behind 7-3"):
        stream._check(b"7-4", 7 << 20 | 3)
    with pytest.raises(ConfigurationError, match="an entry 1-1048576"):
        stream._check(b"1-1048576", 0)


def test_a_redis_that_does_not_answer_is_named_although_no_worker_does(run: Run) -> None:
    nowhere = f"127.0.0.1:{lasting_port()}"
    done = run("bridge", "redis", f"redis://{nowhere}/0", "clicks", "--workers", nowhere, "--give-up-after", "1")

    assert done.returncode == 1
    assert "source 'clicks' has not answered" in done.stderr
