"""The lines of objects in a bucket, from a real server."""

from __future__ import annotations

import gzip
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from proving.servers.versitygw import S3Gateway
from tests.bridges.support import Bridging, numbers, refused
from tests.waiting import SECONDS, eventually
from wallaroo_spark.bridges.bridge import position_of
from wallaroo_spark.bridges.sources.s3_objects import LAST
from wallaroo_spark.errors import ArgumentValueError
from wallaroo_spark.testing import FakeWorker

pytestmark = pytest.mark.long


@pytest.fixture(scope="module")
def server() -> Iterator[S3Gateway]:
    """A server, which tests kill and start again."""
    found = S3Gateway()
    try:
        found.start()
        yield found
    finally:
        found.remove()


class Bucket:
    """A bucket of the test's own."""

    def __init__(self, server: S3Gateway) -> None:
        self.server = server
        self.name = f"logs-{uuid.uuid4().hex[:8]}"
        self.client = server.client()
        self.client.create_bucket(Bucket=self.name)

    def put(self, key: str, body: bytes) -> None:
        self.client.put_object(Bucket=self.name, Key=key, Body=body)

    def source(self, *options: str) -> tuple[str, ...]:
        return ("s3", f"s3://{self.name}/web/", "--endpoint", self.server.url, "--poll", "0.1", *options)


@pytest.fixture
def bucket(server: S3Gateway, monkeypatch: pytest.MonkeyPatch) -> Bucket:
    for name, value in server.variables.items():
        monkeypatch.setenv(name, value)
    return Bucket(server)


def lines(worker: FakeWorker) -> dict[str, list[bytes]]:
    found: dict[str, list[bytes]] = {}
    for one in worker.committed.to_pylist():
        found.setdefault(one["stream"], []).append(one["value"])
    return found


def test_lines_are_sent_once_although_the_bridge_is_killed(bucket: Bucket, worker: FakeWorker, tmp_path: Path) -> None:
    bridging = Bridging(worker, tmp_path, *bucket.source())
    whole = b"\n".join(numbers(0, 100_000))
    bucket.put("web/b.log", whole)
    bucket.put("web/c.log.gz", gzip.compress(b"x\r\n\ny\n"))
    bucket.put("web/empty", b"")
    bucket.put("elsewhere", b"not below the prefix\n")
    bridging.killed_before_the_commit(100)
    with bridging.again():
        bridging.wait(100_003)
        bucket.server.stop()
        eventually(lambda: "does not answer" in bridging.output)
        bucket.server.start()
        # A key that is in front of the others in their order, and comes late.
        bucket.put("web/a.log", b"late")
        bridging.wait(100_004)
    with bridging.again():
        bucket.put("web/d.log", b"\n")
        bridging.wait(100_005)

    expected = {"web/a.log": [b"late"], "web/b.log": numbers(0, 100_000), "web/c.log.gz": [b"x\r", b"", b"y"]}
    assert lines(worker) == {**expected, "web/d.log": [b""]}
    last = [one for one in worker.committed.to_pylist() if one["stream"] == "web/c.log.gz"]
    assert [position_of(one["message_id"]) for one in last] == [1, 2, LAST]


def test_an_object_that_is_replaced_is_refused(bucket: Bucket, worker: FakeWorker, tmp_path: Path) -> None:
    bridging = Bridging(worker, tmp_path, *bucket.source())
    bucket.put("web/a.log", b"a\nb\n")
    with worker.committing():
        with bridging.running() as process:
            bridging.wait(2)
            bucket.put("web/a.log", b"c\nd\ne\n")
            assert process.wait(SECONDS) == 1
        assert f"the object s3://{bucket.name}/web/a.log was replaced" in bridging.output
        assert f"the object s3://{bucket.name}/web/a.log was deleted and made again" in refused(bridging)
    assert bridging.values() == [b"a", b"b"]


def test_an_object_that_goes_before_it_is_begun_does_not_end_the_bridge(bucket: Bucket, tmp_path: Path) -> None:
    bucket.put("web/a.log", b"\n".join(numbers(0, 300_000)))
    for name in "bcd":
        bucket.put(f"web/{name}.log", name.encode())
    with FakeWorker(memory_budget=1 << 20) as worker:
        bridging = Bridging(worker, tmp_path, *bucket.source("--parallel", "1"))
        with bridging.running():
            # One at a time, and the first waits for credit.
            worker.read()
            bucket.client.delete_object(Bucket=bucket.name, Key="web/b.log")
            bucket.put("web/c.log", b"another\n")
            with worker.committing():
                eventually(lambda: {b"another", b"d"} <= {*bridging.values()}, bridging.output, pause=0.1)
        found = lines(worker)

    assert found["web/a.log"] == numbers(0, 300_000)
    # The end of a stream without lines is a boundary.
    assert [found[f"web/{name}.log"] for name in "bcd"] == [[None], [None, b"another"], [b"d"]]
    assert bridging.output.count("was replaced or deleted before it was begun") == 2


def test_keys_in_front_of_a_key_may_be_left_out(bucket: Bucket, worker: FakeWorker, tmp_path: Path) -> None:
    bucket.put("web/a.log", b"a")
    bucket.put("web/b.log", b"b")
    bridging = Bridging(worker, tmp_path, *bucket.source("--start-after", "web/a.log"))
    with bridging.running(), worker.committing():
        bridging.wait(1)
    assert bridging.values() == [b"b"]


def test_many_objects_are_sent_some_at_a_time(bucket: Bucket, worker: FakeWorker, tmp_path: Path) -> None:
    for number in range(200):
        bucket.put(f"web/{number:03}", b"%d" % number)
    bridging = Bridging(worker, tmp_path, *bucket.source("--parallel", "2"))
    bridging.killed_before_the_commit(10)
    with bridging.again():
        bridging.wait(200)
    assert sorted(bridging.values(), key=int) == numbers(0, 200)


def test_a_url_without_a_bucket_is_refused() -> None:
    from wallaroo_spark.bridges.sources.s3_objects import S3Bridge

    wrong: Any = "logs/web"
    with pytest.raises(ArgumentValueError, match="'logs/web' is no URL of objects; write s3://BUCKET/PREFIX"):
        S3Bridge(wrong)
