"""The examples that send, as programs of their own, against a worker that the test holds in its hands."""

from __future__ import annotations

import re
import shutil
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

import pytest

from tests.conftest import ROOT
from tests.waiting import SECONDS
from wallaroo_spark.conformance import connectors
from wallaroo_spark.conformance.checks import CheckOutcome
from wallaroo_spark.conformance.connector_runs import CheckedConnector
from wallaroo_spark.testing import FakeWorker


@pytest.fixture
def worker() -> Iterator[FakeWorker]:
    with FakeWorker(cookie="secret") as made:
        yield made


@contextmanager
def program(name: str, *arguments: str, ends_by: signal.Signals = signal.SIGINT) -> Iterator[IO[str]]:
    """An example that runs, and its output; it is ended with a signal."""
    command = [sys.executable, str(ROOT / "examples" / name), *arguments, "--cookie", "secret"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert process.stdout is not None
    assert process.stderr is not None
    try:
        yield process.stdout
        process.send_signal(ends_by)
        _, errors = process.communicate(timeout=SECONDS)
        assert process.returncode == (0 if ends_by is signal.SIGINT else -ends_by), errors
    finally:
        process.kill()
        process.wait()
        process.stdout.close()
        process.stderr.close()


def values(worker: FakeWorker) -> list[bytes]:
    found: list[bytes] = worker.committed["value"].to_pylist()
    return found


def test_a_file_is_tailed_and_goes_on_where_spark_is(worker: FakeWorker, tmp_path: Path) -> None:
    file = tmp_path / "orders.log"
    file.write_bytes(b"book\npen\n")
    arguments = (str(file), "--workers", worker.address, "--instance", "shop-1")

    with program("tail_a_file.py", *arguments, ends_by=signal.SIGKILL):
        worker.commit(at_least=2)
        with file.open("ab") as end:
            end.write(b"ink\n")
        worker.read()  # It was sent, and is not committed when the program is killed.
    worker.crash()
    with file.open("ab") as end:
        end.write(b"lamp\n")
    with program("tail_a_file.py", *arguments):
        worker.commit()
        with worker.committing():
            while len(values(worker)) < 4:
                worker.status()

    assert values(worker) == [b"book", b"pen", b"ink", b"lamp"]


class Client:
    """A client of the bridge."""

    def __init__(self, address: str, name: bytes) -> None:
        host, port = address.split(":")
        self.socket = socket.create_connection((host, int(port)), timeout=SECONDS)
        self.file = self.socket.makefile("rb")
        self.socket.sendall(name + b"\n")

    def says(self) -> bytes:
        return self.file.readline().rstrip(b"\n")

    def close(self) -> None:
        self.file.close()
        self.socket.close()


def test_clients_of_a_bridge_are_told_the_committed_lines(worker: FakeWorker) -> None:
    arguments = ("--listen", "127.0.0.1:0", "--workers", worker.address, "--instance", "bridge-1")
    with program("lines_over_tcp.py", *arguments, ends_by=signal.SIGKILL) as output:
        found = re.match(r"listening on (\S+)", output.readline())
        assert found is not None
        client = Client(found[1], b"till-1")
        assert client.says() == b"from 0"
        client.socket.sendall(b"book\npen\n")
        worker.commit(at_least=2)
        assert client.says() == b"committed 2"
        client.socket.sendall(b"ink\n")
        worker.read()
    client.close()

    worker.crash()
    with program("lines_over_tcp.py", *arguments) as output:
        found = re.match(r"listening on (\S+)", output.readline())
        assert found is not None
        client = Client(found[1], b"till-1")
        assert client.says() == b"from 2"
        client.socket.sendall(b"ink\nlamp\n")
        client.socket.shutdown(socket.SHUT_WR)
        with worker.committing():
            said = [client.says() for _ in range(2)]
        assert b"committed 4" in said
        client.close()

    assert values(worker) == [b"book", b"pen", b"ink", b"lamp"]
    assert set(worker.committed["stream"].to_pylist()) == {"till-1"}


def failures(*command: str) -> list[str]:
    """What the checks of connectors find."""
    results = list(connectors.plan(CheckedConnector(command)).results())
    assert sum(one.outcome is CheckOutcome.LEFT_OUT for one in results) == 2  # Those that are about v3 alone.
    return [f"{one.check}: expected {one.expected}; came {one.came}" for one in results if one.outcome == "failed"]


@pytest.mark.long
def test_a_connector_in_javascript_passes_the_checks() -> None:
    node = shutil.which("node")
    if node is None:
        pytest.skip("there is no node here, which runs the example")

    assert failures(node, str(ROOT / "examples" / "connectors" / "connector.mjs")) == []


@pytest.mark.long
def test_a_connector_in_go_passes_the_checks(tmp_path: Path) -> None:
    go = shutil.which("go")
    if go is None:
        pytest.skip("there is no go here, which compiles the example")
    program = str(tmp_path / "connector")
    source = str(ROOT / "examples" / "connectors" / "connector.go")
    subprocess.run([go, "build", "-o", program, source], check=True, timeout=SECONDS)

    assert failures(program) == []
