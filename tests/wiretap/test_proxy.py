"""The proxy between a real connector and a real worker: it records, it disturbs, and it changes nothing."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.pems import Pems
from wallaroo_spark.connector import Backoff, BlockingConnector
from wallaroo_spark.errors import TransportError
from wallaroo_spark.testing import FakeWorker, Proxy
from wallaroo_spark.transport import client_context, parse_address, server_context
from wallaroo_spark.wiretap.decoding import DecodedFrame, decode
from wallaroo_spark.wiretap.proxy import End, Faults
from wallaroo_spark.wiretap.recording import Recorder, Remark, read

SECONDS = 60.0
QUICK = Backoff(initial=0.01, maximum=0.1, give_up_after=SECONDS)


@pytest.fixture(scope="module")
def worker() -> Iterator[FakeWorker]:
    with FakeWorker(cookie="secret", memory_budget=4 << 20) as made:
        yield made


def send(address: str, instance: str, payloads: list[bytes], revision: str = "draft-be") -> None:
    settings: dict[str, Any] = {"cookie": "secret", "retry": QUICK, "drain_timeout": SECONDS, "revision": revision}
    with BlockingConnector("orders", instance=instance, workers=address, **settings) as connector:
        connector.open("orders").send_many(payloads, range(1, len(payloads) + 1))


def frames_in(path: Path) -> list[DecodedFrame]:
    with path.open("rb") as file:
        return [one for one in decode(read([file])) if isinstance(one, DecodedFrame)]


@pytest.mark.parametrize("revision", ["draft-le", "draft-be", "v3"])
def test_a_recorded_session_of_a_connector_breaks_no_rule(worker: FakeWorker, tmp_path: Path, revision: str) -> None:
    recorder = Recorder(tmp_path / "file", worker.address)
    with Proxy(parse_address(worker.address), watcher=recorder) as proxy, worker.committing():
        send(proxy.address, f"recorded-{revision}", [b"a", b"b"], revision)
    recorder.close()

    frames = frames_in(tmp_path / "file")
    assert not [(frame.text(), frame.error) for frame in frames if frame.error]
    assert [frame.fields()["payload"] for frame in frames if frame.name == "MESSAGE"] == [b"a", b"b"]
    assert frames[0].fields()["cookie"] == b"******"
    assert "ACK" in [frame.name for frame in frames if frame.sender is End.WORKER]


def test_faults_of_a_seed_lose_nothing_and_are_in_the_file(worker: FakeWorker, tmp_path: Path) -> None:
    recorder = Recorder(tmp_path / "file", worker.address)
    faults = Faults(cut=20_000, split=500, stutter=0.001, delay=0.001, seed=3)
    payloads = [bytes(100)] * 1000
    with (
        Proxy(parse_address(worker.address), faults=faults, watcher=recorder) as proxy,
        worker.committing(),
    ):
        send(proxy.address, "disturbed", payloads)
        cuts = proxy.connections - 1
    recorder.close()

    with (tmp_path / "file").open("rb") as file:
        remarks = [event.text for event in read([file]) if isinstance(event, Remark) and not event.closed]
    assert cuts > 0
    assert len([text for text in remarks if text.startswith("cut by the proxy")]) == cuts
    assert any("pause" in text for text in remarks)
    ids = [
        row["message_id"] for row in worker.committed.select(["instance", "message_id"]).to_pylist()
        if row["instance"] == "disturbed"
    ]  # fmt: skip
    assert ids == list(range(1, 1001))


def test_each_end_may_finish_sending_before_the_other() -> None:
    def answer(server: socket.socket) -> None:
        near, _ = server.accept()
        with near:
            received = b""
            while data := near.recv(1000):
                received += data
            near.sendall(b"received " + received)

    with socket.create_server(("127.0.0.1", 0)) as server:
        thread = threading.Thread(target=answer, args=(server,))
        thread.start()
        with (
            Proxy(("127.0.0.1", server.getsockname()[1])) as proxy,
            socket.create_connection(("127.0.0.1", proxy.port), timeout=SECONDS) as far,
        ):
            far.sendall(b"all")
            far.shutdown(socket.SHUT_WR)
            answered = b""
            while data := far.recv(1000):
                answered += data
        thread.join(SECONDS)
    assert answered == b"received all"


def test_tls_is_accepted_and_spoken_with_the_keys_of_each_side(tmp_path: Path, pems: Pems) -> None:
    keys: dict[str, Any] = {"tls_certificate": pems.server, "tls_key": pems.server_key}
    with FakeWorker(cookie="secret", tls_workers_ca=pems.ca, **keys) as worker:
        recorder = Recorder(tmp_path / "file", worker.address)
        tls = server_context(pems.server, pems.server_key)
        target_tls = client_context(pems.ca)
        target = ("localhost", parse_address(worker.address)[1])
        with (
            Proxy(target, tls=tls, target_tls=target_tls, watcher=recorder) as proxy,
            BlockingConnector(
                "orders", instance="sealed", workers=f"localhost:{proxy.port}", cookie="secret", ca=pems.ca,
                retry=QUICK, drain_timeout=SECONDS,
            ) as connector,
            worker.committing(),
        ):  # fmt: skip
            connector.open("orders").send(b"a", id=1)
            connector.drain(SECONDS)
        recorder.close()

    assert "MESSAGE" in [frame.name for frame in frames_in(tmp_path / "file")]


def test_a_target_that_cannot_be_reached_is_in_the_file(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as closed:
        free = closed.getsockname()[1]
    recorder = Recorder(tmp_path / "file", "nowhere")
    with (
        Proxy(("127.0.0.1", free), watcher=recorder) as proxy,
        socket.create_connection(("127.0.0.1", proxy.port), timeout=SECONDS) as far,
    ):
        assert far.recv(1) == b""
    recorder.close()

    assert "cannot be reached" in (tmp_path / "file").read_text()


def test_an_address_that_is_taken_is_refused() -> None:
    with (
        socket.create_server(("127.0.0.1", 0)) as taken,
        pytest.raises(TransportError, match="cannot listen on"),
        Proxy(("127.0.0.1", 1), ("127.0.0.1", taken.getsockname()[1])),
    ):
        pass


def test_the_port_is_kept_while_connections_are_refused(worker: FakeWorker) -> None:
    with Proxy(parse_address(worker.address)) as proxy:
        proxy.refuse()
        address = parse_address(proxy.address)
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection(address, timeout=SECONDS)
        with socket.socket() as other, pytest.raises(OSError, match="in use"):
            other.bind(address)
        proxy.accept()
        socket.create_connection(address, timeout=SECONDS).close()
