"""Settings, TLS, and workers that do not let a connector in."""

from __future__ import annotations

import ssl
from typing import Any

import pytest

from tests.connector.scripted_worker import ScriptedWorker
from tests.connector.support import connector
from wallaroo_spark.connector import Connector
from wallaroo_spark.connector.settings import ConnectorSettings
from wallaroo_spark.errors import ConfigurationError, LocalProtocolError


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
            ({"max_unacknowledged": 0}, "max_unacknowledged: 0 is not 1 or more"),
            ({"cookie": "env:NO_SUCH_VARIABLE"}, "no such environment variable"),
            ({"ca": "/no/such/file.pem"}, "/no/such/file.pem"),
            ({"workers": "quic://a:1", "ca": "/no/such/file.pem"}, "/no/such/file.pem"),
            ({"workers": "a:1,quic://b:2"}, "is a URL and not an address; leave quic:// out"),
            ({"workers": "quic://a:1", "certificate": "c.pem"}, "does not ask connectors for certificates"),
            ({"quic": True, "tls": ssl.create_default_context()}, "tls is a context for TCP"),
            ({"datagrams": True}, "only QUIC has datagrams"),
            ({"quic": True, "datagrams": True, "revision": "v3"}, "v3 has none"),
        ],
    )
    def test_settings_that_cannot_work_are_refused_before_anything_is_tried(
        self, settings: dict[str, Any], complaint: str
    ) -> None:
        with pytest.raises(ConfigurationError, match=complaint):
            Connector("orders", **{"instance": "shop-1", "workers": "localhost:7100", **settings})

    @pytest.mark.parametrize("workers", ["quic://a:1, b:2", "quic://a:1,quic://b:2", ["quic://a:1", "b:2"]])
    def test_addresses_with_quic_in_front_are_reached_over_quic(self, workers: str | list[str]) -> None:
        given = ConnectorSettings("orders", instance="shop-1", workers=workers)
        assert given.over_quic
        assert given.addresses == [("a", 1), ("b", 2)]
        assert not ConnectorSettings("orders", instance="shop-1", workers="a:1").over_quic
        assert ConnectorSettings("orders", instance="shop-1", workers="a:1", quic=True).over_quic
        assert ConnectorSettings("orders", instance="shop-1", registry="redis://a", quic=True).over_quic

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
