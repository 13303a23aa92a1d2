"""Bad input over real sockets: a reason or a silent close, a warning, a count, and nobody else notices."""

from __future__ import annotations

import contextlib
import logging
import random
import socket
import struct
from collections.abc import Callable, Iterator

import pytest

from tests.revisions import drafts, revisions
from tests.waiting import eventually
from tests.worker.peer import Peer, patiently
from tests.worker.running import COOKIE, Fleet, Running
from wallaroo_spark.protocol import (
    DRAFT_BE,
    DRAFT_LE,
    REVISIONS,
    V3,
    EosMessage,
    Error,
    Flags,
    Hello,
    Message,
    Notify,
    Ok,
    Revision,
)


@pytest.fixture(scope="module")
def shared(redis_server: object) -> Iterator[Running]:
    """One worker for the whole file: one peer's input must have no effect on the next peer."""
    fleet = Fleet(redis_server.url)  # type: ignore[attr-defined]  # an EmbeddedRedis
    yield fleet.start()
    fleet.close()


@pytest.fixture
def healthy(shared: Running, caplog: pytest.LogCaptureFixture) -> Iterator[Peer]:
    """A good session beside the bad one, which is served before and after."""
    caplog.set_level(logging.INFO, "wallaroo_spark.worker")
    good = Peer(shared, DRAFT_BE, "good").hello().open(1)
    start = reference(shared)
    good.message(1, start + 1)
    yield good
    good.message(1, start + 2)
    rows = shared.rows("good", 1, start or None, start + 2)
    assert [row["message_id"] for row in rows] == [start + 1, start + 2]
    shared.commit({"good": {"1": start + 2}})
    good.socket.close()
    eventually(lambda: shared.client.status()["sessions"] == 0)


def reference(worker: Running) -> int:
    """Where the good session's stream stands."""
    return 2 * (worker.batch + 1)


def frame(revision: Revision, tag: str | int, body: bytes) -> bytes:
    number = tag if isinstance(tag, int) else ord(tag)
    return struct.pack(revision.byte_order + "IB", len(body) + 1, number) + body


def notify_tag(revision: Revision) -> int:
    return revision.by_frame[Notify].tag


def expect(
    worker: Running, caplog: pytest.LogCaptureFixture, peer: Peer, bad: bytes, fault: str, reason: str | None
) -> None:
    """Send bad bytes, and see the reason, the count and the line in the log."""
    before = worker.count(f"fault:{fault}")
    peer.send(bad)
    said = peer.error()
    if reason is None:
        assert said is None
    else:
        assert said is not None
        assert reason in said
        assert COOKIE not in said
    eventually(lambda: worker.count(f"fault:{fault}") == before + 1, f"{fault} is counted")
    warnings = [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING]
    assert any(reason is None or reason in line for line in warnings), warnings
    assert warnings
    peer.socket.close()


@revisions
@pytest.mark.usefixtures("healthy")
class TestFrames:
    def test_a_wrong_version(self, shared: Running, caplog: pytest.LogCaptureFixture, revision: Revision) -> None:
        bad = revision.encode(Hello("0.0.2", COOKIE.encode(), "", "bad"))
        peer = Peer(shared, revision)
        peer.session.hello(version="", cookie=b"", program="", instance="")
        expect(shared, caplog, peer, bad, "wrong-version", "version '0.0.2' is not spoken here")

    def test_a_wrong_cookie(self, shared: Running, caplog: pytest.LogCaptureFixture, revision: Revision) -> None:
        bad = revision.encode(Hello("0.0.1", b"a guess", "", "bad"))
        peer = Peer(shared, revision)
        peer.session.hello(version="", cookie=b"", program="", instance="")
        expect(shared, caplog, peer, bad, "wrong-cookie", "the cookie is not the one")
        assert "a guess" not in caplog.text

    def test_an_unknown_tag(self, shared: Running, caplog: pytest.LogCaptureFixture, revision: Revision) -> None:
        peer = Peer(shared, revision).hello()
        expect(shared, caplog, peer, frame(revision, 250, b""), "unknown-tag", "tag 250")

    def test_a_truncated_frame(self, shared: Running, caplog: pytest.LogCaptureFixture, revision: Revision) -> None:
        peer = Peer(shared, revision).hello()
        bad = frame(revision, notify_tag(revision), b"\0\0")
        expect(shared, caplog, peer, bad, "truncated-frame", "NOTIFY")

    def test_a_frame_that_goes_on_behind_its_end(
        self, shared: Running, caplog: pytest.LogCaptureFixture, revision: Revision
    ) -> None:
        peer = Peer(shared, revision).hello()
        bad = frame(revision, notify_tag(revision), bytes(40))
        expect(shared, caplog, peer, bad, "overlong-frame", "NOTIFY")

    def test_a_length_bomb(self, shared: Running, caplog: pytest.LogCaptureFixture, revision: Revision) -> None:
        peer = Peer(shared, revision).hello()
        expect(shared, caplog, peer, b"\x7f\xff\xff\x7f", "frame-too-long", "(maxFrameBytes)")

    def test_a_length_of_zero(self, shared: Running, caplog: pytest.LogCaptureFixture, revision: Revision) -> None:
        peer = Peer(shared, revision).hello()
        expect(shared, caplog, peer, bytes(4), "empty-frame", "length 0")

    def test_a_message_before_notify(
        self, shared: Running, caplog: pytest.LogCaptureFixture, revision: Revision
    ) -> None:
        peer = Peer(shared, revision).hello()
        expect(shared, caplog, peer, revision.encode(Message(9, 1, b"x")), "stream-not-open", "stream 9")

    def test_a_message_after_the_end(
        self, shared: Running, caplog: pytest.LogCaptureFixture, revision: Revision
    ) -> None:
        peer = Peer(shared, revision, f"bad {revision}").hello().open(9)
        end = revision.end_of_stream(9, 1)
        assert isinstance(end, Message | EosMessage)
        bad = revision.encode(end) + revision.encode(Message(9, 2, b"x"))
        expect(shared, caplog, peer, bad, "stream-not-open", "stream 9")

    def test_a_second_hello(self, shared: Running, caplog: pytest.LogCaptureFixture, revision: Revision) -> None:
        peer = Peer(shared, revision).hello()
        bad = revision.encode(Hello("0.0.1", COOKIE.encode(), "", "bad"))
        expect(shared, caplog, peer, bad, "wrong-state", "HELLO is not allowed in state streaming")

    def test_a_frame_of_the_other_side(
        self, shared: Running, caplog: pytest.LogCaptureFixture, revision: Revision
    ) -> None:
        peer = Peer(shared, revision).hello()
        expect(shared, caplog, peer, revision.encode(Ok(5)), "wrong-side", "OK is not a frame that a connector sends")

    def test_invalid_text(self, shared: Running, caplog: pytest.LogCaptureFixture, revision: Revision) -> None:
        peer = Peer(shared, revision).hello()
        name = struct.pack(revision.byte_order + "H", 2) + b"\xff\xfe"
        bad = frame(revision, notify_tag(revision), bytes(8) + name + bytes(8))
        expect(shared, caplog, peer, bad, "invalid-text", "UTF-8")


@drafts
@pytest.mark.usefixtures("healthy")
class TestFlags:
    def test_a_reserved_flag(self, shared: Running, caplog: pytest.LogCaptureFixture, revision: Revision) -> None:
        peer = Peer(shared, revision).hello().open(9)
        bad = frame(revision, "M", struct.pack(revision.byte_order + "HQQ", 0x8000, 9, 1))
        expect(shared, caplog, peer, bad, "reserved-flag", "only")

    def test_a_boundary_with_a_payload(
        self, shared: Running, caplog: pytest.LogCaptureFixture, revision: Revision
    ) -> None:
        peer = Peer(shared, revision).hello().open(9)
        bad = frame(revision, "M", struct.pack(revision.byte_order + "HQQ", 2, 9, 1) + b"x")
        expect(
            shared,
            caplog,
            peer,
            bad,
            "boundary-payload",
            "where no payload may be; send a payload in a message without BOUNDARY",
        )


@pytest.mark.usefixtures("healthy")
class TestConnections:
    @pytest.mark.parametrize("words", [b"GET / HTTP/1.1\r\n\r\n", bytes(64), b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc"])
    def test_another_protocol_is_closed_without_an_answer(
        self, shared: Running, caplog: pytest.LogCaptureFixture, words: bytes
    ) -> None:
        expect(shared, caplog, Peer(shared, V3), words, "not-this-protocol", None)

    def test_a_connection_that_ends_within_a_frame(self, shared: Running, caplog: pytest.LogCaptureFixture) -> None:
        before = shared.count("fault:truncated-frame")
        peer = Peer(shared, V3).hello()
        peer.send(b"\x00\x00\x00\x20\x03")
        peer.socket.close()

        eventually(lambda: shared.count("fault:truncated-frame") == before + 1)
        assert "the connection ended within a frame" in caplog.text


def test_a_stalled_handshake(make_fleet: Callable[..., Fleet], caplog: pytest.LogCaptureFixture) -> None:
    worker = make_fleet(handshake_timeout=0.3).start()
    good = patiently(lambda: Peer(worker, DRAFT_BE, "good").hello().open(1))
    before = worker.count("fault:handshake-timeout")
    silent, halting = Peer(worker, DRAFT_BE), Peer(worker, DRAFT_BE)
    halting.session.hello(version="", cookie=b"", program="", instance="")
    halting.send(DRAFT_BE.encode(Hello("0.0.1", COOKIE.encode(), "", "halting"))[:-1])

    assert silent.error() is None
    assert halting.error() == "no HELLO came within 0.3 seconds (handshakeTimeout)"
    assert worker.count("fault:handshake-timeout") == before + 2
    assert "(handshakeTimeout)" in caplog.text
    good.message(1, 1)
    assert len(worker.rows("good", 1, None, 1)) == 1


@revisions
def test_a_message_without_credit(
    make_fleet: Callable[..., Fleet], caplog: pytest.LogCaptureFixture, revision: Revision
) -> None:
    worker = make_fleet(memory_budget=1 << 20).start()
    good = Peer(worker, DRAFT_BE, "good").hello().open(1)
    # Held rows take no memory when they come again, and a read contains far more of them than there are credits.
    first = Peer(worker, revision).hello().open(2).message(2, 2)
    eventually(lambda: worker.count("messages") == 1)
    first.socket.close()
    eventually(lambda: worker.client.status()["sessions"] == 1)
    peer = Peer(worker, revision).hello().open(2)
    flood = revision.encode(Message(2, 1, b"")) * 200_000
    with contextlib.suppress(ConnectionError):
        peer.send(flood)

    eventually(lambda: worker.count("fault:no-credit") == 1)
    assert "with no credit left" in caplog.text
    reason = peer.error()
    # A peer that was still sending may get the reset before the reason.
    assert reason is None or "with no credit left" in reason
    good.message(1, 1)
    assert len(worker.rows("good", 1, None, 1)) == 1


def test_too_many_sessions(make_fleet: Callable[..., Fleet], caplog: pytest.LogCaptureFixture) -> None:
    worker = make_fleet(max_sessions=1).start()
    good = Peer(worker, DRAFT_BE, "good").hello().open(1)
    late = Peer(worker, DRAFT_BE, "late")
    late.send(late.session.hello(version="0.0.1", cookie=COOKIE.encode(), program="", instance="late"))

    reason = late.error()
    assert reason is not None
    assert "takes no more (maxSessions)" in reason
    assert worker.count("fault:worker-full") == 1
    assert "takes no more (maxSessions)" in caplog.text
    good.message(1, 1)
    assert len(worker.rows("good", 1, None, 1)) == 1


def test_a_peer_that_never_reads(
    make_fleet: Callable[..., Fleet], caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("wallaroo_spark.worker.service.UNSENT_LIMIT", 64 << 10)
    # The system would otherwise hold some megabytes for a peer before any of it has to wait here.
    monkeypatch.setattr(
        "wallaroo_spark.transport.tcp.tune",
        lambda connection: connection.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4096),
    )
    worker = make_fleet().start()
    good = Peer(worker, DRAFT_BE, "good").hello().open(1)
    deaf = Peer(worker, V3, "deaf")
    deaf.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    deaf.hello().open(1)
    # Every NOTIFY of an open stream is answered, and costs no credit that would have to be there.
    flood = V3.encode(Notify(1, "")) * 5_000

    def cut_off() -> bool:
        with contextlib.suppress(ConnectionError):
            deaf.send(flood)
        return worker.count("fault:peer-never-reads") == 1

    eventually(cut_off, "the peer that does not read is cut off")
    assert "does not read" in caplog.text
    good.message(1, 1)
    assert len(worker.rows("good", 1, None, 1)) == 1


def test_arbitrary_conversations_end_in_nothing_worse(
    make_fleet: Callable[..., Fleet], caplog: pytest.LogCaptureFixture
) -> None:
    # On a slow machine each good message arrives by itself, and 300 pieces must fit with room to spare.
    worker = make_fleet(memory_budget=8 << 20, max_frame_bytes=1 << 16).start()
    good = Peer(worker, DRAFT_BE, "good").hello().open(1)
    drawn = random.Random(20_240_501)
    for number in range(300):
        revision = drawn.choice(list(REVISIONS.values()))
        peer = Peer(worker, revision, f"fuzz-{number % 7}")
        sound = [
            revision.encode(Hello("0.0.1", COOKIE.encode(), "", peer.instance)),
            revision.encode(Notify(number % 3, "a stream", drawn.randrange(3))),
            *(revision.encode(Message(number % 3, at, drawn.randbytes(drawn.randrange(200)))) for at in range(1, 6)),
            revision.encode(revision.end_of_stream(number % 3, 5)),
        ]
        data = bytearray(b"".join(sound[: drawn.randrange(len(sound) + 1)]))
        for _ in range(drawn.randrange(4)):
            if data:
                data[drawn.randrange(len(data))] = drawn.randrange(256)
        data += drawn.randbytes(drawn.choice((0, 0, 5, 200)))
        try:
            for at in range(0, len(data), step := drawn.choice((7, 64, 4096))):
                peer.send(bytes(data[at : at + step]))
        except ConnectionError:
            pass
        if drawn.random() < 0.2:
            peer.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        peer.socket.close()
        good.message(1, number + 1)

    assert [row["message_id"] for row in worker.rows("good", 1, None, 300)] == list(range(1, 301))
    eventually(lambda: worker.client.status()["sessions"] == 1, "all others are gone")
    assert worker.count("internal-errors") == 0
    assert not [record for record in caplog.records if record.exc_info and record.name.startswith("wallaroo_spark.w")]
    before = worker.client.status()["memory_used"]
    worker.commit({"good": {"1": 300}})
    assert worker.client.status()["memory_used"] < before


@pytest.mark.parametrize("revision", [DRAFT_LE, DRAFT_BE, V3], ids=str)
def test_text_of_a_peer_cannot_forge_a_log_line(
    shared: Running, revision: Revision, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "wallaroo_spark.worker")
    forged = f"shop\n2026-01-01 CRITICAL forged \x1b[2J {revision.name}"
    peer = Peer(shared, revision, forged).hello()
    peer.raw(Error(forged))
    peer.error()

    lines = [record.getMessage() for record in caplog.records]
    assert any("gave up: shop\\n2026-01-01 CRITICAL forged \\x1b[2J" in line for line in lines)
    assert all(line.isprintable() for line in lines)


@pytest.mark.parametrize("revision", [DRAFT_LE, DRAFT_BE], ids=str)
def test_the_end_of_a_committed_stream_with_a_broken_rule_behind_it_is_told_by_an_error(
    shared: Running, revision: Revision
) -> None:
    name = f"ends in {revision.name}"
    before = shared.count("internal-errors")
    peer = Peer(shared, revision, name).hello().open(1).message(1, 1)
    assert len(shared.rows(name, 1, None, 1)) == 1
    shared.commit({name: {"1": 1}})
    end = Message(1, 1, None, Flags.BOUNDARY | Flags.EOS)
    peer.send(revision.encode(end) + revision.encode(Message(9, 1, b"x")))

    reason = peer.error()
    assert reason is not None
    assert "stream 9" in reason
    assert shared.count("internal-errors") == before
