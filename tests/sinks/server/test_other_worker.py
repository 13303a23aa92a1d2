"""Our sink server and a worker of another making, which behaves as Wallaroo's do; written from ``docs/protocol.md``
alone.

It says HELLO, NOTIFY of stream 1 and LIST_UNCOMMITTED at once, before it is answered. It takes no notice of the sink's
reference. When its connection is cut it goes on where it was, and rolls back when a vote is a no. It ends when more
than one of its transactions is listed.
"""

from __future__ import annotations

import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Self

import pytest

from tests.sinks.server.serving import ServingSink
from tests.waiting import SECONDS
from wallaroo_spark.protocol import V3, Error, FrameBuffer, Hello, Message, Notify, NotifyAck, Ok, RawFrame
from wallaroo_spark.protocol.sinks.messages import (
    ListUncommitted,
    Phase1,
    Phase2,
    Range,
    Reply,
    ReplyUncommitted,
    SinkMessage,
    WorkersLeft,
    decode_control,
    encode_control,
)

VERSION, COOKIE = "v9.9.9", "a cookie of its own"


class OtherWorker:
    """``committed`` and ``sent`` are its own log; they outlive its connection."""

    def __init__(self, name: str, port: int) -> None:
        self.name, self.port = name, port
        self.committed = self.sent = 0
        self.checkpoint = 0
        self.connect()

    def connect(self) -> list[str]:
        """Connect, and return the prepared transactions of the worker."""
        self._socket = socket.create_connection(("127.0.0.1", self.port), SECONDS)
        self._buffer = FrameBuffer(1 << 20)
        hello = Hello(VERSION, COOKIE.encode(), "app", self.name)
        self._socket.sendall(
            V3.encode(hello) + V3.encode(Notify(1, "app-w", self.committed)) + self._control(ListUncommitted(7))
        )
        ok, ack, answer = self._next(), self._next(), self._next()
        assert isinstance(ok, Ok)
        assert ok.credits >= 2
        assert isinstance(ack, NotifyAck)
        assert (ack.success, ack.stream_id) == (True, 1)
        assert isinstance(answer, ReplyUncommitted)
        assert len(answer.transactions) <= 1
        return list(answer.transactions)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._socket.close()

    def cut(self) -> None:
        """The connection is gone."""
        self._socket.close()

    def rows(self, *rows: bytes, arrive: bool = True) -> None:
        """Send rows, or have them lost on a connection that is cut."""
        for row in rows:
            if arrive:
                self._socket.sendall(V3.encode(Message(1, self.sent, row, event_time=0, key=b"")))
            self.sent += len(row)

    def phase1(self) -> str:
        """Begin a checkpoint."""
        self.checkpoint += 1
        name = f"app-w-{self.name}-id-1:c_id={self.checkpoint}"
        self.say(Phase1(name, (Range(1, self.committed, self.sent),)))
        return name

    def vote(self) -> tuple[str, bool]:
        """Begin one, and wait for the vote."""
        name, reply = self.phase1(), self._next()
        assert isinstance(reply, Reply)
        assert reply.transaction == name
        return name, reply.commit

    def decide(self, name: str, commit: bool) -> None:
        """Commit, or roll back."""
        self.say(Phase2(name, commit))
        if commit:
            self.committed = self.sent
        else:
            self.sent = self.committed

    def say(self, message: SinkMessage) -> None:
        self._socket.sendall(self._control(message))

    def settled(self) -> None:
        """Wait until the sink has taken in everything."""
        self.say(ListUncommitted(8))
        assert self._next() == ReplyUncommitted(8, ())

    def error(self) -> str:
        """The reason with which the session ends."""
        error = self._next()
        assert isinstance(error, Error)
        return error.reason

    def _control(self, message: SinkMessage) -> bytes:
        return V3.encode(Message(0, 0, encode_control(message), event_time=0, key=b""))

    def _next(self) -> Any:
        while not isinstance(raw := self._buffer.next(V3, -1), RawFrame):
            data = self._socket.recv(1 << 16)
            assert data, "the sink has closed"
            self._buffer.feed(data)
        frame = V3.decode(raw.tag, raw.body)
        return decode_control(frame.payload or b"") if isinstance(frame, Message) else frame


@pytest.fixture
def server(tmp_path: Path) -> Iterator[ServingSink]:
    with ServingSink(tmp_path / "out", version=VERSION, cookie=COOKIE) as serving:
        yield serving


def test_checkpoints_follow_one_another_also_without_rows(server: ServingSink) -> None:
    with OtherWorker("initializer", server.port) as worker:
        for rows in ([b"a", b"bc"], [], [], [b"d"]):
            worker.rows(*rows)
            name, yes = worker.vote()
            assert yes
            worker.decide(name, True)
        worker.say(WorkersLeft(7, ("worker2",)))
        worker.settled()
    assert server.shown() == {"initializer": b"abcd"}


@pytest.mark.parametrize("restarted", [False, True], ids=["", "and the sink is started again"])
@pytest.mark.parametrize("commit", [False, True])
@pytest.mark.parametrize("answered", [False, True])
def test_a_reconnected_worker_decides_the_listed_transactions_and_its_rows_follow(
    tmp_path: Path, restarted: bool, commit: bool, answered: bool
) -> None:
    with ServingSink(tmp_path, version=VERSION, cookie=COOKIE) as server:
        worker = OtherWorker("w", server.port)
        worker.rows(b"first ")
        worker.decide(worker.vote()[0], True)
        worker.rows(b"second ")
        name = worker.vote()[0] if answered else worker.phase1()
        if not answered:
            # Only then is it known that the vote was cast.
            worker._next()
        worker.cut()
        port = server.port
        if not restarted:
            _goes_on(worker, name, commit, server)
    if restarted:
        with ServingSink(tmp_path, port, version=VERSION, cookie=COOKIE) as server:
            _goes_on(worker, name, commit, server)


def _goes_on(worker: OtherWorker, name: str, commit: bool, server: ServingSink) -> None:
    with worker:
        assert worker.connect() == [name]
        worker.decide(name, commit)
        worker.rows(b"third ")
        following, yes = worker.vote()
        assert yes
        worker.decide(following, True)
        worker.settled()
        assert server.shown() == {"w": b"first " + b"second " * commit + b"third "}


def test_a_gap_is_a_no_and_the_worker_rolls_back(server: ServingSink) -> None:
    with OtherWorker("w", server.port) as worker:
        worker.rows(b"first ")
        worker.decide(worker.vote()[0], True)
        worker.rows(b"lost, as it was not voted on ")
        worker.cut()
        worker.rows(b"and lost ", arrive=False)
        assert worker.connect() == []
        worker.rows(b"behind a gap ")
        name, yes = worker.vote()
        assert not yes
        worker.decide(name, False)
        worker.rows(b"again")
        name, yes = worker.vote()
        assert yes
        worker.decide(name, True)
        worker.settled()
    assert server.shown() == {"w": b"first again"}


def test_a_worker_whose_rows_were_lost_gets_a_vote_to_abort(server: ServingSink) -> None:
    with OtherWorker("w", server.port) as worker:
        worker.rows(b"lost")
        worker.cut()
        worker.connect()
        name, yes = worker.vote()
        assert not yes
        worker.decide(name, False)
        worker.settled()
    assert server.shown() == {}


def test_workers_whose_names_are_alike_do_not_decide_for_one_another(server: ServingSink) -> None:
    with OtherWorker("w-1", server.port) as worker:
        worker.rows(b"x")
        name, _ = worker.vote()
        with OtherWorker("w", server.port) as other:
            other.settled()
            other.say(Phase2(name, False))
            other.settled()
        worker.decide(name, True)
        worker.settled()
    assert server.shown() == {"w-1": b"x"}


def test_a_worker_that_begins_again_is_told_the_length_of_the_output(server: ServingSink) -> None:
    with OtherWorker("w", server.port) as worker:
        worker.rows(b"seven b")
        worker.decide(worker.vote()[0], True)
        worker.settled()
    with OtherWorker("w", server.port) as anew:
        anew.rows(b"x")
        assert anew.error().startswith(
            "MESSAGE 0, and the output has 7 bytes with all rows of this session, 7 of them committed"
        )
    assert server.shown() == {"w": b"seven b"}
