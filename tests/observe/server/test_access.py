"""Access to the page: methods, hosts and tokens."""

from __future__ import annotations

import pytest

from wallaroo_spark.errors import ConfigurationError
from wallaroo_spark.observe.server.messages import SAFE_HEADERS, Request, Response, Route, encode
from wallaroo_spark.observe.server.page_server import Access, PageAddress
from wallaroo_spark.transport.reach import is_loopback

TOKEN = "correct horse battery"
OPEN, SHUT = Route(Response.text("open"), open=True), Route(Response.text("shut"))
ROUTES = {"/": OPEN, "/api/status": SHUT}
LOOPBACK = Access("127.0.0.1", 4140, "")
NETWORK = Access("0.0.0.0", 4140, TOKEN)


def asked(access: Access, path: str = "/api/status", method: str = "GET", **headers: str) -> Route | Response:
    given = {name.replace("_", "-"): value for name, value in {"host": "localhost:4140", **headers}.items()}
    return access.decide(Request(method, path, {}, given), ROUTES)


def status(answer: Route | Response) -> int:
    assert isinstance(answer, Response)
    return answer.status


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "PATCH", "OPTIONS", "TRACE", "CONNECT"])
@pytest.mark.parametrize("access", [LOOPBACK, NETWORK])
def test_the_page_only_shows(access: Access, method: str) -> None:
    assert status(asked(access, method=method)) == 405


def test_get_and_head_find_their_route() -> None:
    assert asked(LOOPBACK) is SHUT
    assert asked(LOOPBACK, method="HEAD") is SHUT
    assert status(asked(LOOPBACK, "/nowhere")) == 404


@pytest.mark.parametrize("host", ["localhost", "127.0.0.1:4140", "[::1]:8080", "LocalHost:1", "127.9.9.9"])
def test_a_page_on_loopback_answers_to_names_of_this_machine(host: str) -> None:
    assert asked(LOOPBACK, host=host) is SHUT


@pytest.mark.parametrize("host", ["evil.example", "evil.example:4140", "localhost.evil.example", "", "[", "10.0.0.1"])
@pytest.mark.parametrize("path", ["/", "/api/status", "/login"])
def test_a_page_on_loopback_refuses_other_names(host: str, path: str) -> None:
    assert status(asked(LOOPBACK, path, host=host)) == 421


def test_a_page_with_a_token_shows_nothing_of_the_receiver_without_it() -> None:
    assert asked(NETWORK, "/") is OPEN
    assert status(asked(NETWORK)) == 401
    for wrong in ("", TOKEN[:-1], TOKEN + "x", "ä"):
        assert status(asked(NETWORK, authorization=f"Bearer {wrong}")) == 401
    assert status(asked(NETWORK, authorization=f"Basic {TOKEN}")) == 401
    assert status(asked(NETWORK, cookie=f"wallaroo_page_4140={TOKEN}")) == 401
    assert asked(NETWORK, authorization=f"Bearer {TOKEN}", host="driver.example") is SHUT


def test_a_login_with_the_token_sets_a_cookie_that_is_not_the_token() -> None:
    assert status(asked(NETWORK, "/login")) == 401
    answer = asked(NETWORK, "/login", authorization=f"bearer {TOKEN}")
    assert isinstance(answer, Response)
    cookie, *attributes = answer.headers["Set-Cookie"].split("; ")

    assert TOKEN not in answer.headers["Set-Cookie"]
    assert {"HttpOnly", "SameSite=Strict"} <= set(attributes)
    assert asked(NETWORK, cookie=f"other=1; {cookie}") is SHUT
    assert status(asked(Access("0.0.0.0", 4140, TOKEN + "2"), cookie=cookie)) == 401
    assert status(asked(Access("0.0.0.0", 4141, TOKEN), cookie=cookie)) == 401


def test_every_response_has_the_safe_headers() -> None:
    sent = encode(Response.json({"a": 1}))
    head, _, body = sent.partition(b"\r\n\r\n")

    assert body == b'{"a":1}'
    assert encode(Response.json({"a": 1}), body=False) == head + b"\r\n\r\n"
    for name, value in SAFE_HEADERS.items():
        assert f"{name}: {value}".encode() in head.split(b"\r\n")
    assert b"'unsafe" not in head


@pytest.mark.parametrize("host", ["127.0.0.1", "127.1.2.3", "::1", "localhost", "LOCALHOST"])
def test_addresses_of_this_machine_need_no_token(host: str) -> None:
    assert is_loopback(host)
    assert PageAddress.parse(f"[{host}]:4140" if ":" in host else f"{host}:4140", "") == PageAddress(host, 4140, "")


@pytest.mark.parametrize("host", ["0.0.0.0", "[::]", "driver.example", "10.1.2.3", "localhost.example"])
def test_an_address_that_others_reach_is_refused_without_a_token(host: str) -> None:
    with pytest.raises(ConfigurationError, match="set statusPageToken to 16 characters or more, or use 127"):
        PageAddress.parse(f"{host}:4140", "")
    with pytest.raises(ConfigurationError, match="has 15 characters, and needs 16 or more"):
        PageAddress.parse(f"{host}:4140", "x" * 15)
    place = PageAddress.parse(f"{host}:4140", "x" * 16)
    assert place is not None
    assert place.token == "x" * 16


@pytest.mark.parametrize("text", ["off", " OFF "])
def test_the_page_can_be_left_out(text: str) -> None:
    assert PageAddress.parse(text, "") is None


@pytest.mark.parametrize("text", ["", "4140", "localhost", "localhost:99999", "::1:4140", "http://localhost:4140"])
def test_an_address_that_cannot_be_read_is_refused(text: str) -> None:
    with pytest.raises(ConfigurationError, match=r"option statusPage: address .*; or off for no page"):
        PageAddress.parse(text, "")
