"""Calls from one gateway to another when the network between them, or a certificate, fails: each has an end."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import grpc
import pytest

from tests.gateway.memory import MemoryApplication, ServedGateway, serving
from tests.gateway.shop import event, join, publish
from tests.gateway.test_ephemeral import endpoints_of, exchanges_of
from tests.gateway.test_server import joined, refused, streams
from tests.pems import Pems, make_pems
from tests.waiting import SECONDS
from wallaroo_spark.api import pipelines_pb2 as pb
from wallaroo_spark.gateway.server import listener
from wallaroo_spark.gateway.server.credentials import TlsFiles
from wallaroo_spark.gateway.server.peers import OPTIONS, channel_to, owner_of
from wallaroo_spark.registry.embedded import lasting_port
from wallaroo_spark.testing import Proxy, Trouble
from wallaroo_spark.transport import parse_address

pytestmark = pytest.mark.timeout(SECONDS)
SOON = (*((name, value // 25 if value == 10_000 else value) for name, value in OPTIONS),)
"""The options of a connection between gateways with a short time instead of each long one."""


@contextlib.asynccontextmanager
async def two(application: MemoryApplication, **fields: Any) -> AsyncIterator[tuple[ServedGateway, ServedGateway]]:
    """The gateways g0 and g1, which do not know each other yet."""
    async with serving(application, "g0", **fields) as first, serving(application, "g1", **fields) as second:
        yield first, second


def apart(kind: str, path: str, served: tuple[ServedGateway, ServedGateway]) -> tuple[ServedGateway, ServedGateway]:
    """The owner of an object, and the other one."""
    first, second = served
    return (first, second) if owner_of(kind, path, ["g0", "g1"]) == "g0" else (second, first)


def know(owner: ServedGateway, other: ServedGateway, address: str) -> None:
    """The other gateway knows the owner at an address."""
    owner.peers[other.gateway.name] = other.address
    other.peers.update({owner.gateway.name: address, other.gateway.name: other.address})


@contextlib.asynccontextmanager
async def with_a_proxy(
    application: MemoryApplication, kind: str, path: str
) -> AsyncIterator[tuple[ServedGateway, Any, Proxy]]:
    """The owner of an object, a channel to the other gateway, and the proxy between the two."""
    async with two(application, connect=lambda address: channel_to(address, options=SOON)) as served:
        owner, other = apart(kind, path, served)
        with Proxy(parse_address(owner.address)) as proxy:
            know(owner, other, proxy.address)
            async with grpc.aio.insecure_channel(other.address) as channel:
                yield owner, channel, proxy


async def received(call: Any) -> Any:
    """The receiver or consumer is registered."""
    await call.initial_metadata()
    return call


async def test_receivers_and_senders_behind_a_half_open_connection_are_told_and_the_next_ones_take_another(
    application: MemoryApplication,
) -> None:
    async with with_a_proxy(application, "Exchange", "shop/prices") as (_, channel, proxy):
        exchanges = exchanges_of(channel)
        receive = pb.ReceiveRequest(exchange="shop/prices", group="a")
        receiver = await received(exchanges.Receive(receive))
        send = pb.SendRequest(exchange="shop/prices", event=event("1"))
        assert (await exchanges.Send(send)).groups == 1
        assert (await receiver.read()).id == "1"
        proxy.become(Trouble.SWALLOW)
        found = await asyncio.gather(refused(exchanges.Send(send)), refused(receiver.read()))
        assert [(status, code) for status, code, _ in found] == [("UNAVAILABLE", "gateway-ends")] * 2
        assert "which has to handle this call, cannot be reached" in found[0][2]
        # A new connection is accepted, and nothing comes from it either.
        assert (await refused(exchanges.Send(send)))[:2] == ("UNAVAILABLE", "gateway-ends")
        proxy.become(Trouble.NONE)
        receiver = await received(exchanges.Receive(receive))
        assert (await exchanges.Send(send)).groups >= 1
        assert (await receiver.read()).id == "1"


async def test_a_call_over_a_connection_that_becomes_half_open_ends_for_its_caller_and_its_consumer(
    application: MemoryApplication,
) -> None:
    async with with_a_proxy(application, "Endpoint", "shop/quote") as (_, channel, proxy):
        endpoints = endpoints_of(channel)
        consumer = endpoints.Serve()
        await consumer.write(pb.ServeMessage(endpoint="shop/quote"))
        await received(consumer)
        call = endpoints.Call()
        await call.write(pb.CallMessage(endpoint="shop/quote", event=event("q")))
        assert (await consumer.read()).event.id == "q"
        proxy.become(Trouble.SWALLOW)
        for one in await asyncio.gather(refused(call.read()), refused(consumer.read())):
            assert one[:2] == ("UNAVAILABLE", "gateway-ends")


async def test_a_gateway_that_is_gone_costs_one_line_in_the_log(
    application: MemoryApplication, caplog: pytest.LogCaptureFixture
) -> None:
    port = lasting_port()
    send = pb.SendRequest(exchange="shop/prices", event=event("1"))
    async with two(application) as served:
        owner, other = apart("Exchange", "shop/prices", served)
        know(owner, other, f"127.0.0.1:{port}")
        async with grpc.aio.insecure_channel(other.address) as channel:
            for _ in range(5):
                found = await refused(exchanges_of(channel).Send(send))
                assert found[:2] == ("UNAVAILABLE", "gateway-ends")
            assert len([one for one in caplog.records if "calls to gateway" in one.getMessage()]) == 1
            # It is started again at another address.
            know(owner, other, owner.address)
            assert (await exchanges_of(channel).Send(send)).groups == 0


def put(folder: Path, pems: Pems) -> dict[str, str]:
    """Put a server's certificate, its key and its authority at fixed paths, as a rotation does."""
    for name, path in (("server.pem", pems.server), ("server.key", pems.server_key), ("ca.pem", pems.ca)):
        new = folder / f"{name}.new"
        new.write_bytes(Path(path).read_bytes())
        new.replace(folder / name)
    return {"certificate": str(folder / "server.pem"), "key": str(folder / "server.key"), "ca": str(folder / "ca.pem")}


def client_credentials(pems: Pems) -> Any:
    authority, key, chain = (Path(path).read_bytes() for path in (pems.ca, pems.client_key, pems.client))
    return grpc.ssl_channel_credentials(authority, key, chain)


async def test_replaced_certificates_are_used_by_new_connections_of_clients_and_of_gateways(
    application: MemoryApplication, tmp_path: Path
) -> None:
    places = {}
    for name in ("before", "after", "here"):
        places[name] = tmp_path / name
        places[name].mkdir()
    before, after = make_pems(places["before"]), make_pems(places["after"])
    paths = put(places["here"], before)
    tls = TlsFiles(**paths)
    send = pb.SendRequest(exchange="shop/prices", event=event("1"))
    async with two(application, connect=lambda address: channel_to(address, tls), tls=tls) as served:
        owner, other = apart("Exchange", "shop/prices", served)
        know(owner, other, owner.address)
        async with grpc.aio.secure_channel(other.address, client_credentials(before)) as channel:
            assert (await exchanges_of(channel).Send(send)).groups == 0
            # The key is not that of the certificate while the files are being replaced.
            put(places["here"], replace(before, server=after.server))
            async with grpc.aio.secure_channel(other.address, client_credentials(before)) as second:
                assert (await exchanges_of(second).Send(send)).groups == 0
            put(places["here"], after)
            async with grpc.aio.secure_channel(other.address, client_credentials(after)) as third:
                assert (await exchanges_of(third).Send(send)).groups == 0
            async with grpc.aio.secure_channel(other.address, client_credentials(before)) as fourth:
                assert (await refused(exchanges_of(fourth).Send(send)))[0] == "UNAVAILABLE"
            # An open connection goes on.
            assert (await exchanges_of(channel).Send(send)).groups == 0


async def test_the_delivery_of_a_member_whose_connection_is_half_open_goes_to_another(
    application: MemoryApplication, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its process is stopped, or a box on the way takes its bytes: they are acknowledged, and nobody answers."""
    monkeypatch.setattr(listener, "KEEPALIVE_SECONDS", 0.5)
    monkeypatch.setattr(listener, "KEEPALIVE_ANSWER_SECONDS", 0.5)
    async with serving(application) as served:
        with Proxy(parse_address(served.address)) as proxy:
            async with (
                grpc.aio.insecure_channel(proxy.address) as cut,
                grpc.aio.insecure_channel(served.address) as channel,
            ):
                call = await joined(streams(cut).Subscribe(), join())
                await streams(channel).Publish(publish("a"))
                assert (await call.read()).delivery.events[0].id == "a"
                other = await joined(streams(channel).Subscribe(), join())
                proxy.become(Trouble.SWALLOW)
                # Without a limit of its own, gRPC waits for a minute.
                async with asyncio.timeout(45):
                    assert (await other.read()).delivery.events[0].id == "a"
