"""TCP and TLS connections between real sockets."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import pickle
import socket
import struct
from pathlib import Path
from typing import Any

import pytest

from tests.pems import Pems
from tests.waiting import SECONDS
from wallaroo_spark.errors import TransportError
from wallaroo_spark.registry.embedded import lasting_port
from wallaroo_spark.transport import ByteStream, client_context, connect, serve, server_context
from wallaroo_spark.transport import tcp as tcp_module
from wallaroo_spark.transport.tcp import tune

from .conftest import Accepting, connected, read_all, read_exactly, serving


async def echo(stream: ByteStream) -> None:
    while data := await stream.read():
        stream.write(data)
        await stream.drain()


async def test_an_echo_goes_around(pems: Pems) -> None:
    async with serving(echo) as listener:
        stream = await connect(*listener.address, timeout=SECONDS)
        stream.write(b"around")
        assert await read_exactly(stream, 6) == b"around"
        assert stream.peer == f"127.0.0.1:{listener.address[1]}"
        assert stream.certificate_names == ()
        await stream.close()


async def test_ipv6_works_and_is_shown_in_brackets() -> None:
    async with serving(echo, "::1") as listener:
        stream = await connect("::1", listener.address[1], timeout=SECONDS)
        stream.write(b"six")
        assert await read_exactly(stream, 3) == b"six"
        assert stream.peer == f"[::1]:{listener.address[1]}"
        await stream.close()


async def test_an_empty_host_serves_both_families_on_one_port() -> None:
    accepting = Accepting()
    async with serving(accepting, "") as listener:
        four = await connect("127.0.0.1", listener.address[1], timeout=SECONDS)
        peer = (await accepting.streams.get()).peer
        six = await connect("::1", listener.address[1], timeout=SECONDS)
        peer_six = (await accepting.streams.get()).peer
        four.abort()
        six.abort()
    assert peer.startswith("127.0.0.1:")
    assert peer_six.startswith("[::1]:")


async def test_a_name_with_several_addresses_is_served_on_one_port() -> None:
    async with serving(echo, "localhost") as listener:
        port = listener.address[1]
        families = {family for family, *_ in socket.getaddrinfo("localhost", port, type=socket.SOCK_STREAM)}
        for family in families:
            host = "::1" if family == socket.AF_INET6 else "127.0.0.1"
            stream = await connect(host, port, timeout=SECONDS)
            stream.write(b"?")
            assert await read_exactly(stream, 1) == b"?"
            await stream.close()


async def test_a_refused_connection_names_the_address_and_the_way_out() -> None:
    port = lasting_port()
    with pytest.raises(TransportError, match=f"127.0.0.1:{port}: refused; check that a worker listens") as caught:
        await connect("127.0.0.1", port, timeout=SECONDS)
    assert caught.value.fields["reason"] == "refused"
    assert caught.value.retryable
    again = pickle.loads(pickle.dumps(caught.value))
    assert again.fields == caught.value.fields


async def test_a_name_refused_on_every_address_is_refused() -> None:
    with pytest.raises(TransportError) as caught:
        await connect("localhost", lasting_port(), timeout=SECONDS)
    assert caught.value.fields["reason"] == "refused"


async def test_a_host_that_is_not_known_is_said_to_be_so() -> None:
    with pytest.raises(TransportError, match=r"no-such-host\.invalid:7100: unknown host") as caught:
        await connect("no-such-host.invalid", 7100, timeout=SECONDS)
    assert caught.value.fields["reason"] == "unknown host"


async def test_a_peer_that_never_answers_the_tls_handshake_times_out(pems: Pems) -> None:
    async with serving(Accepting()) as listener:
        with pytest.raises(TransportError, match=r"timed out after 0\.2 s") as caught:
            await connect(*listener.address, tls=client_context(pems.ca), timeout=0.2)
    assert caught.value.fields["reason"] == "timeout"


async def test_tls_names_the_client_by_its_certificate(pems: Pems) -> None:
    server = server_context(pems.server, pems.server_key, pems.ca)
    client = client_context(pems.ca, pems.client, pems.client_key)
    async with connected(server, client) as (ours, theirs):
        assert theirs.certificate_names == ("shop-1", "shop-1.example")
        assert "127.0.0.1" in ours.certificate_names
        ours.write(b"secret")
        assert await read_exactly(theirs, 6) == b"secret"


async def test_a_certificate_of_another_authority_is_not_trusted(pems: Pems, caplog: pytest.LogCaptureFixture) -> None:
    server = server_context(pems.server, pems.server_key)
    async with serving(echo, tls=server) as listener:
        with pytest.raises(TransportError, match="TLS failed: the certificate was not accepted") as caught:
            await connect(*listener.address, tls=client_context(pems.other_ca), timeout=SECONDS)
        assert caught.value.fields["reason"] == "tls"
    assert "TLS handshake with 127.0.0.1" in caplog.text


async def test_a_certificate_for_another_host_is_not_trusted(pems: Pems) -> None:
    server = server_context(pems.client, pems.client_key)
    async with serving(echo, tls=server) as listener:
        with pytest.raises(TransportError, match=r"127\.0\.0\.1.*TLS failed: the certificate was not accepted"):
            await connect(*listener.address, tls=client_context(pems.ca), timeout=SECONDS)


async def test_a_client_without_a_certificate_is_turned_away(pems: Pems) -> None:
    server = server_context(pems.server, pems.server_key, pems.ca)
    served = Accepting()
    async with serving(served, tls=server) as listener:
        stream = await connect(*listener.address, tls=client_context(pems.ca), timeout=SECONDS)
        with pytest.raises(TransportError, match="may have refused our certificate"):
            await read_all(stream)
        assert served.streams.empty()


async def test_a_plain_client_of_a_tls_server_is_closed_and_logged(
    pems: Pems, caplog: pytest.LogCaptureFixture
) -> None:
    server = server_context(pems.server, pems.server_key)
    async with serving(echo, tls=server) as listener:
        stream = await connect(*listener.address, timeout=SECONDS)
        stream.write(b"this is not a client hello, whatever it is")
        # An alert may come first, and a reset in place of the end.
        with contextlib.suppress(TransportError):
            await read_all(stream)
        await stream.close()
    assert "TLS handshake with 127.0.0.1" in caplog.text


async def test_a_tls_client_of_a_plain_server_fails_with_a_reason(pems: Pems) -> None:
    async def greet(stream: ByteStream) -> None:
        await stream.read()
        stream.write(b"not TLS at all")

    async with serving(greet) as listener:
        with pytest.raises(TransportError, match="TLS failed: wrong version number") as caught:
            await connect(*listener.address, tls=client_context(pems.ca), timeout=SECONDS)
    assert caught.value.fields["reason"] == "tls"


async def test_a_stalled_tls_handshake_is_ended(pems: Pems, caplog: pytest.LogCaptureFixture) -> None:
    server = server_context(pems.server, pems.server_key)
    async with serving(echo, tls=server, handshake_timeout=0.1) as listener:
        stream = await connect(*listener.address, timeout=SECONDS)
        with contextlib.suppress(TransportError):
            assert await stream.read() == b""
        await stream.close()
    assert "TLS handshake with 127.0.0.1" in caplog.text


async def test_a_handler_that_raises_ends_its_own_connection_only(caplog: pytest.LogCaptureFixture) -> None:
    async def choosy(stream: ByteStream) -> None:
        if await stream.read() == b"bad":
            raise ValueError("that was bad")
        stream.write(b"good")

    async with serving(choosy) as listener:
        answers = []
        for word in (b"bad", b"fine"):
            stream = await connect(*listener.address, timeout=SECONDS)
            stream.write(word)
            answers.append(await read_all(stream))
            await stream.close()
    assert answers == [b"", b"good"]
    assert "that was bad" in caplog.text


async def test_a_handler_whose_peer_is_cut_is_no_error(caplog: pytest.LogCaptureFixture) -> None:
    finished = asyncio.Event()

    async def until_the_end(stream: ByteStream) -> None:
        try:
            await read_all(stream)
        finally:
            finished.set()

    with caplog.at_level(logging.INFO):
        async with serving(until_the_end) as listener:
            stream = await connect(*listener.address, timeout=SECONDS)
            stream.abort()
            await finished.wait()
    assert "was cut" in caplog.text
    assert not [record for record in caplog.records if record.levelno >= logging.WARNING]


async def test_a_cancelled_handler_cuts_its_peer() -> None:
    tasks: asyncio.Queue[asyncio.Task[None] | None] = asyncio.Queue()

    async def endless(stream: ByteStream) -> None:
        tasks.put_nowait(asyncio.current_task())
        await asyncio.Event().wait()

    async with serving(endless) as listener:
        stream = await connect(*listener.address, timeout=SECONDS)
        task = await tasks.get()
        assert task
        task.cancel()
        with pytest.raises(TransportError, match="cut"):
            await read_all(stream)


async def test_closing_the_listener_waits_for_handlers_and_cancels_none() -> None:
    accepting = Accepting()
    listener = await serve(accepting, "127.0.0.1", 0)
    stream = await connect(*listener.address, timeout=SECONDS)
    theirs = await accepting.streams.get()
    await listener.close(wait_seconds=0.01)
    theirs.write(b"served to the end")
    assert await read_exactly(stream, 17) == b"served to the end"
    with pytest.raises(TransportError, match="refused"):
        await connect(*listener.address, timeout=SECONDS)
    accepting.release.set()
    assert await read_all(stream) == b""
    await stream.close()
    await listener.close()


async def test_a_handler_may_close_its_own_listener() -> None:
    closed = asyncio.Event()
    listeners: asyncio.Queue[Any] = asyncio.Queue()

    async def last(stream: ByteStream) -> None:
        await (await listeners.get()).close()
        closed.set()

    async with serving(last) as listener:
        listeners.put_nowait(listener)
        stream = await connect(*listener.address, timeout=SECONDS)
        await closed.wait()
        assert await read_all(stream) == b""
        await stream.close()


async def test_a_port_that_is_taken_is_named() -> None:
    async with serving(echo) as listener:
        with pytest.raises(TransportError, match=f"cannot listen on 127.0.0.1:{listener.address[1]}"):
            await serve(echo, *listener.address)


async def test_a_port_out_of_range_is_named() -> None:
    with pytest.raises(TransportError, match=r"cannot listen on 127\.0\.0\.1:70000"):
        await serve(echo, "127.0.0.1", 70000)


async def test_a_port_out_of_range_is_never_wrapped_around() -> None:
    with pytest.raises(TransportError, match=r"127\.0\.0\.1:70000: port 70000 is not in the range"):
        await connect("127.0.0.1", 70000, timeout=SECONDS)


async def test_an_address_of_another_machine_cannot_be_bound() -> None:
    with pytest.raises(TransportError, match=r"cannot listen on 192\.0\.2\.1"):
        await serve(echo, "192.0.2.1", 0)


async def test_both_sides_set_nodelay_and_keepalive() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener, socket.create_connection(listener.getsockname()) as ours:
        tune(ours)
        assert ours.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)
        assert ours.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE)
        for name, value in {"TCP_KEEPIDLE": 30, "TCP_KEEPINTVL": 10, "TCP_KEEPCNT": 3}.items():
            if hasattr(socket, name):
                assert ours.getsockopt(socket.IPPROTO_TCP, getattr(socket, name)) == value


async def test_a_peer_that_ends_its_side_may_still_be_answered() -> None:
    async def answer_at_the_end(stream: ByteStream) -> None:
        taken = await read_all(stream)
        stream.write(taken[::-1])

    async with serving(answer_at_the_end) as listener:
        reader, writer = await asyncio.open_connection(*listener.address)
        writer.write(b"abc")
        writer.write_eof()
        assert await reader.read() == b"cba"
        writer.close()


async def test_the_last_bytes_arrive_although_the_peer_was_still_sending() -> None:
    """A plain close would reset the connection under the ERROR frame."""

    async def refuse(stream: ByteStream) -> None:
        await stream.read(1)
        stream.write(b"ERROR")

    async with serving(refuse) as listener:
        stream = await connect(*listener.address, timeout=SECONDS)
        stream.write(b"m" * (1 << 20))
        assert await read_exactly(stream, 5) == b"ERROR"
        assert await stream.read() == b""
        await stream.close()


async def test_a_peer_that_never_reads_does_not_hold_up_the_close(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tcp_module, "FLUSH_SECONDS", 0.05)
    async with connected() as (ours, theirs):
        while ours.queued < 1 << 20:
            ours.write(b"n" * (1 << 20))
        await ours.close()
        assert ours.queued == 0
        with pytest.raises(TransportError, match="cut"):
            await read_all(theirs)


async def test_a_reader_that_pauses_bounds_the_held_bytes() -> None:
    async with connected() as (ours, theirs):
        for _ in range(64):
            ours.write(b"p" * (1 << 20))
        await theirs.read(1)
        # The kernel's buffers hold a few MiB at most; the rest has to wait at the sender.
        assert ours.queued > 16 << 20
        assert len(await read_exactly(theirs, (64 << 20) - 1)) == (64 << 20) - 1
        await ours.drain()


async def test_a_reset_by_the_peer_is_a_cut_after_the_bytes_before_it() -> None:
    accepting = Accepting()
    async with serving(accepting) as listener:
        raw = socket.create_connection(listener.address)
        theirs = await accepting.streams.get()
        raw.sendall(b"before")
        assert await read_exactly(theirs, 6) == b"before"
        raw.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        raw.close()
        with pytest.raises(TransportError, match=r"connection to 127\.0\.0\.1:\d+ was cut: Connection reset by peer"):
            await theirs.read()


async def test_no_certificate_file_shows_up_in_a_connect_error(pems: Pems) -> None:
    with pytest.raises(TransportError) as caught:
        await connect("127.0.0.1", lasting_port(), tls=client_context(pems.ca), timeout=SECONDS)
    assert Path(pems.ca).name not in str(caught.value)
