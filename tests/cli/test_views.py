"""The output on a terminal of 100 columns."""

from __future__ import annotations

import io
from dataclasses import replace

import pytest
from rich.console import Console

from wallaroo_spark.cli.receive.config import parse
from wallaroo_spark.cli.receive.view import LiveView, QuerySnapshot
from wallaroo_spark.cli.send.inputs import SendInput
from wallaroo_spark.cli.send.view import BarView, make_view
from wallaroo_spark.connector import FeedProgress, FeedResult, Stdin
from wallaroo_spark.observe.causes import with_causes
from wallaroo_spark.observe.faces.terminal import (
    BRIEF,
    doors_view,
    header,
    instances_view,
    notes,
    slots_view,
    streams_view,
)
from wallaroo_spark.observe.receiver import (
    DoorStatus,
    InstanceStatus,
    QueryStatus,
    ReceiverStatus,
    Refusal,
    SlotStatus,
    StreamStatus,
)

BUSY = SlotStatus(
    0,
    "serving",
    address="192.168.100.20:7100",
    submissions=1,
    sessions=1000,
    streams=1000,
    memory_used=128 << 20,
    memory_budget=256 << 20,
    pressure="hard",
    counts={"messages": 123_456_789, "fault:wrong-cookie": 2, "fault:no-credit": 1, "replayed": 5},
)
LOST = SlotStatus(1, "lost", submissions=3, last_error="the executor was lost")
STATUS = ReceiverStatus("orders", 0.0, slots=(BUSY, LOST), query=QueryStatus("running", committed_batch=7))
SNAPSHOT = QuerySnapshot(STATUS, 5000, 8, 10.0)
CONFIG = parse({"receiver": "orders", "checkpoint": "c", "sink": {"format": "noop"}}, "r.yaml")


@pytest.fixture
def console() -> Console:
    return Console(file=io.StringIO(), force_terminal=True, width=100, color_system=None, legacy_windows=False)


def text(console: Console) -> str:
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


def test_a_busy_slot_fits_into_a_line(console: Console) -> None:
    console.print(slots_view(STATUS, columns=BRIEF))

    lines = text(console).splitlines()
    assert len(lines) == 3
    assert lines[1].split() == [
        "0", "serving", "192.168.100.20:7100", "1,000", "1,000", "123,456,789", "50%", "of", "256", "MiB",
        "hard", "3",
    ]  # fmt: skip
    assert lines[2].split() == ["1", "lost"]


def test_a_buffer_with_a_little_in_it_is_not_called_empty(console: Console) -> None:
    console.print(slots_view(replace(STATUS, slots=(replace(BUSY, memory_used=1),)), columns=BRIEF))

    assert "<1% of 256 MiB" in text(console)


def test_the_live_table_shows_slots_rate_and_errors(console: Console) -> None:
    with LiveView(console, "/tmp/spark.log") as view:
        view.starting(CONFIG)
        view.serving(CONFIG)
        view.listening(CONFIG, ["a:1", "b:2"], "redis://shown", "http://127.0.0.1:4140/", "http://127.0.0.1:4040")
        view.show(QuerySnapshot(SNAPSHOT.status, 1000, 1, 8.0))
        view.show(SNAPSHOT)
        view.stopping("SIGINT")
        view.ended(SNAPSHOT)

    shown = text(console)
    assert "Starting Spark and 2 workers of receiver 'orders' …" in shown
    assert "2 workers of receiver 'orders' started; now its query …" in shown
    assert "Receiver 'orders' listens on a:1, b:2; rows go to noop; Ctrl-C stops it." in shown
    assert "Status page: http://127.0.0.1:4140/" in shown
    assert "Registry: redis://shown" in shown
    assert "Spark's own messages are in /tmp/spark.log." in shown
    assert "batch 7 committed · 5,000 rows since the start · 2,000 rows/s" in shown
    assert "slot 1: submitted 3 times; last error: the executor was lost" in shown
    assert shown.rstrip().endswith(
        "Ended in good order after 10 s: 5,000 rows in 8 batches; the checkpoint holds the place."
    )


def test_bars_show_acknowledged_bytes_and_the_reason_of_a_wait(console: Console) -> None:
    source = Stdin(name="a-name-that-is-much-too-long-for-a-bar-on-a-terminal")
    with BarView([SendInput(source, 4096)], 1.0, False, console) as view:
        view.progressed(FeedProgress(source.name, 10, 2000, 2048, 1024))
        view._waits = "Spark to commit"
        view.refresh()
        shown = text(console) + "".join(str(task.fields) for task in view._bars.tasks)
        view.finished(source.name, FeedResult(20, 4000, 4096))

    assert "1.0 KiB of 4.0 KiB" in shown
    assert "waits for Spark to commit" in shown
    assert f"{source.name}: 20 messages (3.9 KiB) sent and acknowledged in" in text(console)


def test_without_a_terminal_there_are_lines(capsys: pytest.CaptureFixture[str]) -> None:
    with make_view([SendInput(Stdin(), None)], 1.0, True) as view:
        assert not isinstance(view, BarView)
        view.failed("stdin")

    shown = capsys.readouterr()
    assert shown.err == "stdin: 0 messages (0 B) sent, at most once; not all of them\n"
    assert '"complete": false' in shown.out


def test_the_names_and_reasons_of_strangers_write_no_control_characters(console: Console) -> None:
    evil = "kafka/\x1b[2J\x07"
    refused = Refusal(999.0, "kafka-malformed", "h:1", evil, evil)
    status = with_causes(
        ReceiverStatus(
            "orders",
            1000.0,
            True,
            query=QueryStatus("running"),
            slots=(SlotStatus(0, "serving", ready=True, sessions=1, refusals=(refused,)),),
            instances=(InstanceStatus(0, evil, "streaming", program=evil, peer=evil),),
            streams=(StreamStatus(0, evil, evil, 1, name=evil),),
            doors=(DoorStatus(0, "kafka", "h:9092", (9092,), waiting=1, oldest=60.0, waiting_by={evil: 1}),),
        )
    )
    views = [doors_view(status), instances_view(status), streams_view(status.streams), slots_view(status)]
    for shown in (*header(status), *views, *notes(status)):
        console.print(shown)

    written = text(console)
    assert "\x1b[2J" not in written
    assert "\\x1b[2J" in written
    assert "\x07" not in written
