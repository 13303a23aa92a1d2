"""``capture`` and ``decode`` as programs, around a real worker."""

from __future__ import annotations

import json
import os
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from tests.cli.conftest import PROGRAM
from tests.pems import Pems
from wallaroo_spark.cli.main import cli
from wallaroo_spark.connector import BlockingConnector
from wallaroo_spark.protocol import DRAFT_LE, Hello
from wallaroo_spark.testing import FakeWorker

SECONDS = 60.0
COOKIE = "sesame-of-the-tests"


@pytest.fixture(scope="module")
def worker() -> Iterator[FakeWorker]:
    with FakeWorker(cookie=COOKIE) as made:
        yield made


def connect(address: str, instance: str, **settings: Any) -> BlockingConnector:
    return BlockingConnector(
        "orders", instance=instance, workers=address, cookie=COOKIE, drain_timeout=SECONDS, **settings
    )


def started(*arguments: str) -> tuple[subprocess.Popen[str], str]:
    """A capture, and the address at which it listens."""
    program = subprocess.Popen(
        [*PROGRAM, "capture", *arguments], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=os.environ
    )
    assert program.stdout is not None
    line = program.stdout.readline()
    assert line, program.communicate(timeout=SECONDS)
    if "--json" in arguments:
        return program, json.loads(line)["listening"]
    assert line.startswith("Listening on "), (line, program.communicate(timeout=SECONDS))
    return program, line.split()[2].rstrip(",")


def decoded(*arguments: str, stdin: bytes = b"") -> Any:
    return CliRunner().invoke(cli, ["decode", *arguments], input=stdin)


@pytest.fixture
def recorded(worker: FakeWorker, tmp_path: Path) -> Path:
    """A capture whose process was killed after a session of two messages."""
    file = tmp_path / "shop.capture"
    program, address = started("--to", worker.address, str(file))
    with worker.committing(), connect(address, "shop-1") as connector:
        connector.open("orders").send_many([b"book", b"\xff\xfe"], ids=[1, 2])
    program.send_signal(signal.SIGKILL)
    program.communicate(timeout=SECONDS)
    return file


def test_the_records_of_a_killed_capture_are_decoded(recorded: Path) -> None:
    text = decoded(str(recorded))
    values = [json.loads(line) for line in decoded(str(recorded), "--json").stdout.splitlines()]

    assert text.exit_code == 0
    assert COOKIE not in recorded.read_text() + text.stdout
    assert '→ @0 HELLO version="0.0.1", cookie=\'***' in text.stdout
    messages = [one for one in values if one.get("frame") == "MESSAGE"]
    assert [one.get("payload", one.get("payload_base64")) for one in messages] == ["book", "//4="]
    assert all(one["from"] == "connector" and one["balance"] >= 0 for one in messages)
    assert {"OK", "ACK"} <= {one.get("frame") for one in values if one.get("from") == "worker"}
    assert decoded(str(recorded), "--errors").exit_code == 0


def test_ctrl_c_ends_a_capture_with_one_line(worker: FakeWorker, tmp_path: Path) -> None:
    program, address = started("--to", worker.address, "--cut", "4000", "--seed", "5", str(tmp_path / "file"))
    with worker.committing(), connect(address, "shop-2") as connector:
        connector.open("orders").send_many([bytes(100)] * 100, ids=range(1, 101))
    program.send_signal(signal.SIGINT)
    out, err = program.communicate(timeout=SECONDS)

    assert (program.returncode, err) == (130, "")
    assert out.startswith(tuple("23456789")), out
    assert len(out.splitlines()) == 1
    assert "cut by the proxy" in decoded(str(tmp_path / "file")).stdout


def test_with_json_a_capture_says_its_address_and_its_counts(worker: FakeWorker, tmp_path: Path) -> None:
    program, address = started("--to", worker.address, "--json", str(tmp_path / "file"))
    with worker.committing(), connect(address, "shop-3") as connector:
        connector.open("orders").send(b"book", id=1)
    program.send_signal(signal.SIGTERM)
    (line,) = program.communicate(timeout=SECONDS)[0].splitlines()

    counted = json.loads(line)
    assert counted["connections"] == 1
    assert min(counted["recorded_bytes"].values()) > 0
    assert counted["recorded_bytes"].keys() == {"connector", "worker"}


def test_frames_over_quic_are_captured(tmp_path: Path, pems: Pems) -> None:
    file = tmp_path / "file"
    tls: dict[str, Any] = {"tls_certificate": pems.server, "tls_key": pems.server_key, "tls_workers_ca": pems.ca}
    given = ["--tls-certificate", pems.server, "--tls-key", pems.server_key, "--to-tls-ca", pems.ca]
    with FakeWorker(cookie=COOKIE, quic=True, **tls) as worker:
        program, address = started("--to", f"quic://{worker.status()['quic']}", *given, str(file))
        assert address.startswith("quic://")
        with worker.committing(), connect(address, "shop-4", ca=pems.ca) as connector:
            connector.open("orders").send_many([b"book", b"pen"], ids=[1, 2])
            connector.open("gauges").send(b"7", id=1)
        program.send_signal(signal.SIGTERM)
        program.communicate(timeout=SECONDS)
    values = [json.loads(line) for line in decoded(str(file), "--json").stdout.splitlines()]

    assert COOKIE not in file.read_text()
    messages = [(one["stream"], one["payload"]) for one in values if one.get("frame") == "MESSAGE"]
    assert sorted(payload for _, payload in messages) == ["7", "book", "pen"]
    assert len({stream for stream, _ in messages}) == 2
    assert {"OK", "ACK"} <= {one.get("frame") for one in values if one.get("from") == "worker"}
    assert decoded(str(file), "--errors").exit_code == 0


def test_frames_in_hexadecimal_are_decoded() -> None:
    shown = decoded("-", "--revision", "v3", "--hex", stdin=b"00000005 01\n00000064 0000")

    assert "@0 OK credits=100, streams=[]" in shown.stdout
    assert "00 00 00 05 01 00 00 00 64" in shown.stdout
    assert "ended within a frame" in shown.stdout


def test_plain_bytes_tell_their_revision_and_errors_are_the_exit_status() -> None:
    data = DRAFT_LE.encode(Hello("0.0.1", b"", "orders", "shop-1")) + b"\x02\x00\x00\x00X!"
    shown = decoded("-", "--errors", stdin=data)

    assert shown.exit_code == 1
    assert f"error at byte {len(data) - 2}: tag 88 is not a frame of draft-le" in shown.stdout


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (["capture", "--to", "127.0.0.1:1"], "give a FILE"),
        (["capture", "--to", "127.0.0.1:1", "--no-file", "file"], "give a FILE"),
        (["capture", "--to", "nowhere", "--no-file"], "has no port"),
        (["capture", "--to", "127.0.0.1:1", "--no-file", "--tls-key", "x"], "needs --tls-certificate"),
        (["capture", "--to", "quic://127.0.0.1:1", "--no-file"], "give --tls-certificate"),
        (
            ["capture", "--to", "quic://127.0.0.1:1", "--no-file", "--tls-certificate", "x", "--to-tls-key", "y"],
            "leave --to-tls-certificate out",
        ),
        (
            ["capture", "--to", "quic://127.0.0.1:1", "--no-file", "--tls-certificate", "x", "--delay", "1"],
            "faults are for TCP",
        ),
        (["decode", "/nonexistent"], "cannot be read"),
        (["decode", "-"], "is no start of a HELLO"),
    ],
)
def test_settings_that_cannot_work_are_refused(arguments: list[str], reason: str) -> None:
    shown = CliRunner().invoke(cli, arguments, input=b"GET / HTTP/1.1")

    assert shown.exit_code in (1, 2)
    assert reason in shown.stderr.replace("\n", " ") or "no start of a HELLO" in shown.stderr


def test_a_capture_that_cannot_listen_leaves_no_file(worker: FakeWorker, tmp_path: Path) -> None:
    file = tmp_path / "shop.capture"
    arguments = ["capture", "--to", worker.address, str(file), "--listen"]
    taken = CliRunner().invoke(cli, [*arguments, worker.address])

    assert taken.exit_code == 1
    assert "cannot listen on" in taken.stderr
    assert not file.exists()


def test_a_frame_that_is_too_long_names_the_option_that_reads_it() -> None:
    result = decoded("--revision", "v3", "--max-frame-bytes", "100", "-", stdin=b"\0\0\0\xff\x05")

    assert "a frame of 255 bytes is announced, and frames of at most 100 are read here" in result.stdout
    assert "(--max-frame-bytes)" in result.stdout
