"""Callbacks and iterators of acknowledgements: each message once, in order, also over lost sessions."""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from typing import Any

import pytest

from tests.connector.scripted_worker import ScriptedWorker, spin
from tests.connector.support import connector, lose
from tests.waiting import SECONDS, eventually
from wallaroo_spark.connector import Acknowledgement, BlockingConnector, Delivery
from wallaroo_spark.connector.reporting import CallbackThread
from wallaroo_spark.errors import LocalProtocolError, RemoteProtocolError

Calls = list[tuple[Exception | None, Delivery]]


def noting(calls: Calls) -> Any:
    return lambda error, delivery: calls.append((error, delivery))


def ids(calls: Calls) -> list[int]:
    assert all(error is None for error, _ in calls), calls
    return [delivery.id for _, delivery in calls]


class TestCallbacks:
    async def test_each_message_is_reported_once_it_is_committed_and_not_before(self, revision: str) -> None:
        calls: Calls = []
        async with (
            ScriptedWorker(auto_commit=False) as worker,
            connector(worker, revision=revision) as sender,
        ):
            stream = await sender.open("a")
            for number in range(1, 6):
                await stream.send(b"x", id=number * 10, on_delivery=noting(calls))
            await stream.send(b"without")
            await worker.until(lambda: len(worker.only.accepted) == 6)
            assert calls == []
            worker.commit()
            await sender.drain()
            await spin(lambda: len(calls) == 5)
        assert calls == [(None, Delivery("a", number * 10)) for number in range(1, 6)]

    @pytest.mark.parametrize("message_ids", ["increasing", "opaque"])
    async def test_over_lost_sessions_each_message_is_reported_exactly_once_and_in_order(
        self, message_ids: str
    ) -> None:
        calls: Calls = []
        opaque = message_ids == "opaque"
        cuts = [3_000, 5_000, 700, 9_000]
        async with (
            ScriptedWorker(cut_after=cuts, increasing=not opaque) as worker,
            connector(worker, message_ids=message_ids) as sender,
        ):
            stream = await sender.open("a")
            sent = [number if not opaque else 10_000 - number for number in range(1, 501)]
            for number in sent:
                await stream.send(b"x" * 50, id=number, on_delivery=noting(calls))
            await sender.drain()
        assert len(worker.sessions) == len(cuts) + 1
        assert ids(calls) == sent
        # With opaque ids the scripted worker forgets what it has, once a session is lost.
        assert opaque or worker.only.ids == sent

    async def test_messages_that_are_sent_together_are_reported_one_by_one_also_over_lost_sessions(self) -> None:
        calls: Calls = []
        async with ScriptedWorker(cut_after=[3_000, 5_000, 700]) as worker, connector(worker) as sender:
            stream = await sender.open("a")
            await stream.send(b"x", id=1, on_delivery=noting(calls))
            await stream.send_many([b"x" * 50] * 300, ids=range(2, 302), on_delivery=noting(calls))
            await stream.send_many([b"x"] * 3, ids=[500, 600, 700])
            await stream.send(b"x", id=800, on_delivery=noting(calls))
            await sender.drain()
            await spin(lambda: len(calls) == 302)
        assert ids(calls) == [*range(1, 302), 800]

    async def test_only_the_messages_before_a_wrong_id_are_reported(self) -> None:
        calls: Calls = []
        async with ScriptedWorker() as worker, connector(worker) as sender:
            stream = await sender.open("a")
            with pytest.raises(LocalProtocolError):
                await stream.send_many([b"x"] * 4, ids=[1, 2, 2, 3], on_delivery=noting(calls))
            await sender.drain()
            await spin(lambda: len(calls) == 2)
        assert ids(calls) == [1, 2]

    async def test_messages_that_were_committed_while_the_session_was_lost_are_reported(self) -> None:
        calls: Calls = []
        async with ScriptedWorker(auto_commit=False, keeps_buffer=True) as worker, connector(worker) as sender:
            stream = await sender.open("a")
            for number in (1, 2, 3):
                await stream.send(b"x", id=number, on_delivery=noting(calls))
            await worker.until(lambda: len(worker.only.accepted) == 3)
            worker.only.committed = 2
            await lose(worker)
            await spin(lambda: len(calls) == 2)
            await worker.until(lambda: worker.only.duplicates == 1)
            worker.commit()
            await sender.drain()
        assert ids(calls) == [1, 2, 3]

    async def test_a_message_of_an_earlier_process_that_is_committed_already_is_reported(self) -> None:
        calls: Calls = []
        async with ScriptedWorker(auto_commit=False, keeps_buffer=True) as worker:
            async with connector(worker) as sender:
                await (await sender.open("a")).send(b"x", id=5)
                await worker.until(lambda: len(worker.only.accepted) == 1)
                await sender.close()
            async with connector(worker) as sender:
                stream = await sender.open("a")
                worker.commit()
                await spin(lambda: stream.acknowledged == 5)
                await stream.send(b"x", id=5, on_delivery=noting(calls))
                await sender.drain()
                await spin(lambda: len(calls) == 1)
        assert ids(calls) == [5]

    async def test_what_is_not_acknowledged_when_the_connector_closes_is_reported_with_an_error(self) -> None:
        calls: Calls = []
        async with ScriptedWorker(auto_commit=False) as worker, connector(worker) as sender:
            stream = await sender.open("a")
            for number in (1, 2):
                await stream.send(b"x", id=number, on_delivery=noting(calls))
            await worker.until(lambda: len(worker.only.accepted) == 2)
            await sender.close()
            assert [(type(error), delivery.id) for error, delivery in calls] == [
                (LocalProtocolError, 1),
                (LocalProtocolError, 2),
            ]
            assert "was closed before this message was acknowledged; it may still be committed" in str(calls[0][0])

    async def test_the_error_that_ends_the_connector_is_reported(self) -> None:
        calls: Calls = []
        async with ScriptedWorker(auto_commit=False) as worker, connector(worker) as sender:
            stream = await sender.open("a")
            await stream.send(b"x", on_delivery=noting(calls))
            worker.session.write(worker.session.session.error("the cookie has changed"))
            await spin(lambda: bool(calls))
            assert isinstance(calls[0][0], RemoteProtocolError)
            await sender.close()
        assert len(calls) == 1

    async def test_a_callback_that_raises_is_logged_and_the_others_are_called(
        self, caplog: pytest.LogCaptureFixture
    ) -> None:
        calls: Calls = []

        def broken(error: Exception | None, delivery: Delivery) -> None:
            raise ValueError("broken")

        async with ScriptedWorker() as worker, connector(worker) as sender:
            stream = await sender.open("a")
            await stream.send(b"x", id=1, on_delivery=broken)
            await stream.send(b"x", id=2, on_delivery=noting(calls))
            await sender.drain()
        assert ids(calls) == [2]
        assert "on_delivery of message 1 of stream 'a' has raised; the message is acknowledged" in caplog.text

    async def test_a_callback_may_send_again_and_close(self) -> None:
        calls: Calls = []
        tasks: list[asyncio.Task[Any]] = []
        async with ScriptedWorker() as worker, connector(worker) as sender:
            stream = await sender.open("a")

            def again(error: Exception | None, delivery: Delivery) -> None:
                calls.append((error, delivery))
                following = stream.send(b"x", on_delivery=again) if delivery.id < 20 else sender.close()
                tasks.append(asyncio.get_running_loop().create_task(following))

            await stream.send(b"x", on_delivery=again)
            await spin(lambda: len(tasks) == 20)
            await tasks[-1]
        assert ids(calls) == list(range(1, 21))

    async def test_a_coroutine_function_and_an_ephemeral_stream_are_refused(self) -> None:
        async def coroutine(error: Exception | None, delivery: Delivery) -> None: ...

        async with ScriptedWorker() as worker, connector(worker) as sender:
            stream = await sender.open("a")
            with pytest.raises(TypeError, match=r"on_delivery is a plain function.*read connector.acknowledgements"):
                await stream.send(b"x", on_delivery=coroutine)
            ephemeral = await sender.open("b", ephemeral=True)
            with pytest.raises(ValueError, match="stream 'b' is ephemeral, and no message of it is acknowledged"):
                await ephemeral.send(b"x", on_delivery=noting([]))
            with pytest.raises(ValueError, match="stream 'b' is ephemeral, and no message of it is acknowledged"):
                await ephemeral.send_many([b"x"], on_delivery=noting([]))
            assert (stream.last, ephemeral.last) == (None, None)


class TestAcknowledgements:
    async def test_every_message_counts_once_and_references_increase_over_lost_sessions(self) -> None:
        seen: list[Acknowledgement] = []
        async with ScriptedWorker(cut_after=[3_000, 5_000, 700]) as worker:

            async def read(sender: Any) -> None:
                seen.extend([one async for one in sender.acknowledgements()])

            async with connector(worker) as sender:
                reading = asyncio.create_task(read(sender))
                streams = [await sender.open(name) for name in ("a", "b")]
                for stream in streams:
                    await stream.send_many([b"x" * 50] * 200)
                await sender.drain()
            await reading
        for name in ("a", "b"):
            own = [one for one in seen if one.stream == name]
            assert sum(one.messages for one in own) == 200
            references = [one.reference for one in own]
            assert references == sorted(set(references))
            assert references[-1] == 200

    async def test_a_slow_reader_gets_joined_ones(self) -> None:
        async with ScriptedWorker(auto_commit=False) as worker, connector(worker) as sender:
            found = sender.acknowledgements()
            stream = await sender.open("a")
            for number in range(1, 4):
                await stream.send(b"x", id=number)
                await worker.until(lambda number=number: len(worker.only.accepted) == number)
                worker.commit()
                await sender.drain()
            assert await anext(found) == Acknowledgement("a", 3, 3)

    async def test_the_last_acknowledgement_of_an_ended_stream_is_not_lost(self) -> None:
        async with ScriptedWorker() as worker, connector(worker) as sender:
            found = sender.acknowledgements()
            stream = await sender.open("a")
            await stream.send(b"x", id=7)
            await stream.end()
            await stream.flushed()
            assert await anext(found) == Acknowledgement("a", 7, 1)

    async def test_it_raises_the_error_that_ends_the_connector(self) -> None:
        async with ScriptedWorker(auto_commit=False) as worker, connector(worker) as sender:
            found = sender.acknowledgements()
            await sender.open("a")
            worker.session.write(worker.session.session.error("the cookie has changed"))
            with pytest.raises(RemoteProtocolError, match="the cookie has changed"):
                await anext(found)


class TestBlocking:
    async def run(self, worker: ScriptedWorker, use: Any) -> None:
        def work() -> None:
            with BlockingConnector("orders", instance="shop-1", workers=worker.address) as sender:
                use(sender)

        await asyncio.to_thread(work)

    async def test_callbacks_run_in_order_in_one_thread_and_leaving_the_block_waits_for_them(self) -> None:
        calls: Calls = []
        threads = set()

        def note(error: Exception | None, delivery: Delivery) -> None:
            threads.add(threading.current_thread().name)
            calls.append((error, delivery))

        def use(sender: BlockingConnector) -> None:
            stream = sender.open("a")
            for number in range(1, 101):
                stream.send(b"x", id=number, on_delivery=note)
            stream.send_many([b"x"] * 100, ids=range(101, 201), on_delivery=note)

        async with ScriptedWorker(cut_after=[1_500]) as worker:
            await self.run(worker, use)
        assert ids(calls) == list(range(1, 201))
        assert threads == {"wallaroo-callbacks"}
        assert "wallaroo-callbacks" not in {thread.name for thread in threading.enumerate()}

    async def test_a_callback_may_send_drain_and_close(self) -> None:
        calls: Calls = []

        def use(sender: BlockingConnector) -> None:
            stream = sender.open("a")
            closed = threading.Event()

            def again(error: Exception | None, delivery: Delivery) -> None:
                calls.append((error, delivery))
                if delivery.id < 5:
                    stream.send(b"x", on_delivery=again)
                else:
                    sender.drain()
                    sender.close()
                    closed.set()

            stream.send(b"x", on_delivery=again)
            assert closed.wait(SECONDS)

        async with ScriptedWorker() as worker:
            await self.run(worker, use)
        assert ids(calls) == [1, 2, 3, 4, 5]

    async def test_a_slow_callback_delays_neither_sending_nor_acknowledgements(self) -> None:
        def use(sender: BlockingConnector) -> None:
            go_on = threading.Event()
            stream = sender.open("a")
            stream.send(b"x", on_delivery=lambda *_: go_on.wait(SECONDS))
            for _ in range(50):
                stream.send(b"x")
            eventually(lambda: stream.unacknowledged == 0, seconds=SECONDS)
            assert not go_on.is_set()
            go_on.set()
            sender.drain()

        async with ScriptedWorker() as worker:
            await self.run(worker, use)

    async def test_acknowledgements_are_read_in_another_thread_until_the_connector_closes(self) -> None:
        seen: list[Acknowledgement] = []

        async with ScriptedWorker() as worker:
            reading: list[threading.Thread] = []

            def use(sender: BlockingConnector) -> None:
                found = sender.acknowledgements()
                reading.append(threading.Thread(target=lambda: seen.extend(found)))
                reading[0].start()
                sender.open("a").send_many([b"x"] * 300)

            await self.run(worker, use)
            await asyncio.to_thread(reading[0].join, SECONDS)
            assert not reading[0].is_alive()
        assert (sum(one.messages for one in seen), seen[-1].reference) == (300, 300)


def test_finishing_waits_for_the_end_of_the_thread() -> None:
    class SlowToEnd(CallbackThread):
        def _run(self) -> None:
            ran.append(threading.current_thread())
            super()._run()
            time.sleep(0.2)

    ran: list[threading.Thread] = []
    callbacks = SlowToEnd()
    callbacks.put(lambda *_: None, None, Delivery("a", 1))
    callbacks.finish()

    assert [thread.is_alive() for thread in ran] == [False]


def test_a_forked_process_is_refused_and_leaves_the_session_alone(caplog: pytest.LogCaptureFixture) -> None:
    import os

    from wallaroo_spark.testing import FakeWorker

    caplog.set_level(logging.ERROR)
    with (
        FakeWorker() as worker,
        BlockingConnector("orders", instance="shop-1", workers=worker.address, drain_timeout=SECONDS) as sender,
    ):
        stream = sender.open("a")
        child = os.fork()
        if child == 0:
            status = 1
            try:
                stream.send(b"of the child")
            except LocalProtocolError as error:
                status = 0 if "is a fork of it" in str(error) else 2
            finally:
                sender.close()
                os._exit(status)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        stream.send(b"of the parent")
        worker.commit(seconds=SECONDS)
