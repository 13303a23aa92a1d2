"""A proxy that ends all connections ends those that are being made, too."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import threading
from typing import Any

import pytest

from tests.waiting import SECONDS
from wallaroo_spark.testing import Proxy


def test_a_connection_that_is_being_made_does_not_outlive_a_refusal(monkeypatch: pytest.MonkeyPatch) -> None:
    begun, may_connect = threading.Event(), threading.Event()
    connect = asyncio.open_connection

    async def late(*given: Any, **named: Any) -> Any:
        begun.set()
        assert await asyncio.to_thread(may_connect.wait, 10)
        return await connect(*given, **named)

    monkeypatch.setattr(asyncio, "open_connection", late)
    with (
        socket.create_server(("127.0.0.1", 0)) as target,
        Proxy(("127.0.0.1", target.getsockname()[1])) as proxy,
        socket.create_connection(("127.0.0.1", proxy.port), timeout=SECONDS) as near,
    ):
        assert begun.wait(10)
        proxy.refuse()
        may_connect.set()
        with contextlib.suppress(ConnectionResetError):
            assert near.recv(1) == b""
