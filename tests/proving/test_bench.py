"""The bench runs; its figures are not judged."""

from __future__ import annotations

import json
import socket
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest

from proving.bench import __main__ as bench
from proving.bench.doors import cases as doors
from proving.bench.load_generator import Generator, Load, Template, thinned
from proving.bench.results import page
from proving.bench.results.goals import goals_of
from proving.bench.results.pictures import PICTURES, draw_all
from proving.bench.results.report import TABLES, text
from proving.bench.sections import active, decode, fleet, plans
from proving.bench.simulated_loads import SimulatedLoad, always, compared
from tests.waiting import SECONDS
from wallaroo_spark.doors.kafka.rows import expand
from wallaroo_spark.protocol import (
    REVISIONS,
    FrameBuffer,
    Hello,
    Message,
    MessageRun,
    Revision,
    WorkerSession,
)


def test_the_quickest_section_writes_figures_tables_and_a_picture(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    command = ["bench", "--quick", "--only", "decode", "--messages", "64", "--output", str(tmp_path)]
    monkeypatch.setattr("sys.argv", command)

    assert bench.main() == 0

    found = json.loads((tmp_path / "bench.json").read_text(encoding="utf-8"))
    assert len(found["sections"]["decode"]["cases"]) == len(list(decode.cases()))
    assert found["goals"]["decode"] > 0
    assert found["goals"]["noop_100"] is None
    assert (tmp_path / "pictures" / "decode.png").stat().st_size > 0
    assert "not measured" in capsys.readouterr().out


def test_active_streams_are_measured_phase_by_phase() -> None:
    one, many = (active.run(active.Case(streams, sessions, 400), 1) for streams, sessions in ((1, 1), (100, 2)))
    for found in (one, many):
        assert found["by_phase"].keys() >= {"receive", "plan", "find", "gather", "commit"}
        found["of_one_stream"] = found["worker_seconds_per_million"] / one["worker_seconds_per_million"]

    shown = text({"active": {"cases": [one, many]}})
    assert "|     100 |        2 |" in shown


def test_credits_are_drawn_and_told_load_by_load(tmp_path: Path) -> None:
    real = {"messages_per_second": 5e5, "mean_MiB": 40.0, "peak_MiB": 60.0, "batch_seconds": 0.5}
    cases = [compared(SimulatedLoad(name, always(rate), seconds=5)) for name, rate in (("little", 1), ("much", 200))]
    results = {"credits": {"cases": cases, "real": {"fixed": real, "adaptive": real}}}

    draw_all(results, tmp_path)
    told = text(results)

    assert (tmp_path / "credits.png").stat().st_size > 0
    assert "| little " in told
    assert "| adaptive |" in told


def test_tables_and_pictures_are_written_again_without_a_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("sys.argv", ["bench", "--from", str(page.FIGURES), "--output", str(tmp_path)])

    assert bench.main() == 0

    assert {file.stem for file in (tmp_path / "pictures").glob("*.png")} == {one.name for one in PICTURES}
    assert "| goal " in capsys.readouterr().out


def test_the_pages_with_figures_have_the_tables_of_the_run_beside_them() -> None:
    """``./scripts/bench --from docs/performance/bench.json --page`` writes them again."""
    shown = "".join(one.read_text(encoding="utf-8") for one in page.PAGES)

    assert page.written(shown, json.loads(page.FIGURES.read_text(encoding="utf-8"))) == shown
    assert {f"<!-- bench: {name} -->" for name in ("goals", "machine", *TABLES)} <= set(shown.splitlines())
    for one in PICTURES:
        assert f"![{one.title}](performance/{one.name}.png)" in shown
        assert (page.PICTURES / f"{one.name}.png").stat().st_size > 0


def test_planning_is_measured_with_the_readers_own_plans() -> None:
    found = plans.measure(lambda text: None, known=(200,), active=(10, 100), batches=2)

    assert [(one["known"], one["active"]) for one in found["cases"]] == [(200, 10), (200, 100)]
    assert all(one["plan_ms"] > 0 and one["offset_bytes"] > 0 for one in found["cases"])
    assert "|           200 |" in text({"plans": found})


def test_the_record_batches_that_are_decoded_have_their_records() -> None:
    rows, records = doors.record_batches(16_384, 300)

    found = list(expand(rows, headers=False, corrupt=False))
    assert (rows.num_rows, sum(one.num_rows for one in found)) == (3, records)
    assert len(found[0]["value"][0].as_py()) == doors.SIZE


def test_clients_of_doors_are_told_one_by_one_also_without_kafka() -> None:
    seconds = {"worker": 1.5, "JVM": 0.5}
    run = {
        "rows_per_second": 2e5,
        "megabytes_per_second": 20.0,
        "batch_seconds": 0.3,
        "cpu_seconds_per_million": seconds,
    }
    results = {
        "doors": {
            "size": 100,
            "decode": [{"batch": "16 KB", "median": 2e6}, {"batch": "1 MB", "median": 4e6}],
            "memory": {"none": 160.0, "all": 164.0},
            "posts": {"one message": {**run, "posts_per_second": 2e5}},
            "producers": {"confluent-kafka": run},
            "chains": {"error": "it cannot be fetched"},
            "spans": {"clients": 64, "spans": 512, "spans_per_second": 40_000.0},
        }
    }

    told, goals = text(results), goals_of(results)
    assert "| Kafka, confluent-kafka" in told
    assert "a second a core: 2 M in batches of 16 KB, 4 M in batches of 1 MB" in told
    assert "64 clients with requests of 512, into rows of `otel.spans`: 40 k/s." in told
    assert goals["door_spans"] == 40_000
    assert (goals["door_decode"], goals["door_memory"], goals["door_of_kafka"]) == (2e6, 4.0, None)


def test_an_unknown_section_is_refused(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr("sys.argv", ["bench", "--only", "sped"])

    with pytest.raises(SystemExit):
        bench.arguments()

    assert "the sections are decode, active, sdk" in capsys.readouterr().err


def test_a_section_that_failed_leaves_its_goals_unmeasured() -> None:
    results = {"e2e": {"error": "RuntimeError: no"}, "memory": {"error": "x"}}

    assert set(goals_of(results).values()) == {None}
    assert "e2e failed: RuntimeError: no" in text(results)


@pytest.mark.parametrize("revision", REVISIONS.values(), ids=lambda revision: revision.name)
def test_generated_frames_are_messages_of_streams_in_turn(revision: Revision) -> None:
    template = Template(revision, 20)
    buffer = FrameBuffer(1 << 20)
    for first, count in ((0, 3), (3, 4)):
        buffer.feed(template.frames(10, 2, first, count))

    run = buffer.next(revision, revision.by_frame[Message].tag)

    assert isinstance(run, MessageRun)
    found = [(message.stream_id, message.message_id, message.payload) for message in run.messages()]
    assert found == [(11 + number % 2, number // 2 + 1, b"x" * 20) for number in range(7)]


def test_points_that_lie_close_together_become_one() -> None:
    points = [(time, int(1000 * time)) for time in np.arange(0, 1, 0.001).tolist()]

    kept = thinned(points)

    assert kept[-1] == points[-1]
    assert 50 < len(kept) < 150


def test_the_bytes_of_a_plan_follow_the_active_streams_and_not_the_known_ones() -> None:
    few, many = (fleet.case(2, known, 1, lambda text: None) for known in (100, 5_000))

    assert few["plan_bytes"] == many["plan_bytes"] > 0
    assert few["tell_bytes"] == many["tell_bytes"] > 0


def test_a_paced_load_goes_on_when_its_socket_can_be_written_again() -> None:
    """Bursts are larger than what a socket holds, and the rest of a burst does not wait for the next one."""
    bursts, each, rate = 3, 1.0, 20_000
    with socket.create_server(("127.0.0.1", 0)) as listener:
        host, port = listener.getsockname()
        with ThreadPoolExecutor(1) as pool:
            received = pool.submit(_accept_everything, listener)
            generator = Generator(Load(f"{host}:{port}", "", "p", "load", 0.0, rate=rate, burst=each))
            sender = generator.senders[0]
            sender.socket.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1 << 14)
            generator.open()
            generator.pace(time.monotonic() + each * (bursts + 0.9))
            sender.socket.close()
            assert received.result(SECONDS) > 0
    assert sender.sent >= rate * each * (bursts - 1)


def _accept_everything(listener: socket.socket) -> int:
    """Grant credits without end and read all that arrives; returns how many bytes came."""
    session, total, greeted = WorkerSession(version="0.0.1"), 0, False
    peer, _ = listener.accept()
    with peer:
        while data := peer.recv(1 << 16):
            total += len(data)
            if not greeted:
                session.receive(data)
                while (event := session.next_event()) is not None:
                    if isinstance(event, Hello):
                        peer.sendall(session.ok(2**31 - 1))
                        greeted = True
    return total
