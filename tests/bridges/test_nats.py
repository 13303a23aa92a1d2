"""The messages of a NATS JetStream stream, from a real server."""

from __future__ import annotations

import asyncio
import time
import uuid
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

import nats
import pytest
from nats.js import JetStreamContext

from proving.servers.nats import NatsServer
from tests.bridges.support import Bridging, numbers, refused
from tests.sinks.conftest import running
from tests.waiting import SECONDS, eventually
from wallaroo_spark.bridges.bridge import position_of
from wallaroo_spark.testing import FakeWorker

pytestmark = pytest.mark.long


@pytest.fixture
def server() -> Iterator[NatsServer]:
    """A server that the test may kill."""
    yield from running(NatsServer())


class Stream:
    """A stream of the test's own."""

    def __init__(self, server: NatsServer) -> None:
        self.server = server
        self.name = f"S{uuid.uuid4().hex[:8]}"
        self.make()

    def make(self, **config: Any) -> None:
        self.do(lambda js: js.add_stream(name=self.name, subjects=[f"{self.name}.>"], **config))

    def publish(self, *payloads: bytes, subject: str = "a") -> None:
        async def all_of_them(js: JetStreamContext) -> None:
            for one in payloads:
                await js.publish(f"{self.name}.{subject}", one)

        self.do(all_of_them)

    def do(self, work: Callable[[JetStreamContext], Awaitable[Any]]) -> None:
        async def connected() -> None:
            async with await nats.connect(self.server.url) as connection:
                await work(connection.jetstream())

        asyncio.run(connected())

    def source(self, *options: str) -> tuple[str, ...]:
        return ("nats", self.server.url, self.name, *options)


@pytest.fixture
def stream(server: NatsServer) -> Stream:
    return Stream(server)


def test_messages_are_sent_once_although_bridge_and_server_are_killed(
    stream: Stream, worker: FakeWorker, tmp_path: Path
) -> None:
    bridging = Bridging(worker, tmp_path, *stream.source())
    stream.publish(*numbers(0, 1000))
    bridging.killed_before_the_commit(100)
    with bridging.again():
        bridging.wait(1000)
        stream.server.stop()
        eventually(lambda: f"'{stream.name}' does not answer" in bridging.output)
        stream.server.start()
        stream.publish(b"", subject="b")
        bridging.wait(1001)

    assert bridging.values() == [*numbers(0, 1000), b""]
    last = worker.committed.to_pylist()[-1]
    assert (position_of(last["message_id"]), last["key"]) == (1001, f"{stream.name}.b".encode())


def test_a_file_of_credentials_needs_no_other_package(stream: Stream, worker: FakeWorker, tmp_path: Path) -> None:
    file = tmp_path / "user.creds"
    file.write_text("of no use to a server that lets everybody in", encoding="utf-8")
    stream.publish(b"1")
    bridging = Bridging(worker, tmp_path, *stream.source("--credentials", str(file)))
    with bridging.running(), worker.committing():
        bridging.wait(1)

    assert bridging.values() == [b"1"]


def test_one_subject_may_be_read(stream: Stream, worker: FakeWorker, tmp_path: Path) -> None:
    stream.publish(b"1", b"2")
    stream.publish(b"3", subject="b.c")
    stream.publish(b"4")
    bridging = Bridging(worker, tmp_path, *stream.source("--subject", f"{stream.name}.b.>"))
    with bridging.running(), worker.committing():
        bridging.wait(1)
        stream.publish(b"5", subject="b.d")
        bridging.wait(2)
    assert bridging.values() == [b"3", b"5"]


def test_a_stream_that_is_made_again_is_refused(stream: Stream, worker: FakeWorker, tmp_path: Path) -> None:
    bridging = Bridging(worker, tmp_path, *stream.source())
    stream.publish(b"a", b"b")
    with worker.committing():
        with bridging.running() as process:
            bridging.wait(2)
            stream.do(lambda js: js.delete_stream(stream.name))
            stream.make()
            stream.publish(*numbers(0, 5))
            assert process.wait(SECONDS) == 1
        assert refused(bridging).count(f"the JetStream stream '{stream.name}' was deleted and made again") == 2
    assert bridging.values() == [b"a", b"b"]


def test_messages_that_are_deleted_are_refused_or_skipped(stream: Stream, worker: FakeWorker, tmp_path: Path) -> None:
    bridging = Bridging(worker, tmp_path, *stream.source())
    stream.publish(*numbers(0, 10))
    with bridging.running(), worker.committing():
        bridging.wait(10)
    stream.publish(*numbers(10, 20))
    stream.do(lambda js: js.purge_stream(stream.name, seq=16))
    with worker.committing():
        assert "begins at position 16, and is committed up to 10" in refused(bridging)
        skipping = Bridging(worker, tmp_path, *stream.source("--lost", "skip"))
        with skipping.running():
            skipping.wait(15)
    assert bridging.values() == [*numbers(0, 10), *numbers(15, 20)]


@pytest.mark.parametrize("kept", [10, 0])
def test_messages_that_are_deleted_while_the_receiver_is_slow_are_an_error(
    stream: Stream, tmp_path: Path, kept: int
) -> None:
    with FakeWorker(memory_budget=1 << 20) as worker:
        bridging = Bridging(worker, tmp_path, *stream.source())
        with bridging.running() as process:
            stream.publish(*numbers(0, 10))
            worker.commit(10)
            stream.publish(*[bytes(1000)] * 5000)
            stream.do(lambda js: js.purge_stream(stream.name, keep=kept))
            with worker.committing():
                assert process.wait(SECONDS) == 1

    assert f"the JetStream stream '{stream.name}' begins at position {5011 - kept}, and is committed up to" in (
        bridging.output
    )


def test_messages_of_other_subjects_may_be_deleted(stream: Stream, worker: FakeWorker, tmp_path: Path) -> None:
    bridging = Bridging(worker, tmp_path, *stream.source("--subject", f"{stream.name}.b"))
    stream.publish(b"1", subject="b")
    with bridging.running(), worker.committing():
        bridging.wait(1)
        for number in range(2, 5):
            stream.publish(*numbers(0, 100))
            # Longer than the bridge's requests: it has seen that none of them is for it.
            time.sleep(1)
            stream.do(lambda js: js.purge_stream(stream.name))
            stream.publish(b"%d" % number, subject="b")
            bridging.wait(number)
    assert bridging.values() == numbers(1, 5)


def test_a_stream_whose_messages_go_when_others_acknowledge_them_is_refused(
    server: NatsServer, worker: FakeWorker, tmp_path: Path
) -> None:
    stream = Stream(server)
    stream.do(lambda js: js.delete_stream(stream.name))
    stream.make(retention="workqueue")
    assert "has the retention workqueue" in refused(Bridging(worker, tmp_path, *stream.source()))
