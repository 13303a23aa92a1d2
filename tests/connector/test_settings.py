"""Settings, TLS, and workers that do not let a connector in."""

from __future__ import annotations

import asyncio
import ssl
from typing import Any

import pytest
import trustme

from tests.connector.scripted_worker import ScriptedWorker
from tests.connector.test_connector import connector, send_all, starved
from wallaroo_spark.connector import Backoff, Connector
from wallaroo_spark.errors import ConfigurationError, LocalProtocolError, RemoteProtocolError, TransportError

pytestmark = pytest.mark.timeout(30)


class TestSettings:
    @pytest.mark.parametrize(
        ("settings", "complaint"),
        [
            ({"workers": ""}, "neither workers nor registry"),
            ({"registry": "redis://localhost"}, "both workers and registry"),
            ({"workers": "nowhere"}, "write host:port"),
            ({"instance": ""}, "has 0 bytes"),
            ({"instance": "x" * 256}, "has 256 bytes"),
            ({"revision": "v4"}, "'v4' is not one of draft-le, draft-be, v3"),
            ({"message_ids": "some"}, "'some' is not one of increasing, opaque"),
            ({"message_ids": "opaque", "revision": "v3"}, "always increase in v3"),
            ({"max_unacknowledged": 0}, "0 bytes; it must be above 0"),
            ({"cookie": "env:NO_SUCH_VARIABLE"}, "no such environment variable"),
            ({"ca": "/no/such/file.pem"}, "/no/such/file.pem"),
        ],
    )
    def test_settings_that_cannot_work_are_refused_before_anything_is_tried(
        self, settings: dict[str, Any], complaint: str
    ) -> None:
        with pytest.raises(ConfigurationError, match=complaint):
            Connector("orders", **{"instance": "shop-1", "workers": "localhost:7100", **settings})

    def test_a_receiver_needs_a_name(self) -> None:
        with pytest.raises(ConfigurationError, match="program is empty"):
            Connector("", instance="shop-1", workers="localhost:7100")

    async def test_names_and_ids_that_do_not_fit_a_frame_are_refused(self) -> None:
        async with ScriptedWorker() as worker, connector(worker) as sender:
            with pytest.raises(LocalProtocolError, match="more than 1024 bytes"):
                await sender.open("x" * 70_000)
            with pytest.raises(LocalProtocolError, match="stream id -1"):
                await sender.open("a", id=-1)
            assert (await sender.open("a")).reference is None

    async def test_the_cookie_may_come_from_the_environment(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("ORDERS_COOKIE", "hush")
        async with ScriptedWorker(cookie=b"hush") as worker, connector(worker, cookie="env:ORDERS_COOKIE") as sender:
            assert (await sender.open("a")).reference is None


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
    async def test_a_refusal_that_no_new_session_can_mend_is_raised_with_what_to_check(
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
