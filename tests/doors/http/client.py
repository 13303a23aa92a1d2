"""A client of a worker's HTTP door, and the query of the worker that a test commits by hand."""

from __future__ import annotations

import http.client
import json
import socket
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing, contextmanager
from typing import Any, NamedTuple

from tests.waiting import SECONDS, eventually
from tests.worker.running import COOKIE, Fleet, Running
from wallaroo_spark.doors.client import stream_id

JSON = {"Content-Type": "application/json"}
ID = stream_id("orders")


class Said(NamedTuple):
    """An answer."""

    status: int
    fields: dict[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body)

    @property
    def code(self) -> str:
        """The code of a problem."""
        assert self.fields["content-type"] == "application/problem+json", self
        assert self.json["status"] == self.status
        return str(self.json["code"])


class Client:
    """Asks one worker's door; answers that come later are futures."""

    def __init__(self, worker: Running, cookie: str = COOKIE) -> None:
        self.worker = worker
        self.url = worker.client.status()["door_list"][0]["address"]
        self.address = (self.url.rpartition(":")[0].rpartition("/")[2], int(self.url.rpartition(":")[2]))
        self.cookie = cookie
        self._pool = ThreadPoolExecutor(16)

    def ask(self, method: str, target: str, body: bytes | None = None, **fields: str) -> Said:
        named = {name.replace("_", "-"): value for name, value in fields.items()}
        if self.cookie:
            named.setdefault("Authorization", f"Bearer {self.cookie}")
        with closing(http.client.HTTPConnection(*self.address, timeout=SECONDS)) as connection:
            connection.request(method, target, body, named)
            got = connection.getresponse()
            return Said(got.status, {name.lower(): value for name, value in got.getheaders()}, got.read())

    def post(self, body: bytes, media: str = "application/json", stream: str = "orders", **fields: str) -> Said:
        return self.ask("POST", f"/v1/streams/{stream}", body, **{"Content_Type": media, **fields})

    def later(self, body: bytes, **fields: str) -> Future[Said]:
        """Send in a thread; the worker has taken the request when this returns."""
        before = self.taken()
        future = self._pool.submit(lambda: self.post(body, **fields))
        eventually(lambda: future.done() or self.taken() > before, "the worker takes the request")
        assert not future.done() or future.result().status == 200, future.result()
        return future

    def taken(self) -> int:
        return self.worker.count("door-requests")

    def commit(self, instance: str = "http/worker-0", name: str = "orders", *, messages: int = 1) -> int:
        """Spark commits what the worker offers of a stream, once it has so many messages; returns the reference."""
        eventually(lambda: self.worker.count("messages") >= messages, "the worker holds the messages")
        number = stream_id(name)

        def offered() -> int | None:
            found = self.worker.client.inspect(10, instance, str(number))["stream_list"]
            return int(found[0]["received"]) if found and found[0]["rows"] else None

        reference: int = eventually(offered, "the worker holds rows")
        self.worker.commit({instance: {str(number): reference}})
        return reference

    def raw(self) -> socket.socket:
        """A connection without a client's manners."""
        return socket.create_connection(self.address, timeout=SECONDS)

    def close(self) -> None:
        self._pool.shutdown(wait=False, cancel_futures=True)


@contextmanager
def door(
    make_fleet: Callable[..., Fleet], *, ready: bool = True, cookie: str = COOKIE, **options: Any
) -> Iterator[Client]:
    """A running worker with the HTTP door."""
    fleet = make_fleet(http_port=0, cookie=cookie, **options)
    client = Client(fleet.start(ready=ready), cookie)
    try:
        yield client
    finally:
        client.close()


def everything(connection: socket.socket) -> bytes:
    """All bytes until the peer closes."""
    found = b""
    while True:
        try:
            data = connection.recv(65_536)
        except ConnectionError:
            return found
        if not data:
            return found
        found += data
