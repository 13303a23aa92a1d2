"""A connector on a socket, with the protocol's own session, that can also misbehave."""

from __future__ import annotations

import contextlib
import socket
import ssl
from collections.abc import Callable

from tests.waiting import SECONDS, eventually
from tests.worker.running import COOKIE, Running
from wallaroo_spark.errors import ProtocolError
from wallaroo_spark.protocol import DRAFT_BE, V3, ConnectorSession, Error, Frame, Message, NotifyAck, Ok, Revision


class Peer:
    """A connector on a socket, with TLS when it is given a context, that can also misbehave."""

    def __init__(
        self, worker: Running, revision: Revision, instance: str = "bad", tls: ssl.SSLContext | None = None
    ) -> None:
        self.socket = socket.create_connection(worker.address, timeout=SECONDS)
        if tls is not None:
            self.socket = tls.wrap_socket(self.socket, server_hostname="127.0.0.1")
        self.revision = revision
        self.instance = instance
        self.session = ConnectorSession(revision)
        self.frames: list[Frame] = []
        self.ended = False

    def send(self, data: bytes) -> None:
        self.socket.sendall(data)

    def raw(self, frame: Frame) -> None:
        self.send(self.revision.encode(frame))

    def hello(self) -> Peer:
        self.send(self.session.hello(version="0.0.1", cookie=COOKIE.encode(), program="", instance=self.instance))
        assert isinstance(self.next(), Ok)
        return self

    def open(self, stream_id: int) -> Peer:
        self.send(self.session.notify(stream_id, "a stream"))
        if self.revision is V3:
            answer = self.next()
            assert isinstance(answer, NotifyAck)
            assert answer.success
        return self

    def message(self, stream_id: int, number: int) -> Peer:
        """Send a message, when the worker has granted a credit for it."""
        while self.session.credits.available < 1 and not self.ended:
            self._receive()
        self.send(self.session.message(Message(stream_id, number, b"x")))
        return self

    def next(self) -> Frame | None:
        """The worker's next frame, None once it has closed."""
        while not self.frames and not self.ended:
            self._receive()
        return self.frames.pop(0) if self.frames else None

    def _receive(self) -> None:
        try:
            data = self.socket.recv(65_536)
        except ConnectionError:
            data = b""
        self.ended = not data
        self.session.receive(data)
        while (frame := self.session.next_event()) is not None:
            self.frames.append(frame)

    def error(self) -> str | None:
        """The reason of the ERROR with which the worker ends the session; None when it closes without a word."""
        while (frame := self.next()) is not None:
            if isinstance(frame, Error):
                assert self.next() is None
                return frame.reason
        return None


def patiently(connect: Callable[[], Peer]) -> Peer:
    """A session with a worker whose limit of a handshake is short: tried again when this process was too slow."""

    def attempt() -> Peer | None:
        with contextlib.suppress(AssertionError, ConnectionError, ProtocolError):
            return connect()
        return None

    peer: Peer = eventually(attempt, "a handshake in time")
    return peer


def good(worker: Running, instance: str = "good") -> Peer:
    """A session with stream 1 open."""
    return Peer(worker, DRAFT_BE, instance).hello().open(1)
