"""The reasons for which sending waits, and the turns of streams."""

from __future__ import annotations

import asyncio

import pytest

from tests.connector.scripted_worker import ScriptedWorker, spin
from tests.connector.support import connector, send_all, starved
from wallaroo_spark.connector.reporting import WaitLog
from wallaroo_spark.connector.sending.connector_state import ConnectorState
from wallaroo_spark.connector.settings import ConnectorSettings


def a_state() -> ConnectorState:
    return ConnectorState(ConnectorSettings("orders", instance="shop-1", workers="host:1"), WaitLog("orders", str))


class TestWaiting:
    async def test_sending_waits_for_credit_and_says_so(
        self, revision: str, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr("wallaroo_spark.connector.reporting.WAIT_SECONDS", 0.0)
        async with ScriptedWorker(credits=4, regrant=False) as worker, connector(worker, revision=revision) as sender:
            stream = await sender.open("a")
            sending = asyncio.create_task(send_all(stream, 10))
            await worker.until(lambda: len(worker.only.accepted) == 3)
            assert await starved(sender) == "credit"
            await spin(lambda: "waits: credits 0" in caplog.text)
            for _ in range(7):
                worker.session.write(worker.session.session.ack(1))
            await sending
            await sender.drain()
            assert sender.waiting_for is None
        assert worker.errors == []
        assert len(worker.only.accepted) == 10

    async def test_sending_waits_for_memory_until_messages_are_acknowledged(self) -> None:
        async with ScriptedWorker(auto_commit=False) as worker, connector(worker, max_unacknowledged=10_000) as sender:
            stream = await sender.open("a")
            sending = asyncio.create_task(send_all(stream, 20, b"x" * 1000))
            assert await starved(sender) == "memory"
            kept = stream.unacknowledged
            # The messages behind the first one are kept as one run.
            assert kept == 9
            assert sender._state.budget.held <= 10_000
            await worker.until(lambda: len(worker.only.accepted) == kept)
            while not sending.done():
                worker.commit()
                await asyncio.sleep(0)
            worker.commit()
            await worker.until(lambda: len(worker.only.accepted) == 20)
            worker.commit()
            await sender.drain()
        assert worker.only.ids == list(range(1, 21))

    async def test_sending_waits_for_a_connection(self) -> None:
        async with ScriptedWorker() as worker, connector(worker) as sender:
            stream = await sender.open("a")
            worker.answers.append(lambda session: None)
            worker.session.stream.abort()
            await worker.until(lambda: len(worker.hellos) == 2)
            sending = asyncio.create_task(stream.send(b"x"))
            assert await starved(sender) == "connection"
            worker.session.write(worker.session.session.ok(10))
            await sending
            await sender.drain()

    async def test_a_worker_that_stops_reading_makes_sending_wait_for_the_network(self) -> None:
        async with ScriptedWorker(credits=1_000_000) as worker, connector(worker) as sender:
            stream = await sender.open("a")
            unread = asyncio.Event()
            reading = worker.session.stream.read

            async def read_later(most: int = 65536) -> bytes:
                await unread.wait()
                return await reading(most)

            worker.session.stream.read = read_later  # type: ignore[method-assign]  # the peer stops reading
            sending = asyncio.create_task(send_all(stream, 300, b"x" * 100_000))
            assert await starved(sender) == "network"
            unread.set()
            await sending
            await sender.drain()

    async def test_streams_take_turns_when_credit_is_scarce(self) -> None:
        async with ScriptedWorker(credits=4) as worker, connector(worker) as sender:
            names = ["a", "b", "c"]
            streams = [await sender.open(name) for name in names]
            sending = asyncio.gather(*(send_all(stream, 400) for stream in streams))
            await worker.until(lambda: any(len(worker.named(name).accepted) == 400 for name in names))
            counts = [len(worker.named(name).accepted) for name in names]
            await sending
            assert min(counts) > 200, f"one stream was kept from sending: {counts}"


class TestChanges:
    async def test_all_waiters_are_woken_each_time(self) -> None:
        state = a_state()
        for _ in range(2):
            waiting = [asyncio.create_task(state.changed.wait()) for _ in range(3)]
            await asyncio.sleep(0)
            state.wake_waiting()
            await asyncio.gather(*waiting)
            assert all(task.done() for task in waiting)

    async def test_a_waiter_that_gave_up_does_not_delay_the_others(self) -> None:
        state = a_state()
        gone, staying = asyncio.create_task(state.changed.wait()), asyncio.create_task(state.changed.wait())
        await asyncio.sleep(0)
        gone.cancel()
        state.wake_waiting()
        await staying
        assert not staying.cancelled()
