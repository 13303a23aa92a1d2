"""The worker as a whole: leases, standby, takeover, a registry that comes and goes, TLS, and its inner port."""

from __future__ import annotations

import logging
import os
import socket
import ssl
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow.flight as flight
import pytest
import redis
import trustme

from tests.worker.running import COOKIE, SECONDS, TOKEN, Fleet, Running, eventually
from tests.worker.test_bad_input import Peer
from wallaroo_spark.errors import TransportError
from wallaroo_spark.options import Options
from wallaroo_spark.protocol import (
    DRAFT_BE,
    DRAFT_LE,
    NOTHING_PROCESSED,
    V3,
    Flags,
    Message,
    NotifyAck,
    Restart,
    reasons,
)
from wallaroo_spark.registry import EmbeddedRedis, Registry
from wallaroo_spark.worker.flight_client import WorkerClient
from wallaroo_spark.worker.leasing import reachable_host
from wallaroo_spark.worker.run import run_worker
from wallaroo_spark.worker.service import WorkerSetup


@pytest.fixture
def own_redis() -> Iterator[EmbeddedRedis]:
    """A Redis that the test may kill or empty."""
    with EmbeddedRedis() as server:
        yield server


def good(worker: Running, instance: str = "good") -> Peer:
    """A session with stream 1 open."""
    return Peer(worker, DRAFT_BE, instance).hello().open(1)


class TestLeases:
    def test_a_second_copy_of_a_submission_waits_as_standby(self, make_fleet: Callable[..., Fleet]) -> None:
        fleet = make_fleet()
        first = fleet.start()
        standby = fleet.thread()
        assert standby.alive(0.3)
        assert fleet.registry.leases()[0] == first.lease

        first.client.stop("a test")
        first.ended()
        second = fleet.serving(standby, but=first.lease)
        assert second.lease.generation > first.lease.generation
        second.rewind()
        assert good(second).message(1, 1)

    def test_a_standby_can_be_told_to_stop(self, make_fleet: Callable[..., Fleet]) -> None:
        fleet = make_fleet()
        fleet.start()
        standby = fleet.thread()
        standby.alive(0.1)
        began = time.monotonic()
        standby.__exit__(None, None, None)

        assert not standby.alive(0)
        assert time.monotonic() - began < SECONDS

    def test_a_newer_submission_takes_over_and_the_older_one_ends(self, make_fleet: Callable[..., Fleet]) -> None:
        fleet = make_fleet()
        older = fleet.start(submission=1)
        peer = good(older)
        newer = fleet.start(submission=2)

        assert isinstance(peer.next(), Restart)
        peer.socket.close()
        older.ended()
        assert newer.lease.generation > older.lease.generation
        assert good(newer).message(1, 1)

    def test_an_older_submission_does_not_come_back(self, make_fleet: Callable[..., Fleet]) -> None:
        fleet = make_fleet()
        newer = fleet.start(submission=2)
        older = fleet.thread(submission=1)

        assert not older.alive(SECONDS)
        assert newer.thread.alive(0)

    def test_a_lost_lease_ends_the_worker(self, make_fleet: Callable[..., Fleet]) -> None:
        fleet = make_fleet()
        worker = fleet.start()
        peer = good(worker)
        fleet.registry.acquire(0, 9, "somebody else", "", "")

        assert isinstance(peer.next(), Restart)
        peer.socket.close()
        worker.ended()

    def test_a_worker_that_is_stopped_gives_its_lease_back(self, make_fleet: Callable[..., Fleet]) -> None:
        fleet = make_fleet()
        worker = fleet.start()
        worker.client.stop("a test")

        worker.ended()
        assert fleet.registry.leases() == {}

    def test_drafts_without_restart_are_told_to_come_back(self, worker: Running) -> None:
        peer = Peer(worker, DRAFT_LE).hello()
        worker.client.stop("a test")

        assert peer.error() == reasons.later("a test")

    def test_a_port_that_is_still_held_is_waited_for(self, make_fleet: Callable[..., Fleet]) -> None:
        with socket.create_server(("127.0.0.1", 0)) as holder:
            port = holder.getsockname()[1]
            fleet = make_fleet(port=port)
            thread = fleet.thread()
            assert thread.alive(0.5)
            assert fleet.registry.leases()[0].flight == ""
        worker = fleet.serving(thread)

        assert worker.address == ("127.0.0.1", port)

    def test_a_worker_that_waits_for_a_port_can_be_told_to_stop(self, make_fleet: Callable[..., Fleet]) -> None:
        with socket.create_server(("127.0.0.1", 0)) as holder:
            fleet = make_fleet(port=holder.getsockname()[1])
            thread = fleet.thread()
            eventually(fleet.registry.leases)
            thread.__exit__(None, None, None)

        assert not thread.alive(0)
        assert fleet.registry.leases() == {}

    def test_an_address_that_cannot_be_bound_is_said_at_once(self, make_fleet: Callable[..., Fleet]) -> None:
        fleet = make_fleet(host="192.0.2.1")
        thread = fleet.thread()

        with pytest.raises(TransportError, match="cannot listen on"):
            thread.alive(SECONDS)
        assert fleet.registry.leases() == {}

    def test_a_fleet_job_yields_heartbeats_until_its_worker_ends(
        self, make_fleet: Callable[..., Fleet], redis_server: EmbeddedRedis, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr("wallaroo_spark.worker.run.HEARTBEAT_SECONDS", 0.01)
        fleet = make_fleet()
        setup = WorkerSetup(Options(**fleet.options), 0, 1, TOKEN)
        with Registry(redis_server.url, fleet.receiver, lease_seconds=1.5) as registry:
            frames = run_worker(setup, registry, iter([pd.DataFrame({"id": [0]})]))
            first = next(frames)
            lease = eventually(lambda: fleet.registry.leases().get(0))
            lease = eventually(lambda: (found := fleet.registry.leases()[0]).flight and found)
            WorkerClient(lease.flight, TOKEN).stop("a test")
            rest = list(frames)

        assert len(first) == 0
        assert list(first.columns) == ["slot"]
        assert all(len(frame) == 0 for frame in rest)

    def test_a_setup_does_not_show_the_token(self) -> None:
        assert TOKEN not in repr(WorkerSetup(Options(cookie=COOKIE), 0, 1, TOKEN))


class TestRegistry:
    def test_while_redis_is_away_what_is_connected_goes_on(
        self, make_fleet: Callable[..., Fleet], own_redis: EmbeddedRedis, caplog: pytest.LogCaptureFixture
    ) -> None:
        fleet = make_fleet(own_redis.url)
        worker = fleet.start()
        peer = good(worker)
        own_redis.stop()
        peer.message(1, 1)
        assert len(worker.rows("good", 1, None, 1)) == 1
        worker.commit({"good": {"1": 1}})
        assert peer.next() is not None

        late = Peer(worker, DRAFT_BE, "late")
        late.send(late.session.hello(version="0.0.1", cookie=COOKIE.encode(), program="", instance="late"))
        reason = late.error()
        assert reason is not None
        assert reasons.is_later(reason)
        eventually(lambda: worker.client.status()["registry_away"])
        assert "goes on without the registry" in caplog.text

        own_redis.start()
        eventually(lambda: fleet.registry.leases().get(0))
        eventually(lambda: not worker.client.status()["registry_away"])
        assert fleet.registry.assign("good", 5, 9).slot == 0

    def test_after_redis_was_emptied_assignments_and_claims_come_back(
        self, make_fleet: Callable[..., Fleet], own_redis: EmbeddedRedis
    ) -> None:
        fleet = make_fleet(own_redis.url, workers=2)
        fleet.registry.assign("good", 1, 2)
        zero, one = fleet.start(0), fleet.start(1)
        peers = [good(one), Peer(zero, V3, "shipped").hello().open(7)]
        with redis.Redis.from_url(own_redis.url) as client:
            client.flushall()

        eventually(lambda: len(fleet.registry.leases()) == 2)
        eventually(lambda: fleet.registry.claim(fleet.registry.leases()[1], [7]) == set())
        assert fleet.registry.assign("good", 0, 2).slot == 1
        for peer, stream_id in zip(peers, (1, 7), strict=True):
            peer.message(stream_id, 1)
        assert len(one.rows("good", 1, None, 1)) == len(zero.rows("", 7, None, 1)) == 1

    def test_a_stream_that_another_slot_claimed_first_is_left_to_it(
        self, make_fleet: Callable[..., Fleet], own_redis: EmbeddedRedis
    ) -> None:
        fleet = make_fleet(own_redis.url, workers=2)
        worker, other = fleet.start(0), fleet.start(1)
        peer = Peer(worker, V3, "shipped").hello().open(7)
        peer.message(7, 1)
        eventually(lambda: worker.count("messages") == 1)
        with redis.Redis.from_url(own_redis.url) as client:
            client.flushall()
            assert fleet.registry.claim(other.lease, [7]) == {7}

        while not isinstance(answer := peer.next(), Restart):
            assert answer is not None
        assert worker.client.plan({})["ends"] == {}
        assert other.thread.alive(0)

    def test_a_slot_comes_up_when_its_redis_does(
        self, make_fleet: Callable[..., Fleet], own_redis: EmbeddedRedis
    ) -> None:
        fleet = make_fleet(own_redis.url)
        own_redis.stop()
        thread = fleet.thread()
        assert thread.alive(0.2)
        own_redis.start()

        assert fleet.serving(thread).client.status()["slot"] == 0

    def test_a_registry_that_fails_in_its_own_way_costs_no_worker(
        self, worker: Running, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def fail(*_: object) -> None:
            raise ValueError("not what anybody expected")

        monkeypatch.setattr(Registry, "assign", fail)
        peer = Peer(worker, DRAFT_BE)
        peer.send(peer.session.hello(version="0.0.1", cookie=COOKIE.encode(), program="", instance="x"))

        reason = peer.error()
        assert reason is not None
        assert "not what anybody expected" in reason
        monkeypatch.undo()
        good(worker)

    def test_so_does_one_that_fails_over_claims(self, worker: Running, monkeypatch: pytest.MonkeyPatch) -> None:
        def fail(*_: object) -> None:
            raise ValueError("not what anybody expected")

        peer = Peer(worker, V3).hello()
        monkeypatch.setattr(Registry, "claim", fail)
        peer.send(peer.session.notify(7, "orders"))

        assert peer.next() == NotifyAck(False, 7, NOTHING_PROCESSED)


class TestInternalErrors:
    def test_an_error_of_ours_costs_its_session_and_no_other(
        self, worker: Running, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
    ) -> None:
        unlucky, other = good(worker, "unlucky"), good(worker, "other")

        def fail(*_: object, **__: object) -> None:
            raise ZeroDivisionError("a bug")

        monkeypatch.setattr("wallaroo_spark.worker.state.decode_run", fail)
        unlucky.message(1, 1)
        assert unlucky.next() is None
        monkeypatch.undo()

        assert worker.count("internal-errors") == 1
        assert any(record.exc_info for record in caplog.records)
        assert "a bug" in caplog.text
        other.message(1, 1)
        assert len(worker.rows("other", 1, None, 1)) == 1

    def test_a_connection_that_cannot_be_closed_costs_no_worker(
        self, worker: Running, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
    ) -> None:
        async def fail(self: object) -> None:
            raise OSError("not connected")

        monkeypatch.setattr("wallaroo_spark.transport.tcp._TcpStream.close", fail)
        peer = good(worker)
        peer.send(b"\x7f\xff\xff\x7f")
        eventually(lambda: "closing the connection" in caplog.text)
        monkeypatch.undo()

        assert good(worker, "other").message(1, 1)


class TestTls:
    def test_connectors_may_come_over_tls(self, make_fleet: Callable[..., Fleet], tmp_path: Path) -> None:
        authority = trustme.CA()
        own = authority.issue_cert("localhost", "127.0.0.1")
        certificate, key = tmp_path / "worker.pem", tmp_path / "worker.key"
        own.cert_chain_pems[0].write_to_path(str(certificate))
        own.private_key_pem.write_to_path(str(key))
        worker = make_fleet(tls_certificate=str(certificate), tls_key=str(key)).start()
        trusting = ssl.create_default_context()
        authority.configure_trust(trusting)
        peer = Peer(worker, DRAFT_BE, "good")
        peer.socket = trusting.wrap_socket(peer.socket, server_hostname="127.0.0.1")
        peer.hello().open(1).message(1, 1)

        assert len(worker.rows("good", 1, None, 1)) == 1
        plain = Peer(worker, DRAFT_BE, "plain")
        plain.send(plain.session.hello(version="0.0.1", cookie=COOKIE.encode(), program="", instance="plain"))
        assert plain.error() is None


class TestInnerPort:
    @pytest.mark.parametrize("token", ["", "a guess", TOKEN + " "])
    def test_without_the_token_nothing_is_told(self, worker: Running, token: str) -> None:
        peer = good(worker)
        stranger = WorkerClient(worker.lease.flight, token, timeout=SECONDS)
        attempts: list[Callable[[], Any]] = [
            lambda: stranger.available(-1, 0),
            lambda: stranger.plan({}),
            lambda: stranger.committed(1, 0, {}),
            lambda: stranger.rewind(9, 9, {}),
            stranger.status,
            lambda: stranger.stop("mischief"),
            lambda: list(stranger.read([("good", "1", None, 1)], boundaries=False, wait=0)),
        ]
        for attempt in attempts:
            with pytest.raises(TransportError, match="the fleet's token is missing or wrong"):
                attempt()

        peer.message(1, 1)
        assert worker.client.status()["epoch"] == 1
        assert len(worker.rows("good", 1, None, 1)) == 1

    def test_also_without_any_header(self, worker: Running) -> None:
        bare = flight.connect(f"grpc://{worker.lease.flight}")
        with pytest.raises(flight.FlightUnauthenticatedError):
            list(bare.do_action(flight.Action("status", b"{}")))
        with pytest.raises(flight.FlightUnauthenticatedError):
            list(bare.list_actions())
        with pytest.raises(flight.FlightUnauthenticatedError):
            bare.do_get(flight.Ticket(b"{}")).read_all()
        bare.close()

    def test_a_worker_without_a_token_does_not_start(self, make_fleet: Callable[..., Fleet]) -> None:
        fleet = make_fleet()
        setup = WorkerSetup(Options(**fleet.options), 0, 1, "")
        frames = run_worker(setup, fleet.registry, iter([]))

        with pytest.raises(Exception, match="is not served without a token"):
            list(frames)

    def test_the_token_does_not_show_in_what_a_failure_says(self, worker: Running) -> None:
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
        client = flight.connect(f"grpc://{worker.lease.flight}")
        actions = client.list_actions(flight.FlightCallOptions(headers=headers))

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
        assert worker.client.available(answers[0]["version"], 0)["version"] == answers[0]["version"]

    def test_a_read_waits_until_its_range_is_there(self, worker: Running) -> None:
        found: list[list[dict[str, Any]]] = []
        waiting = threading.Thread(target=lambda: found.append(worker.rows("good", 1, None, 3)))
        waiting.start()
        peer = good(worker)
        for number in (1, 2, 3):
            peer.message(1, number)
        waiting.join(SECONDS)

        assert [row["message_id"] for row in found[0]] == [1, 2, 3]

    def test_what_is_not_there_when_the_time_is_over_is_left_out(self, worker: Running) -> None:
        good(worker).message(1, 1)
        eventually(lambda: worker.count("messages") == 1)
        ranges = [("good", "1", None, 9), ("good", "1", None, 1)]
        marks = [mark for _, found in worker.client.read(ranges, boundaries=False, wait=0.1) for mark in found]

        assert marks == [(1, 1, True)]

    def test_a_read_that_waits_does_not_hold_up_the_worker_s_end(self, worker: Running) -> None:
        began = threading.Event()
        outcome: list[str] = []

        def read() -> None:
            began.set()
            try:
                list(worker.client.read([("missing", "1", None, 3)], boundaries=False, wait=60.0))
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
            batches = worker.client.read([("good", "1", None, 2)], boundaries=boundaries, wait=SECONDS)
            return [value for batch, _ in batches for value in batch.column("message_id").to_pylist()]

        assert ids(True) == [1, 2]
        assert ids(False) == [1]

    def test_a_large_range_comes_in_batches_that_say_how_far_they_lead(
        self, worker: Running, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr("wallaroo_spark.worker.flight_server.ROWS_A_BATCH", 10)
        peer = good(worker)
        for number in range(1, 31):
            peer.message(1, number)
            eventually(lambda wanted=number: worker.count("messages") == wanted)
        batches = list(worker.client.read([("good", "1", None, 30)], boundaries=False, wait=SECONDS))

        assert [batch.num_rows for batch, _ in batches] == [10, 10, 10, 0]
        assert [marks for _, marks in batches] == [
            [(0, 10, False)],
            [(0, 20, False)],
            [(0, 30, False)],
            [(0, None, True)],
        ]

    def test_ephemeral_ranges_are_read_by_position(self, worker: Running) -> None:
        peer = good(worker)
        for _ in range(3):
            peer.send(peer.session.message(Message(1, None, b"click", Flags.EPHEMERAL)))
        eventually(lambda: worker.count("messages") == 3)
        plan = worker.client.plan({}, rows=2)
        end = plan["ends"]["good"]["1"]

        assert plan["rows"] == 2
        assert len(worker.rows("good", 1, None, end)) == 2
        assert worker.rows("good", 1, None, "e:0:1:99") == []

    def test_opaque_ranges_are_read_by_equality(self, make_fleet: Callable[..., Fleet]) -> None:
        worker = make_fleet(message_ids="opaque").start()
        peer = good(worker)
        for number in (9, 2, 7):
            peer.message(1, number)

        assert [row["message_id"] for row in worker.rows("good", 1, None, 7)] == [9, 2, 7]
        assert [row["message_id"] for row in worker.rows("good", 1, 9, 7)] == [2, 7]

    def test_status_says_what_the_shell_knows_too(self, worker: Running) -> None:
        status = worker.client.status()

        assert status["pid"] == os.getpid()
        assert status["connect"] == worker.lease.connect
        assert status["generation"] == worker.lease.generation
        assert (status["registry_away"], status["stopping"]) == (False, "")


def test_a_read_that_waits_opens_the_gate_for_what_it_needs(make_fleet: Callable[..., Fleet]) -> None:
    worker = make_fleet(memory_budget=1 << 20).start()
    full, needed = good(worker, "full"), good(worker, "needed")
    for number in range(1, 10):
        full.send(full.session.message(Message(1, number, b"x" * 100_000)))
    eventually(lambda: worker.client.status()["pressure"] != "none")
    needed.message(1, 1)

    assert len(worker.rows("needed", 1, None, 1)) == 1
    worker.commit(worker.client.plan({})["ends"])
    eventually(lambda: worker.client.status()["pressure"] == "none")


def test_a_paused_peer_that_has_gone_is_noticed_once_there_is_room(make_fleet: Callable[..., Fleet]) -> None:
    worker = make_fleet(memory_budget=1 << 20).start()
    full, idle = good(worker, "full"), good(worker, "idle")
    for number in range(1, 10):
        full.send(full.session.message(Message(1, number, b"x" * 100_000)))
    eventually(lambda: worker.client.status()["pressure"] != "none")
    idle.socket.close()
    full.socket.close()
    worker.commit(worker.client.plan({})["ends"])
    last = {"full": {"1": 9}}
    eventually(lambda: worker.client.status()["pressure"] == "none")
    eventually(lambda: worker.count("messages") == 9)
    worker.commit(last)

    eventually(lambda: worker.client.status()["sessions"] == 0)
    eventually(lambda: worker.client.status()["streams"] == 0)


class TestReachableHost:
    def test_a_bound_address_is_what_others_are_told(self) -> None:
        assert reachable_host("10.1.2.3", "redis://elsewhere:6379/0") == "10.1.2.3"

    @pytest.mark.parametrize("bound", ["", "0.0.0.0", "::"])
    def test_of_a_wildcard_the_address_that_faces_the_registry(self, bound: str) -> None:
        assert reachable_host(bound, "redis://127.0.0.1:6379/0") == "127.0.0.1"

    def test_without_a_route_the_host_s_own_name(self) -> None:
        assert reachable_host("", "redis://no-such-host.invalid:6379/0") == socket.gethostname()


def test_events_that_are_no_session_s_raise_to_who_sent_them(worker: Running, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> None:
        raise ZeroDivisionError("a bug")

    monkeypatch.setattr("wallaroo_spark.worker.progress.Progress.committed", fail)
    with pytest.raises(TransportError, match="a bug"):
        worker.commit({})
    monkeypatch.undo()

    assert worker.thread.alive(0)
    assert good(worker).message(1, 1)


@pytest.fixture(autouse=True)
def _info(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "wallaroo_spark.worker")
