"""Checks of an address, with or without a connection to it."""

from __future__ import annotations

import asyncio
import functools
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from tests.waiting import SECONDS
from wallaroo_spark.errors import TransportError
from wallaroo_spark.registry.embedded import lasting_port
from wallaroo_spark.transport import connect, listens, open_access_warning

from .conftest import Accepting, serving


@asynccontextmanager
async def connections_from(port: int, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[None]:
    """Connections that this process makes come from that port, as the system may choose for one in 30,000."""
    loop = asyncio.get_running_loop()
    from_port = functools.partial(loop.create_connection, local_addr=("127.0.0.1", port))
    with monkeypatch.context() as patched:
        patched.setattr(loop, "create_connection", from_port)
        yield


async def test_a_connection_to_itself_is_refused_and_leaves_the_port_to_a_listener(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    port = lasting_port()
    async with connections_from(port, monkeypatch):
        with pytest.raises(TransportError, match=f"127.0.0.1:{port}: refused") as caught:
            await connect("127.0.0.1", port, timeout=SECONDS)
    assert caught.value.fields["reason"] == "refused"
    assert caught.value.retryable
    socket.create_server(("127.0.0.1", port)).close()


async def test_an_address_that_only_answers_itself_refuses(monkeypatch: pytest.MonkeyPatch) -> None:
    port = lasting_port()
    async with connections_from(port, monkeypatch):
        assert await listens(f"127.0.0.1:{port}") is False


async def test_an_address_refuses_when_nobody_listens_and_only_then() -> None:
    assert await listens(f"127.0.0.1:{lasting_port()}") is False
    async with serving(Accepting()) as listener:
        host, port = listener.address
        assert await listens(f"{host}:{port}")


@pytest.mark.parametrize("host", ["", "0.0.0.0", "::", "10.0.0.7", "worker-1"])
def test_a_listener_without_a_cookie_accepts_every_peer_that_reaches_it(host: str) -> None:
    said = open_access_warning("receiver 'orders': its workers", host, "")
    assert said.startswith("receiver 'orders': its workers accept every peer that reaches them: the cookie is empty")
    assert (host or "every interface") in said or "every interface" in said
    assert (
        open_access_warning("its workers", host, "a cookie")
        == open_access_warning("its workers", host, "", "ca.pem")
        == ""
    )


@pytest.mark.parametrize("host", ["127.0.0.1", "127.0.0.7", "::1", "localhost"])
def test_a_door_on_loopback_is_this_machine_s(host: str) -> None:
    assert open_access_warning("its workers", host, "") == ""
