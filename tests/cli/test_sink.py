"""``wallaroo-spark sink`` as a process, and what ``status`` says of the sinks of a checkpoint."""

from __future__ import annotations

import json
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from click.testing import CliRunner

from tests.cli.conftest import PROGRAM, Run
from tests.sinks.server.serving import shown
from tests.sinks.two_phase.decided import decided
from tests.sinks.two_phase.memory import pieces
from tests.waiting import SECONDS
from wallaroo_spark.cli import main as program
from wallaroo_spark.sinks import Prepared, Transaction
from wallaroo_spark.sinks.connector_sink import ConnectorSink
from wallaroo_spark.sinks.decision_log import DecisionLog
from wallaroo_spark.transport import format_address, parse_address


@contextmanager
def serving(to: Path, *arguments: str) -> Iterator[tuple[subprocess.Popen[str], tuple[str, int]]]:
    command = [*PROGRAM, "sink", "--to", str(to), "--port", "0", *arguments]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        line = process.stdout.readline()
        assert line, process.communicate(timeout=SECONDS)[1]
        if "--json" in arguments:
            said = json.loads(line)
            assert said["to"] == str(to)
            yield process, parse_address(said["listening"])
            return
        assert line.startswith("Listening on "), line
        assert line.endswith(f", writing to {to}\n")
        yield process, parse_address(line.removeprefix("Listening on ").split(",")[0])
    finally:
        process.kill()
        process.communicate(timeout=SECONDS)


def prepare(sink: ConnectorSink, batch: int, *rows: str) -> Prepared:
    return sink.prepare(Transaction.new(sink.name, batch, 0), pieces(list(rows)))


def test_it_takes_rows_ends_in_good_order_and_goes_on(tmp_path: Path) -> None:
    to = tmp_path / "out"
    with serving(to, "--cookie", "sesame") as (process, address):
        sink = ConnectorSink(format_address(*address), name="orders", checkpoint="", cookie="sesame")
        first = prepare(sink, 0, "a", "b")
        sink.commit(0, [first])
        sink.remember(sink.after([first]))
        left = prepare(sink, 1, "c")
        process.send_signal(signal.SIGTERM)
        assert process.wait(SECONDS) == 0
    assert shown(to) == {"orders-0": b"a\nb\n"}

    with serving(to, "--cookie", "sesame", "--json") as (process, address):
        sink = ConnectorSink(format_address(*address), name="orders", checkpoint="", cookie="sesame")
        sink.remember(sink.after([first]))
        assert sink.recover() == [left.transaction]
        sink.commit(1, [Prepared(left.transaction, 1, {**left.detail, "address": "moved:1"})])
        process.send_signal(signal.SIGINT)
        assert process.wait(SECONDS) == 130
    assert shown(to) == {"orders-0": b"a\nb\nc\n"}


def test_an_invalid_argument_is_one_sentence(run: Run, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")

    place = run("sink", "--to", "file/x", "--port", "0")
    assert (place.returncode, place.stdout) == (1, "")
    assert place.stderr.startswith("Error: file/x cannot be used: ")
    tls = run("sink", "--to", "out", "--tls-key", "x")
    assert tls.returncode == 2
    assert "need --tls-certificate" in tls.stderr


def test_status_tells_of_the_sinks_of_a_checkpoint(tmp_path: Path) -> None:
    decided(tmp_path, "done", finished=True)
    decided(tmp_path, "half", finished=False)
    log = DecisionLog(str(tmp_path), "sorry")
    log.load()
    log.abort(3, 0)

    text = CliRunner().invoke(program.cli, ["status", "--checkpoint", str(tmp_path)])
    values = CliRunner().invoke(program.cli, ["status", "--checkpoint", str(tmp_path), "--json"])

    assert (text.exit_code, values.exit_code) == (0, 0)
    assert [line.split(",")[0].split(";")[0] for line in text.output.splitlines()] == [
        "Sink 'done': batch 7 is committed and finished",
        "Sink 'half': batch 7 is decided to commit and not finished",
        "Sink 'sorry': batch 3 was aborted",
    ]
    assert json.loads(values.output)["sinks"] == [
        {"sink": "done", "batch": 7, "state": "finished"},
        {"sink": "half", "batch": 7, "state": "committed"},
        {"sink": "sorry", "batch": 3, "state": "aborted"},
    ]


def test_status_of_a_checkpoint_without_sinks_says_so(tmp_path: Path) -> None:
    shown = CliRunner().invoke(program.cli, ["status", "--checkpoint", str(tmp_path)])

    assert (shown.exit_code, shown.output) == (0, f"No transactional sink has a log in {tmp_path}.\n")
    misspelt = CliRunner().invoke(program.cli, ["status", "--checkpoint", str(tmp_path / "chekpoint")])
    assert misspelt.output == f"No transactional sink has a log in {tmp_path}/chekpoint, which does not exist.\n"


@pytest.mark.parametrize("arguments", [[], ["--receiver", "x"], ["--receiver", "x", "--checkpoint", "y"]])
def test_status_wants_a_receiver_or_a_checkpoint(arguments: list[str]) -> None:
    shown = CliRunner().invoke(program.cli, ["status", *arguments])

    assert shown.exit_code == 2
    assert "or --checkpoint PATH" in shown.output
