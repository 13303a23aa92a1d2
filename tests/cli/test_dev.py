"""``dev up`` gives a newcomer a receiver, shows rows and mistakes, and ends in one line."""

from __future__ import annotations

from pathlib import Path

import pytest
from click.testing import CliRunner

from wallaroo_spark.cli.dev import _Batches, _View, _Watcher
from wallaroo_spark.cli.main import cli
from wallaroo_spark.protocol import DRAFT_BE, Error, Hello, Notify, Ok
from wallaroo_spark.wiretap import End, Recorder


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
