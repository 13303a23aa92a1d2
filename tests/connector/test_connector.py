"""A connector and its streams, while the session lasts."""

from __future__ import annotations

import asyncio
import logging

import pytest

from tests.connector.scripted_worker import ScriptedWorker
from tests.connector.support import connector, send_all, starved
from wallaroo_spark.connector import Stream
from wallaroo_spark.errors import LocalProtocolError, RemoteProtocolError, TransportError


class TestDrainingAndClosing:
    async def test_a_drain_that_takes_too_long_names_streams_and_reasons(self) -> None:
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

    async def test_the_end_of_a_block_raises_the_error_that_ended_the_connector(self) -> None:
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

    async def test_closing_sends_the_written_bytes_and_ends_the_connection_in_order(self, revision: str) -> None:
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

    async def test_closing_wakes_all_waiters(self) -> None:
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
