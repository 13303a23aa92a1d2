"""Very many connectors in one process: sessions with one stream each, quiet or with few messages.

``python -m proving.bench.session_clients JSON`` connects, prints a line and follows the lines of its input: ``send``
sends at the rate for some seconds and reports; the end of the input ends it.
"""

from __future__ import annotations

import json
import select
import socket
import sys
import time
from dataclasses import dataclass
from typing import Any

from proving.bench.descriptors import raise_open_files
from wallaroo_spark.protocol import REVISIONS, Ack, ConnectorSession, NotifyAck, Ok, plain_head

UNDER_WAY = 100
"""Handshakes at the same time; limited, because the listener's queue is not measured."""
CONNECT_SECONDS = 120.0
LOOK_SECONDS = 0.01
DRAIN_SECONDS = 20.0


@dataclass(frozen=True)
class Crowd:
    """The parameters of the sessions."""

    address: str
    """The worker's address, host:port."""
    cookie: str
    """The receiver's cookie."""
    program: str
    """The program's name in HELLO."""
    prefix: str
    """The start of instance names."""
    sessions: int
    """Sessions to open."""
    base: int = 0
    """The number before the first stream id."""
    seconds: float = 10.0
    """How long one ``send`` lasts."""
    rate: float = 1.0
    """Messages a second of each session."""
    size: int = 100
    """Bytes of a payload."""
    revision: str = "draft-be"
    """The protocol revision."""


class Client:
    """One connector with one stream."""

    __slots__ = ("acknowledged", "frame", "opened", "sent", "session", "socket", "stream_id")

    def __init__(self, crowd: Crowd, number: int) -> None:
        revision = REVISIONS[crowd.revision]
        self.stream_id = crowd.base + number + 1
        self.session = ConnectorSession(revision)
        self.frame = plain_head(revision, self.stream_id)
        self.sent = self.acknowledged = 0
        self.opened = False
        host, _, port = crowd.address.rpartition(":")
        self.socket = socket.create_connection((host, int(port)), 30)
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        instance = f"{crowd.prefix}-{number}"
        self.socket.sendall(
            self.session.hello(version="0.0.1", cookie=crowd.cookie.encode(), program=crowd.program, instance=instance)
        )
        self.socket.setblocking(False)

    def received(self) -> None:
        """Read the available frames."""
        data = self.socket.recv(1 << 16)
        if not data:
            raise ConnectionError(f"the worker has closed session {self.stream_id}")
        self.session.receive(data)
        while (frame := self.session.next_event()) is not None:
            match frame:
                case Ok():
                    self.socket.send(self.session.notify(self.stream_id, "quiet"))
                    self.opened = self.session.is_open(self.stream_id)
                case NotifyAck():
                    self.opened = frame.success
                case Ack():
                    for _, reference in frame.refs:
                        self.acknowledged = reference
                case _:
                    raise ConnectionError(f"the worker has sent {frame!r}")

    def send(self, payload: bytes) -> bool:
        """Send one message; False without a credit."""
        credits = self.session.credits
        if credits.available < 1:
            return False
        credits.spend(1)
        self.sent += 1
        pack, prefix, body, rest = self.frame
        self.socket.send(pack(body + len(payload), prefix, self.sent, *rest) + payload)
        return True


class Clients:
    """All sessions of a process."""

    def __init__(self, crowd: Crowd) -> None:
        self.crowd = crowd
        self.clients: list[Client] = []
        self._by_descriptor: dict[int, Client] = {}
        self._poll = select.epoll()

    def connect(self) -> None:
        """Connect all sessions and open their streams."""
        until = time.monotonic() + CONNECT_SECONDS
        waiting: set[Client] = set()
        while len(self.clients) < self.crowd.sessions or waiting:
            while len(waiting) < UNDER_WAY and len(self.clients) < self.crowd.sessions:
                client = Client(self.crowd, len(self.clients))
                self.clients.append(client)
                self._by_descriptor[client.socket.fileno()] = client
                self._poll.register(client.socket, select.EPOLLIN)
                waiting.add(client)
            self._look(LOOK_SECONDS)
            waiting = {client for client in waiting if not client.opened}
            if time.monotonic() > until:
                raise TimeoutError(f"{len(waiting)} of {len(self.clients)} sessions are not open")

    def _look(self, seconds: float) -> None:
        for descriptor, _ in self._poll.poll(seconds):
            self._by_descriptor[descriptor].received()

    def send(self) -> dict[str, Any]:
        """Send messages evenly over time and sessions, then wait for their acknowledgements."""
        crowd, clients, payload = self.crowd, self.clients, b"x" * self.crowd.size
        began, due, refused = time.monotonic(), 0, 0
        rate = crowd.rate * len(clients)
        while (now := time.monotonic()) < began + crowd.seconds:
            most = int((now - began) * rate)
            while due < most:
                refused += not clients[due % len(clients)].send(payload)
                due += 1
            self._look(LOOK_SECONDS)
        sent = sum(client.sent for client in clients)
        until = time.monotonic() + DRAIN_SECONDS
        while time.monotonic() < until and any(client.acknowledged < client.sent for client in clients):
            self._look(LOOK_SECONDS)
        acknowledged = sum(client.acknowledged for client in clients)
        return {"sent": sent, "acknowledged": acknowledged, "without_credit": refused, "seconds": crowd.seconds}


def main() -> None:
    """Connect, print a line, and follow the lines of the input."""
    clients = Clients(Crowd(**json.loads(sys.argv[1])))
    raise_open_files(clients.crowd.sessions)
    began = time.monotonic()
    clients.connect()
    print(json.dumps({"connected": len(clients.clients), "seconds": time.monotonic() - began}), flush=True)
    for line in sys.stdin:
        if line.strip() == "send":
            print(json.dumps(clients.send()), flush=True)


if __name__ == "__main__":
    main()
