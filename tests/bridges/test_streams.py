"""What all bridges have in common, with media in memory and a real worker."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from functools import partial

import pytest

from tests.waiting import until
from wallaroo_spark.bridges import BridgedStream, QueuedMessage, QueuedStream, feed
from wallaroo_spark.connector import Backoff, Connector, Record
from wallaroo_spark.errors import LocalProtocolError, TransportError
from wallaroo_spark.testing import FakeWorker

QUICK = Backoff(initial=0.001, maximum=0.001)


class Journal(BridgedStream):
    """Numbered entries, of which ``end`` are there; it fails behind those of ``failing``."""

    def __init__(self, end: int, *failing: int) -> None:
        super().__init__("journal")
        self.retry = QUICK
        self.end = end
        self.failing = list(failing)
        self.asked: list[int | None] = []
        self.told: list[int] = []

    async def acknowledge(self, reference: int) -> None:
        self.told.append(reference)

    async def records(self, after: int | None) -> AsyncGenerator[Sequence[Record], None]:
        self.asked.append(after)
        for number in range((after or 0) + 1, self.end + 1):
            if self.failing and number > self.failing[0]:
                self.failing.pop(0)
                raise ConnectionResetError("the medium has gone")
            yield [Record(number, b"%d" % number)]


class Deaf(Journal):
    """A journal that grows no more and does not end. It cannot be told for the first few times."""

    refusals = 3

    async def acknowledge(self, reference: int) -> None:
        if self.refusals:
            self.refusals -= 1
            raise ConnectionResetError("the medium does not listen")
        await super().acknowledge(reference)

    async def records(self, after: int | None) -> AsyncGenerator[Sequence[Record], None]:
        async for group in super().records(after):
            yield group
        await asyncio.Event().wait()


class Mailbox(QueuedStream):
    """Messages that stay until they are acknowledged, and are delivered again to each new connection."""

    def __init__(self, *messages: bytes) -> None:
        super().__init__("mailbox")
        self.retry = QUICK
        self.messages = list(messages)
        self.connections = 0
        self.breaks = asyncio.Event()

    async def deliveries(self) -> AsyncGenerator[Sequence[QueuedMessage], None]:
        self.connections += 1
        self.breaks.clear()
        yield [QueuedMessage(one, partial(self._remove, one, self.connections)) for one in list(self.messages)]
        await self.breaks.wait()
        raise ConnectionResetError("the broker has gone")

    def _remove(self, message: bytes, connection: int) -> None:
        if connection == self.connections:
            self.messages.remove(message)


@contextlib.asynccontextmanager
async def feeding(worker: FakeWorker, stream: BridgedStream) -> AsyncIterator[None]:
    async with Connector("test", instance="bridge", workers=worker.address) as connector:
        task = asyncio.create_task(feed(connector, stream))
        try:
            yield
        finally:
            task.cancel()
            await asyncio.wait([task])


def values(worker: FakeWorker) -> list[bytes]:
    found: list[bytes] = worker.committed["value"].to_pylist()
    return found


async def test_a_medium_that_fails_is_opened_again_behind_what_was_sent() -> None:
    stream = Journal(5, 2, 2, 4)
    with FakeWorker() as worker, worker.committing():
        async with Connector("test", instance="bridge", workers=worker.address) as connector:
            result = await feed(connector, stream)

        assert (result.messages, result.acknowledged) == (5, 5)
        assert stream.asked == [None, 2, 2, 4]
        assert values(worker) == [b"1", b"2", b"3", b"4", b"5"]
        assert stream.told[-1] == 5


async def test_nothing_is_acknowledged_before_its_commit() -> None:
    stream = Journal(3)
    with FakeWorker() as worker:
        async with feeding(worker, stream):
            await asyncio.to_thread(worker.read, 3)
            assert stream.told == []
            await asyncio.to_thread(worker.commit)
            await until(lambda: stream.told == [3])


async def test_a_medium_that_cannot_be_told_is_told_later_also_without_another_commit(
    caplog: pytest.LogCaptureFixture,
) -> None:
    stream = Deaf(3)
    with FakeWorker() as worker:
        async with feeding(worker, stream):
            await asyncio.to_thread(worker.read, 3)
            await asyncio.to_thread(worker.commit)
            await until(lambda: stream.told == [3])
    assert caplog.messages == [
        "source 'journal' was not told of reference 3; it is tried again: the medium does not listen",
        "source 'journal' was told of reference 3",
    ]


async def test_another_process_continues_at_the_committed_reference() -> None:
    with FakeWorker() as worker, worker.committing():
        for end in (2, 4):
            stream = Journal(end)
            async with Connector("test", instance="bridge", workers=worker.address) as connector:
                await feed(connector, stream)

        assert stream.asked == [2]
        assert values(worker) == [b"1", b"2", b"3", b"4"]


async def test_a_medium_that_stays_away_ends_the_bridge_with_its_own_words() -> None:
    stream = Journal(1, *[0] * 10)
    stream.retry = Backoff(initial=0.001, maximum=0.001, attempts=3)
    with FakeWorker() as worker:
        async with Connector("test", instance="bridge", workers=worker.address, drain_timeout=0.1) as connector:
            with pytest.raises(TransportError, match=r"'journal' has not answered.*3 attempts: the medium has gone"):
                await feed(connector, stream)


async def test_messages_without_positions_stay_at_the_medium_until_their_commit() -> None:
    box = Mailbox(b"a", b"b")
    with FakeWorker() as worker:
        async with feeding(worker, box):
            await asyncio.to_thread(worker.read, 2)
            assert box.messages == [b"a", b"b"]
            await asyncio.to_thread(worker.commit)
            await until(lambda: not box.messages)


async def test_a_lost_worker_does_not_end_the_connection_to_a_medium_without_positions() -> None:
    box = Mailbox(b"a", b"b")
    with FakeWorker() as worker:
        async with feeding(worker, box):
            await asyncio.to_thread(worker.read, 2)
            await asyncio.to_thread(worker.crash)
            await asyncio.to_thread(worker.begin)
            with worker.committing():
                await until(lambda: not box.messages)
        assert (values(worker), box.connections) == ([b"a", b"b"], 1)


async def test_a_medium_without_positions_that_fails_delivers_again_what_is_not_acknowledged() -> None:
    box = Mailbox(b"a", b"b")
    with FakeWorker() as worker:
        async with feeding(worker, box):
            await asyncio.to_thread(worker.read, 2)
            box.breaks.set()
            await until(lambda: box.connections == 2)
            with worker.committing():
                await until(lambda: not box.messages)
        assert values(worker) == [b"a", b"b", b"a", b"b"]


@pytest.mark.parametrize("again", [True, False], ids=["certain to be delivered again", "perhaps not"])
async def test_a_connection_that_is_lost_leaves_no_second_copy_of_what_is_certain_to_come_again(again: bool) -> None:
    box = Mailbox(b"a", b"b")
    box.delivers_again = again
    readings = [await until_it_breaks(box) for _ in range(3)]
    assert readings == [[b"a", b"b"] * (1 if again else number) for number in (1, 2, 3)]


async def until_it_breaks(box: Mailbox) -> list[bytes]:
    """What is read of one connection, which ends once it has delivered all."""
    found: list[bytes] = []
    connection = box.connections + 1
    with contextlib.suppress(ConnectionResetError):
        async for group in box.records(None):
            found += [record.payload or b"" for record in group]
            if box.connections == connection:
                box.breaks.set()
    return found


async def test_a_reference_of_another_process_acknowledges_nothing() -> None:
    box = Mailbox(b"a")
    records = box.records(None)
    (record,) = await anext(records)
    assert record.id is not None
    with pytest.raises(LocalProtocolError, match=r"reference \d+ is committed.*up to \d+; so another bridge sends"):
        await box.acknowledge(record.id + 1)
    assert box.messages == [b"a"]
    await box.acknowledge(record.id)
    assert box.messages == []
    await records.aclose()
    await box.close()


async def test_messages_behind_a_reference_of_another_process_have_greater_numbers() -> None:
    box = Mailbox()
    future = time.time_ns() + 10**15
    await box.acknowledge(future)
    box.messages = [b"a"]
    records = box.records(None)
    (record,) = await anext(records)
    assert record.id == future + 1
    await records.aclose()
    await box.close()
