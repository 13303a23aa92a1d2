"""Streams through lost sessions and rewinds of workers: no message is lost or repeated."""

from __future__ import annotations

import asyncio

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.connector.conftest import BRIEF, QUICK, REVISIONS
from tests.connector.scripted_worker import ScriptedWorker, spin
from tests.connector.support import connector, lose, send_all
from tests.waiting import SECONDS
from wallaroo_spark.connector import Backoff, Connector, Records
from wallaroo_spark.errors import RemoteProtocolError, ReplayError


class TestCuts:
    @pytest.mark.parametrize("keeps_buffer", [True, False])
    async def test_uncommitted_messages_are_sent_again_in_order_before_any_new_one(
        self, revision: str, keeps_buffer: bool
    ) -> None:
        worker = ScriptedWorker(auto_commit=False, keeps_buffer=keeps_buffer)
        async with worker, connector(worker, revision=revision) as sender:
            stream = await sender.open("a")
            await send_all(stream, 5)
            await worker.until(lambda: len(worker.only.accepted) == 5)
            worker.commit()
            await stream.flushed()
            await send_all(stream, 5)
            await worker.until(lambda: len(worker.only.accepted) == 10)
            await lose(worker)
            await stream.send(b"new")
            await worker.until(lambda: len(worker.only.accepted) == 11)
            worker.commit()
            await sender.drain()
            assert worker.only.ids == list(range(1, 12))
            assert worker.only.notified == [0, 5]
            assert worker.only.duplicates == (5 if keeps_buffer else 0)

    @settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
    @given(cuts=st.lists(st.integers(1, 6000), max_size=6), credits=st.integers(1, 60), name=st.sampled_from(REVISIONS))
    def test_a_connection_may_be_cut_after_any_byte(self, cuts: list[int], credits: int, name: str) -> None:
        async def run() -> None:
            worker = ScriptedWorker(cut_after=cuts, credits=credits)
            async with asyncio.timeout(SECONDS), worker, connector(worker, revision=name) as sender:
                streams = [await sender.open("a"), await sender.open("b")]
                await asyncio.gather(*(send_all(stream, 60, b"x" * 40) for stream in streams))
                for stream in streams:
                    await stream.end()
                await sender.drain()
                for stream in streams:
                    assert worker.named(stream.name).ids == list(range(1, 61))
            assert worker.errors == []

        asyncio.run(run())

    async def test_opaque_ids_are_sent_again_behind_the_reference(self) -> None:
        worker = ScriptedWorker(auto_commit=False, increasing=False)
        async with worker, connector(worker, message_ids="opaque") as sender:
            stream = await sender.open("a")
            for message_id in (30, 10, 20):
                await stream.send(b"x", id=message_id)
            await worker.until(lambda: len(worker.only.accepted) == 3)
            worker.only.committed = 30
            worker.only.accepted = worker.only.accepted[:1]
            worker.keeps_buffer = True
            await lose(worker)
            await worker.until(lambda: len(worker.only.accepted) == 3)
            worker.commit()
            await sender.drain()
            assert worker.only.ids == [30, 10, 20]
            assert (worker.only.duplicates, worker.only.notified) == (0, [0, 30])

    async def test_an_end_that_was_not_acknowledged_is_said_again(self, revision: str) -> None:
        worker = ScriptedWorker(auto_commit=False)
        async with worker, connector(worker, revision=revision) as sender:
            stream = await sender.open("a")
            await send_all(stream, 3)
            await stream.end()
            await worker.until(lambda: worker.only.ended == 1)
            await lose(worker)
            await worker.until(lambda: worker.only.ended == 2)
            worker.commit()
            await sender.drain()
            assert worker.only.ids == [1, 2, 3]
            before = len(worker.only.notified)
            await lose(worker)
            await sender.open("b")
            assert len(worker.named("a").notified) == before, "a stream that is over was announced again"

    async def test_ephemeral_streams_continue_with_new_messages(self) -> None:
        worker = ScriptedWorker(keeps_buffer=True)
        async with worker, connector(worker) as sender:
            stream = await sender.open("ticks", ephemeral=True)
            await stream.send(b"1")
            await worker.until(lambda: worker.only.payloads == [b"1"])
            await lose(worker)
            await stream.send(b"2")
            await sender.drain()
            await worker.until(lambda: worker.only.payloads == [b"1", b"2"])

    async def test_a_stream_may_be_opened_while_there_is_no_session(self, unused_port: int) -> None:
        sender = Connector("orders", instance="shop-1", workers=f"127.0.0.1:{unused_port}", retry=QUICK)
        async with sender:
            opening = asyncio.create_task(sender.open("a"))
            await spin(lambda: len(sender._open_streams.streams) == 1)
            opening.cancel()
            await asyncio.wait([opening])
            # A stream that nobody waits for any more leaves its name free.
            assert sender._open_streams.streams == {}


class TestEndedStreams:
    async def test_a_connector_keeps_nothing_of_streams_whose_end_is_acknowledged(self, revision: str) -> None:
        worker = ScriptedWorker()
        async with worker, connector(worker, revision=revision) as sender:
            for number in range(20):
                stream = await sender.open(f"file-{number}")
                await send_all(stream, 2)
                await stream.end()
                await stream.flushed()
            await worker.until(lambda: not sender._open_streams.streams)
            again = await sender.open("file-7")
            assert again.reference == 2
            assert await again.send(b"x") == 3
            await sender.drain()


class TestReplayErrors:
    async def test_a_worker_that_does_not_know_of_the_last_commits_yet_is_asked_again(self, revision: str) -> None:
        worker = ScriptedWorker()
        async with worker, connector(worker, revision=revision) as sender:
            stream = await sender.open("a")
            await send_all(stream, 5)
            await sender.drain()
            worker.only.committed = 2
            worker.session.stream.abort()
            await worker.until(lambda: len(worker.errors) > 1)
            assert "'a' must be sent again behind reference 2" in worker.errors[0]
            # The driver has reached it.
            worker.only.committed = 5
            assert await stream.send(b"y") == 6
            await sender.drain()
            assert (stream.reference, stream.acknowledged) == (None, 6)

    async def test_a_worker_that_requests_acknowledged_messages_and_the_caller_get_an_error(
        self, revision: str
    ) -> None:
        worker = ScriptedWorker()
        async with worker, connector(worker, revision=revision, retry=BRIEF) as sender:
            stream = await sender.open("a")
            await send_all(stream, 5)
            await sender.drain()
            # An older checkpoint: only the first two are committed now.
            worker.only.committed = 2
            worker.session.stream.abort()
            await worker.until(lambda: bool(worker.errors))
            with pytest.raises(ReplayError, match=r"behind reference 2.*up to 5 were acknowledged"):
                await stream.send(b"y")
            assert "'a' must be sent again behind reference 2" in worker.errors[0]
            with pytest.raises(ReplayError):
                await sender.open("b")


class TestNacks:
    async def test_a_nack_takes_its_stream_back_and_leaves_the_others(self) -> None:
        worker = ScriptedWorker(auto_commit=False)
        async with worker, connector(worker, revision="draft-le") as sender:
            one, other = await sender.open("a"), await sender.open("b")
            await send_all(one, 5)
            await send_all(other, 5)
            await worker.until(lambda: all(len(worker.named(name).accepted) == 5 for name in "ab"))
            worker.session.nack(one.id, 2)
            await worker.until(
                lambda: worker.named("a").ids == [1, 2, 3, 4, 5] and len(worker.named("a").notified) == 2
            )
            await one.send(b"x")
            await worker.until(lambda: worker.named("a").ids == [1, 2, 3, 4, 5, 6])
            worker.commit()
            await sender.drain()
            assert (worker.named("a").notified, worker.named("b").notified) == ([0, 2], [0])
            assert len(worker.sessions) == 1

    async def test_stacked_nacks_get_one_notify_each(self) -> None:
        worker = ScriptedWorker(auto_commit=False)
        async with worker, connector(worker, revision="draft-le") as sender:
            stream = await sender.open("a")
            await send_all(stream, 5)
            await worker.until(lambda: len(worker.only.accepted) == 5)
            for ref in (2, 2, 2):
                worker.session.nack(stream.id, ref)
            await worker.until(lambda: len(worker.only.notified) == 4)
            await stream.send(b"x")
            await worker.until(lambda: worker.only.ids == [1, 2, 3, 4, 5, 6])
            worker.commit()
            await sender.drain()
            assert worker.only.notified == [0, 2, 2, 2]
            assert worker.errors == []

    async def test_a_nack_of_an_ended_stream_brings_its_tail_and_its_end_again(self) -> None:
        worker = ScriptedWorker(auto_commit=False)
        async with worker, connector(worker, revision="draft-le") as sender:
            stream = await sender.open("a")
            await send_all(stream, 3)
            await stream.end()
            await worker.until(lambda: worker.only.ended == 1)
            worker.session.nack(stream.id, 1)
            await worker.until(lambda: worker.only.ended == 2)
            assert worker.only.ids == [1, 2, 3]
            worker.commit()

    async def test_a_nack_while_the_end_waits_to_be_sent_again_brings_the_tail_before_it(self) -> None:
        worker = ScriptedWorker(auto_commit=False, credits=5, regrant=False)
        async with worker, connector(worker, revision="draft-le") as sender:
            stream = await sender.open("a")
            await send_all(stream, 3)
            await stream.end()
            await worker.until(lambda: worker.only.ended == 1)
            for ref in (1, 1):
                worker.session.nack(stream.id, ref)
                # One for NOTIFY and one for each message, so that none is left for the end.
                worker.session.write(worker.session.session.ack(3, []))
                await worker.until(lambda: worker.only.ids == [1, 2, 3])
                assert worker.only.ended == 1
                await spin(lambda: sender.waiting_for == "credit")
            worker.session.write(worker.session.session.ack(1, []))
            await worker.until(lambda: worker.only.ended == 2)
            worker.commit()
            await sender.drain()
            assert worker.only.ids == [1, 2, 3]

    async def test_a_nack_of_a_stream_that_is_sent_no_longer_is_only_logged(
        self, caplog: pytest.LogCaptureFixture
    ) -> None:
        async with ScriptedWorker(auto_commit=False) as worker, connector(worker, revision="draft-le") as sender:
            feeding = asyncio.create_task(sender.feed(Records("a", lambda: [(1, b"x"), (2, b"y")])))
            await worker.until(lambda: worker.only.last == 2)
            feeding.cancel()
            await asyncio.wait([feeding])
            (stream_id,) = worker.streams
            worker.session.nack(stream_id, 1)
            worker.session.nack(stream_id, 1)
            await spin(lambda: "this connector no longer sends it" in caplog.text)
            # Opened again it answers both, and goes on where the worker wants it.
            stream = await sender.open("a")
            assert (stream.reference, await stream.send(b"y")) == (1, 2)
            await worker.until(lambda: worker.only.last == 2)
            assert len(worker.only.notified) == 3
            worker.commit()

    async def test_a_nack_before_the_kept_messages_ends_the_session_with_a_reason(self) -> None:
        async with ScriptedWorker() as worker, connector(worker, revision="draft-le", retry=BRIEF) as sender:
            stream = await sender.open("a")
            await send_all(stream, 5)
            await sender.drain()
            worker.only.committed = 2
            worker.session.nack(stream.id, 2)
            await worker.until(lambda: bool(worker.errors))
            with pytest.raises(ReplayError, match="behind reference 2"):
                await stream.send(b"x")


class TestStreamsThatAreActiveElsewhere:
    async def test_they_are_asked_for_again_until_they_are_free(self) -> None:
        async with ScriptedWorker(refuse_notifies=3) as worker, connector(worker, revision="v3") as sender:
            stream = await sender.open("a")
            await stream.send(b"x")
            await sender.drain()
            assert len(worker.only.notified) == 4
            assert len(worker.sessions) == 1

    async def test_in_the_end_the_stream_fails_and_the_others_go_on(self) -> None:
        retry = Backoff(initial=0.001, attempts=3)
        async with ScriptedWorker() as worker, connector(worker, revision="v3", retry=retry) as sender:
            other = await sender.open("b")
            worker.refuse_notifies = 100
            with pytest.raises(RemoteProtocolError, match=r"'a' \(id \d+\) was refused 3 times"):
                await sender.open("a")
            await other.send(b"x")
            await sender.drain()
            assert worker.named("b").payloads == [b"x"]
