"""Heads of HTTP requests: which are read, and which are refused."""

from __future__ import annotations

import contextlib
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests import evil_values as evil
from wallaroo_spark.observe.server.messages import BadRequestError, Response, host_name, parse


def head(*lines: str) -> bytes:
    return "".join(f"{line}\r\n" for line in (*lines, "")).encode("latin-1")


def test_a_request_is_read() -> None:
    request = parse(head("GET /api/status?top=5&q=a%20b HTTP/1.1", "Host: localhost:4140", "Cookie: a=1; b=2=3"))

    assert (request.method, request.path) == ("GET", "/api/status")
    assert request.query == {"top": "5", "q": "a b"}
    assert request.headers["host"] == "localhost:4140"
    assert [request.cookie(name) for name in ("a", "b", "c")] == ["1", "2=3", ""]


@pytest.mark.parametrize(
    ("lines", "status"),
    [
        (("GET / HTTP/2",), 400),
        (("GET http://elsewhere.example/ HTTP/1.1",), 400),
        (("get / HTTP/1.1",), 400),
        (("GET / HTTP/1.1", "no header"), 400),
        (("GET / HTTP/1.1", " folded: header"), 400),
        (("GET / HTTP/1.1", "Host: localhost", "Host: elsewhere.example"), 400),
        (("GET / HTTP/1.1", "Content-Length: 5"), 413),
        (("GET / HTTP/1.1", "Transfer-Encoding: chunked"), 413),
        (("GET /?" + "&".join(f"a{n}=1" for n in range(50)) + " HTTP/1.1",), 400),
    ],
)
def test_a_head_that_is_no_plain_request_is_refused(lines: tuple[str, ...], status: int) -> None:
    with pytest.raises(BadRequestError) as caught:
        parse(head(*lines))

    assert caught.value.status == status


@given(st.binary(max_size=200))
def test_any_bytes_are_a_request_or_refused(junk: bytes) -> None:
    with contextlib.suppress(BadRequestError):
        assert parse(junk + b"\r\n\r\n").path


@pytest.mark.parametrize(
    ("header", "name"),
    [
        ("localhost", "localhost"),
        ("LOCALHOST.:80", "localhost"),
        ("127.0.0.1:4140", "127.0.0.1"),
        ("[::1]:4140", "::1"),
        ("", ""),
        ("[", ""),
        ("user@evil.example:80", "evil.example"),
    ],
)
def test_the_host_of_a_header(header: str, name: str) -> None:
    assert host_name(header) == name


@pytest.mark.parametrize("text", evil.TEXTS.values(), ids=evil.TEXTS)
def test_an_evil_text_of_an_error_is_shown_in_json_and_in_a_line(text: str) -> None:
    assert json.loads(Response.json({"problem": text}).body) == {"problem": text}
    assert Response.text(text).body == f"{text}\n".encode(errors="replace")
