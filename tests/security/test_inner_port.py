"""The inner port: the token, for each call there is, and TLS where connectors have it too."""

from __future__ import annotations

import functools
import json
import os
import pickle
import shutil
import socket
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.flight as flight
import pytest
from click.testing import CliRunner

from tests.pems import Pems
from tests.security.conftest import Ear
from tests.security.keys import GUESS, sealing, told, trusting
from tests.source.fleet import TOKEN as SOURCE_TOKEN
from tests.source.fleet import LiveFleet
from tests.waiting import SECONDS, eventually
from tests.worker.peer import Peer
from tests.worker.running import COOKIE, TOKEN, Fleet, Running, fleet
from wallaroo_spark.cli.main import cli
from wallaroo_spark.errors import ConfigurationError, ReplayError, TransportError
from wallaroo_spark.inner.calls import PlanQuestion
from wallaroo_spark.inner.client import NAME, Trust, WorkerClient, fleet_keys, local_socket, status_token
from wallaroo_spark.options import Options
from wallaroo_spark.protocol import DRAFT_BE
from wallaroo_spark.receiver import Receiver
from wallaroo_spark.receiver.announcer import Announcer
from wallaroo_spark.references import PlannedRange, StreamKey
from wallaroo_spark.registry import EmbeddedRedis
from wallaroo_spark.source.fleet_view import FleetView
from wallaroo_spark.source.ranges import RangePartition, read_ranges


class NoHandshake(flight.ClientAuthHandler):
    """The request of a client without a token."""

    def authenticate(self, outgoing: Any, incoming: Any) -> None:
        outgoing.write(GUESS.encode())
        incoming.read()

    def get_token(self) -> bytes:
        return GUESS.encode()


def put(client: Any, options: Any) -> None:
    writer, _ = client.do_put(flight.FlightDescriptor.for_path("x"), pa.schema([("x", pa.int64())]), options)
    writer.write_batch(pa.record_batch({"x": [1]}))
    writer.close()


def exchange(client: Any, options: Any) -> None:
    writer, reader = client.do_exchange(flight.FlightDescriptor.for_path("x"), options)
    writer.done_writing()
    reader.read_all()


ACTIONS = ["available", "plan", "committed", "rewind", "status", "sample", "stop", "anything"]
TICKET = b'{"ranges": [["good", "1", null, 1]], "wait": 0}'
CALLS: dict[str, Callable[[Any, Any], Any]] = {
    **{name: lambda c, o, name=name: list(c.do_action(flight.Action(name, b"{}"), o)) for name in ACTIONS},
    "do_get": lambda c, o: c.do_get(flight.Ticket(TICKET), o).read_all(),
    "list_actions": lambda c, o: list(c.list_actions(o)),
    "list_flights": lambda c, o: list(c.list_flights(b"", o)),
    "get_flight_info": lambda c, o: c.get_flight_info(flight.FlightDescriptor.for_path("x"), o),
    "get_schema": lambda c, o: c.get_schema(flight.FlightDescriptor.for_path("x"), o),
    "do_put": put,
    "do_exchange": exchange,
}
NOT_OFFERED = ["list_flights", "get_flight_info", "get_schema", "do_put", "do_exchange"]


@pytest.fixture(params=["plain", "plain from elsewhere", "sealed", "mutual"])
def stranger(request: pytest.FixtureRequest, pems: Pems) -> Iterator[Any]:
    """A Flight client of each worker that has got as far as a connection, and shows no token of its own."""
    kind, _, elsewhere = request.param.partition(" from ")
    worker: Running = request.getfixturevalue(kind)
    trust = None if kind == "plain" else Trust.of(sealing(pems))
    client = WorkerClient(worker.lease.flight, TOKEN, trust=trust, local=not elsewhere)
    assert (client._local is not None) == (request.param == "plain")
    yield client._client
    client.close()
    assert worker.client.status()["epoch"] == worker.epoch, "the worker has listened to a stranger"
    assert worker.thread.alive(0)


def headers(*values: str) -> Any:
    return flight.FlightCallOptions(SECONDS, headers=[(b"authorization", value.encode()) for value in values])


class TestInnerPortWithoutTheToken:
    @pytest.mark.parametrize("name", CALLS)
    def test_no_call_is_served(self, stranger: Any, name: str) -> None:
        wrong = ["Bearer ", f"Bearer {GUESS}", f"Bearer {TOKEN}x", f"Bearer {TOKEN[:-1]}", f"Basic {TOKEN}", TOKEN]
        for given in ((), *((value,) for value in wrong), (f"Bearer {GUESS}", f"Bearer {TOKEN}")):
            # get_schema has an error of its own.
            with pytest.raises(
                (flight.FlightUnauthenticatedError, OSError), match="token is missing or wrong"
            ) as caught:
                CALLS[name](stranger, headers(*given))
            assert TOKEN not in told(caught.value)
            assert GUESS not in str(caught.value)

    def test_no_handshake_leads_around_it(self, stranger: Any) -> None:
        with pytest.raises((flight.FlightError, pa.ArrowException)):
            stranger.authenticate(NoHandshake(), headers())
        with pytest.raises((flight.FlightError, pa.ArrowException)):
            stranger.authenticate_basic_token("fleet", GUESS, headers())
        with pytest.raises(flight.FlightUnauthenticatedError):
            CALLS["status"](stranger, headers())

    @pytest.mark.parametrize("name", NOT_OFFERED)
    def test_with_it_there_is_no_more_than_the_actions_and_the_ranges(self, stranger: Any, name: str) -> None:
        with pytest.raises((flight.FlightError, pa.ArrowException, NotImplementedError)) as caught:
            CALLS[name](stranger, headers(f"Bearer {TOKEN}"))
        assert TOKEN not in told(caught.value)

    def test_with_it_the_actions_answer(self, stranger: Any) -> None:
        assert len(CALLS["status"](stranger, headers(f"Bearer {TOKEN}"))) == 1


class TestInnerPortWithTheTokenForTheStatus:
    """It lies in Redis, so it is everybody's who may read there."""

    def test_it_shows_the_status_and_does_not_tell_the_fleet_s_token(self, stranger: Any) -> None:
        assert TOKEN not in status_token(TOKEN)
        assert len(CALLS["status"](stranger, headers(f"Bearer {status_token(TOKEN)}"))) == 1

    def test_it_shows_the_last_events_without_messages_and_secrets(self, stranger: Any) -> None:
        action = flight.Action("story", b"{}")
        (answer,) = stranger.do_action(action, headers(f"Bearer {status_token(TOKEN)}"))
        events = json.loads(answer.body.to_pybytes())["events"]

        assert any("Rewound(" in line for line in events)
        assert not [line for line in events if TOKEN in line or COOKIE in line]

    @pytest.mark.parametrize("name", [name for name in CALLS if name != "status"])
    def test_it_does_nothing_else(self, stranger: Any, name: str) -> None:
        with pytest.raises((flight.FlightUnauthorizedError, flight.FlightUnauthenticatedError, OSError)) as caught:
            CALLS[name](stranger, headers(f"Bearer {status_token(TOKEN)}"))
        assert "does not permit this action" in str(caught.value) or "missing or wrong" in str(caught.value)


@pytest.fixture
def plain_worker(redis_server: EmbeddedRedis) -> Iterator[Running]:
    """One of the test's own."""
    with fleet(redis_server.url) as made:
        yield made.start()


BIG = 300 << 20


def peak(pid: int) -> int:
    """The most memory that a process has held so far, in bytes."""
    text = Path(f"/proc/{pid}/status").read_text(encoding="utf-8")
    return 1024 * next(int(line.split()[1]) for line in text.splitlines() if line.startswith("VmHWM"))


class TestInnerPortBeforeTheToken:
    def test_a_caller_without_the_token_cannot_make_a_worker_grow(self, redis_server: EmbeddedRedis) -> None:
        """Somebody who comes in plain text, who shows no certificate, and who shows one of another fleet."""
        right, wrong = fleet_keys(SOURCE_TOKEN), fleet_keys("another fleet's")
        trusting = {"tls_root_certs": right.authority, "override_hostname": NAME}
        ways: list[tuple[str, dict[str, Any]]] = [
            ("grpc", {}),
            ("grpc+tls", trusting),
            ("grpc+tls", {**trusting, "cert_chain": wrong.certificate, "private_key": wrong.key}),
        ]
        with LiveFleet(redis_server.url, "no-token") as fleet:
            lease = fleet.start(0, own_process=True)
            pid = int(lease.holder.split("/")[1])
            assert WorkerClient(lease.flight, SOURCE_TOKEN, SECONDS, local=False).status()["pid"] == pid
            before, big = peak(pid), flight.Action("status", bytes(BIG))
            for scheme, shown in ways:
                with (
                    flight.connect(f"{scheme}://{lease.flight}", **shown) as stranger,
                    pytest.raises(flight.FlightUnavailableError),
                ):
                    list(stranger.do_action(big, headers(f"Bearer {GUESS}")))
            assert peak(pid) - before < BIG / 10
            assert fleet.client(0).status()["pid"] == pid

    def test_the_socket_for_this_machine_is_its_users_alone_and_goes_with_the_worker(
        self, plain_worker: Running
    ) -> None:
        path = local_socket(plain_worker.lease.flight, TOKEN)
        assert path is not None
        assert path.is_socket()
        assert path.parent.stat().st_mode & 0o777 == 0o700
        plain_worker.client.stop("a test")
        plain_worker.ended()
        eventually(lambda: not path.exists())

    def test_a_socket_that_is_left_of_a_killed_worker_is_in_nobodys_way(
        self, redis_server: EmbeddedRedis, plain_worker: Running
    ) -> None:
        path = local_socket("127.0.0.1:1", TOKEN)
        assert path is not None
        with socket.socket(socket.AF_UNIX) as left:
            left.bind(str(path))
        client = WorkerClient("127.0.0.1:1", TOKEN, SECONDS)
        with pytest.raises(TransportError, match="did not answer 'status'"):
            client.status()
        assert client._local is None
        other = path.with_name("file-of-a-source")
        other.touch()
        for one in (path, other):
            os.utime(one, (0, 0))
        with fleet(redis_server.url) as made:
            made.start()
            assert not path.exists()
            assert other.exists()
        other.unlink()

    def test_a_socket_belongs_to_one_address_and_token(
        self, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        # The name of a socket may not be as long as that of a test's own folder.
        place = Path(tempfile.mkdtemp(prefix="wallaroo-test-", dir="/tmp"))
        request.addfinalizer(functools.partial(shutil.rmtree, place, ignore_errors=True))
        monkeypatch.setattr(tempfile, "tempdir", str(place))
        assert local_socket("a:1", TOKEN) not in (None, local_socket("a:2", TOKEN), local_socket("a:1", GUESS))
        assert local_socket("a:1", TOKEN) == local_socket("a:1", status_token(TOKEN))
        (place / f"wallaroo-{os.geteuid()}").chmod(0o755)
        assert local_socket("a:1", TOKEN) is None, "others may look into it"
        (place / ("x" * 100)).mkdir()
        monkeypatch.setattr(tempfile, "tempdir", str(place / ("x" * 100)))
        assert local_socket("a:1", TOKEN) is None, "its name is too long"


class TestInnerPortOverTls:
    @pytest.mark.parametrize("kind", ["sealed", "mutual"])
    def test_plain_text_is_not_answered(self, kind: str, request: pytest.FixtureRequest) -> None:
        worker: Running = request.getfixturevalue(kind)
        client = WorkerClient(worker.lease.flight, TOKEN, SECONDS)
        with pytest.raises(TransportError, match="check that both sides use TLS, or neither") as caught:
            client.status()
        assert "reason" not in caught.value.fields
        host, _, port = worker.lease.flight.rpartition(":")
        with socket.create_connection((host, int(port)), SECONDS) as bare:
            bare.sendall(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n")
            try:
                said = bare.recv(1024)
            except ConnectionError:
                said = b""
        assert said[:1] in (b"", b"\x15"), "an alert of TLS, if anything"

    @pytest.mark.parametrize("kind", ["sealed", "mutual"])
    def test_a_worker_is_verified_and_never_taken_on_trust(
        self, kind: str, request: pytest.FixtureRequest, pems: Pems
    ) -> None:
        worker: Running = request.getfixturevalue(kind)
        strangers = Trust.of(Options(tls_workers_ca=pems.other_ca, tls_ca=pems.ca))
        for trust in (strangers, Trust.of(Options(tls_certificate=pems.server, tls_key=pems.server_key))):
            client = WorkerClient(worker.lease.flight, TOKEN, SECONDS, trust)
            said = r"verify failed.*tls\.workersCa, or --tls-ca.*names 127\.0\.0\.1"
            with pytest.raises(TransportError, match=said) as asked:
                client.status()
            with pytest.raises(TransportError, match=said) as read:
                list(client.read([PlannedRange(StreamKey("a", 1), None, 1)], boundaries=True, wait=0))
            assert [caught.value.fields["reason"] for caught in (asked, read)] == ["tls", "tls"]
            assert TOKEN not in told(asked.value) + told(read.value)
        for right in (Trust.of(Options(tls_workers_ca=pems.ca)), Trust.of(Options(tls_ca=pems.ca))):
            assert WorkerClient(worker.lease.flight, TOKEN, SECONDS, right).status()["epoch"] == 1

    def test_a_certificate_that_names_another_host_is_not_accepted(
        self, redis_server: EmbeddedRedis, ear: Ear, pems: Pems
    ) -> None:
        names_shop = {"tls_certificate": pems.client, "tls_key": pems.client_key, "tls_workers_ca": pems.ca}
        with fleet(redis_server.url, **names_shop) as made:
            worker = made.start(ready=False)
            with pytest.raises(
                TransportError, match=r"certificate names 127\.0\.0\.1 \(see advertise and innerAdvertise\)"
            ) as caught:
                worker.client.status()
        assert caught.value.fields["reason"] == "tls"

    def test_a_caller_that_expects_tls_sends_no_token_to_a_plain_worker(self, plain: Running, pems: Pems) -> None:
        client = WorkerClient(plain.lease.flight, TOKEN, SECONDS, Trust.of(sealing(pems)))
        with pytest.raises(TransportError, match="that both sides use TLS") as caught:
            client.status()
        assert caught.value.fields["reason"] == "tls"

    def test_the_source_reads_nothing_from_an_unverified_worker(
        self, sealed: Running, sealed_fleet: Fleet, pems: Pems, ear: Ear
    ) -> None:
        Peer(sealed, DRAFT_BE, "shop-9", trusting(pems.ca)).hello().open(1).message(1, 1)
        eventually(lambda: sealed.client.plan(PlanQuestion()).ends.get("shop-9"))

        def read(trust: Trust | None) -> int:
            ranges: list[Any] = [PlannedRange(StreamKey("shop-9", 1), None, 1)]
            known = Options(receiver=sealed_fleet.receiver, registry=sealed_fleet.url, token=TOKEN, replay_timeout=0.0)
            partition = RangePartition(0, ranges, {0: sealed.lease.flight}, known, trust)
            shipped = pickle.loads(pickle.dumps(partition))
            assert TOKEN not in repr(shipped)
            return sum(batch.num_rows for batch in read_ranges(shipped, lambda: sealed_fleet.registry))

        assert read(Trust.of(sealing(pems))) == 1
        for wrong in (Trust.of(Options(tls_ca=pems.other_ca)), None):
            with pytest.raises(ReplayError):
                read(wrong)

    def test_the_driver_does_not_use_a_worker_that_is_not_verified(
        self, sealed: Running, sealed_fleet: Fleet, pems: Pems, ear: Ear
    ) -> None:
        right, wrong = Trust.of(sealing(pems)), Trust.of(Options(tls_ca=pems.other_ca))
        trustful, careful = (FleetView(sealed_fleet.registry, TOKEN, trust) for trust in (right, wrong))
        for view in (trustful, careful):
            view.start()
        eventually(trustful.slots)
        eventually(lambda: any("slot 0: worker at" in line and "tls.workersCa" in line for line in ear.lines))
        assert careful.slots() == {}
        for view in (trustful, careful):
            view.stop()

    def test_a_receiver_whose_workers_cannot_be_verified_does_not_start(
        self, sealed: Running, sealed_fleet: Fleet, pems: Pems
    ) -> None:
        def verify(trust: Trust | None) -> None:
            connect = functools.partial(WorkerClient, trust=trust)
            announcer = Announcer(sealed_fleet.registry, TOKEN, connect)
            announcer.find_workers()
            Receiver(None, "orders")._verify_workers(announcer)

        verify(Trust.of(sealing(pems)))
        with pytest.raises(ConfigurationError, match=r"slot 0: worker at .* did not answer 'status'.*tls\.workersCa"):
            verify(Trust.of(Options(tls_ca=pems.other_ca)))

    @pytest.mark.usefixtures("own_logging")
    def test_the_status_command_is_given_the_authority_too(
        self, sealed: Running, sealed_fleet: Fleet, pems: Pems
    ) -> None:
        def status(*given: str) -> tuple[int, str]:
            found = ["status", "--registry", sealed_fleet.url, "--receiver", sealed_fleet.receiver]
            shown = CliRunner().invoke(cli, [*found, *given])
            assert [secret for secret in (COOKIE, TOKEN, sealed_fleet.url) if secret in shown.output] == []
            return shown.exit_code, shown.output

        sealed_fleet.registry.lock("receiver", "driver-of-the-tests", 600)
        assert status("--tls-ca", pems.ca)[0] == 0
        for given in ((), ("--tls",), ("--tls-ca", pems.other_ca)):
            code, output = status(*given)
            assert (code, "unreachable" in output, "both sides use TLS" in output) == (1, True, True)

    def test_without_tls_options_a_client_has_no_trust(self, pems: Pems, tmp_path: Path) -> None:
        assert Trust.of(Options()) is None
        assert Trust.of(Options(tls_certificate=pems.server, tls_key=pems.server_key)) == Trust()
        for name in ("tls.workersCa", "tls.ca"):
            with pytest.raises(ConfigurationError, match=rf"option {name}: TLS authority .* cannot be read") as caught:
                Trust.of(Options.parse({name: f"{tmp_path}/none.pem"}))
            assert caught.value.fields["option"] == name
