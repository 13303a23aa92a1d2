"""A stream, while the session lasts."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta, timezone
from typing import Any

import pytest

from tests.connector.scripted_worker import ScriptedWorker
from tests.connector.support import connector, send_all, starved
from wallaroo_spark.connector import stream_id_of
from wallaroo_spark.errors import LocalProtocolError
from wallaroo_spark.protocol import Flags


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
    async def test_an_invalid_message_is_refused_and_the_stream_continues(
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
