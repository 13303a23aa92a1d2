"""``dev up`` gives a newcomer a receiver, shows rows and mistakes, and ends in one line."""

from __future__ import annotations

import json
import os
import shlex
import signal
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner

from tests.cli.conftest import PROGRAM
from tests.waiting import SECONDS
from wallaroo_spark.cli.main import cli
from wallaroo_spark.cli.tools.dev import _Batches, _View, _Watcher, remove_unless_failed
from wallaroo_spark.connector import BlockingConnector
from wallaroo_spark.errors import ConfigurationError, RemoteProtocolError
from wallaroo_spark.protocol import DRAFT_BE, Error, Hello, Notify, Ok
from wallaroo_spark.wiretap.proxy import End
from wallaroo_spark.wiretap.recording import Recorder


class Lines:
    """The output of a program, line by line."""

    def __init__(self, program: subprocess.Popen[str]) -> None:
        assert program.stdout is not None
        self.seen: list[str] = []
        self._stdout = program.stdout

    def until(self, text: str) -> str:
        """The next line with a text in it."""
        for line in self._stdout:
            self.seen.append(line)
            if text in line:
                return line
        raise AssertionError(f"{text!r} never came: {self.seen}")


@pytest.fixture
def up(tmp_path: Path) -> Iterator[subprocess.Popen[str]]:
    arguments = ["dev", "up", "--listen", "127.0.0.1:0", "--capture", str(tmp_path / "file")]
    program = subprocess.Popen(
        [*PROGRAM, *arguments], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=os.environ, cwd=tmp_path
    )
    watchdog = threading.Timer(2 * SECONDS, program.kill)
    watchdog.start()
    yield program
    watchdog.cancel()
    if program.poll() is None:
        program.kill()
    program.communicate()


@pytest.mark.spark
@pytest.mark.long
def test_rows_and_mistakes_are_shown_and_ctrl_c_ends_in_one_line(up: subprocess.Popen[str], tmp_path: Path) -> None:
    lines = Lines(up)
    address = lines.until("Ready. Connect to").split()[3]

    with (
        pytest.raises(RemoteProtocolError, match="cookie"),
        BlockingConnector("orders", instance="shop-1", workers=address, cookie="wrong") as connector,
    ):
        connector.open("orders")
    assert "ERROR reason=" in lines.until("ERROR")
    with BlockingConnector(
        "orders", instance="shop-1", workers=address, cookie="dev", drain_timeout=SECONDS
    ) as connector:
        connector.open("orders").send(b"book", id=7, key=b"k")
    assert "shop-1/orders 7 key=k book" in lines.until("batch ")
    up.send_signal(signal.SIGINT)
    out, err = up.communicate(timeout=SECONDS)

    assert (up.returncode, err) == (130, "")
    assert out.splitlines()[-1] == "Stopped; 1 row committed."
    assert "wallaroo_capture" in (tmp_path / "file").read_text()


def test_a_broken_frame_is_shown_with_its_byte_and_recorded(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    recorder = Recorder(tmp_path / "file", "here")
    watcher = _Watcher(_View(as_json=False, frames=False), recorder)
    watcher.opened(1, "peer:1")
    watcher.passed(1, End.CONNECTOR, DRAFT_BE.encode(Hello("0.0.1", b"dev", "orders", "shop-1")))
    watcher.passed(1, End.WORKER, DRAFT_BE.encode(Ok(9)))
    wrong = bytes.fromhex("00000013 4d 0040 0000000000000007 0000000000000029")
    watcher.passed(1, End.CONNECTOR, DRAFT_BE.encode(Notify(7, "orders")) + wrong)
    watcher.passed(1, End.WORKER, DRAFT_BE.encode(Error("flags")))
    watcher.closed(1, "the worker closed")
    recorder.close()

    shown = capsys.readouterr().out
    assert "MESSAGE flags are 0x0040" in shown
    assert 'ERROR reason="flags"' in shown
    assert "NOTIFY" not in shown.replace("NOTIFY_ACK", "")
    assert "ended: the worker closed" in shown
    assert '"closed":"the worker closed"' in (tmp_path / "file").read_text()


def test_only_committed_batches_are_shown(tmp_path: Path) -> None:
    batches = _Batches(tmp_path)
    assert batches.committed() == []


@pytest.mark.parametrize("wrong", ["messageIds", "nonsense=1", "messageIds=sideways"])
def test_an_option_that_cannot_work_is_refused_at_once(wrong: str) -> None:
    shown = CliRunner().invoke(cli, ["dev", "up", "--set", wrong])

    assert shown.exit_code in (1, 2)
    assert wrong.split("=")[0] in shown.stderr


def test_a_line_to_copy_is_printed_for_the_client_of_each_door(capsys: pytest.CaptureFixture[str]) -> None:
    doors = {"http": "http://h:8080", "kafka": "h:9092", "unknown": "h:1"}
    _View(as_json=False, frames=False).ready("h:7100", "it's", "redis://h", "", doors)
    curl, python = [
        shlex.split(line.partition("or:")[2]) for line in capsys.readouterr().out.splitlines() if "or:" in line
    ]

    assert curl[:4] == ["curl", "http://h:8080/v1/streams/orders", "-H", "Authorization: Bearer it's"]
    assert python[:2] == ["python", "-c"]
    compile(python[2], "line", "exec")
    assert '"bootstrap.servers": "h:9092"' in python[2]
    assert '"sasl.password": "it\'s"' in python[2]

    _View(as_json=True, frames=False).ready("h:7100", "c", "redis://h", "", doors)
    assert json.loads(capsys.readouterr().out)["doors"] == doors


@pytest.mark.parametrize(("error", "kept"), [(None, False), (KeyboardInterrupt, False), (ConfigurationError, True)])
def test_the_log_that_an_error_names_is_kept(tmp_path: Path, error: type[BaseException] | None, kept: bool) -> None:
    home = tmp_path / "home"
    home.mkdir()

    remove_unless_failed(home, error)

    assert home.exists() == kept
