"""The blocking form, as plain scripts use it: in processes of their own."""

from __future__ import annotations

import asyncio
import inspect
import signal
import sys
import threading
from pathlib import Path
from typing import Any

import pytest

from tests.connector.scripted_worker import ScriptedWorker
from tests.waiting import SECONDS
from wallaroo_spark.connector import BlockingConnector, BlockingStream, Connector, Stream
from wallaroo_spark.errors import LocalProtocolError, RemoteProtocolError, TransportError

ROOT = Path(__file__).resolve().parents[2]

SCRIPT = """
import sys
from wallaroo_spark.connector import BlockingConnector, Lines

address, path = sys.argv[1:]
with BlockingConnector("orders", instance="shop-1", workers=address) as connector:
    stream = connector.open("a", id=7)
    print(stream.reference, stream.id, stream.name)
    for number in range(100):
        stream.send(b"%d" % number, id=number + 1)
    print(stream.send_boundary(1000))
    stream.end()
    stream.flushed()
    connector.drain(timeout=60)
    print(stream.acknowledged, stream.unacknowledged, connector.unacknowledged, connector.waiting_for)
    seen = []
    print(connector.feed(Lines(path), progress=seen.append).messages, seen[-1].acknowledged)
"""

STARVED = """
import sys
from wallaroo_spark.connector import BlockingConnector

with BlockingConnector("orders", instance="shop-1", workers=sys.argv[1]) as connector:
    stream = connector.open("a")
    print("ready", flush=True)
    try:
        while True:
            stream.send(b"x")
    except KeyboardInterrupt:
        print("interrupted", connector.waiting_for)
        raise
"""


LEFT = """
import sys
from wallaroo_spark.connector import BlockingConnector

with BlockingConnector("orders", instance="shop-1", workers=sys.argv[1], drain_timeout=float(sys.argv[2])) as connector:
    connector.open("a").send_many([b"x"] * 3)
"""


async def start(script: str, *arguments: str) -> asyncio.subprocess.Process:
    return await asyncio.create_subprocess_exec(
        sys.executable,
        "-c",
        script,
        *arguments,
        cwd=ROOT,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )


async def outcome(process: asyncio.subprocess.Process) -> tuple[int | None, str, str]:
    async with asyncio.timeout(SECONDS):
        out, err = await process.communicate()
    return process.returncode, out.decode(), err.decode()


class TestScripts:
    async def test_a_plain_script_sends_drains_and_feeds(self, tmp_path: Path) -> None:
        path = tmp_path / "lines.txt"
        with path.open("wb") as file:
            file.write(b"one\ntwo\nthree")
        async with ScriptedWorker(credits=10) as worker:
            status, out, err = await outcome(await start(SCRIPT, worker.address, str(path)))
            assert (status, err) == (0, "")
            assert out.splitlines() == ["None 7 a", "1000", "1000 0 0 None", "3 13"]
            assert worker.named("a").payloads == [b"%d" % number for number in range(100)]
            assert all(session.ended_in_order for session in worker.sessions)

    async def test_a_script_ends_with_0_only_once_everything_is_acknowledged(self) -> None:
        async with ScriptedWorker(auto_commit=False) as worker:
            process = await start(LEFT, worker.address, str(SECONDS))
            await worker.until(lambda: len(worker.only.accepted) == 3)
            assert process.returncode is None
            worker.commit()
            assert await outcome(process) == (0, "", "")

    async def test_a_script_whose_messages_are_not_acknowledged_in_time_fails_and_says_which(self) -> None:
        async with ScriptedWorker(auto_commit=False) as worker:
            status, _, err = await outcome(await start(LEFT, worker.address, "0.05"))
            assert status == 1
            assert "TransportError: not everything that connector 'shop-1' sent was acknowledged" in err
            assert "'a' (3 messages unacknowledged" in err

    async def test_an_interrupt_ends_a_send_that_waits_and_closes_the_connection_in_order(self) -> None:
        async with ScriptedWorker(credits=10, regrant=False) as worker:
            process = await start(STARVED, worker.address)
            await worker.until(lambda: len(worker.only.accepted) == 9)
            process.send_signal(signal.SIGINT)
            status, out, err = await outcome(process)
            assert status in (-signal.SIGINT, 128 + signal.SIGINT)
            assert out.splitlines() == ["ready", "interrupted None"]
            assert err.rstrip().endswith("KeyboardInterrupt")
            await worker.until(lambda: worker.session.ended_in_order)


class TestCalls:
    @pytest.mark.parametrize("begun", [True, False])
    async def test_an_interrupt_while_a_call_is_handed_over_leaves_no_send_behind(self, begun: bool) -> None:
        def use(address: str) -> str | None:
            with BlockingConnector("orders", instance="shop-1", workers=address) as sender:
                stream = sender.open("a")
                loop = sender._thread._loop
                hand_over = loop.call_soon_threadsafe

                def interrupted(*call: Any, **options: Any) -> None:
                    loop.call_soon_threadsafe = hand_over  # type: ignore[method-assign]  # the real one again
                    if begun:
                        hand_over(*call, **options)
                    raise KeyboardInterrupt

                loop.call_soon_threadsafe = interrupted  # type: ignore[method-assign, assignment]  # a signal here
                with pytest.raises(KeyboardInterrupt):
                    stream.send(b"x")
                return sender.waiting_for

        async with ScriptedWorker(credits=1, regrant=False) as worker:
            assert await asyncio.to_thread(use, worker.address) is None
            assert worker.only.accepted == []

    async def test_errors_come_through(self) -> None:
        async with ScriptedWorker(auto_commit=False) as worker:
            await asyncio.to_thread(self._fail, worker.address)

    def _fail(self, address: str) -> None:
        with BlockingConnector("orders", instance="shop-1", workers=address) as sender:
            stream = sender.open("a")
            stream.send(b"x", id=5)
            with pytest.raises(LocalProtocolError, match="5 is not above 5"):
                stream.send(b"x", id=5)
            with pytest.raises(TransportError, match="not everything that connector 'shop-1' sent was"):
                sender.drain(timeout=0.01)
            sender.close()
        with pytest.raises(LocalProtocolError, match="the connector is closed"):
            stream.send(b"x")
        sender.close()

    async def test_a_refusal_comes_through(self) -> None:
        async with ScriptedWorker(cookie=b"hush") as worker:

            def refused() -> None:
                with (
                    BlockingConnector("orders", instance="shop-1", workers=worker.address, cookie="loud") as sender,
                    pytest.raises(RemoteProtocolError, match="cookie"),
                ):
                    sender.open("a")

            await asyncio.to_thread(refused)
            assert len(worker.hellos) == 0

    async def test_several_threads_may_share_one(self) -> None:
        async with ScriptedWorker(credits=20) as worker:
            with BlockingConnector("orders", instance="shop-1", workers=worker.address) as sender:

                def send(name: str) -> None:
                    stream = sender.open(name)
                    for _ in range(100):
                        stream.send(b"x")

                await asyncio.gather(*(asyncio.to_thread(send, name) for name in "abc"))
                await asyncio.to_thread(sender.drain)
                assert [len(worker.named(name).accepted) for name in "abc"] == [100, 100, 100]
                await asyncio.to_thread(sender.close)

    async def test_its_thread_is_gone_once_it_is_closed(self) -> None:
        async with ScriptedWorker() as worker:

            def use() -> None:
                with BlockingConnector("orders", instance="shop-1", workers=worker.address) as sender:
                    sender.open("a")

            await asyncio.to_thread(use)
        assert not [thread for thread in threading.enumerate() if thread.name == "wallaroo-connector"]

    async def test_a_call_from_its_own_thread_is_refused_rather_than_waiting_for_itself(self) -> None:
        complaints: list[str] = []
        async with ScriptedWorker() as worker:

            def use() -> None:
                from wallaroo_spark.connector import Records

                with BlockingConnector("orders", instance="shop-1", workers=worker.address) as sender:

                    def call_back(progress: object) -> None:
                        try:
                            sender.drain()
                        except LocalProtocolError as error:
                            complaints.append(str(error))

                    sender.feed(Records("a", lambda: [(1, b"x")]), progress=call_back)

            await asyncio.to_thread(use)
        assert "called from the connector's thread" in complaints[0]


def public(kind: Any) -> set[str]:
    return {name for name in dir(kind) if not name.startswith("_")}


@pytest.mark.parametrize(("kind", "blocking"), [(Connector, BlockingConnector), (Stream, BlockingStream)])
def test_the_blocking_form_has_the_same_methods_with_the_same_parameters(kind: type, blocking: type) -> None:
    assert public(kind) == public(blocking)
    for name in public(blocking):
        one, other = getattr(kind, name), getattr(blocking, name)
        assert one.__doc__
        assert other.__doc__
        if callable(one):
            assert inspect.signature(one).parameters == inspect.signature(other).parameters
            assert not inspect.iscoroutinefunction(other)


@pytest.mark.parametrize("kind", [Stream, BlockingStream])
def test_a_stream_shows_only_what_its_user_may_call(kind: type) -> None:
    assert public(kind) == {
        *("id", "name", "reference", "last", "acknowledged", "unacknowledged"),
        *("send", "send_many", "send_boundary", "end", "flushed"),
    }
