"""A connector and its streams, while the session lasts."""

from __future__ import annotations

import asyncio
import logging
from datetime import UTC, datetime, timedelta, timezone
from typing import Any

import pytest

from tests.connector.conftest import QUICK
from tests.connector.scripted_worker import ScriptedWorker, spin
from wallaroo_spark.connector import Connector, Stream, stream_id_of
from wallaroo_spark.errors import LocalProtocolError, RemoteProtocolError, TransportError
from wallaroo_spark.protocol import Flags

pytestmark = pytest.mark.timeout(30)


def connector(worker: ScriptedWorker, **settings: Any) -> Connector:
    return Connector("orders", **{"instance": "shop-1", "workers": worker.address, "retry": QUICK, **settings})


class TestSending:
    async def test_messages_arrive_in_order_and_drain_returns_when_they_are_committed(self, revision: str) -> None:
        async with ScriptedWorker(credits=7) as worker, connector(worker, revision=revision) as sender:
            stream = await sender.open("a")
            for number in range(100):
                await stream.send(b"%d" % number)
            await sender.drain()
            assert (stream.reference, stream.acknowledged, stream.unacknowledged) == (None, 100, 0)
        assert worker.only.payloads == [b"%d" % number for number in range(100)]
        assert worker.only.ids == list(range(1, 101))
        assert worker.errors == []

    async def test_nothing_is_acknowledged_before_the_worker_says_so(self) -> None:
        async with ScriptedWorker(auto_commit=False) as worker, connector(worker) as sender:
            stream = await sender.open("a")
            await stream.send(b"x", id=5)
            await worker.until(lambda: worker.only.ids == [5])
            assert (stream.acknowledged, stream.unacknowledged) == (None, 1)
            worker.commit()
            await stream.flushed()
            assert (stream.acknowledged, stream.unacknowledged) == (5, 0)

    async def test_a_stream_resumes_at_the_reference_the_worker_has(self, revision: str) -> None:
        async with ScriptedWorker() as worker:
            async with connector(worker, revision=revision) as first:
                stream = await first.open("a")
                await stream.send(b"x", id=41)
                await first.drain()
            async with connector(worker, revision=revision) as second:
                stream = await second.open("a")
                assert stream.reference == 41
                assert await stream.send(b"y") == 42
                await second.drain()
            assert worker.only.ids == [41, 42]

    async def test_the_callers_reference_counts_where_the_worker_has_none(self, revision: str) -> None:
        async with ScriptedWorker() as worker, connector(worker, revision=revision) as sender:
            stream = await sender.open("a", reference=9)
            assert stream.reference == 9
            assert await stream.send(b"x") == 10
            await sender.drain()
        assert worker.only.notified == [9]

    async def test_an_id_that_does_not_increase_is_refused_and_nothing_is_sent(self) -> None:
        async with ScriptedWorker() as worker, connector(worker) as sender:
            stream = await sender.open("a")
            await stream.send(b"x", id=5)
            with pytest.raises(LocalProtocolError, match="id 5 is not above 5"):
                await stream.send(b"y", id=5)
            await sender.drain()
            assert worker.only.ids == [5]

    async def test_event_time_key_and_unstable_reference_go_with_a_message(self) -> None:
        moment = datetime(2026, 1, 2, 3, 4, 5, 678901, tzinfo=timezone(timedelta(hours=2)))
        async with ScriptedWorker() as worker, connector(worker) as sender:
            stream = await sender.open("a")
            await stream.send(b"x", event_time=moment, key=b"k", unstable=True)
            await stream.send(memoryview(b"y"), event_time=17)
            await sender.drain()
            first, second = worker.only.accepted
            assert first.event_time == (int(moment.timestamp()) * 1_000_000 + 678901) * 1000
            assert (first.key, first.flags) == (b"k", Flags.EVENT_TIME | Flags.KEY | Flags.UNSTABLE_REFERENCE)
            assert (second.payload, second.event_time, second.key) == (b"y", 17, None)

    @pytest.mark.parametrize(
        ("arguments", "complaint"),
        [
            ({"event_time": datetime(2026, 1, 1)}, "no time zone"),
            ({"key": b"k" * 70_000}, "65535"),
            ({"payload": "text"}, "a payload is bytes"),
            ({"payload": b"x" * 2000}, "at most 1024 are accepted"),
        ],
    )
    async def test_what_cannot_be_sent_is_refused_and_the_stream_goes_on(
        self, arguments: dict[str, Any], complaint: str
    ) -> None:
        async with ScriptedWorker() as worker, connector(worker, max_frame_bytes=1024) as sender:
            stream = await sender.open("a")
            with pytest.raises(LocalProtocolError, match=complaint):
                await stream.send(**{"payload": b"", **arguments})
            assert stream.unacknowledged == 0
            await stream.send(b"fine", event_time=datetime(2026, 1, 1, tzinfo=UTC))
            await sender.drain()
        assert worker.only.payloads == [b"fine"]

    async def test_streams_have_ids_of_their_own_that_stay_the_same(self) -> None:
        async with ScriptedWorker() as worker, connector(worker) as sender:
            one, other, given = await sender.open("a"), await sender.open("b"), await sender.open("c", id=3)
            assert (one.id, other.id) == (stream_id_of("shop-1", "a"), stream_id_of("shop-1", "b"))
            assert len({one.id, other.id, stream_id_of("shop-2", "a")}) == 3
            assert given.id == 3
            assert stream_id_of("shop-1", "a") == 2476569953989721951

    async def test_a_stream_cannot_be_opened_twice(self) -> None:
        async with ScriptedWorker() as worker, connector(worker) as sender:
            await sender.open("a", id=1)
            with pytest.raises(LocalProtocolError, match=r"'a' \(id 1\) is open already"):
                await sender.open("a", id=1)
            with pytest.raises(LocalProtocolError, match="would have the id of stream 'a'"):
                await sender.open("b", id=1)

    async def test_a_cancelled_send_has_sent_nothing(self) -> None:
        async with ScriptedWorker(credits=2, regrant=False) as worker, connector(worker) as sender:
            stream = await sender.open("a")
            await stream.send(b"1")
            sending = asyncio.create_task(stream.send(b"2"))
            await starved(sender)
            sending.cancel()
            await asyncio.wait([sending])
            assert sending.cancelled()
            assert sender.waiting_for is None
            worker.session.write(worker.session.session.ack(5))
            assert await stream.send(b"3") == 2
            await sender.drain()
        assert worker.only.payloads == [b"1", b"3"]

    async def test_a_stream_shows_where_it_stands(self) -> None:
        async with ScriptedWorker(auto_commit=False) as worker, connector(worker) as sender:
            stream = await sender.open("a", id=7)
            await stream.send(b"x")
            assert repr(stream) == (
                "<Stream 'a' id=7: 1 messages unacknowledged, sent up to 1, acknowledged up to nothing>"
            )
            assert repr(sender) == "<Connector 'shop-1' to 'orders', 1 streams>"
            await sender.close()


async def starved(sender: Connector) -> str:
    """Wait until a send waits for something; what that is."""
    await spin(lambda: sender.waiting_for is not None)
    return sender.waiting_for or ""


class TestWaiting:
    async def test_sending_waits_for_credit_and_says_so(
        self, revision: str, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr("wallaroo_spark.connector.hub.STARVED_SECONDS", 0.0)
        caplog.set_level(logging.INFO, "wallaroo_spark.connector")
        async with ScriptedWorker(credits=4, regrant=False) as worker, connector(worker, revision=revision) as sender:
            stream = await sender.open("a")
            sending = asyncio.create_task(send_all(stream, 10))
            await worker.until(lambda: len(worker.only.accepted) == 3)
            assert await starved(sender) == "credit"
            await spin(lambda: "sending waits for credit" in caplog.messages)
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
            assert kept == 10_000 // (1000 + 256)
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


async def send_all(stream: Stream, count: int, payload: bytes = b"x") -> None:
    for _ in range(count):
        await stream.send(payload)


class TestBoundariesEndsAndEphemeralStreams:
    @pytest.mark.parametrize("revision", ["draft-le", "draft-be"])
    async def test_a_boundary_is_a_marker_that_is_acknowledged(self, revision: str) -> None:
        async with ScriptedWorker() as worker, connector(worker, revision=revision) as sender:
            stream = await sender.open("a")
            await stream.send(b"x", unstable=True)
            assert await stream.send_boundary() == 2
            await sender.drain()
            assert stream.acknowledged == 2
        assert worker.only.accepted[1].flags == Flags.BOUNDARY
        assert worker.only.ended == 0

    async def test_a_revision_without_boundaries_says_so(self) -> None:
        async with ScriptedWorker() as worker, connector(worker, revision="v3") as sender:
            stream = await sender.open("a")
            with pytest.raises(LocalProtocolError, match="v3 messages have no flags"):
                await stream.send_boundary()
            assert stream.unacknowledged == 0

    async def test_an_ended_stream_takes_nothing_more_and_can_be_opened_again(self, revision: str) -> None:
        async with ScriptedWorker() as worker, connector(worker, revision=revision) as sender:
            stream = await sender.open("a")
            await stream.send(b"x")
            await stream.end()
            await stream.end()
            with pytest.raises(LocalProtocolError, match="'a' has ended"):
                await stream.send(b"y")
            await stream.flushed()
            again = await sender.open("a")
            assert again.reference == 1
            await again.send(b"y")
            await sender.drain()
        assert worker.only.ended == 1
        assert worker.only.payloads == [b"x", b"y"]
        assert worker.errors == []

    async def test_an_empty_stream_can_end(self, revision: str) -> None:
        async with ScriptedWorker() as worker, connector(worker, revision=revision) as sender:
            stream = await sender.open("a")
            await stream.end()
            await sender.drain()
        await worker.until(lambda: worker.only.ended == 1)
        assert worker.errors == []

    @pytest.mark.parametrize("revision", ["draft-le", "draft-be"])
    async def test_ephemeral_messages_are_done_once_written(self, revision: str) -> None:
        worker = ScriptedWorker(auto_commit=False, keeps_buffer=True)
        async with worker, connector(worker, revision=revision) as sender:
            stream = await sender.open("ticks", ephemeral=True)
            await send_all(stream, 5)
            await stream.end()
            await sender.drain()
            assert stream.unacknowledged == 0
        await worker.until(lambda: worker.only.ended == 1)
        assert len(worker.only.accepted) == 5
        assert all(message.flags == Flags.EPHEMERAL for message in worker.only.accepted)
        assert worker.errors == []

    async def test_without_flags_an_ephemeral_stream_is_kept_until_it_is_acknowledged(self) -> None:
        async with ScriptedWorker(auto_commit=False) as worker, connector(worker, revision="v3") as sender:
            stream = await sender.open("ticks", ephemeral=True)
            await send_all(stream, 5)
            assert stream.unacknowledged == 5
            await worker.until(lambda: len(worker.only.accepted) == 5)
            worker.commit()
            await sender.drain()


class TestDrainingAndClosing:
    async def test_a_drain_that_takes_too_long_says_what_is_waiting_where(self) -> None:
        async with ScriptedWorker(auto_commit=False) as worker, connector(worker) as sender:
            stream = await sender.open("a")
            await stream.send(b"x", id=17)
            with pytest.raises(TransportError) as caught:
                await sender.drain(timeout=0.05)
            assert f"the session with {worker.address} is up" in caught.value.message
            assert "'a' (1 messages unacknowledged, sent up to 17, acknowledged up to nothing)" in caught.value.message
            await worker.until(lambda: worker.only.ids == [17])
            worker.commit()
            await sender.drain()

    async def test_leaving_the_block_waits_until_everything_is_acknowledged(self, revision: str) -> None:
        async with ScriptedWorker(auto_commit=False) as worker:

            async def use() -> Stream:
                async with connector(worker, revision=revision) as sender:
                    stream = await sender.open("a")
                    await send_all(stream, 3)
                return stream

            leaving = asyncio.create_task(use())
            await worker.until(lambda: len(worker.only.accepted) == 3)
            for _ in range(100):
                await asyncio.sleep(0)
            assert not leaving.done()
            worker.commit()
            stream = await leaving
            assert (stream.acknowledged, stream.unacknowledged) == (3, 0)

    async def test_a_block_left_with_messages_unacknowledged_raises_with_streams_and_counts(self) -> None:
        async with ScriptedWorker(auto_commit=False) as worker:
            with pytest.raises(TransportError) as caught:
                async with connector(worker, drain_timeout=0.05) as sender:
                    await send_all(await sender.open("a"), 3)
            assert "connector 'shop-1' sent was acknowledged within 0.05 seconds: 3 messages" in caught.value.message
            assert "'a' (3 messages unacknowledged" in caught.value.message
            assert "drain_timeout" in caught.value.message
            await worker.until(lambda: worker.session.ended_in_order)

    async def test_a_block_that_an_exception_ends_waits_for_nothing(self) -> None:
        async with ScriptedWorker(auto_commit=False) as worker:

            async def use() -> None:
                async with connector(worker, drain_timeout=None) as sender:
                    await send_all(await sender.open("a"), 3)
                    raise KeyError("broken")

            with pytest.raises(KeyError, match="broken"):
                await use()
            await worker.until(lambda: worker.session.ended_in_order)

    async def test_a_block_left_after_what_ended_the_connector_raises_that(self) -> None:
        async with ScriptedWorker(auto_commit=False) as worker:

            async def use() -> None:
                async with connector(worker, drain_timeout=None) as sender:
                    await send_all(await sender.open("a"), 3)
                    worker.session.write(worker.session.session.error("the cookie has changed"))

            with pytest.raises(RemoteProtocolError, match="the cookie has changed"):
                await use()

    async def test_closing_with_messages_unacknowledged_warns_with_counts(
        self, caplog: pytest.LogCaptureFixture
    ) -> None:
        async with ScriptedWorker(auto_commit=False) as worker, connector(worker) as sender:
            await send_all(await sender.open("a"), 3)
            await sender.close()
        assert "'shop-1' closes with 3 messages unacknowledged: 'a' (3 messages" in caplog.text

    async def test_closing_sends_what_was_written_and_ends_the_connection_in_order(self, revision: str) -> None:
        async with (
            ScriptedWorker(credits=5000, auto_commit=False) as worker,
            connector(worker, revision=revision) as sender,
        ):
            await send_all(await sender.open("a"), 4000)
            await sender.close()
        ended = worker.session
        await worker.until(lambda: ended.over)
        # An orderly end is one that the reader meets as an end, behind every byte; a reset would raise.
        assert await ended.stream.read() == b""
        assert worker.errors == []
        assert ended.session.credits.spent == 4001

    async def test_a_closed_connector_refuses_further_use_and_closes_again_quietly(self) -> None:
        async with ScriptedWorker() as worker, connector(worker) as sender:
            stream = await sender.open("a")
        for use in (stream.send(b"x"), sender.open("b"), stream.end()):
            with pytest.raises(LocalProtocolError, match="connector is closed"):
                await use
        await sender.close()

    async def test_closing_wakes_whoever_waits(self) -> None:
        async with ScriptedWorker(credits=1, regrant=False) as worker, connector(worker) as sender:
            stream = await sender.open("a")
            sending = asyncio.create_task(stream.send(b"x"))
            await starved(sender)
        with pytest.raises(LocalProtocolError, match="connector is closed"):
            await sending

    async def test_frames_are_logged_with_their_direction_and_never_the_cookie(
        self, caplog: pytest.LogCaptureFixture
    ) -> None:
        caplog.set_level(logging.DEBUG, "wallaroo_spark.connector")
        async with ScriptedWorker(cookie=b"hush-hush") as worker, connector(worker, cookie="hush-hush") as sender:
            stream = await sender.open("a", id=7)
            await stream.send(b"payload " * 100)
            await stream.end()
            await sender.drain()
        lines = [message for message in caplog.messages if message[:2] in ("> ", "< ")]
        assert [line.split()[2].partition("(")[0] for line in lines if line[0] == ">"] == [
            "HELLO",
            "Notify",
            "Message",
            "EosMessage",
        ]
        assert any(line.startswith(f"< {worker.address} Ok(") for line in lines)
        assert max(map(len, lines)) < 250
        assert "hush-hush" not in caplog.text
