"""Sessions that are lost, refused, redirected and restarted; nothing is lost or repeated by reference."""

from __future__ import annotations

import asyncio
import contextlib
import ssl
from collections.abc import AsyncIterator
from typing import Any

import pytest
import trustme

from tests.connector.conftest import QUICK
from tests.connector.scripted_worker import ScriptedWorker, ServedSession
from tests.connector.support import connector, send_all, starved
from wallaroo_spark.connector import Backoff, Connector
from wallaroo_spark.errors import (
    RemoteProtocolError,
    TransportError,
)
from wallaroo_spark.protocol.faults import later, redirect


@contextlib.asynccontextmanager
async def two_workers(**script: Any) -> AsyncIterator[tuple[ScriptedWorker, ScriptedWorker]]:
    """Two workers that share their state of the streams, as two slots of one receiver do."""
    async with ScriptedWorker(**script) as one, ScriptedWorker() as other:
        other.streams = one.streams
        yield one, other


class TestRedirections:
    async def test_an_error_that_names_another_worker_is_followed(self, revision: str) -> None:
        async with two_workers() as (one, other):
            one.answers.append(redirect(other.address, "instance 'shop-1' belongs to slot 1"))
            async with connector(one, revision=revision) as sender:
                await send_all(await sender.open("a"), 3)
                await sender.drain()
            assert (len(one.hellos), len(other.hellos)) == (1, 1)

    async def test_an_error_that_names_no_address_is_a_failed_attempt(self) -> None:
        async with ScriptedWorker(answers=[redirect("nowhere", "a slip")]) as worker, connector(worker) as sender:
            await sender.open("a")
            assert len(worker.hellos) == 2

    async def test_a_restart_in_a_session_takes_the_streams_elsewhere(self) -> None:
        async with two_workers(auto_commit=False) as (one, other), connector(one, revision="v3") as sender:
            stream = await sender.open("a")
            await send_all(stream, 3)
            await one.until(lambda: len(one.only.accepted) == 3)
            one.session.write(one.session.session.restart(other.address))
            await other.until(lambda: len(other.hellos) == 1)
            await stream.send(b"x")
            await sender.drain()
            assert other.only.ids == [1, 2, 3, 4]

    async def test_a_restart_without_an_address_brings_the_connector_back(self) -> None:
        for revision in ("draft-be", "v3"):
            async with ScriptedWorker(auto_commit=False) as worker, connector(worker, revision=revision) as sender:
                stream = await sender.open("a")
                await send_all(stream, 3)
                await worker.until(lambda worker=worker: len(worker.only.accepted) == 3)
                worker.session.write(worker.session.session.restart())
                worker.auto_commit = True
                await worker.until(lambda worker=worker: len(worker.hellos) == 2)
                await sender.drain()
                assert worker.only.ids == [1, 2, 3]
                assert worker.sessions[0].ended_in_order

    async def test_a_restart_in_place_of_ok_is_followed(self) -> None:
        def restart(session: ServedSession) -> bytes:
            return session.session.restart(other.address)

        async with two_workers(answers=[restart]) as (one, other), connector(one, revision="v3") as sender:
            await sender.open("a")
            assert (len(one.hellos), len(other.hellos)) == (1, 1)

    async def test_workers_that_redirect_to_each_other_forever_are_given_up(self) -> None:
        async with two_workers() as (one, other):
            one.answers.extend([redirect(other.address, "not here")] * 50)
            other.answers.extend([redirect(one.address, "not here")] * 50)
            async with connector(one, retry=Backoff(initial=0, attempts=2)) as sender:
                with pytest.raises(TransportError, match="redirected 6 times in a row"):
                    await sender.open("a")
            assert len(one.hellos) + len(other.hellos) == 12


class TestComingBack:
    async def test_a_worker_that_says_later_is_asked_again(self, revision: str) -> None:
        answers = [later("the registry is away")] * 3
        async with ScriptedWorker(answers=answers) as worker, connector(worker, revision=revision) as sender:
            await sender.open("a")
            assert len(worker.hellos) == 4

    async def test_a_worker_that_closes_without_an_answer_is_asked_again(self) -> None:
        async with ScriptedWorker(cut_after=[3, 10]) as worker, connector(worker) as sender:
            await sender.open("a")
            assert len(worker.sessions) == 3

    @pytest.mark.parametrize("part", [b"", b"\x00\x00"])
    async def test_a_worker_that_closes_in_order_even_within_a_frame_is_asked_again(self, part: bytes) -> None:
        def leave(session: ServedSession) -> bytes:
            session.over = True
            return part

        async with ScriptedWorker(answers=[leave]) as worker, connector(worker) as sender:
            await sender.open("a")
            assert len(worker.hellos) == 2

    async def test_a_worker_that_does_not_answer_hello_is_left_after_a_time(self) -> None:
        silent = ScriptedWorker(answers=[lambda session: None])
        async with silent as worker, connector(worker, handshake_timeout=0.5) as sender:
            await sender.open("a")
            # More where this process was too slow for a later one.
            assert len(worker.hellos) >= 2

    async def test_the_next_address_is_tried_when_one_is_dead(self, unused_port: int) -> None:
        async with ScriptedWorker() as worker:
            addresses = [f"127.0.0.1:{unused_port}", worker.address]
            async with connector(worker, workers=addresses) as sender:
                await sender.open("a")
            assert len(worker.hellos) == 1

    async def test_giving_up_names_the_attempts_and_their_reasons(self, unused_port: int) -> None:
        address = f"127.0.0.1:{unused_port}"
        retry = Backoff(initial=0.001, attempts=3)
        async with Connector("orders", instance="shop-1", workers=address, retry=retry) as sender:
            with pytest.raises(TransportError) as caught:
                await sender.open("a")
        assert f"tried {address} (3 times); the last reason was: cannot connect to {address}: refused" in str(
            caught.value
        )

    async def test_giving_up_in_the_middle_wakes_all_waiting_senders(self) -> None:
        async with ScriptedWorker() as worker, connector(worker, retry=Backoff(initial=0, attempts=1)) as sender:
            stream = await sender.open("a")
            worker.answers.append(later("leaving"))
            worker.session.stream.abort()
            await worker.until(lambda: len(worker.hellos) == 2)
            with pytest.raises(TransportError, match="the last reason was: try again later: leaving"):
                await send_all(stream, 1000)


class TestRegistry:
    async def test_workers_are_looked_up_each_time_a_session_is_sought(self, monkeypatch: pytest.MonkeyPatch) -> None:
        from wallaroo_spark.registry import EmbeddedRedis, Registry

        with EmbeddedRedis() as redis, Registry(redis.start(), "orders") as registry:
            await self._follow(redis.start(), registry)

    async def _follow(self, url: str, registry: Any) -> None:
        sender = Connector("orders", instance="shop-1", registry=url, retry=QUICK)
        async with two_workers() as (one, other), sender:
            opening = asyncio.create_task(sender.open("a"))
            await asyncio.to_thread(registry.acquire, 0, 1, "first", one.address, "")
            stream = await opening
            await asyncio.to_thread(registry.acquire, 0, 2, "second", other.address, "")
            one.answers.extend([later("leaving")] * 10_000)
            one.session.stream.abort()
            await other.until(lambda: len(other.hellos) == 1)
            await send_all(stream, 3)
            await sender.drain()
            assert other.only.ids == [1, 2, 3]

    async def test_a_registry_that_is_away_is_given_up_with_its_reason(self, unused_port: int) -> None:
        url = f"redis://:hush@127.0.0.1:{unused_port}/0"
        async with Connector("orders", instance="shop-1", registry=url, retry=Backoff(attempts=1)) as sender:
            with pytest.raises(TransportError, match=r"tried the registry \(1 times\)") as caught:
                await sender.open("a")
        assert "hush" not in str(caught.value)


class TestTls:
    async def test_it_works_over_tls_with_an_authority_of_ones_own(self, tmp_path: Any) -> None:
        authority = trustme.CA()
        ca = tmp_path / "ca.pem"
        authority.cert_pem.write_to_path(ca)
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        authority.issue_cert("127.0.0.1").configure_cert(context)
        async with ScriptedWorker(tls=context) as worker, connector(worker, ca=str(ca)) as sender:
            await send_all(await sender.open("a"), 2000)
            await sender.drain()
        assert len(worker.only.accepted) == 2000

    async def test_a_certificate_of_another_authority_is_named_as_the_reason(self, tmp_path: Any) -> None:
        ca = tmp_path / "ca.pem"
        trustme.CA().cert_pem.write_to_path(ca)
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        trustme.CA().issue_cert("127.0.0.1").configure_cert(context)
        async with (
            ScriptedWorker(tls=context) as worker,
            connector(worker, ca=str(ca), retry=Backoff(attempts=1)) as sender,
        ):
            with pytest.raises(TransportError, match="TLS failed"):
                await sender.open("a")


class TestRefusals:
    @pytest.mark.parametrize(
        ("settings", "complaint"),
        [
            ({"cookie": "wrong"}, r"refused: the cookie is not .*check that the connector's cookie"),
            ({"version": "9"}, r"refused: version '9' is not .*same protocol version"),
        ],
    )
    async def test_a_lasting_refusal_is_raised_with_the_way_out(
        self, settings: dict[str, Any], complaint: str, revision: str
    ) -> None:
        async with ScriptedWorker() as worker, connector(worker, revision=revision, **settings) as sender:
            with pytest.raises(RemoteProtocolError, match=complaint):
                await sender.open("a")
            with pytest.raises(RemoteProtocolError, match="refused"):
                await sender.open("b")
        assert len(worker.sessions) == 1

    async def test_every_waiter_is_told(self) -> None:
        async with ScriptedWorker(auto_commit=False, credits=2, regrant=False) as worker, connector(worker) as sender:
            stream = await sender.open("a")
            await stream.send(b"x")
            waiting = [
                asyncio.create_task(stream.send(b"y")),
                asyncio.create_task(stream.flushed()),
                asyncio.create_task(sender.drain()),
            ]
            await starved(sender)
            worker.session.write(worker.session.session.error("superseded: instance 'shop-1' connected again"))
            outcomes = await asyncio.gather(*waiting, return_exceptions=True)
            await sender.close()
        assert all(isinstance(outcome, RemoteProtocolError) for outcome in outcomes), outcomes
        assert "no other connector runs under it" in str(outcomes[0])

    async def test_a_peer_that_does_not_speak_the_protocol_is_named(self) -> None:
        async with ScriptedWorker(answers=[lambda session: b"HTTP/1.1 400 Bad"]) as worker, connector(worker) as sender:
            with pytest.raises(RemoteProtocolError, match=f"{worker.address} broke the protocol.*draft-be"):
                await sender.open("a")
