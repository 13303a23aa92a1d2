"""The messages of RabbitMQ's queues and streams, from a real broker."""

from __future__ import annotations

import asyncio
import struct
import uuid
from collections.abc import Awaitable, Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import aiormq
import pamqp.encode
import pytest
from aiormq.abc import AbstractChannel
from pamqp.commands import Basic

from proving.servers.rabbitmq import RabbitServer
from tests.bridges.support import Bridging, numbers, refused
from tests.sinks.conftest import running
from tests.waiting import SECONDS, eventually
from wallaroo_spark.bridges.bridge import position_of
from wallaroo_spark.testing import FakeWorker

pytestmark = pytest.mark.long


@pytest.fixture(scope="module")
def server() -> Iterator[RabbitServer]:
    """A broker, which tests kill and start again."""
    yield from running(RabbitServer())


class Queue:
    """A queue of the test's own."""

    def __init__(self, server: RabbitServer, kind: str) -> None:
        self.server = server
        self.kind = kind
        self.name = f"orders-{uuid.uuid4().hex[:8]}"
        self.make()

    def make(self, **more: Any) -> None:
        arguments = {"x-queue-type": self.kind, **more}
        self.do(lambda channel: channel.queue_declare(self.name, durable=True, arguments=arguments))

    def publish(self, *payloads: bytes, **properties: Any) -> None:
        """Publish, and wait until the broker has all of them."""

        async def publish(channel: AbstractChannel) -> None:
            facts = Basic.Properties(delivery_mode=2, **properties)
            await asyncio.gather(
                *(channel.basic_publish(one, routing_key=self.name, properties=facts) for one in payloads)
            )

        self.do(publish)

    def delete(self) -> None:
        self.do(lambda channel: channel.queue_delete(self.name))

    def count(self) -> int:
        found: list[int] = []

        async def ask(channel: AbstractChannel) -> None:
            found.append((await channel.queue_declare(self.name, passive=True)).message_count or 0)

        self.do(ask)
        return found[0]

    def is_open(self) -> bool:
        """Whether the broker, which has just started, has opened it."""
        try:
            self.count()
        except aiormq.AMQPError:
            return False
        return True

    def do(self, work: Callable[[AbstractChannel], Awaitable[Any]]) -> None:
        async def connected() -> None:
            connection = await aiormq.connect(self.server.url)
            try:
                await work(await connection.channel())
            finally:
                await connection.close()

        asyncio.run(connected())

    def source(self, *options: str) -> tuple[str, ...]:
        return ("rabbitmq-stream" if self.kind == "stream" else "rabbitmq", self.server.url, self.name, *options)


@pytest.fixture
def stream(server: RabbitServer) -> Queue:
    return Queue(server, "stream")


SMALL_SEGMENTS = {"x-stream-max-segment-size-bytes": 20_000}


def publish_large(stream: Queue) -> list[bytes]:
    """Publish a thousand different messages that fill many small segments, some at a time; they are returned."""
    large = [one.ljust(1000) for one in numbers(0, 1000)]
    for first in range(0, len(large), 10):
        stream.publish(*large[first : first + 10])
    return large


def again(server: RabbitServer, bridging: Bridging, queue: Queue) -> None:
    """Kill the broker, and start it when the bridge has noticed."""
    server.stop()
    eventually(lambda: f"'{queue.name}' does not answer" in bridging.output)
    server.start()
    eventually(queue.is_open, pause=0.5)


@pytest.mark.parametrize("kind", ["classic", "quorum"])
def test_messages_of_a_queue_stay_at_the_broker_until_their_commit(
    server: RabbitServer, worker: FakeWorker, tmp_path: Path, kind: str
) -> None:
    queue = Queue(server, kind)
    queue.publish(*numbers(0, 500), timestamp=datetime(2026, 1, 2, tzinfo=UTC))
    bridging = Bridging(worker, tmp_path, *queue.source())
    with bridging.running():
        worker.read(500)
    # What the bridge had sent is lost with the worker: only the broker has it.
    worker.crash()
    with bridging.again():
        bridging.wait(500)
        again(server, bridging, queue)
        queue.publish(b"")
        eventually(lambda: b"" in bridging.values(), bridging.output)

    # Acknowledged when it was committed, so that it does not come again, in the order in which it came.
    assert list(dict.fromkeys(bridging.values())) == [*numbers(0, 500), b""]
    first = worker.committed.to_pylist()[0]
    assert first["key"] == queue.name.encode()
    assert first["event_time"].timestamp() == datetime(2026, 1, 2, tzinfo=UTC).timestamp()
    eventually(lambda: queue.count() == 0)


def test_a_message_that_cannot_be_decoded_is_named(
    server: RabbitServer, worker: FakeWorker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    queue = Queue(server, "classic")
    bridging = Bridging(worker, tmp_path, *queue.source("--give-up-after", "2"))
    # A producer that writes nanoseconds where AMQP has seconds.
    nanoseconds = struct.pack(">Q", 1_700_000_000_000_000_000)
    monkeypatch.setitem(pamqp.encode.METHODS, "timestamp", lambda _: nanoseconds)
    queue.publish(b"a", timestamp=datetime(2026, 1, 2, tzinfo=UTC))
    said = refused(bridging)
    assert "the delivery has ended: " in said
    assert "is out of range; start it" in said
    assert "[source-away]" in said
    assert queue.count() == 1


def test_messages_of_a_stream_are_sent_once_although_bridge_and_broker_are_killed(
    server: RabbitServer, stream: Queue, worker: FakeWorker, tmp_path: Path
) -> None:
    bridging = Bridging(worker, tmp_path, *stream.source())
    stream.publish(*numbers(0, 2500))
    bridging.killed_before_the_commit(100)
    with bridging.again():
        bridging.wait(2500)
        again(server, bridging, stream)
        stream.publish(b"")
        bridging.wait(2501)
        assert bridging.values() == [*numbers(0, 2500), b""]
        assert position_of(worker.committed["message_id"].to_pylist()[-1]) == 2500


@pytest.mark.parametrize("count", [0, 1, 5])
def test_a_stream_that_is_made_again_is_refused(stream: Queue, worker: FakeWorker, tmp_path: Path, count: int) -> None:
    bridging = Bridging(worker, tmp_path, *stream.source(), "--give-up-after", "5")
    stream.publish(b"a", b"b")
    with worker.committing():
        with bridging.running() as process:
            bridging.wait(2)
            stream.delete()
            stream.make()
            stream.publish(*numbers(0, count))
            assert process.wait(SECONDS) == 1
        refused(bridging)
    assert bridging.output.count("deleted and made again") >= 2
    assert bridging.values() == [b"a", b"b"]


def test_a_stream_of_many_segments_is_sent_whole(stream: Queue, worker: FakeWorker, tmp_path: Path) -> None:
    """Between segments are entries of the broker's own, whose offsets no message has."""
    stream.delete()
    stream.make(**SMALL_SEGMENTS)
    bridging = Bridging(worker, tmp_path, *stream.source())
    large = publish_large(stream)
    with bridging.running(), worker.committing():
        bridging.wait(len(large))
        assert bridging.values() == large
        assert position_of(worker.committed["message_id"].to_pylist()[-1]) >= len(large)


def test_messages_that_retention_has_deleted_are_refused_or_skipped(
    stream: Queue, worker: FakeWorker, tmp_path: Path
) -> None:
    stream.delete()
    stream.make(**SMALL_SEGMENTS, **{"x-max-length-bytes": 100_000})
    bridging = Bridging(worker, tmp_path, *stream.source())
    stream.publish(b"a")
    with bridging.running(), worker.committing():
        bridging.wait(1)
    large = publish_large(stream)
    with worker.committing():
        assert "and is committed up to 0" in refused(bridging)
        skipping = Bridging(worker, tmp_path, *stream.source("--lost", "skip"))
        with skipping.running():
            eventually(lambda: bridging.values()[-1] == large[-1], pause=0.1)
    kept = bridging.values()[1:]
    assert 0 < len(kept) < len(large)
    assert kept == large[-len(kept) :]


def test_latest_keeps_its_beginning_when_a_worker_is_lost_before_the_first_commit(
    stream: Queue, worker: FakeWorker, tmp_path: Path
) -> None:
    bridging = Bridging(worker, tmp_path, *stream.source("--begin", "latest"))
    with bridging.running():
        eventually(lambda: (stream.publish(b"begun"), worker.status()["memory_used"])[1], pause=0.3)
        stream.publish(*numbers(0, 10))
        worker.read(11)
        worker.crash()
        stream.publish(*numbers(10, 11))
        with worker.committing():
            eventually(lambda: bridging.values()[-1:] == numbers(10, 11), bridging.output)

    assert bridging.values()[-11:] == numbers(0, 11)


def test_each_of_the_two_bridges_refuses_the_queues_of_the_other(
    server: RabbitServer, stream: Queue, worker: FakeWorker, tmp_path: Path
) -> None:
    bridging = Bridging(worker, tmp_path, "rabbitmq", server.url, stream.name)
    with bridging.running() as process:
        eventually(lambda: (stream.publish(b"a"), process.poll())[1] is not None, pause=0.5)
    assert "is a stream; use wallaroo-spark bridge rabbitmq-stream" in bridging.output
    queue = Queue(server, "classic")
    wrong = Bridging(worker, tmp_path, "rabbitmq-stream", server.url, queue.name, "--give-up-after", "1")
    assert "invalid arg 'x-stream-offset'" in refused(wrong)
