"""The worker as a whole: leases, standby, takeover, a registry that comes and goes, and its inner port."""

from __future__ import annotations

import contextlib
import logging
import socket
import time
from collections.abc import Callable
from functools import partial

import pandas as pd
import pytest
import redis

from tests.waiting import SECONDS, eventually
from tests.worker.peer import Peer, good, patiently
from tests.worker.running import COOKIE, TOKEN, Fleet, Running
from wallaroo_spark.errors import ConfigurationError, LeaseLostError, TransportError
from wallaroo_spark.inner.calls import PlanQuestion
from wallaroo_spark.inner.client import WorkerClient
from wallaroo_spark.options import Options
from wallaroo_spark.protocol import DRAFT_BE, DRAFT_LE, NOTHING_PROCESSED, V3, Ack, Message, NotifyAck, Restart, faults
from wallaroo_spark.registry import EmbeddedRedis, Registry
from wallaroo_spark.registry.embedded import lasting_port
from wallaroo_spark.transport import reachable_host
from wallaroo_spark.transport.tcp import ByteStream
from wallaroo_spark.worker.buffer.buffer import Buffer
from wallaroo_spark.worker.buffer.segments import HeldLot
from wallaroo_spark.worker.run import run_worker
from wallaroo_spark.worker.service import WorkerSetup


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

    def test_a_standby_takes_over_at_once_from_a_holder_whose_port_refuses(
        self, make_fleet: Callable[..., Fleet]
    ) -> None:
        fleet = make_fleet(lease_seconds=600.0)
        registry = Registry(fleet.url, fleet.receiver, lease_seconds=600.0)
        with socket.create_server(("127.0.0.1", 0)) as bound:
            address = f"127.0.0.1:{bound.getsockname()[1]}"
        dead = registry.acquire(0, 1, "a process that was killed", address, address)
        assert dead is not None

        relieved = fleet.serving(fleet.thread(), but=dead)

        assert relieved.lease.generation > dead.generation
        with pytest.raises(LeaseLostError):
            registry.renew(dead)

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

        assert peer.error() == faults.later("a test")

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

        with pytest.raises(ConfigurationError, match="cannot listen on"):
            thread.alive(SECONDS)
        assert fleet.registry.leases() == {}

    def test_each_slot_tells_its_own_addresses_one_for_connectors_and_one_for_spark(
        self, make_fleet: Callable[..., Fleet]
    ) -> None:
        port, inner = lasting_port(range(2)), lasting_port(range(2))
        fleet = make_fleet(workers=2, port=port, inner_port=inner, advertise="worker-{slot}.example.com:3{slot}443")
        leases = [fleet.start(slot, slot + 1).lease for slot in (0, 1)]

        assert [lease.connect for lease in leases] == ["worker-0.example.com:30443", "worker-1.example.com:31443"]
        # The connectors' proxy does not affect reading tasks: they are answered at the bound address.
        assert [lease.flight for lease in leases] == [f"127.0.0.1:{inner}", f"127.0.0.1:{inner + 1}"]
        for number, lease in enumerate(leases):
            assert WorkerClient(lease.flight, TOKEN).status()["address"] == lease.connect
            with socket.create_connection(("127.0.0.1", port + number), SECONDS):
                pass

    def test_the_inner_port_has_a_host_of_its_own_and_may_be_told_by_slot(
        self, make_fleet: Callable[..., Fleet]
    ) -> None:
        fleet = make_fleet(inner_host="127.0.0.2", inner_advertise="127.0.{slot}.2")
        found = fleet.start()

        assert found.lease.flight.startswith("127.0.0.2:")
        assert found.lease.connect.startswith("127.0.0.1:")
        assert found.client.status()["epoch"] == 1

    def test_an_inner_port_is_taken_once_its_predecessor_lets_it_go(self, make_fleet: Callable[..., Fleet]) -> None:
        inner = lasting_port()
        fleet = make_fleet(inner_port=inner)
        with socket.create_server(("127.0.0.1", inner)) as predecessor:
            thread = fleet.thread()
            # A second listener fails, and no connection is attempted; the lease is acquired before the ports.
            eventually(lambda: fleet.registry.leases().get(0))
            assert fleet.registry.leases()[0].flight == ""
            predecessor.close()
        assert fleet.serving(thread).lease.flight == f"127.0.0.1:{inner}"

    def test_a_fleet_job_yields_heartbeats_until_its_worker_ends(
        self, make_fleet: Callable[..., Fleet], redis_server: EmbeddedRedis, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr("wallaroo_spark.runtime.service.HEARTBEAT_SECONDS", 0.01)
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
        assert faults.is_later(reason)
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

        while peer.next() is not None:
            pass
        assert worker.client.plan(PlanQuestion()).ends == {}
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

        monkeypatch.setattr("wallaroo_spark.worker.machine.arrivals.by_stream", fail)
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

        monkeypatch.setattr("wallaroo_spark.transport.tcp.ByteStream.close", fail)
        peer = good(worker)
        peer.send(b"\x7f\xff\xff\x7f")
        eventually(lambda: "closing the connection" in caplog.text)
        monkeypatch.undo()

        assert good(worker, "other").message(1, 1)


def test_a_paused_peer_that_has_gone_is_noticed_once_there_is_room(make_fleet: Callable[..., Fleet]) -> None:
    worker = make_fleet(memory_budget=1 << 20).start()
    full, idle = good(worker, "full"), good(worker, "idle")
    for number in range(1, 10):
        full.send(full.session.message(Message(1, number, b"x" * 100_000)))
    eventually(lambda: worker.client.status()["pressure"] != "none")
    idle.socket.close()
    full.socket.close()
    worker.commit(worker.client.plan(PlanQuestion()).ends)
    last = {"full": {"1": 9}}
    eventually(lambda: worker.client.status()["pressure"] == "none")
    eventually(lambda: worker.count("messages") == 9)
    worker.commit(last)

    eventually(lambda: worker.client.status()["sessions"] == 0)
    eventually(lambda: worker.client.status()["streams"] == 0)


class TestReachableHost:
    def test_a_bound_address_is_the_advertised_one(self) -> None:
        assert reachable_host("10.1.2.3", "redis://elsewhere:6379/0") == "10.1.2.3"

    @pytest.mark.parametrize("bound", ["", "0.0.0.0", "::"])
    def test_of_a_wildcard_the_address_that_faces_the_registry(self, bound: str) -> None:
        assert reachable_host(bound, "redis://127.0.0.1:6379/0") == "127.0.0.1"

    def test_without_a_route_the_host_s_own_name(self) -> None:
        assert reachable_host("", "redis://no-such-host.invalid:6379/0") == socket.gethostname()


class TestErrorsOfThisProgram:
    """An error costs the sessions that it can be laid to, else the worker; nothing goes on as if all were well."""

    def test_messages_lost_in_a_joint_pass_are_sent_again_before_further_acknowledgements(
        self, worker: Running, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        # Of two revisions, so that they are decoded one after the other.
        a, b = Peer(worker, DRAFT_BE, "a").hello().open(1), Peer(worker, DRAFT_LE, "b").hello().open(1)
        eventually(lambda: worker.client.status()["streams"] == 2)
        frames = {peer: peer.session.message(Message(1, 11, b"x")) for peer in (a, b)}
        settle, failures = Buffer.settle, [MemoryError("no memory")]

        def fail_once(self: Buffer, held: HeldLot) -> None:
            if failures:
                raise failures.pop()
            settle(self, held)

        monkeypatch.setattr(Buffer, "settle", fail_once)
        monkeypatch.setattr("wallaroo_spark.worker.service.LOT_SECONDS", 3600.0)
        monkeypatch.setattr("wallaroo_spark.worker.service.LOT_BYTES", sum(map(len, frames.values())))
        for peer, frame in frames.items():
            peer.send(frame)
        eventually(lambda: not failures)
        monkeypatch.undo()
        for peer in frames:
            with contextlib.suppress(ConnectionError):
                peer.message(1, 12)

        for name, peer in (("a", a), ("b", b)):
            assert peer.error() is None
            Peer(worker, peer.revision, name).hello().open(1).message(1, 11).message(1, 12)
            assert [row["message_id"] for row in worker.rows(name, 1, None, 12)] == [11, 12]
        assert worker.count("internal-errors") == 1

    @pytest.mark.parametrize(
        "broken",
        [
            "wallaroo_spark.worker.machine.connections.Connections.give_up",
            "wallaroo_spark.worker.machine.pressure.shedding.Shedding.shed",
            "wallaroo_spark.worker.machine.pressure.gates.Gates.settle",
        ],
    )
    def test_an_error_that_is_no_session_s_ends_the_worker_and_its_connections(
        self, worker: Running, monkeypatch: pytest.MonkeyPatch, broken: str
    ) -> None:
        peer = good(worker)
        with monkeypatch.context() as patch:
            patch.setattr(
                "wallaroo_spark.worker.machine.arrivals.Arrivals._take_in", fail_with(ZeroDivisionError("a bug"))
            )
            patch.setattr(broken, fail_with(MemoryError("no memory")))
            peer.message(1, 1)

            assert peer.error() is None
            with pytest.raises(MemoryError):
                worker.thread.alive(SECONDS)
        assert worker.registry.leases() == {}

    def test_an_error_in_a_call_of_the_driver_is_raised_to_it_and_ends_the_worker(
        self, worker: Running, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
    ) -> None:
        peer = good(worker)
        monkeypatch.setattr(
            "wallaroo_spark.worker.machine.query_position.QueryPosition.committed",
            fail_with(ZeroDivisionError("a bug")),
        )
        with pytest.raises(TransportError, match="an error of this program: ZeroDivisionError\\('a bug'\\)"):
            worker.commit({})

        assert peer.error() is None
        with pytest.raises(ZeroDivisionError):
            worker.thread.alive(SECONDS)
        assert "an error of this program ends the worker" in caplog.text

    def test_an_error_in_a_tick_ends_the_worker(self, worker: Running, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(
            "wallaroo_spark.worker.machine.connections.Connections.tick", fail_with(ZeroDivisionError("a bug"))
        )

        with pytest.raises(ZeroDivisionError):
            worker.thread.alive(SECONDS)

    def test_an_error_while_one_peer_is_told_costs_it_alone(
        self, worker: Running, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        peers = {name: good(worker, name).message(1, 1) for name in ("a", "b", "c")}
        for name in peers:
            assert len(worker.rows(name, 1, None, 1)) == 1
        unlucky = peers["a"].socket.getsockname()[1]
        write = ByteStream.write

        def fail_for_one(self: ByteStream, data: bytes) -> None:
            if self.peer.endswith(f":{unlucky}"):
                raise MemoryError("no memory")
            write(self, data)

        monkeypatch.setattr(ByteStream, "write", fail_for_one)
        worker.commit({name: {"1": 1} for name in peers})

        assert peers["a"].next() is None
        for name in ("b", "c"):
            told = peers[name].next()
            assert isinstance(told, Ack)
            assert told.refs == ((1, 1),)
        eventually(lambda: worker.client.status()["sessions"] == 2)


def test_frames_that_never_end_fill_no_worker_for_good(make_fleet: Callable[..., Fleet]) -> None:
    budget = 1 << 20
    worker = make_fleet(memory_budget=budget, handshake_timeout=0.5, max_frame_bytes=1 << 20).start()
    hostile = [patiently(partial(good, worker, f"hostile-{number}")) for number in range(12)]
    frame = hostile[0].session.message(Message(1, 1, bytes(250_000)))
    for peer in hostile:
        peer.send(frame[:-1])

    status = eventually(lambda: (found := worker.client.status())["unfinished_bytes"] > budget // 2 and found)
    assert status["unfinished_bytes"] == status["memory_used"]
    eventually(lambda: worker.count("unfinished-frames") > len(hostile) // 2)
    eventually(lambda: worker.client.status()["unfinished_bytes"] < budget * 3 // 4)
    patiently(partial(good, worker)).message(1, 1)
    assert len(worker.rows("good", 1, None, 1)) == 1


def fail_with(error: Exception) -> Callable[..., None]:
    def fail(*_: object) -> None:
        raise error

    return fail


@pytest.fixture(autouse=True)
def _info(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "wallaroo_spark.worker")
