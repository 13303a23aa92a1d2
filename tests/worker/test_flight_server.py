"""The inner port: waiting for requested ranges, and the references in the answers."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from typing import Any

import pyarrow.flight as flight
import pytest

from tests.waiting import SECONDS, eventually
from tests.worker.peer import good
from tests.worker.running import TOKEN, Fleet, Running
from wallaroo_spark.errors import TransportError
from wallaroo_spark.inner.calls import PlanQuestion
from wallaroo_spark.inner.client import WorkerClient
from wallaroo_spark.options import Options
from wallaroo_spark.protocol import (
    Flags,
    Message,
)
from wallaroo_spark.references import PlannedRange, StreamKey
from wallaroo_spark.worker.run import run_worker
from wallaroo_spark.worker.service import WorkerSetup


class TestInnerPort:
    def test_a_worker_without_a_token_does_not_start(self, make_fleet: Callable[..., Fleet]) -> None:
        fleet = make_fleet()
        setup = WorkerSetup(Options(**fleet.options), 0, 1, "")
        frames = run_worker(setup, fleet.registry, iter([]))

        with pytest.raises(Exception, match="is not served without a token"):
            list(frames)

    def test_the_token_is_not_in_the_text_of_a_failure(self, worker: Running) -> None:
        with pytest.raises(TransportError) as caught:
            worker.client._act("mischief", {})

        assert TOKEN not in str(caught.value)
        assert "there is no action 'mischief'; there are available, plan" in str(caught.value)

    def test_a_worker_that_is_gone_does_not_answer(self, make_fleet: Callable[..., Fleet]) -> None:
        worker = make_fleet().start()
        worker.client.stop("a test")
        worker.ended()

        with pytest.raises(TransportError, match="did not answer 'status'"):
            WorkerClient(worker.lease.flight, TOKEN, timeout=1.0).status()

    def test_there_are_actions(self, worker: Running) -> None:
        headers = [(b"authorization", f"Bearer {TOKEN}".encode())]
        client = WorkerClient(worker.lease.flight, TOKEN)
        actions = client._client.list_actions(flight.FlightCallOptions(headers=headers))

        assert {action.type for action in actions} >= {"available", "plan", "committed", "rewind", "status", "stop"}
        client.close()

    def test_available_waits_until_something_changes(self, worker: Running) -> None:
        peer = good(worker)
        version = eventually(lambda: worker.client.available(-1, 0)["version"])
        answers: list[dict[str, Any]] = []
        waiting = threading.Thread(target=lambda: answers.append(worker.client.available(version, SECONDS)))
        waiting.start()
        peer.message(1, 1)
        waiting.join(SECONDS)

        assert answers[0]["version"] > version
        assert answers[0]["connectors"][0]["instance"] == "good"

        def changes() -> int:
            before = worker.client.available(-1, 0)["version"]
            return int(worker.client.available(before, 0.1)["version"] - before)

        # The message is told of a little later than the session; once all is told, nothing more changes by itself.
        eventually(lambda: changes() == 0)
        assert changes() == 0

    def test_a_read_waits_until_its_range_is_there(self, worker: Running) -> None:
        found: list[list[dict[str, Any]]] = []
        waiting = threading.Thread(target=lambda: found.append(worker.rows("good", 1, None, 3)))
        waiting.start()
        peer = good(worker)
        for number in (1, 2, 3):
            peer.message(1, number)
        waiting.join(SECONDS)

        assert [row["message_id"] for row in found[0]] == [1, 2, 3]

    def test_ranges_that_are_missing_at_the_time_limit_are_left_out(self, worker: Running) -> None:
        good(worker).message(1, 1)
        eventually(lambda: worker.count("messages") == 1)
        ranges = [PlannedRange(StreamKey("good", 1), None, 9), PlannedRange(StreamKey("good", 1), None, 1)]
        marks = [mark for _, found in worker.client.read(ranges, boundaries=False, wait=0.1) for mark in found]

        assert marks == [(1, 1, True)]

    def test_a_read_that_waits_does_not_hold_up_the_worker_s_end(self, worker: Running) -> None:
        began = threading.Event()
        outcome: list[str] = []

        def read() -> None:
            began.set()
            try:
                list(worker.client.read([PlannedRange(StreamKey("missing", 1), None, 3)], boundaries=False, wait=60.0))
                outcome.append("nothing")
            except TransportError as error:
                outcome.append(error.message)

        waiting = threading.Thread(target=read)
        waiting.start()
        began.wait(SECONDS)
        WorkerClient(worker.lease.flight, TOKEN).stop("a test")
        worker.ended()
        waiting.join(SECONDS)

        assert len(outcome) == 1

    def test_boundaries_are_left_out_unless_they_are_wanted(self, worker: Running) -> None:
        peer = good(worker)
        peer.message(1, 1)
        peer.send(peer.session.message(Message(1, 2, None, Flags.BOUNDARY)))
        eventually(lambda: worker.count("messages") == 2)

        def ids(boundaries: bool) -> list[int]:
            batches = worker.client.read(
                [PlannedRange(StreamKey("good", 1), None, 2)], boundaries=boundaries, wait=SECONDS
            )
            return [value for batch, _ in batches for value in batch.column("message_id").to_pylist()]

        assert ids(True) == [1, 2]
        assert ids(False) == [1]

    def test_a_large_range_comes_in_batches_that_say_how_far_they_lead(
        self, worker: Running, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr("wallaroo_spark.worker.buffer.delivery.ROWS_A_BATCH", 10)
        peer = good(worker)
        for number in range(1, 31):
            peer.message(1, number)
            eventually(lambda wanted=number: worker.count("messages") == wanted)
        batches = list(
            worker.client.read([PlannedRange(StreamKey("good", 1), None, 30)], boundaries=False, wait=SECONDS)
        )

        assert [batch.num_rows for batch, _ in batches] == [10, 10, 10]
        assert [marks for _, marks in batches] == [
            [(0, 10, False)],
            [(0, 20, False)],
            [(0, 30, True)],
        ]

    def test_ephemeral_ranges_are_read_by_position(self, worker: Running) -> None:
        peer = good(worker)
        for _ in range(3):
            peer.send(peer.session.message(Message(1, None, b"click", Flags.EPHEMERAL)))
        eventually(lambda: worker.count("messages") == 3)
        plan = worker.client.plan(PlanQuestion(max_rows=2))
        end = plan.ends["good"]["1"]

        assert sum(one.rows for one in plan.offers.values()) == 2
        assert len(worker.rows("good", 1, None, end)) == 2
        assert worker.rows("good", 1, None, "e:0:1:99") == []

    def test_opaque_ranges_are_read_by_equality(self, make_fleet: Callable[..., Fleet]) -> None:
        worker = make_fleet(message_ids="opaque").start()
        peer = good(worker)
        for number in (9, 2, 7):
            peer.message(1, number)

        assert [row["message_id"] for row in worker.rows("good", 1, None, 7)] == [9, 2, 7]
        assert [row["message_id"] for row in worker.rows("good", 1, 9, 7)] == [2, 7]

    def test_status_has_the_facts_of_the_shell_too(self, worker: Running) -> None:
        status = worker.client.status()

        assert status["pid"] == os.getpid()
        assert status["address"] == worker.lease.connect
        assert status["generation"] == worker.lease.generation
        assert (status["registry_away"], status["stopping"]) == (False, "")


def test_a_read_that_waits_opens_the_gate_for_its_rows(make_fleet: Callable[..., Fleet]) -> None:
    worker = make_fleet(memory_budget=1 << 20).start()
    full, needed = good(worker, "full"), good(worker, "needed")
    for number in range(1, 10):
        full.send(full.session.message(Message(1, number, b"x" * 100_000)))
    eventually(lambda: worker.client.status()["pressure"] != "none")
    needed.message(1, 1)

    assert len(worker.rows("needed", 1, None, 1)) == 1
    worker.commit(worker.client.plan(PlanQuestion()).ends)
    eventually(lambda: worker.client.status()["pressure"] == "none")
