"""Connectors over QUIC: a worker that really runs, on UDP sockets, and the SDK or a peer written here."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from typing import Any

import pytest

from tests.pems import Pems
from tests.waiting import SECONDS
from tests.worker.running import COOKIE, Fleet, Running
from wallaroo_spark import aqueduct
from wallaroo_spark.connector import Backoff, Connector
from wallaroo_spark.errors import LocalProtocolError, RemoteProtocolError, TransportError
from wallaroo_spark.protocol import (
    DRAFT_BE,
    DRAFT_LE,
    REVISIONS,
    ConnectorSession,
    Error,
    Flags,
    Frame,
    Hello,
    Nack,
    Notify,
    Ok,
    Restart,
    Revision,
    encode_run,
)
from wallaroo_spark.protocol.channels import HEADER

pytestmark = pytest.mark.no_cover

revisions = pytest.mark.parametrize("revision", list(REVISIONS))


@pytest.fixture
def serving(make_fleet: Callable[..., Fleet], pems: Pems) -> Running:
    return make_fleet(quic=True, tls_certificate=pems.server, tls_key=pems.server_key, tls_workers_ca=pems.ca).start()


@asynccontextmanager
async def connector(worker: Running, pems: Pems, **settings: Any) -> AsyncIterator[Connector]:
    """A connector that does not wait for acknowledgements at its end."""
    workers = f"quic://{worker.lease.connect}"
    sender = Connector(
        "orders", **{"instance": "shop-1", "workers": workers, "cookie": COOKIE, "ca": pems.ca, **settings}
    )
    try:
        yield sender
    finally:
        await sender.close()


async def until(holds: Callable[[], Any]) -> None:
    """Wait for the worker, which has a thread of its own, while this loop goes on."""
    async with asyncio.timeout(SECONDS):
        while not await asyncio.to_thread(holds):  # noqa: ASYNC110 -- the worker has a loop of its own
            await asyncio.sleep(0.01)


@revisions
async def test_messages_arrive_and_are_acknowledged_from_the_commit_log(
    serving: Running, pems: Pems, revision: str
) -> None:
    scope = "" if revision == "v3" else "shop-1"
    async with connector(serving, pems, revision=revision) as sender:
        first, second = await sender.open("first"), await sender.open("second")
        await first.send_many([b"%d" % number for number in range(1, 2001)], ids=range(1, 2001))
        for number in range(1, 11):
            await second.send(b"x" * 100_000, id=number)
        await second.end()
        await until(lambda: serving.count("messages") == 2010)
        assert first.acknowledged is None
        rows = await asyncio.to_thread(serving.rows, scope, first.id, None, 2000)
        assert [row["value"] for row in rows] == [b"%d" % number for number in range(1, 2001)]
        await asyncio.to_thread(serving.commit, {scope: {str(first.id): 2000, str(second.id): 10}})
        await sender.drain(SECONDS)
        assert first.acknowledged == 2000


class Peer:
    """A connector that is written here, and may break any rule."""

    def __init__(self, connection: aqueduct.Connection, revision: Revision) -> None:
        self.connection = connection
        self.revision = revision
        self.session = ConnectorSession(revision)
        self.answers, self.theirs = connection.channel("receiver")
        self.held: list[Any] = []

    async def say(self, data: bytes, *attached: Any) -> None:
        """Send a message on the entrypoint."""
        await self.connection.entrypoint.send(data, attach=attached)

    async def hello(self, instance: str = "bad") -> Peer:
        hello = self.session.hello(version="0.0.1", cookie=COOKIE.encode(), program="orders", instance=instance)
        await self.say(hello, self.theirs)
        assert isinstance(await self.next(), Ok)
        return self

    async def notify(self, stream_id: int, name: str = "a") -> aqueduct.Sender:
        mine, theirs = self.connection.channel("sender")
        with suppress(LocalProtocolError):
            self.session.notify(stream_id, name)
        await self.say(self.revision.encode(Notify(stream_id, name, 0)), theirs)
        self.held.append(mine)
        return mine

    def run(self, stream_id: int, *ids: int, flags: int = 0, payload: bytes = b"x") -> bytes:
        return encode_run(self.revision, stream_id, ids, [payload] * len(ids), flags).data

    async def next(self) -> Frame:
        """The worker's next frame."""
        async with asyncio.timeout(SECONDS):
            while (frame := self.session.next_event()) is None:
                message = await self.answers.receive()
                assert message is not None, "the worker has closed"
                self.session.receive(message.payload)
        return frame

    async def until(self, kind: type[Frame]) -> Any:
        while not isinstance(frame := await self.next(), kind):
            pass
        return frame

    async def refused(self) -> str:
        """The reason of the worker's ERROR."""
        reason: str = (await self.until(Error)).reason
        return reason


@asynccontextmanager
async def peer(worker: Running, pems: Pems, revision: Revision = DRAFT_BE) -> AsyncIterator[Peer]:
    header = HEADER, revision.name.encode()
    connection = await aqueduct.connect(worker.lease.connect, headers=[header], ca=pems.ca)
    try:
        yield Peer(connection, revision)
    finally:
        connection.abort("the test is over")


class TestRules:
    async def test_messages_of_another_stream_end_the_session_alone(self, serving: Running, pems: Pems) -> None:
        async with peer(serving, pems) as bad, peer(serving, pems) as good:
            await bad.hello()
            await good.hello("good")
            channel, kept = await bad.notify(7), await good.notify(7)
            await bad.notify(8)
            await kept.send(good.run(7, 1))
            await channel.send(bad.run(7, 1) + bad.run(8, 1))
            assert "a MESSAGE of another stream" in await bad.refused()
            await kept.send(good.run(7, 2))
            await until(lambda: serving.count("messages") == 2)
            assert serving.count("fault:wrong-channel") == 1

    async def test_what_the_connector_may_not_send_is_answered_by_an_error(self, serving: Running, pems: Pems) -> None:
        async def on_entrypoint(one: Peer) -> None:
            await one.say(one.run(7, 1))

        async def notify_on_channel(one: Peer) -> None:
            await (await one.notify(7)).send(one.revision.encode(Notify(8, "b", 0)))

        async def half_a_frame(one: Peer) -> None:
            await (await one.notify(7)).send(one.run(7, 1)[:-1])

        async def without_channel(one: Peer) -> None:
            await one.say(one.session.notify(7, "a"))

        async def lasting_in_a_datagram(one: Peer) -> None:
            await (await one.notify(7)).send(one.run(7, 1), unreliable=True)

        async def behind_the_end(one: Peer) -> None:
            channel = await one.notify(7)
            end = one.revision.encode(one.revision.end_of_stream(7, 1))
            await channel.send(one.run(7, 1) + end + one.run(7, 2))

        async def hello_again(one: Peer) -> None:
            await one.say(one.revision.encode(Hello("0.0.1", COOKIE.encode(), "orders", "bad")))

        wrong = {
            on_entrypoint: "came on the entrypoint",
            notify_on_channel: "a frame that is no MESSAGE",
            half_a_frame: "does not consist of whole frames",
            without_channel: "attaches 0 senders and 0 receivers",
            lasting_in_a_datagram: "is not one EPHEMERAL MESSAGE",
            behind_the_end: "after its end",
            hello_again: "not allowed in state",
        }
        for send, said in wrong.items():
            async with peer(serving, pems) as bad:
                await send(await bad.hello())
                assert said in await bad.refused()
        assert serving.thread.alive(0)

    async def test_a_peer_that_is_no_connector_is_sent_away(self, serving: Running, pems: Pems) -> None:
        async with aqueduct.connect(serving.lease.connect, ca=pems.ca) as connection:
            assert await connection.headers() == ()
            answers, theirs = connection.channel("receiver")
            await connection.entrypoint.send(b"hello", attach=[theirs])
            with pytest.raises(aqueduct.ConnectionLost, match=HEADER):
                await answers.receive()

    @pytest.mark.parametrize("wrong", [{"cookie": "wrong"}, {"version": "9.9.9"}], ids=["cookie", "version"])
    async def test_a_connector_that_is_not_let_in_is_told_why(
        self, serving: Running, pems: Pems, wrong: dict[str, str]
    ) -> None:
        async with connector(serving, pems, **wrong) as sender:
            with pytest.raises(RemoteProtocolError, match=next(iter(wrong))):
                await sender.open("a")

    async def test_a_streams_next_notify_waits_for_all_of_its_channel_before(
        self, serving: Running, pems: Pems
    ) -> None:
        async with peer(serving, pems) as one:
            await one.hello()
            first = await one.notify(7)
            await first.send(one.run(7, 1) + one.revision.encode(one.revision.end_of_stream(7, 1)))
            await until(lambda: serving.count("messages") == 1)
            second = await one.notify(7)
            await second.send(one.run(7, 2))
            await asyncio.sleep(0.2)
            assert serving.count("messages") == 1
            await first.finish()
            await until(lambda: serving.count("messages") == 2)


class TestSessions:
    async def test_messages_from_before_a_rewind_are_not_taken_for_those_behind_it(
        self, serving: Running, pems: Pems
    ) -> None:
        async with peer(serving, pems, DRAFT_LE) as one:
            await one.hello()
            stale = await one.notify(7)
            await stale.send(one.run(7, 1, 2, 3))
            await until(lambda: serving.count("messages") == 3)
            await asyncio.to_thread(serving.commit, {"bad": {"7": 2}})
            await asyncio.to_thread(serving.rewind, {"bad": {"7": 1}})
            assert await one.until(Nack) == Nack(0, 7, 1)
            await stale.send(one.run(7, 4))
            channel = await one.notify(7)
            await channel.send(one.run(7, 2, 3))
            await stale.send(one.run(7, 5))
            await stale.finish()
            await until(lambda: serving.count("messages") == 5)
            rows = await asyncio.to_thread(serving.rows, "bad", 7, 1, 3)
            assert [row["message_id"] for row in rows] == [2, 3]
            assert serving.count("messages") == 5

    async def test_a_worker_that_leaves_says_so(self, serving: Running, pems: Pems) -> None:
        async with peer(serving, pems) as one:
            await one.hello()
            await asyncio.to_thread(serving.client.stop, "a test")
            assert isinstance(await one.until(Restart), Restart)
            one.connection.abort("the worker has asked for it")
            await asyncio.to_thread(serving.ended)

    async def test_a_connector_follows_a_redirection_over_quic(
        self, make_fleet: Callable[..., Fleet], pems: Pems
    ) -> None:
        fleet = make_fleet(
            workers=2, quic=True, tls_certificate=pems.server, tls_key=pems.server_key, tls_workers_ca=pems.ca
        )
        first, second = fleet.start(0), fleet.start(1)
        async with connector(first, pems) as before:
            await (await before.open("a")).send(b"x")
            await until(lambda: first.count("messages") == 1)
        async with connector(second, pems) as after:
            await after.open("a")
            assert after.status().worker == first.lease.connect

    async def test_a_lost_connection_is_resumed(self, serving: Running, pems: Pems) -> None:
        async with connector(serving, pems) as sender:
            stream = await sender.open("a")
            await stream.send_many([b"x"] * 100)
            await until(lambda: serving.count("messages") == 100)
            connection = sender._state.connection
            assert connection is not None
            connection._carrier._connection.abort("a test")  # type: ignore[attr-defined]  # of its carrier
            await stream.send_many([b"y"] * 100)
            await until(lambda: serving.count("messages") == 200)
            assert serving.count("replayed") == 100

    async def test_a_connector_whose_address_changes_goes_on(self, serving: Running, pems: Pems) -> None:
        async with connector(serving, pems) as sender:
            stream = await sender.open("a")
            await stream.send(b"x")
            connection = sender._state.connection
            assert connection is not None
            for _ in range(3):
                await connection._carrier._connection.rebind()  # type: ignore[attr-defined]  # of its carrier
                await stream.send(b"y")
            await until(lambda: serving.count("messages") == 4)
            assert serving.count("sessions") == 1

    async def test_an_address_without_a_worker_is_an_error_that_names_udp(
        self, pems: Pems, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr("wallaroo_spark.aqueduct.opening.UNREACHABLE_SECONDS", 0.2)
        given: dict[str, Any] = {
            "instance": "shop-1",
            "workers": "quic://127.0.0.1:9",
            "ca": pems.ca,
            "retry": Backoff(attempts=1),
        }
        async with Connector("orders", **given) as sender:
            with pytest.raises(TransportError, match="UDP"):
                await sender.open("a")

    async def test_a_certificate_of_another_authority_is_not_accepted(self, serving: Running, pems: Pems) -> None:
        async with connector(serving, pems, ca=pems.other_ca, retry=Backoff(attempts=1)) as sender:
            with pytest.raises(TransportError, match="certificate"):
                await sender.open("a")


class TestDatagrams:
    async def test_ephemeral_messages_travel_in_datagrams_and_longer_ones_reliably(
        self, serving: Running, pems: Pems
    ) -> None:
        async with connector(serving, pems, datagrams=True) as sender:
            stream = await sender.open("gauges", ephemeral=True)
            await stream.send_many([b"%d" % number for number in range(200)])
            await stream.send(b"x" * 10_000)
            await stream.end()
            # The end of the stream counts, too.
            await until(lambda: serving.count("messages") + serving.count("lost-messages") == 202)
            assert sender.status().lost_messages == serving.count("lost-messages")

    async def test_a_lost_datagram_costs_its_credit_at_both_sides(
        self, serving: Running, pems: Pems, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        async with peer(serving, pems) as one:
            await one.hello()
            channel = await one.notify(7)
            await channel.send(one.run(7, 1, flags=Flags.EPHEMERAL))
            await until(lambda: serving.count("messages") == 1)
            link = one.connection._driver.link
            assert link is not None
            monkeypatch.setattr(link, "send_datagram", lambda data: None)
            for number in range(2, 12):
                await channel.send(one.run(7, number, flags=Flags.EPHEMERAL), unreliable=True)
            monkeypatch.undo()
            await until(lambda: serving.count("lost-messages") == 10)
            frames = await asyncio.to_thread(lambda: serving.client.inspect(10)["instance_list"][0]["frames"])
            assert frames == 12


class TestMemory:
    async def test_a_full_worker_reads_no_further_and_loses_nothing(
        self, make_fleet: Callable[..., Fleet], pems: Pems
    ) -> None:
        worker = make_fleet(
            quic=True,
            tls_certificate=pems.server,
            tls_key=pems.server_key,
            tls_workers_ca=pems.ca,
            memory_budget=1 << 20,
        ).start()
        async with connector(worker, pems) as sender:
            stream = await sender.open("a")
            sending = asyncio.create_task(stream.send_many([b"x" * 50_000] * 100, ids=range(1, 101)))
            await until(lambda: worker.count("paused:hard") + worker.count("paused:soft") > 0)
            used = await asyncio.to_thread(lambda: worker.client.status()["memory_used"])
            assert used < 4 << 20
            committed = 0
            while not sending.done() or committed < 100:
                committed = max(committed, await asyncio.to_thread(worker.count, "messages"))
                if committed:
                    await asyncio.to_thread(worker.commit, {"shop-1": {str(stream.id): committed}})
            await sender.drain(SECONDS)
