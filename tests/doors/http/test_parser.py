"""Requests are found in bytes, however these are cut, and lies about their length are refused."""

from __future__ import annotations

import pytest

from wallaroo_spark.doors.http.parser import RequestEnd, RequestHead, RequestParser
from wallaroo_spark.doors.http.problems import Problem

REQUEST = (
    b"POST /v1/streams/a%2Fb%20c?wait=1&x= HTTP/1.1\r\nHost: here\r\nX-A: 1\r\nX-a: 2\r\nContent-Length: 5\r\n\r\nhello"
)
CHUNKED = b"POST / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n2\r\nde\r\n0\r\n\r\n"


def bodies(parser: RequestParser) -> list[bytes]:
    """The bodies of the complete requests."""
    found, body = [], b""
    for event in parser.events:
        if isinstance(event, bytes):
            body += event
        elif isinstance(event, RequestEnd):
            found.append(body)
            body = b""
    return found


@pytest.mark.parametrize("size", [1, 7, 1000])
def test_requests_are_found_however_they_are_cut(size: int) -> None:
    parser, data = RequestParser(), REQUEST + CHUNKED + REQUEST
    for at in range(0, len(data), size):
        parser.feed(data[at : at + size])

    heads = [event for event in parser.events if isinstance(event, RequestHead)]
    assert bodies(parser) == [b"hello", b"abcde", b"hello"]
    assert heads[0].method == "POST"
    assert heads[0].segments() == ["v1", "streams", "a/b c"]
    assert heads[0].query == {"wait": "1", "x": ""}
    assert heads[0].get("x-a") == "1,2"
    assert heads[0].number("content-length") == 5


@pytest.mark.parametrize(
    "data",
    [
        b"\x16\x03\x01\x02\x00\x01",
        b"hello\r\n\r\n",
        b"POST / HTTP/1.1\r\nContent-Length: 5\r\nContent-Length: 6\r\n\r\n",
        b"POST / HTTP/1.1\r\nContent-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n",
        b"POST / HTTP/1.1\r\nContent-Length: -5\r\n\r\n",
        b"POST / HTTP/1.1\r\nContent-Length: 99999999999999999999999\r\n\r\n",
        b"POST / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n",
        b"POST / HTTP/1.1\r\nConnection: Upgrade\r\nUpgrade: h2c\r\nContent-Length: 5\r\n\r\nhello",
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
    ],
)
def test_what_is_no_request_is_refused(data: bytes) -> None:
    parser = RequestParser()
    with pytest.raises(Problem) as caught:
        parser.feed(data)

    assert caught.value.code == "http-malformed"
    parser.feed(REQUEST)
    assert not any(isinstance(event, RequestEnd) for event in parser.events)


@pytest.mark.parametrize(
    "data",
    [
        b"GET /" + b"x" * 40_000 + b" HTTP/1.1\r\n\r\n",
        b"GET / HTTP/1.1\r\n" + b"".join(b"X-%d: 1\r\n" % at for at in range(200)) + b"\r\n",
        b"GET / HTTP/1.1\r\nX: " + b"x" * 40_000,
    ],
)
def test_a_head_has_limits(data: bytes) -> None:
    with pytest.raises(Problem) as caught:
        RequestParser().feed(data)

    assert caught.value.code == "http-head-too-large"


def test_a_head_that_drips_has_the_same_limits() -> None:
    parser = RequestParser()
    parser.feed(b"GET / HTTP/1.1\r\n")

    def drip() -> None:
        for _ in range(2000):
            parser.feed(b"X: " + b"x" * 30)

    with pytest.raises(Problem, match="head of a request"):
        drip()


@pytest.mark.parametrize("text", ["x", "-1", "1.5", "9" * 21, "٣"])
def test_a_number_is_a_whole_number(text: str) -> None:
    with pytest.raises(Problem) as caught:
        RequestHead("POST", "/", {"wallaroo-token": text}).number("wallaroo-token")

    assert caught.value.code == "http-field-unreadable"
