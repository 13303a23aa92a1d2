"""Web pages in a real browser: one of an allowed origin sends, others cannot, whether the browser asks or not."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer
from typing import TYPE_CHECKING

import pytest

from tests.doors.http.client import Client
from tests.worker.running import COOKIE

if TYPE_CHECKING:
    from proving.browser import Browser

pytestmark = pytest.mark.long


class _Empty(BaseHTTPRequestHandler):
    """A page with nothing in it."""

    def do_GET(self) -> None:
        self.send_response(200)
        self.send_header("Content-Type", "text/html")
        self.send_header("Content-Length", "0")
        self.end_headers()

    def log_message(self, format: str, *args: object) -> None:
        pass


@contextmanager
def site() -> Iterator[str]:
    """A web site; its origin is returned."""
    with HTTPServer(("127.0.0.1", 0), _Empty) as server:
        serving = threading.Thread(target=server.serve_forever)
        serving.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}"
        finally:
            server.shutdown()
            serving.join()


@pytest.fixture
def shop() -> Iterator[str]:
    with site() as origin:
        yield origin


@pytest.fixture
def stranger() -> Iterator[str]:
    with site() as origin:
        yield origin


def fetch(door: str, mode: str = "cors", **fields: str) -> str:
    """A script that sends a message; ``said`` becomes the answer, or the browser's refusal."""
    options = {"method": "POST", "mode": mode, "headers": fields, "body": '{"order": 1}'}
    return (
        f"void fetch({json.dumps(door + '/v1/streams/orders')}, {json.dumps(options)})"
        ".then(async answer => { window.said = [answer.status, await answer.text()] })"
        ".catch(error => { window.said = ['refused', String(error)] })"
    )


def test_a_page_of_an_allowed_origin_sends_and_another_does_not(
    browser: Browser, make_door: Callable[..., Client], shop: str, stranger: str
) -> None:
    client = make_door(http_origins=(shop,))
    sending = {"Content-Type": "application/json", "Authorization": f"Bearer {COOKIE}", "Wallaroo-Key": "k"}
    with browser.open(stranger) as page:
        page.run(fetch(client.url, **sending))
        assert page.wait("window.said")[0] == "refused"
    assert client.worker.count("messages") == 0

    with browser.open(shop) as page:
        page.run(fetch(client.url, **sending))
        reference = client.commit()
        status, body = page.wait("window.said")

    assert (status, json.loads(body)) == (200, {"committed": 1, "reference": reference})


def test_a_page_cannot_send_unasked_to_a_door_without_a_secret(
    browser: Browser, make_door: Callable[..., Client], stranger: str
) -> None:
    client = make_door(cookie="")
    for mode, fields in (("no-cors", {"Content-Type": "text/plain"}), ("cors", {"Content-Type": "text/plain"})):
        with browser.open(stranger) as page:
            page.run(fetch(client.url, mode, **fields))
            assert page.wait("window.said")[0] in (0, "refused")

    assert client.worker.count("door-refused:http-origin") == 2
    assert client.worker.count("messages") == 0
