"""Checks of workers: the package's own passes in each revision, and one that is broken does not."""

from __future__ import annotations

import hmac
from collections.abc import Iterable, Iterator
from typing import Any

import pytest

from tests.waiting import SECONDS
from wallaroo_spark.conformance import workers
from wallaroo_spark.conformance.checks import CheckOutcome, CheckResult
from wallaroo_spark.conformance.worker_calls import CheckedWorker
from wallaroo_spark.protocol import REVISIONS, StreamReference, WorkerSession
from wallaroo_spark.testing import FakeWorker

COOKIE = "sesame-of-the-tests"


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


def test_a_worker_that_takes_any_cookie_is_found(worker: FakeWorker, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hmac, "compare_digest", lambda *_: True)

    assert one_of(worker, "wrong-cookie").came.startswith("OK credits=")


def test_a_worker_that_acknowledges_what_was_not_sent_is_found(
    worker: FakeWorker, monkeypatch: pytest.MonkeyPatch
) -> None:
    right = WorkerSession.ack

    def ack(self: Any, credits: int = 0, refs: Iterable[tuple[int, int]] = ()) -> bytes:
        return right(self, credits, [(stream, reference + 1000) for stream, reference in refs])

    monkeypatch.setattr(WorkerSession, "ack", ack)
    found = one_of(worker, "messages", "draft-le")

    assert found.expected == "references up to 10, the last message"
    assert found.page == "docs/protocol.md#points-of-reference"
    assert found.frame.startswith("ACK credits=")


def test_a_worker_that_forgets_the_references_in_ok_is_found(
    worker: FakeWorker, monkeypatch: pytest.MonkeyPatch
) -> None:
    right = WorkerSession.ok

    def ok(self: Any, credits: int, streams: Iterable[StreamReference] = ()) -> bytes:
        return right(self, credits)

    monkeypatch.setattr(WorkerSession, "ok", ok)

    assert "OK with the committed reference 10 of stream" in one_of(worker, "resume").expected


def test_a_worker_that_closes_without_an_error_is_found(worker: FakeWorker, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(WorkerSession, "fail", lambda *_: None)
    found = one_of(worker, "unknown-tag")

    assert (found.expected, "the worker closed the connection" in found.came) == ("ERROR with a reason", True)


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
