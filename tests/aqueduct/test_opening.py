"""Opening and ending connections: headers, early data, changed addresses, and the errors of all of it."""

from __future__ import annotations

import asyncio
import logging
import socket
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from tests.aqueduct.serving import Serving, fail, send_on, serving
from tests.pems import Pems
from tests.waiting import SECONDS, until
from wallaroo_spark import aqueduct
from wallaroo_spark.aqueduct import opening
from wallaroo_spark.aqueduct.connection import AqueductConnection
from wallaroo_spark.aqueduct.shell import quic
from wallaroo_spark.errors import AqueductError, ConfigurationError, TransportError


@pytest.fixture
async def served(pems: Pems) -> AsyncIterator[Serving]:
    async with serving(pems) as made:
        yield made


@pytest.fixture(autouse=True)
async def _limit() -> AsyncIterator[None]:
    async with asyncio.timeout(SECONDS):
        yield


async def test_a_server_that_is_not_there_is_an_error_that_names_udp(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(opening, "UNREACHABLE_SECONDS", 0.2)
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as silent:
        silent.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{silent.getsockname()[1]}"
        with pytest.raises(TransportError) as raised:
            await aqueduct.connect(address)

    assert str(raised.value) == (
        f"cannot connect to {address} over QUIC: no packet came back within 0.2 s; check that the server runs, the "
        "address, and whether the network lets UDP through: many drop it [quic-unreachable]"
    )


async def test_a_certificate_of_another_authority_is_refused(served: Serving, pems: Pems) -> None:
    with pytest.raises(TransportError, match=r"certificate was not accepted: unable to get local issuer.*check ca"):
        await served.connect(ca=pems.other_ca)


async def test_a_certificate_for_another_host_is_refused(served: Serving) -> None:
    with pytest.raises(TransportError, match=r"certificate was not accepted: hostname 'shop.example' doesn't match"):
        await served.connect(server_name="shop.example")


async def test_the_system_s_authorities_are_asked_where_none_is_given(served: Serving) -> None:
    with pytest.raises(TransportError, match="certificate was not accepted"):
        await served.connect(ca="")


async def test_a_server_of_another_protocol_is_refused(served: Serving, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(quic, "ALPN", "h3")
    with pytest.raises(TransportError, match="the server speaks another protocol than aqueduct/0"):
        await served.connect()


async def test_a_client_beyond_the_limit_is_told_so_and_there_is_room_again_when_one_leaves(pems: Pems) -> None:
    async with serving(pems, connections=1) as served:
        async with served.connect():
            await served.accepted.get()
            with pytest.raises(aqueduct.ConnectionLost, match="the server has 1 connections, which is its limit"):
                async with served.connect() as refused:
                    await send_on(refused.entrypoint)
        await until(lambda: not served.server.connections)
        async with served.connect():
            await served.accepted.get()
        assert served.accepted.empty()


async def test_a_server_has_a_limit_of_handshakes(pems: Pems, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(opening, "OPENING", 0)
    async with serving(pems) as served:
        with pytest.raises(AqueductError):
            async with served.connect() as refused:
                await send_on(refused.entrypoint)
        await until(lambda: not served.server.connections)


async def test_an_unknown_host_is_named() -> None:
    with pytest.raises(TransportError, match=r"cannot connect to nowhere.invalid:7400 over QUIC: unknown host"):
        await aqueduct.connect("nowhere.invalid:7400")


async def test_an_authority_that_is_no_file_is_refused(served: Serving) -> None:
    with pytest.raises(ConfigurationError, match="missing"):
        await served.connect(ca="missing.pem")


async def test_a_server_needs_a_certificate_that_can_be_read(pems: Pems, tmp_path: Path) -> None:
    for certificate, key in ((str(tmp_path / "no.pem"), pems.server_key), (pems.server, pems.client_key)):
        with pytest.raises(ConfigurationError):
            await aqueduct.serve(_nothing, "127.0.0.1", 0, certificate=certificate, key=key)


async def test_a_port_that_is_taken_is_named(served: Serving, pems: Pems) -> None:
    port = int(served.server.address.rpartition(":")[2])
    with pytest.raises(TransportError, match=rf"cannot listen on 127.0.0.1:{port} \(UDP\): .*\[cannot-listen\]"):
        await aqueduct.serve(_nothing, "127.0.0.1", port, certificate=pems.server, key=pems.server_key)


async def _nothing(connection: AqueductConnection) -> None:
    pass


async def test_an_empty_host_is_every_address(pems: Pems) -> None:
    files: dict[str, Any] = {"certificate": pems.server, "key": pems.server_key}
    async with aqueduct.serve(_wait, "", 0, **files) as server:
        port = server.address.rpartition(":")[2]
        async with aqueduct.connect(f"127.0.0.1:{port}", ca=pems.ca) as connection:
            await connection.headers()
            assert server.connections == 1


async def _wait(connection: AqueductConnection) -> None:
    await asyncio.Event().wait()


async def test_headers_are_told_both_ways_and_a_server_may_answer_those_of_the_client(pems: Pems) -> None:
    def answer(theirs: Any) -> dict[str, bytes]:
        return {"chosen-91c0f2": dict(theirs)["wanted-91c0f2"]}

    async with serving(pems, headers=answer) as served:
        wanted = [("wanted-91c0f2", b"cbor"), ("more-91c0f2", b"")]
        async with served.connect(headers=wanted) as connection:
            server = await served.accepted.get()
            assert await connection.headers() == (("chosen-91c0f2", b"cbor"),)
            assert await server.headers() == tuple(wanted)


async def test_an_early_connection_sends_with_its_first_packet(served: Serving) -> None:
    for number in range(2):
        async with served.connect(early=True) as connection:
            link = connection._driver.link
            assert link is not None
            assert link.early == bool(number)
            await connection.entrypoint.send(b"%d" % number)
            server = await served.accepted.get()
            message = await server.requests.receive()
            assert message is not None
            assert message.payload == b"%d" % number
            await connection.headers()


async def test_a_connection_goes_on_from_a_new_socket(served: Serving) -> None:
    async with served.connect() as connection:
        server = await served.accepted.get()
        for number in range(5):
            sent = [await connection.entrypoint.send(b"%d" % number) for _ in range(10)]
            await connection.rebind()
            for message in sent:
                await message.acked
        await connection.entrypoint.finish()

        assert len([message async for message in server.requests]) == 50


async def test_the_end_of_a_block_waits_for_what_is_under_way(served: Serving) -> None:
    async with served.connect() as connection:
        server = await served.accepted.get()
        for number in range(200):
            await connection.entrypoint.send(b"%d" % number + bytes(10_000))
        taking = asyncio.create_task(_count(server))

    assert await taking == 200


async def test_what_has_arrived_is_there_after_the_other_side_has_left(served: Serving) -> None:
    async with served.connect() as connection:
        server = await served.accepted.get()
        uploads, for_uploads = connection.channel("sender")
        for number in range(50):
            await connection.entrypoint.send(b"%d" % number, attach=[] if number else [for_uploads])
        await uploads.send(b"also this")
    await until(lambda: server._driver.error is not None)
    first = await server.requests.receive()
    assert first is not None
    upload = first.attachments[0].receiver()

    assert len([message async for message in server.requests]) == 49
    assert await server.requests.receive() is None
    assert [message.payload async for message in upload] == [b"also this"]
    with pytest.raises(aqueduct.ConnectionLost):
        server.channel()


async def test_behind_what_has_arrived_a_receiver_tells_that_the_connection_was_lost(served: Serving) -> None:
    connection = await served.connect()
    server = await served.accepted.get()
    await (await connection.entrypoint.send(b"arrived")).acked
    connection.abort("gone")
    await until(lambda: server._driver.error is not None)
    message = await server.requests.receive()

    assert message is not None
    with pytest.raises(aqueduct.ConnectionLost, match="gone"):
        await server.requests.receive()


async def _count(server: AqueductConnection) -> int:
    return len([message async for message in server.requests])


async def test_a_block_that_is_left_by_an_error_ends_the_connection_at_once(served: Serving) -> None:
    connection = await served.connect()
    server = await served.accepted.get()
    with pytest.raises(ZeroDivisionError):
        await fail(connection)
    with pytest.raises(aqueduct.ConnectionLost, match="left by ZeroDivisionError"):
        await server.requests.receive()
    with pytest.raises(aqueduct.ConnectionLost, match="closed by this side"):
        await connection.entrypoint.send(b"x")


async def test_what_is_not_taken_is_no_reason_to_wait_for_ever(pems: Pems) -> None:
    limits = aqueduct.Limits(window_messages=10)
    async with serving(pems, limits=limits) as served:
        connection = await served.connect(limits=limits)
        await served.accepted.get()
        for _ in range(15):
            await connection.entrypoint.send(b"x")

        with pytest.raises(aqueduct.ConnectionLost, match=r"after 0.3 s with [1-9]\d* messages that were not acknow"):
            await connection.close(seconds=0.3)


async def test_all_calls_end_with_the_connection(served: Serving) -> None:
    connection = await served.connect()
    server = await served.accepted.get()
    receiver, theirs = connection.channel()
    sent = await connection.entrypoint.send(b"x", attach=[theirs])
    receiving = asyncio.create_task(receiver.receive())
    await asyncio.sleep(0)
    server.abort("out of order today")

    with pytest.raises(aqueduct.ConnectionLost, match=r"has ended: out of order today \(code 0\); connect again"):
        await receiving
    with pytest.raises(aqueduct.ConnectionLost):
        await connection.entrypoint.send(b"x")
    with pytest.raises(aqueduct.ConnectionLost):
        connection.channel()
    assert sent.acked.done()
    await connection.close()


async def test_the_idle_limit_ends_a_connection_of_which_nothing_is_heard(served: Serving) -> None:
    connection = await served.connect(idle=1.0)
    server = await served.accepted.get()
    assert server._driver.link is not None
    # The server is gone without a word.
    server._driver.link._transport = _Silence()  # type: ignore[assignment]  # the part of a transport that is used

    with pytest.raises(aqueduct.ConnectionLost, match="Idle timeout"):
        await (await connection.entrypoint.send(b"x")).acked


async def test_a_quiet_connection_is_kept_alive(served: Serving, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(quic, "KEEP_ALIVES", 300)
    async with served.connect() as connection:
        await connection.headers()
        link = connection._driver.link
        assert link is not None
        before = link._quic._packet_number
        await until(lambda: link._quic._packet_number > before + 5)


async def test_a_connection_that_is_dropped_ends_with_a_warning(served: Serving) -> None:
    dropped = [await served.connect()]
    server = await served.accepted.get()
    with pytest.warns(ResourceWarning, match="was dropped without close or abort"):
        dropped.clear()
    with pytest.raises(aqueduct.ConnectionLost, match="dropped by its program"):
        await server.requests.receive()


async def test_only_a_client_moves_to_a_new_socket(served: Serving) -> None:
    async with served.connect():
        with pytest.raises(TypeError, match="only a client"):
            await (await served.accepted.get()).rebind()


async def test_an_end_that_was_not_attached_is_no_reason_to_wait(served: Serving) -> None:
    async with served.connect() as connection:
        _receiver, _theirs = connection.channel()
        _sender, _others = connection.channel("sender")
        connection.entrypoint.cancel()


class _Silence:
    def sendto(self, data: bytes, address: Any) -> None:
        """Drop it."""

    def is_closing(self) -> bool:
        return False


async def test_a_server_that_is_closed_ends_its_connections(pems: Pems) -> None:
    async with serving(pems) as served:
        connection = await served.connect()
        await served.accepted.get()
    with pytest.raises(aqueduct.ConnectionLost, match="the server is closed"):
        await send_on(connection.entrypoint)


async def test_a_handler_that_fails_ends_its_connection_and_no_other(
    pems: Pems, caplog: pytest.LogCaptureFixture
) -> None:
    async def failing(connection: AqueductConnection) -> None:
        async for message in connection.requests:
            if message.payload == b"bad":
                raise ZeroDivisionError("of the handler")

    async with serving(pems, failing) as served, served.connect() as good:
        bad = await served.connect()
        await bad.entrypoint.send(b"bad")
        with pytest.raises(aqueduct.ConnectionLost, match="left by ZeroDivisionError"):
            await send_on(bad.entrypoint)
        assert await (await good.entrypoint.send(b"good")).acked
    assert "of the handler" in caplog.text


async def test_bytes_of_another_protocol_are_a_violation_that_both_sides_see(served: Serving) -> None:
    connection = await served.connect()
    server = await served.accepted.get()
    assert connection._driver.link is not None
    connection._driver.link.send(402, b"GET / HTTP/1.1\r\n\r\n", True)

    with pytest.raises(aqueduct.ProtocolViolation, match="with code 1"):
        await server.requests.receive()
    with pytest.raises(aqueduct.ProtocolViolation, match="closed the connection with code 1"):
        await send_on(connection.entrypoint)


async def test_a_client_that_never_opens_its_connection_is_let_go(pems: Pems, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "wallaroo_spark.aqueduct")
    async with serving(pems, limits=aqueduct.Limits(handshake=0.3)) as served:
        seen = []

        class Nothing:
            def __getattr__(self, name: str) -> Any:
                return lambda *arguments: seen.append((name, arguments))

        host, _, port = served.server.address.rpartition(":")
        link = await quic.dial(
            (host, int(port)), socket.AF_INET, lambda link: Nothing(), server_name="localhost", ca=pems.ca,
            idle=30, early=False,
        )  # fmt: skip
        await until(lambda: "a client has not opened its connection" in caplog.text)
        assert served.server.half_open() == served.server.connections == 0
        link.discard()


async def test_errors_are_one_family(served: Serving) -> None:
    for kind in (aqueduct.Cancelled, aqueduct.Lost, aqueduct.ReceiverClosed, aqueduct.SenderClosed):
        assert issubclass(kind, AqueductError)
    assert issubclass(aqueduct.ConnectionLost, AqueductError | TransportError)
    assert aqueduct.ConnectionLost.retryable
