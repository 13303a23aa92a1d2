"""The entries of a Redis Stream, from a real server."""

from __future__ import annotations

import contextlib
import json
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from redis import Redis, ResponseError

from proving.servers.redis import RedisServer
from tests.bridges.support import Bridging, refused
from tests.cli.conftest import Run
from tests.sinks.conftest import running
from tests.waiting import SECONDS, eventually
from wallaroo_spark.bridges.sources.redis_stream import EntryStream, RedisBridge
from wallaroo_spark.errors import ConfigurationError
from wallaroo_spark.event_loop import beside
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


def test_latest_keeps_its_beginning_when_a_worker_is_lost_before_the_first_commit(
    redis_url: str, worker: FakeWorker, tmp_path: Path
) -> None:
    name = f"clicks-{uuid.uuid4().hex[:8]}"
    bridging = Bridging(worker, tmp_path, "redis", redis_url, name, "--begin", "latest")
    with Redis.from_url(redis_url) as server, bridging.running():
        server.xadd(name, {"number": 0})
        # From here on its entries are sent: it is read every tenth of a second.
        eventually(lambda: (server.xadd(name, {"number": 1}), worker.status()["memory_used"])[1], pause=0.1)
        worker.read()
        worker.crash()
        server.xadd(name, {"number": 2})
        with worker.committing():
            eventually(lambda: json.loads(bridging.values()[-1])["number"] == "2", bridging.output)

    sent = [json.loads(one)["number"] for one in bridging.values()]
    assert sent == ["1"] * (len(sent) - 1) + ["2"]
    assert len(sent) > 1


def test_a_user_without_the_rights_is_told(redis_url: str, worker: FakeWorker, tmp_path: Path) -> None:
    name = f"clicks-{uuid.uuid4().hex[:8]}"
    with Redis.from_url(redis_url) as server:
        server.xadd(name, {"number": 1})
        server.acl_setuser(name, enabled=True, passwords=["+secret"], keys=["*"], commands=["+xrange", "+ping"])
        url = f"redis://{name}:secret@{redis_url.rpartition('@')[2]}"
        said = refused(Bridging(worker, tmp_path, "redis", url, name))
        server.acl_deluser(name)

    assert f"Redis does not read '{name}' as a stream" in said
    assert "[source-setup]" in said


@pytest.fixture
def newer() -> Iterator[RedisServer]:
    """A Redis that knows what was deleted."""
    yield from running(RedisServer())


@pytest.mark.long
@pytest.mark.parametrize(
    ("delete", "problem"),
    [
        (
            ("XTRIM", "clicks", "MAXLEN", "5"),
            "begins at 16-0, and was read up to 10-0, which is gone, too: entries between may have been trimmed",
        ),
        (
            ("XTRIM", "clicks", "MAXLEN", "0"),
            "is empty, and was read up to 10-0, which is gone, too: entries between may have been trimmed",
        ),
        (("XDEL", "clicks", "15-0"), "was read up to 10-0, and entries up to 15-0 were deleted"),
    ],
)
def test_entries_that_are_deleted_while_the_bridge_is_away_are_refused_or_skipped(
    newer: RedisServer, worker: FakeWorker, tmp_path: Path, delete: tuple[str, ...], problem: str
) -> None:
    bridging = Bridging(worker, tmp_path, "redis", newer.url, "clicks")
    skipping = Bridging(worker, tmp_path, "redis", newer.url, "clicks", "--lost", "skip")
    with Redis.from_url(newer.url) as server, worker.committing():
        for number in range(1, 11):
            server.xadd("clicks", {"number": number}, id=f"{number}-0")
        with bridging.running():
            bridging.wait(10)
        for number in range(11, 21):
            server.xadd("clicks", {"number": number}, id=f"{number}-0")
        server.execute_command(*delete)
        left = [int(entry.split(b"-")[0]) for entry, _ in server.xrange("clicks", min="11")]
        said = refused(bridging)
        with skipping.running():
            server.xadd("clicks", {"number": 21}, id="21-0")
            bridging.wait(10 + len(left) + 1)

    assert problem in said
    assert "[source-changed]" in said
    assert [int(json.loads(one)["number"]) for one in bridging.values()] == [*range(1, 11), *left, 21]
    assert "WARNING Redis Stream 'clicks'" in bridging.output


@pytest.mark.long
def test_entries_that_are_trimmed_while_the_receiver_is_slow_are_an_error(newer: RedisServer, tmp_path: Path) -> None:
    with FakeWorker(memory_budget=1 << 20) as worker, Redis.from_url(newer.url) as server:
        bridging = Bridging(worker, tmp_path, "redis", newer.url, "clicks")
        with bridging.running() as process:
            for _ in range(4):
                server.xadd("clicks", {"text": "x" * 1000})
            worker.commit(4)
            for _ in range(5000):
                server.xadd("clicks", {"text": "x" * 1000})
            server.xtrim("clicks", maxlen=10)
            with worker.committing():
                assert process.wait(SECONDS) == 1

    assert "entries between were trimmed" in bridging.output


@pytest.mark.long
def test_entries_that_were_read_may_be_trimmed(newer: RedisServer, worker: FakeWorker, tmp_path: Path) -> None:
    bridging = Bridging(worker, tmp_path, "redis", newer.url, "clicks")
    with Redis.from_url(newer.url) as server, bridging.running():
        for number in range(5):
            server.xadd("clicks", {"number": number}, maxlen=1, approximate=False)
            worker.commit()
        server.xadd("clicks", {"number": 5}, maxlen=1, approximate=False)
        # It is sent and not committed, and what is committed is no longer there.
        worker.read()
        worker.crash()
        with worker.committing():
            server.xadd("clicks", {"number": 6})
            bridging.wait(7)

    assert [json.loads(one)["number"] for one in bridging.values()] == [str(number) for number in range(7)]


@pytest.mark.long
def test_a_redis_that_is_busy_is_asked_again(newer: RedisServer, worker: FakeWorker, tmp_path: Path) -> None:
    bridging = Bridging(worker, tmp_path, "redis", newer.url, "clicks")
    with Redis.from_url(newer.url) as server, bridging.running(), worker.committing():
        server.config_set("busy-reply-threshold", 1)
        server.xadd("clicks", {"number": 1})
        bridging.wait(1)
        with Redis.from_url(newer.url, socket_timeout=None) as busy, beside_script(busy):
            eventually(lambda: "does not answer; it is tried again" in bridging.output, bridging.output)
            server.script_kill()
        server.xadd("clicks", {"number": 2})
        bridging.wait(2)


@contextmanager
def beside_script(server: Redis) -> Iterator[None]:
    """A script that does not end runs in the server; the block ends it."""

    def run() -> None:
        with contextlib.suppress(ResponseError):
            server.eval("while true do end", 0)

    with beside(run, "script", lambda: None, SECONDS):
        yield


def test_what_redis_knows_of_deleted_entries() -> None:
    stream = EntryStream(RedisBridge("redis://nowhere", "clicks"))

    def facts(deleted: str = "0-0", last: str = "9-0", first: str = "7-4") -> dict[str, Any]:
        return {
            "length": 2,
            "entries-added": 9,
            "last-generated-id": last.encode(),
            "max-deleted-entry-id": deleted.encode(),
            "first-entry": (first.encode(), {}),
        }

    after = 7 << 20 | 3
    assert stream._lost(facts("7-3", first="7-3"), after) == ""
    assert "was read up to 7-3, and entries up to 7-4 were deleted" in stream._lost(facts("7-4", first="7-3"), after)
    # It has all that were ever added.
    assert stream._lost({**facts(), "length": 9}, after) == ""
    # An older Redis does not know it.
    assert stream._lost({"length": 2, "last-generated-id": b"9-0", "first-entry": (b"7-4", {})}, after) == ""
    with pytest.raises(ConfigurationError, match="an entry 1-1048576"):
        stream._lost(facts("1-1048576"), 0)


def test_a_redis_that_does_not_answer_is_named_although_no_worker_does(run: Run) -> None:
    nowhere = f"127.0.0.1:{lasting_port()}"
    done = run("bridge", "redis", f"redis://{nowhere}/0", "clicks", "--workers", nowhere, "--give-up-after", "1")

    assert done.returncode == 1
    assert "source 'clicks' has not answered" in done.stderr
