"""The messages of a capture are sent again: each once and unchanged, and no committed one."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from click.testing import CliRunner

from wallaroo_spark.cli.main import cli
from wallaroo_spark.connector import Backoff, BlockingConnector
from wallaroo_spark.protocol import DRAFT_BE, V3, Ack, EosMessage, Flags, Frame, Hello, Message, Notify, Ok
from wallaroo_spark.testing import FakeWorker, Proxy
from wallaroo_spark.transport import parse_address
from wallaroo_spark.wiretap.proxy import End, Faults
from wallaroo_spark.wiretap.recording import Recorder, read
from wallaroo_spark.wiretap.replay import ReplayTotals, recorded_messages

SECONDS = 60.0
QUICK = Backoff(initial=0.01, maximum=0.1, give_up_after=SECONDS)
COLUMNS = ["instance", "stream", "stream_id", "message_id", "event_time", "key", "value", "flags"]


def rows(worker: FakeWorker) -> list[dict[str, Any]]:
    """The committed rows without their time of arrival, stream by stream."""
    table: pa.Table = worker.committed.select(COLUMNS)
    return sorted(table.to_pylist(), key=lambda row: (row["instance"], row["stream"], row["message_id"]))


def recorded(path: Path, frames: list[tuple[End, Frame]], revision: Any = DRAFT_BE) -> Path:
    """A capture of one connection with these frames."""
    recorder = Recorder(path, "worker-1:7100")
    recorder.opened(1, "peer:1")
    for sender, frame in frames:
        recorder.passed(1, sender, revision.encode(frame))
    recorder.close()
    return path


def replayed(path: Path, worker: FakeWorker, *arguments: str) -> dict[str, Any]:
    """The totals of a replay by the command."""
    with worker.committing():
        shown = CliRunner().invoke(
            cli, ["replay", str(path), "--to", worker.address, "--cookie", "other", "--json", *arguments]
        )
    assert shown.exit_code == 0, shown.output
    return json.loads(shown.stdout)


@pytest.mark.parametrize("revision", ["draft-be", "v3"])
def test_a_disturbed_session_is_sent_again_as_it_was(tmp_path: Path, revision: str) -> None:
    path = tmp_path / "file"
    with FakeWorker(cookie="secret") as first:
        recorder = Recorder(path, first.address)
        faults = Faults(cut=6000, seed=2)
        settings: dict[str, Any] = {"cookie": "secret", "retry": QUICK, "drain_timeout": SECONDS, "revision": revision}
        with Proxy(parse_address(first.address), faults=faults, watcher=recorder) as proxy:
            with (
                first.committing(),
                BlockingConnector("orders", instance="shop-1", workers=proxy.address, **settings) as connector,
            ):
                stream = connector.open("orders", id=7)
                keys = [b"key"] * 200
                stream.send_many([bytes(50)] * 200, range(10, 210), [1_700_000_000_000_000_000] * 200, keys)
                connector.open("clicks", id=8).send(b"click", id=1)
            assert proxy.connections > 1
        recorder.close()
        before = rows(first)

    with FakeWorker(cookie="other") as second:
        totals = replayed(path, second)
        assert (totals["sent"], totals["committed"], totals["streams"]) == (201, 0, 2)
        assert totals["unreadable"] <= proxy.connections, "only frames that were cut"
        assert rows(second) == before
        if revision != "draft-be":
            return
        again = replayed(path, second)
        assert (again["sent"], again["committed"]) == (0, 201)
        anew = replayed(path, second, "--instance", "again-1", "--pace", "1000")
        assert anew["sent"] == 201
        assert len(rows(second)) == 402


def test_flags_keys_ends_and_boundaries_are_sent_as_they_were(tmp_path: Path) -> None:
    connector, worker_end = End.CONNECTOR, End.WORKER
    path = recorded(
        tmp_path / "file",
        [
            (connector, Hello("0.0.1", b"secret", "orders", "shop-1")),
            (worker_end, Ok(100)),
            (connector, Notify(7, "orders")),
            (connector, Message(7, 5, b"a", Flags.NONE, None, b"k")),
            (connector, Message(7, 6, b"b", Flags.UNSTABLE_REFERENCE)),
            (connector, Message(7, 7, None, Flags.BOUNDARY)),
            (connector, Message(7, 8, b"c", Flags.EOS)),
            (worker_end, Ack(3, ((7, 8),))),
            (connector, Notify(7, "orders", 8)),
            (connector, Message(7, 9, b"d")),
            (connector, Message(7, 9, None, Flags.BOUNDARY | Flags.EOS)),
            (connector, Notify(8, "clicks")),
            (connector, Message(8, None, b"click", Flags.EPHEMERAL)),
        ],
    )
    with FakeWorker(cookie="other") as worker:
        totals = replayed(path, worker)
        table = worker.committed.to_pylist()

    assert totals == {"sent": 6, "committed": 0, "repeated": 0, "unreadable": 0, "streams": 2}
    orders = [(row["message_id"], row["value"], row["key"]) for row in table if row["stream"] == "orders"]
    assert [row for row in orders if row[1] is not None] == [
        (5, b"a", b"k"),
        (6, b"b", None),
        (8, b"c", None),
        (9, b"d", None),
    ]
    assert [row["value"] for row in table if row["stream"] == "clicks"] == [b"click"]


def test_frames_that_cannot_be_read_are_counted(tmp_path: Path) -> None:
    recorder = Recorder(tmp_path / "file", "worker-1:7100")
    recorder.opened(1, "peer:1")
    hello = V3.encode(Hello("0.0.1", b"", "orders", "shop-1"))
    good = V3.encode(Notify(7, "orders")) + V3.encode(Message(7, 1, b"a")) + V3.encode(EosMessage(7, 1))
    recorder.passed(1, End.CONNECTOR, hello + b"\x00\x00\x00\x01\xee" + V3.encode(Message(9, 1, b"lost")) + good)
    recorder.close()
    totals = ReplayTotals()

    with (tmp_path / "file").open("rb") as file:
        found = list(recorded_messages(read([file]), totals))

    assert [(one.message.message_id if one.message else None, one.ends) for one in found] == [(1, False), (None, True)]
    assert totals.unreadable == 2


def test_a_wrong_cookie_is_the_error_of_the_replay(tmp_path: Path) -> None:
    path = recorded(
        tmp_path / "file",
        [
            (End.CONNECTOR, Hello("0.0.1", b"secret", "orders", "shop-1")),
            (End.CONNECTOR, Notify(7, "orders")),
            (End.CONNECTOR, Message(7, 1, b"a")),
        ],
    )
    with FakeWorker(cookie="other") as worker:
        shown = CliRunner().invoke(cli, ["replay", str(path), "--to", worker.address, "--cookie", "wrong"])

    assert shown.exit_code == 1
    assert "cookie" in shown.stderr
