"""Checks of workers: the package's own passes in each revision, and one that is broken does not."""

from __future__ import annotations

import contextlib
import hmac
import socketserver
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from typing import Any, NamedTuple

import pytest

from tests.waiting import SECONDS
from wallaroo_spark.conformance import workers
from wallaroo_spark.conformance.checks import CheckOutcome, CheckResult
from wallaroo_spark.conformance.worker_calls import CheckedWorker
from wallaroo_spark.protocol import REVISIONS, Error, Notify, StreamReference, WorkerSession
from wallaroo_spark.protocol.faults import later
from wallaroo_spark.protocol.sessions import worker_session
from wallaroo_spark.testing import FakeWorker
from wallaroo_spark.worker.machine.arrivals import Arrivals
from wallaroo_spark.worker.machine.connections import Connections
from wallaroo_spark.worker.machine.handshake import Handshake

COOKIE = "sesame-of-the-tests"
SHORT = 3.0
"""The wait for what a broken worker never does."""


@pytest.fixture(scope="module")
def worker() -> Iterator[FakeWorker]:
    with FakeWorker(cookie=COOKIE) as made, made.committing():
        yield made


def run(worker: FakeWorker, revisions: Iterable[str], *names: str, seconds: float = SECONDS) -> list[CheckResult]:
    setting = CheckedWorker(worker.address, COOKIE, seconds=seconds)
    checks = [check for check in workers.CHECKS if not names or check.name in names]
    return list(workers.plan(setting, checks, revisions).results())


@pytest.mark.parametrize("revision", REVISIONS)
def test_a_worker_of_this_package_passes_every_check(worker: FakeWorker, revision: str) -> None:
    results = run(worker, [revision])

    assert [f"{one.check}: expected {one.expected}; came {one.came}" for one in results if one.came] == []
    assert {one.outcome for one in results} == {CheckOutcome.PASSED}
    assert len(results) == sum(revision in (check.revisions or REVISIONS) for check in workers.CHECKS)


def one_of(worker: FakeWorker, check: str, revision: str = "draft-be", seconds: float = SECONDS) -> CheckResult:
    (found,) = run(worker, [revision], check, seconds=seconds)
    assert found.outcome is CheckOutcome.FAILED
    return found


Patch = pytest.MonkeyPatch
Made = Callable[..., Any]


def replaced(patch: Patch, owner: Any, name: str, make: Callable[[Made], Made]) -> None:
    """The method of this name is what is made of it."""
    patch.setattr(owner, name, make(getattr(owner, name)))


def takes_any_cookie(patch: Patch) -> None:
    patch.setattr(hmac, "compare_digest", lambda *_: True)


def takes_any_version(patch: Patch) -> None:
    def make(right: Made) -> Made:
        return lambda revision, body, _, cookie: right(revision, body, "0.0.1-not", cookie)

    replaced(patch, worker_session, "read_hello", make)


def closes_without_an_error(patch: Patch) -> None:
    patch.setattr(WorkerSession, "fail", lambda *_: None)


def asks_to_come_back(patch: Patch) -> None:
    replaced(patch, WorkerSession, "fail", lambda right: lambda self, reason: right(self, later(reason)))


def goes_on_behind_mistakes(patch: Patch) -> None:
    patch.setattr(Connections, "fault", lambda *_, **__: None)


def answers_everybody(patch: Patch) -> None:
    replaced(patch, WorkerSession, "fail", lambda right: lambda self, reason: right(self, reason) or b"HTTP/1.1 400")


def lists_streams_of_others(patch: Patch) -> None:
    others = [StreamReference(4711, 1, "others")]
    replaced(patch, WorkerSession, "ok", lambda right: lambda self, credits, streams: right(self, credits, others))


def forgets_references_in_ok(patch: Patch) -> None:
    replaced(patch, WorkerSession, "ok", lambda right: lambda self, credits, streams: right(self, credits))


def repeats_the_reference_of_notify(patch: Patch) -> None:
    def make(right: Made) -> Made:
        return lambda self, stream, ref, success: right(self, stream, self.last_notify.ref or None, success=success)

    replaced(patch, WorkerSession, "_event", lambda right: lambda self, frame: right(remember(self, frame), frame))
    replaced(patch, WorkerSession, "notify_ack", make)


def remember(session: Any, frame: Any) -> Any:
    if isinstance(frame, Notify):
        session.last_notify = frame
    return session


def says_too_high_references(patch: Patch) -> None:
    def make(right: Made) -> Made:
        return lambda self, credits=0, refs=(): right(self, credits, [(stream, ref + 1000) for stream, ref in refs])

    replaced(patch, WorkerSession, "ack", make)


def grants_no_more_credits(patch: Patch) -> None:
    replaced(patch, WorkerSession, "ack", lambda right: lambda self, credits=0, refs=(): right(self, 0, refs))


def acknowledges_no_end(patch: Patch) -> None:
    patch.setattr(Arrivals, "_end", lambda *_: None)


def takes_whole_frames_only(patch: Patch) -> None:
    def make(right: Made) -> Made:
        return lambda self, data: right(self, data if len(data) > 4 else b"")

    replaced(patch, WorkerSession, "receive", make)


def takes_one_frame_a_read(patch: Patch) -> None:
    def first(data: bytes) -> bytes:
        return bytes(data)[: 4 + int.from_bytes(bytes(data)[:4], "big")]

    replaced(patch, WorkerSession, "receive", lambda right: lambda self, data: right(self, first(data)))


def keeps_the_older_session(patch: Patch) -> None:
    patch.setattr(Handshake, "_supersede", lambda *_: True)


def gives_a_stream_to_everybody(patch: Patch) -> None:
    def make(right: Made) -> Made:
        return lambda self, stream, ref, success: right(self, stream, ref, success=True)

    replaced(patch, WorkerSession, "notify_ack", make)


def ignores_errors(patch: Patch) -> None:
    def make(right: Made) -> Made:
        return lambda self, connection, found: None if isinstance(found, Error) else right(self, connection, found)

    replaced(patch, Arrivals, "_found", make)


class Planted(NamedTuple):
    """A fault of a worker, and where it has to be found."""

    fault: Callable[[Patch], None]
    check: str
    found: str
    """A part of what was expected and what came."""
    revision: str = "draft-be"
    page: str = ""
    """The section, where it is not that of the check."""


MISTAKES = [one.name for one in workers.CHECKS if one.run.__qualname__.startswith("_refused")]
"""The checks that send something wrong within a session."""
FAULTS = [
    Planted(lists_streams_of_others, "handshake", "OK without streams"),
    Planted(takes_any_cookie, "wrong-cookie", "OK credits="),
    Planted(takes_any_version, "wrong-version", "OK credits="),
    Planted(asks_to_come_back, "wrong-cookie", "which is for a person", page="reasons-that-a-connector-may-act-on"),
    Planted(answers_everybody, "not-hello", "more bytes: 48 54 54 50"),
    Planted(says_too_high_references, "messages", "references up to 10, the last message", "draft-le"),
    Planted(acknowledges_no_end, "end-of-stream", "an ACK of the stream's end", "v3"),
    Planted(grants_no_more_credits, "credits", "an ACK with credits"),
    Planted(takes_whole_frames_only, "split-frames", "nothing of it within"),
    Planted(takes_one_frame_a_read, "joined-frames", "nothing of it within"),
    Planted(forgets_references_in_ok, "resume", "OK with the committed reference 10"),
    Planted(repeats_the_reference_of_notify, "sent-again", "NOTIFY_ACK with the committed reference 10", "v3"),
    Planted(keeps_the_older_session, "superseded", "takes its place"),
    Planted(gives_a_stream_to_everybody, "taken-stream", "success 0", "v3"),
    Planted(ignores_errors, "error", "it is open after"),
]


def test_each_check_finds_a_planted_fault() -> None:
    assert {one.check for one in FAULTS} | {*MISTAKES} == {check.name for check in workers.CHECKS}


@pytest.mark.parametrize(
    ("fault", "came"),
    [
        (closes_without_an_error, "the worker closed the connection"),
        (goes_on_behind_mistakes, "nothing of it within"),
    ],
)
def test_a_worker_that_names_no_mistake_is_found_by_each_of_them(
    fault: Callable[[Patch], None], came: str, monkeypatch: Patch
) -> None:
    with FakeWorker(cookie=COOKIE) as broken, broken.committing():
        fault(monkeypatch)
        results = run(broken, ["draft-be"], *MISTAKES, seconds=SHORT)
        monkeypatch.undo()

    assert [one.check for one in results] == MISTAKES
    assert [one for one in results if one.expected != "ERROR with a reason" or not one.came.startswith(came)] == []


@pytest.mark.parametrize("planted", FAULTS, ids=lambda one: f"{one.fault.__name__}-{one.check}")
def test_a_planted_fault_is_found(planted: Planted, monkeypatch: Patch) -> None:
    with FakeWorker(cookie=COOKIE) as broken, broken.committing():
        planted.fault(monkeypatch)
        found = one_of(broken, planted.check, planted.revision, seconds=SHORT)
        monkeypatch.undo()

    assert planted.found in f"{found.expected}; {found.came}"
    assert found.page.endswith(f"#{planted.page}") or not planted.page


def test_a_worker_without_a_query_that_commits_is_found() -> None:
    with FakeWorker(cookie=COOKIE) as idle:
        found = one_of(idle, "messages", seconds=3)

    assert "an ACK of message 10, once it is committed" in found.expected
    assert "messages up to 10 are sent, 0 acknowledged" in found.came


def test_an_address_where_nobody_is_fails_each_check(worker: FakeWorker) -> None:
    with FakeWorker() as gone:
        address = gone.address
    (found,) = workers.plan(CheckedWorker(address), workers.CHECKS[:1], ["v3"]).results()

    assert (found.outcome, "no connection (Connection refused)" in found.came) == (CheckOutcome.FAILED, True)


OK = b"\0\0\0\x05O\0\0\x03\xe8"
ACK = b"\0\0\0\x09A" + bytes(8)


@contextlib.contextmanager
def sending(begin: bytes, again: bytes) -> Iterator[str]:
    """The address of a worker that sends these bytes, and then others without an end."""

    class Handler(socketserver.BaseRequestHandler):
        def handle(self) -> None:
            self.request.recv(1)
            with contextlib.suppress(OSError):
                self.request.sendall(begin)
                while again:
                    self.request.sendall(again)
                self.request.recv(1 << 20)
                over.wait()

    over = threading.Event()
    with socketserver.ThreadingTCPServer(("127.0.0.1", 0), Handler) as server:
        server.daemon_threads = True
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield f"127.0.0.1:{server.server_address[1]}"
        over.set()
        server.shutdown()
        thread.join()


@pytest.mark.parametrize(
    ("begin", "again", "check", "came"),
    [
        (b"", b"", "handshake", "nothing of it within 1 s; "),
        (OK[:5], b"", "handshake", "nothing of it within 1 s, and 5 bytes of a frame"),
        (OK, ACK * 999, "messages", "nothing of it within 1 s"),
        (
            b"\xff" * 4,
            b"x" * 9999,
            "handshake",
            "a frame of 4294967295 bytes is announced, and frames of at most 4194304",
        ),
        (OK, OK, "messages", "OK of a worker is not allowed in state streaming"),
    ],
    ids=["silent", "half-of-ok", "acks-without-end", "frame-of-4-gib", "oks-without-end"],
)
def test_an_evil_worker_is_found_in_time(begin: bytes, again: bytes, check: str, came: str) -> None:
    checks = [one for one in workers.CHECKS if one.name == check]
    with sending(begin, again) as address:
        (one,) = workers.plan(CheckedWorker(address, seconds=1), checks, ["draft-be"]).results()

    assert one.outcome is CheckOutcome.FAILED
    assert one.came.startswith(came)


def test_checks_of_a_worker_that_does_not_answer_end_with_the_program() -> None:
    with sending(b"", b"") as address:
        setting = CheckedWorker(address, seconds=SECONDS)
        begin = time.monotonic()
        threading.Timer(0.3, setting.running.stop).start()
        results = list(workers.plan(setting, workers.CHECKS[:3], ["v3"]).results())

    assert {one.outcome for one in results} == {CheckOutcome.FAILED}
    assert time.monotonic() - begin < SECONDS / 2
