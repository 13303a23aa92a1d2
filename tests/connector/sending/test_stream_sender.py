"""Sending in bulk: the same as sending one by one, whatever happens meanwhile."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any, cast

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.connector.conftest import BRIEF, REVISIONS
from tests.connector.scripted_worker import ScriptedWorker, spin
from tests.connector.support import connector, lose, send_all, starved
from tests.waiting import SECONDS
from wallaroo_spark.connector import Backoff, BlockingConnector, Stream
from wallaroo_spark.connector import worker_connection as worker_connection_module
from wallaroo_spark.connector.worker_connection import TcpCarrier
from wallaroo_spark.errors import LocalProtocolError, ReplayError, TransportError
from wallaroo_spark.protocol import U64_MAX, Flags, Message
from wallaroo_spark.protocol.faults import later


def numbered(count: int, first: int = 1) -> list[bytes]:
    return [b"%d" % number for number in range(first, first + count)]


class TestSending:
    @pytest.mark.parametrize("credits", [2, 7, 100_000])
    async def test_messages_arrive_in_order_and_are_numbered_on(self, revision: str, credits: int) -> None:
        async with ScriptedWorker(credits=credits) as worker, connector(worker, revision=revision) as sender:
            stream = await sender.open("a")
            assert await stream.send_many(numbered(1000)) == 1000
            assert await stream.send(b"1001") == 1001
            assert await stream.send_many(iter(numbered(50, 1002))) == stream.last == 1051
            await sender.drain()
            assert (stream.acknowledged, stream.unacknowledged) == (1051, 0)
        assert worker.only.payloads == numbered(1051)
        assert worker.only.ids == list(range(1, 1052))
        assert worker.errors == []

    async def test_no_messages_are_no_messages(self) -> None:
        async with ScriptedWorker() as worker, connector(worker) as sender:
            stream = await sender.open("a", reference=9)
            assert await stream.send_many([]) is None
            assert await stream.send_many([b"x"], ids=[20]) == 20
            await sender.drain()
        assert worker.only.ids == [20]

    async def test_a_worker_gets_the_same_frames_as_from_single_sends(self, revision: str) -> None:
        moment = datetime(2026, 1, 2, tzinfo=UTC)
        times = [None, 17, moment, None] * 5
        keys = [b"k", None, b"", b"key"] * 5 if revision != "draft-le" else [None] * 20
        unstable = revision != "v3"
        accepted: list[list[Message]] = []
        for bulk in (False, True):
            async with ScriptedWorker() as worker, connector(worker, revision=revision) as sender:
                stream = await sender.open("a")
                if bulk:
                    await stream.send_many(numbered(20), range(5, 45, 2), times, keys, unstable=unstable)
                else:
                    for at, payload in enumerate(numbered(20)):
                        arguments: dict[str, Any] = {"event_time": times[at], "key": keys[at], "unstable": unstable}
                        await stream.send(payload, id=5 + 2 * at, **arguments)
                await sender.drain()
                accepted.append(worker.only.accepted)
        assert accepted[0] == accepted[1]
        assert len(accepted[0]) == 20

    async def test_opaque_ids_come_in_any_order(self) -> None:
        worker = ScriptedWorker(auto_commit=False, increasing=False)
        async with worker, connector(worker, message_ids="opaque") as sender:
            stream = await sender.open("a")
            await stream.send_many(numbered(4), ids=[30, 10, 20, 40])
            await worker.until(lambda: len(worker.only.accepted) == 4)
            worker.only.committed, worker.keeps_buffer = 10, True
            worker.only.accepted = worker.only.accepted[:2]
            await lose(worker)
            await worker.until(lambda: len(worker.only.accepted) == 4)
            worker.commit()
            await sender.drain()
            assert (worker.only.ids, worker.only.duplicates) == ([30, 10, 20, 40], 0)

    @pytest.mark.parametrize("revision", ["draft-le", "draft-be"])
    async def test_ephemeral_streams_keep_nothing(self, revision: str) -> None:
        async with ScriptedWorker(auto_commit=False) as worker, connector(worker, revision=revision) as sender:
            stream = await sender.open("ticks", ephemeral=True)
            await stream.send_many(numbered(100))
            assert stream.unacknowledged == 0
            await sender.drain()
            await worker.until(lambda: len(worker.only.accepted) == 100)
            assert {message.flags for message in worker.only.accepted} == {Flags.EPHEMERAL}
        assert worker.errors == []

    async def test_committed_messages_of_an_earlier_process_are_sent_again_and_not_kept(self) -> None:
        async with ScriptedWorker(auto_commit=False) as worker, connector(worker) as sender:
            stream = await sender.open("a")
            worker.session.write(worker.session.session.ack(0, [(stream.id, 6)]))
            await spin(lambda: stream.acknowledged == 6)
            await stream.send_many(numbered(10), ids=range(1, 11))
            assert stream.unacknowledged == 4
            await worker.until(lambda: worker.only.last == 10)
            worker.commit()

    async def test_a_generator_that_takes_its_time_holds_nothing_back(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr("wallaroo_spark.connector.sending.send_batches.BATCH_SECONDS", -1.0)
        async with ScriptedWorker() as worker, connector(worker) as sender:
            stream, seen = await sender.open("a"), []

            def slow() -> Iterator[bytes]:
                for number in range(5):
                    seen.append(stream.last)
                    yield b"%d" % number

            await stream.send_many(slow())
            await sender.drain()
        assert seen == [None, 1, 2, 3, 4]

    async def test_runs_are_logged_without_payloads(self, caplog: pytest.LogCaptureFixture) -> None:
        caplog.set_level("DEBUG", "wallaroo_spark.connector")
        async with ScriptedWorker() as worker, connector(worker) as sender:
            await (await sender.open("a", id=7)).send_many([b"hush"] * 3)
            await sender.drain()
        assert any("EncodedRun(stream_id=7, 3 messages, ids 1 to 3" in line for line in caplog.messages)
        assert "hush" not in caplog.text


class TestErrors:
    @pytest.mark.parametrize(
        ("arguments", "index", "complaint"),
        [
            ({"ids": [1, 2, 3, 3, 5, 6]}, 3, r"message id 3 is not above 3.*item 3 of send_many, id 3"),
            ({"ids": range(6, 0, -1)}, 1, "message id 5 is not above 6"),
            ({"ids": [1, 2, 3, 4, U64_MAX, U64_MAX + 1]}, 5, "not an unsigned 64-bit integer"),
            ({"ids": [-1, 0, 1, 2, 3, 4]}, 0, "message id -1 is not an unsigned 64-bit integer"),
            ({"payloads": [b""] * 4 + [b"x" * 2000, b""]}, 4, r"message 5 of stream \d+ makes a frame of \d+ bytes"),
            ({"payloads": [b"", "text", b"", b"", b"", b""]}, 1, "a payload is bytes"),
            ({"keys": [b"k"] * 5 + [b"k" * 70_000]}, 5, "at most 65535 fit"),
            ({"event_times": [1, 2, -3, 4, 5, 6]}, 2, "the event time is -3"),
            ({"event_times": [1, 2, 3, 4, "noon", 6]}, 4, "an event time is an integer.*noon"),
        ],
    )
    async def test_messages_before_an_error_stay_sent_and_the_stream_continues(
        self, arguments: dict[str, Any], index: int, complaint: str
    ) -> None:
        async with ScriptedWorker() as worker, connector(worker, max_frame_bytes=1024) as sender:
            stream = await sender.open("a")
            with pytest.raises(LocalProtocolError, match=complaint) as caught:
                await stream.send_many(**{"payloads": numbered(6), **arguments})
            assert caught.value.fields["index"] == index
            assert len(await self._accepted(worker, stream, index)) == index
            if stream.last != U64_MAX:
                await stream.send(b"fine")
            await sender.drain()
        assert worker.errors == []

    async def _accepted(self, worker: ScriptedWorker, stream: Stream, count: int) -> list[Message]:
        await worker.until(lambda: len(worker.only.accepted) >= count)
        return list(worker.only.accepted)

    async def test_numbering_stops_at_the_greatest_id(self) -> None:
        async with ScriptedWorker() as worker, connector(worker) as sender:
            stream = await sender.open("a", reference=U64_MAX - 2)
            with pytest.raises(LocalProtocolError, match="64-bit") as caught:
                await stream.send_many(numbered(5))
            assert caught.value.fields["index"] == 2
            await sender.drain()
        assert worker.only.ids == [U64_MAX - 1, U64_MAX]

    async def test_a_revision_without_flags_says_so(self) -> None:
        async with ScriptedWorker() as worker, connector(worker, revision="v3") as sender:
            stream = await sender.open("a")
            with pytest.raises(LocalProtocolError, match="v3 messages have no flags"):
                await stream.send_many(numbered(3), unstable=True)
            assert (stream.unacknowledged, stream.last) == (0, None)

    async def test_a_revision_without_keys_says_so(self) -> None:
        async with ScriptedWorker() as worker, connector(worker, revision="draft-le") as sender:
            stream = await sender.open("a")
            with pytest.raises(LocalProtocolError, match="messages have no key") as caught:
                await stream.send_many(numbered(3), keys=[None, None, b"k"])
            assert caught.value.fields["index"] == 2

    async def test_the_error_of_an_iterable_is_raised_and_its_items_are_sent(self) -> None:
        def broken() -> Iterator[bytes]:
            yield from numbered(3)
            raise OSError("the disk is on fire")

        async with ScriptedWorker() as worker, connector(worker) as sender:
            stream = await sender.open("a")
            with pytest.raises(OSError, match="on fire"):
                await stream.send_many(broken())
            assert stream.last == 3
            await sender.drain()
        assert worker.only.payloads == numbered(3)

    async def test_an_ended_stream_and_a_closed_connector_take_nothing(self) -> None:
        async with ScriptedWorker() as worker, connector(worker) as sender:
            ended, open_still = await sender.open("a"), await sender.open("b")
            await ended.end()
            with pytest.raises(LocalProtocolError, match=r"'a' has ended.*item 0"):
                await ended.send_many([b"x"])
        with pytest.raises(LocalProtocolError, match=r"connector is closed.*item 0"):
            await open_still.send_many([b"x"])

    async def test_a_stream_that_ends_in_the_middle_takes_no_more(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr("wallaroo_spark.connector.sending.stream_sender.TURN_MESSAGES", 10)
        async with ScriptedWorker(credits=6, regrant=False) as worker, connector(worker) as sender:
            stream = await sender.open("a")
            sending = asyncio.create_task(stream.send_many(numbered(500)))
            await worker.until(lambda: len(worker.only.accepted) == 5)
            ending, ending_too = asyncio.create_task(stream.end()), asyncio.create_task(stream.end())
            single = asyncio.create_task(stream.send(b"late"))
            await spin(lambda: len(sender._state._waiting) == 4)
            worker.session.write(worker.session.session.ack(200))
            with pytest.raises(LocalProtocolError, match="'a' has ended") as caught:
                await sending
            await asyncio.gather(ending, ending_too)
            with pytest.raises(LocalProtocolError, match="'a' has ended"):
                await single
            sent = caught.value.fields["index"]
            await worker.until(lambda: worker.only.ended == 1)
            assert len(worker.only.accepted) == sent < 200
        assert worker.errors == []

    async def test_an_error_that_ends_the_connector_during_send_many_names_the_index(self) -> None:
        worker, retry = ScriptedWorker(credits=11, regrant=False), Backoff(initial=0, attempts=1)
        async with worker, connector(worker, retry=retry) as sender:
            stream = await sender.open("a")
            sending = asyncio.create_task(stream.send_many(numbered(100)))
            await worker.until(lambda: len(worker.only.accepted) == 10)
            worker.answers.append(later("leaving"))
            worker.session.stream.abort()
            with pytest.raises(TransportError, match=r"leaving.*item 10 of send_many") as caught:
                await sending
            assert caught.value.fields["index"] == 10
            with pytest.raises(TransportError) as shared:
                await stream.send(b"x")
            assert "send_many" not in shared.value.message


class TestWaiting:
    async def test_credits_are_never_exceeded_and_waiting_says_so(self, revision: str) -> None:
        async with ScriptedWorker(credits=4, regrant=False) as worker, connector(worker, revision=revision) as sender:
            stream = await sender.open("a")
            sending = asyncio.create_task(stream.send_many(numbered(10)))
            await worker.until(lambda: len(worker.only.accepted) == 3)
            assert await starved(sender) == "credit"
            for credits in (1, 4, 2):
                worker.session.write(worker.session.session.ack(credits))
            assert await sending == 10
            await sender.drain()
        assert worker.errors == []
        assert worker.only.payloads == numbered(10)

    async def test_memory_is_never_exceeded(self) -> None:
        async with ScriptedWorker(auto_commit=False) as worker, connector(worker, max_unacknowledged=20_000) as sender:
            stream = await sender.open("a")
            sending = asyncio.create_task(stream.send_many([b"x" * 1000] * 50))
            assert await starved(sender) == "memory"
            assert 10 < stream.unacknowledged < 20
            while not sending.done():
                assert sender._state.budget.held <= 20_000
                worker.commit()
                await asyncio.sleep(0)
            await worker.until(lambda: len(worker.only.accepted) == 50)
            worker.commit()
            await sender.drain()
            assert sender._state.budget.held == 0

    async def test_one_message_of_any_size_may_be_kept(self) -> None:
        async with ScriptedWorker() as worker, connector(worker, max_unacknowledged=1) as sender:
            stream = await sender.open("a")
            await stream.send_many([b"x" * 1000] * 3)
            await sender.drain()
        assert len(worker.only.accepted) == 3

    async def test_the_queue_of_the_connection_is_bounded(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(worker_connection_module, "COLLECTED_BYTES", 1000)
        pending: list[int] = []
        async with ScriptedWorker(credits=100_000) as worker, connector(worker) as sender:
            stream = await sender.open("a")
            connection = sender._state.connection
            assert connection is not None
            monkeypatch.setattr(
                connection, "_on_written", lambda: (pending.append(connection._pending), sender._open_streams.written())
            )
            carrier = cast(TcpCarrier, connection._carrier)
            write = carrier._stream.write
            monkeypatch.setattr(carrier._stream, "write", lambda data: (pending.append(len(data)), write(data)))
            await stream.send_many([b"x" * 100] * 500)
            await sender.drain()
        assert 900 < max(pending) < 1000 + 150

    async def test_a_cancelled_call_keeps_its_sent_messages(self) -> None:
        async with ScriptedWorker(credits=6, regrant=False) as worker, connector(worker) as sender:
            stream = await sender.open("a")
            sending = asyncio.create_task(stream.send_many(numbered(10)))
            await worker.until(lambda: len(worker.only.accepted) == 5)
            await starved(sender)
            sending.cancel()
            await asyncio.wait([sending])
            assert (sending.cancelled(), stream.last) == (True, 5)
            worker.session.write(worker.session.session.ack(100))
            assert await stream.send_many(numbered(5, 6)) == 10
            await sender.drain()
        assert worker.only.payloads == numbered(10)

    @pytest.mark.parametrize(("credits", "count"), [(4, 400), (100_000, 2000)])
    async def test_streams_take_turns(self, credits: int, count: int) -> None:
        async with ScriptedWorker(credits=credits) as worker, connector(worker) as sender:
            bulk = [await sender.open(name) for name in ("a", "b")]
            single = await sender.open("c")
            sending = asyncio.gather(
                *(stream.send_many([b"x" * 1000] * count) for stream in bulk), send_all(single, count, b"x" * 1000)
            )
            await worker.until(lambda: any(len(worker.named(name).accepted) == count for name in "abc"))
            counts = [len(worker.named(name).accepted) for name in "abc"]
            await sending
            await sender.drain()
        assert min(counts) > count // 2, f"one stream was kept from sending: {counts}"
        assert worker.errors == []

    async def test_several_may_send_on_one_stream(self) -> None:
        async with ScriptedWorker(credits=5) as worker, connector(worker) as sender:
            stream = await sender.open("a")
            await asyncio.gather(
                stream.send_many([b"a"] * 300), stream.send_many([b"b"] * 300), send_all(stream, 300, b"c")
            )
            await sender.drain()
        assert worker.only.ids == list(range(1, 901))
        assert {payload: worker.only.payloads.count(payload) for payload in (b"a", b"b", b"c")} == {
            b"a": 300,
            b"b": 300,
            b"c": 300,
        }


class TestCuts:
    @settings(max_examples=30, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
    @given(
        cuts=st.lists(st.integers(1, 9000), max_size=6),
        credits=st.integers(1, 90),
        name=st.sampled_from(REVISIONS),
        batches=st.lists(st.integers(0, 60), min_size=2, max_size=6),
        keeps_buffer=st.booleans(),
    )
    def test_a_connection_may_be_cut_after_any_byte(
        self, cuts: list[int], credits: int, name: str, batches: list[int], keeps_buffer: bool
    ) -> None:
        async def send(stream: Stream) -> None:
            for count in batches:
                first = (stream.last or 0) + 1
                await stream.send_many([b"x" * 40] * count, range(first, first + count))
                await stream.send(b"x" * 40)

        async def run() -> None:
            worker = ScriptedWorker(cut_after=cuts, credits=credits, keeps_buffer=keeps_buffer)
            async with asyncio.timeout(SECONDS), worker, connector(worker, revision=name) as sender:
                streams = [await sender.open("a"), await sender.open("b")]
                await asyncio.gather(*(send(stream) for stream in streams))
                for stream in streams:
                    await stream.end()
                await sender.drain()
                assert sender._state.budget.held == 0
                for stream in streams:
                    assert worker.named(stream.name).ids == list(range(1, sum(batches) + len(batches) + 1))
            assert worker.errors == []

        asyncio.run(run())

    async def test_the_uncommitted_part_of_a_run_is_sent_again(self, revision: str) -> None:
        worker = ScriptedWorker(auto_commit=False)
        async with worker, connector(worker, revision=revision) as sender:
            stream = await sender.open("a")
            await stream.send_many(numbered(10))
            await worker.until(lambda: worker.only.last == 10)
            worker.only.committed = 4
            await lose(worker)
            await stream.send_many(numbered(5, 11))
            await worker.until(lambda: worker.only.last == 15)
            assert stream.unacknowledged == 11
            worker.commit()
            await sender.drain()
            assert (worker.only.payloads, worker.only.duplicates) == (numbered(15), 0)

    async def test_a_nack_takes_a_stream_back_into_a_run(self) -> None:
        worker = ScriptedWorker(auto_commit=False)
        async with worker, connector(worker, revision="draft-le") as sender:
            stream = await sender.open("a")
            await stream.send_many(numbered(10))
            await worker.until(lambda: worker.only.last == 10)
            worker.session.nack(stream.id, 3)
            await stream.send_many(numbered(10, 11))
            await worker.until(lambda: worker.only.last == 20)
            worker.commit()
            await sender.drain()
            assert worker.only.payloads == numbered(20)

    async def test_a_worker_that_requests_acknowledged_messages_gets_an_error(self) -> None:
        async with ScriptedWorker() as worker, connector(worker, retry=BRIEF) as sender:
            stream = await sender.open("a")
            await stream.send_many(numbered(5))
            await sender.drain()
            worker.only.committed = 2
            worker.session.stream.abort()
            with pytest.raises(ReplayError, match=r"behind reference 2.*send_many"):
                await stream.send_many([b"x"] * 100_000)
            await sender.close()


class TestBlocking:
    async def test_iterables_are_pulled_in_the_callers_thread(self) -> None:
        threads: set[threading.Thread] = set()

        def payloads() -> Iterator[bytes]:
            for payload in numbered(5000):
                threads.add(threading.current_thread())
                yield payload

        def use(address: str) -> tuple[int | None, int | None, threading.Thread]:
            with BlockingConnector("orders", instance="shop-1", workers=address) as sender:
                stream = sender.open("a")
                last = stream.send_many(payloads(), ids=range(11, 5011))
                with pytest.raises(LocalProtocolError, match="5010 is not above 5010"):
                    stream.send_many([b"x"], ids=[5010])
                sender.drain()
                return last, stream.last, threading.current_thread()

        async with ScriptedWorker(credits=50) as worker:
            last, seen, thread = await asyncio.to_thread(use, worker.address)
        assert (last, seen, threads) == (5010, 5010, {thread})
        assert worker.only.payloads == numbered(5000)
