"""The server over real sockets: routes, clients that misbehave, and its end."""

from __future__ import annotations

import http.client
import socket
import threading
from collections.abc import Iterator
from urllib.parse import urlsplit

import pytest

from tests.waiting import eventually
from wallaroo_spark.errors import ConfigurationError
from wallaroo_spark.observe.server import page_server
from wallaroo_spark.observe.server.messages import LONGEST_HEAD, Request, Response, Route
from wallaroo_spark.observe.server.page_server import PageAddress, PageServer
from wallaroo_spark.registry.embedded import lasting_port

PLACE = PageAddress("127.0.0.1", 0, "")
GENEROUS = 60.0


def echo(request: Request) -> Response:
    return Response.json(dict(request.query))


def broken(request: Request) -> Response:
    raise RuntimeError("on purpose")


ROUTES = {"/": Route(Response.text("hello")), "/echo": Route(echo), "/broken": Route(broken)}


@pytest.fixture
def server() -> Iterator[PageServer]:
    started = PageServer(PLACE, ROUTES, "orders")
    started.start()
    yield started
    started.stop()


def port(server: PageServer) -> int:
    found = urlsplit(server.address).port
    assert found is not None
    return found


def get(server: PageServer, path: str, method: str = "GET") -> tuple[int, bytes]:
    connection = http.client.HTTPConnection("127.0.0.1", port(server), timeout=GENEROUS)
    try:
        connection.request(method, path)
        response = connection.getresponse()
        return response.status, response.read()
    finally:
        connection.close()


def connected(server: PageServer) -> socket.socket:
    return socket.create_connection(("127.0.0.1", port(server)), timeout=GENEROUS)


def raw(server: PageServer, sent: bytes) -> bytes:
    with connected(server) as client:
        client.sendall(sent)
        return b"".join(iter(lambda: client.recv(65536), b""))


def page_threads() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name.startswith("wallaroo-orders-page")]


def test_routes_are_answered(server: PageServer, caplog: pytest.LogCaptureFixture) -> None:
    assert get(server, "/") == (200, b"hello\n")
    assert get(server, "/", "HEAD") == (200, b"")
    assert get(server, "/echo?a=1&b=%3Cscript%3E") == (200, b'{"a":"1","b":"<script>"}')
    assert get(server, "/nowhere")[0] == 404
    assert get(server, "/", "POST")[0] == 405
    assert get(server, "/broken")[0] == 500
    assert "on purpose" in caplog.text


def test_a_route_that_hangs_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(page_server, "ANSWER_SECONDS", 0.2)
    go = threading.Event()

    def hang(request: Request) -> Response:
        assert go.wait(GENEROUS)
        return Response.text("late")

    server = PageServer(PLACE, {"/": Route(Response.text("hello")), "/hang": Route(hang)}, "orders")
    server.start()
    try:
        for _ in range(page_server.ANSWER_THREADS + 1):
            assert get(server, "/hang")[0] == 503
        assert get(server, "/") == (200, b"hello\n")
    finally:
        go.set()
        server.stop()


@pytest.mark.parametrize(
    ("sent", "status"),
    [
        (b"nonsense\r\n\r\n", b" 400 "),
        (b"GET / HTTP/1.1\r\nHost: evil.example\r\n\r\n", b" 421 "),
        (b"GET / HTTP/1.1\r\n\r\n", b" 421 "),
        (b"GET / HTTP/1.1\r\nX: " + b"x" * 2 * LONGEST_HEAD, b" 431 "),
        (b"POST / HTTP/1.1\r\nHost: localhost\r\nContent-Length: 3\r\n\r\nabc", b" 413 "),
    ],
)
def test_bytes_that_are_not_a_request_are_refused(server: PageServer, sent: bytes, status: bytes) -> None:
    assert status in raw(server, sent).split(b"\r\n")[0]


def test_silent_connections_make_room_for_a_browser(server: PageServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(page_server, "MOST_CONNECTIONS", 4)
    silent = [connected(server) for _ in range(12)]
    try:
        for client in silent[::2]:
            client.sendall(b"GET / HT")
        for _ in range(5):
            assert get(server, "/")[0] == 200
        # Those that came first had to go.
        assert silent[0].recv(1) == b""
    finally:
        for client in silent:
            client.close()


def ended(client: socket.socket) -> bool:
    try:
        return client.recv(1 << 20) == b""
    except ConnectionError:
        return True


@pytest.mark.parametrize("sent", [b"", b"GET / HTTP/1.1\r\n", b"GET /big HTTP/1.1\r\nHost: localhost\r\n\r\n"])
def test_a_client_that_stalls_is_cut_off(sent: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(page_server, "CONNECTION_SECONDS", 0.3)
    big = Route(Response.text("x" * (64 << 20)))
    server = PageServer(PLACE, {"/big": big}, "orders")
    server.start()
    try:
        with connected(server) as client:
            client.sendall(sent)
            eventually(lambda: ended(client), "the client is told")
        eventually(lambda: not server._connections, "the connection is forgotten")
    finally:
        server.stop()


def test_an_end_closes_every_socket_and_thread(server: PageServer) -> None:
    number = port(server)
    clients = [connected(server) for _ in range(3)]
    clients[0].sendall(b"GET /")
    assert get(server, "/")[0] == 200

    server.stop()
    server.stop()

    assert server.address == ""
    for client in clients:
        assert ended(client)
        client.close()
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.1", number), timeout=GENEROUS)
    eventually(lambda: not page_threads())


def test_a_restart_takes_the_same_port_again() -> None:
    """Also while a browser's connections of before are still in TIME_WAIT."""
    number = lasting_port()
    server = PageServer(PageAddress("127.0.0.1", number, ""), ROUTES, "orders")
    server.start()
    assert get(server, "/")[0] == 200
    with connected(server) as half_open:
        half_open.sendall(b"GET /")
        server.stop()
        again = PageServer(PageAddress("127.0.0.1", number, ""), ROUTES, "orders")
        again.start()
        try:
            assert port(again) == number
            assert get(again, "/")[0] == 200
        finally:
            again.stop()


def test_a_port_that_is_taken_is_passed_over() -> None:
    def two_on(first: int) -> bool:
        one = PageServer(PageAddress("127.0.0.1", first, ""), ROUTES, "orders")
        other = PageServer(PageAddress("127.0.0.1", first, ""), ROUTES, "orders")
        with running(one), running(other):
            assert get(one, "/")[0] == get(other, "/")[0] == 200
            return first <= port(one) < port(other)

    assert two_on(lasting_port(range(3)))


class running:
    """Starts a server within a block."""

    def __init__(self, server: PageServer) -> None:
        self._server = server

    def __enter__(self) -> None:
        self._server.start()

    def __exit__(self, *_: object) -> None:
        self._server.stop()


@pytest.mark.parametrize(
    ("place", "wanted"),
    [
        (PageAddress("203.0.113.1", 0, "x" * 16), r"option statusPage: cannot listen on 203\.0\.113\.1:0: "),
        (
            PageAddress("no-such-host.invalid", 4140, "x" * 16),
            "option statusPage: cannot listen on no-such-host.invalid:4140",
        ),
    ],
)
def test_an_address_that_cannot_be_used_is_refused(place: PageAddress, wanted: str) -> None:
    server = PageServer(place, ROUTES, "orders")
    with pytest.raises(ConfigurationError, match=wanted):
        server.start()
    eventually(lambda: not page_threads())


def test_ports_that_are_all_taken_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(page_server, "PORTS_TRIED", 2)
    first = lasting_port(range(2))
    servers = [socket.create_server(("127.0.0.1", first + number)) for number in range(2)]
    try:
        server = PageServer(PageAddress("127.0.0.1", first, ""), ROUTES, "orders")
        with pytest.raises(ConfigurationError, match=f"nor on the ports after {first}"):
            server.start()
    finally:
        for one in servers:
            one.close()


def test_many_servers_live_side_by_side() -> None:
    servers = [PageServer(PLACE, {"/": Route(Response.text(str(n)))}, f"orders-{n}") for n in range(4)]
    for server in servers:
        server.start()
    try:
        assert [get(server, "/")[1] for server in servers] == [f"{n}\n".encode() for n in range(4)]
    finally:
        for server in servers:
            server.stop()
