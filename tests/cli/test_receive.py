"""receive: in processes of its own with send and status beside it, and on the session that is there."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow.parquet as pq
import pyspark
import pytest

from tests.cli.conftest import COOKIE, PROGRAM, Run
from tests.conftest import ROOT
from tests.waiting import SECONDS
from wallaroo_spark.cli.receive import running
from wallaroo_spark.cli.receive.config import ReceiveConfig, parse
from wallaroo_spark.cli.receive.view import PlainView, QuerySnapshot
from wallaroo_spark.cli.sessions import standard_error_to
from wallaroo_spark.errors import ConfigurationError
from wallaroo_spark.observe.receiver import QueryStatus, ReceiverStatus

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

YAML = """
receiver: orders
workers: 1
cookie: env:THE_COOKIE
checkpoint: checkpoint
sink: {format: parquet, path: rows}
trigger: {processingTime: 500 milliseconds}
select: [stream, message_id, value]
spark: {spark.ui.enabled: false, spark.driver.memory: 1g}
"""


@contextmanager
def receiving_process(directory: Path) -> Iterator[tuple[subprocess.Popen[str], list[str], str]]:
    """A receiver that listens: its process, the lines it has printed so far, and its registry's URL."""
    (directory / "receive.yaml").write_text(YAML, encoding="utf-8")
    command = [*PROGRAM, "receive", "receive.yaml", "--show-registry", "--every", "0.5", "--spark-log", "spark.log"]
    variables = os.environ | {"THE_COOKIE": COOKIE}
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=directory, env=variables
    ) as process:
        try:
            assert process.stdout is not None
            lines: list[str] = []
            for line in process.stdout:
                lines.append(line.rstrip())
                if line.startswith("Registry: "):
                    break
            else:
                raise AssertionError(process.stderr and process.stderr.read())
            yield process, lines, lines[-1].removeprefix("Registry: ")
        finally:
            if process.poll() is None:
                process.kill()


@pytest.mark.spark
def test_the_parquet_files_have_the_sent_lines(run: Run, tmp_path: Path) -> None:
    contents = {"one": [b"%d,\xff\r" % number for number in range(3000)], "two": [b"", b"last, without newline"]}
    for name, lines in contents.items():
        (tmp_path / name).write_bytes(b"\n".join(lines))

    with receiving_process(tmp_path) as (process, said, url):
        where = ["--registry", url, "--receiver", "orders"]
        sent = run("send", "one", "two", *where, "--cookie", COOKIE, timeout=SECONDS)
        status = run("status", *where)
        process.send_signal(signal.SIGTERM)
        rest, errors = process.communicate(timeout=SECONDS)

    assert sent.returncode == 0, sent.stderr
    assert (status.returncode, "serving" in status.stdout) == (0, True)
    assert said[0] == "Starting Spark and 1 worker of receiver 'orders' …"
    assert said[1] == "1 worker of receiver 'orders' started; now its query …"
    assert said[2].endswith("rows go to parquet at rows; Ctrl-C stops it.")
    assert rest.splitlines()[-2:][0] == "Stopping (SIGTERM) …"
    assert "Ended in good order after" in rest
    assert "3,002 rows in" in rest
    assert (process.returncode, errors) == (0, "")
    assert " INFO orders/0 wallaroo_spark." in (tmp_path / "spark.log").read_text(encoding="utf-8")
    table = pq.read_table(tmp_path / "rows").sort_by([("stream", "ascending"), ("message_id", "ascending")])
    found: dict[str, list[bytes]] = {}
    for stream, value in zip(table["stream"].to_pylist(), table["value"].to_pylist(), strict=True):
        found.setdefault(stream, []).append(value)
    assert found == contents


@pytest.mark.long
@pytest.mark.spark
def test_spark_submit_that_is_terminated_stops_the_query_first(tmp_path: Path) -> None:
    (tmp_path / "receive.yaml").write_text(YAML, encoding="utf-8")
    spark_submit = str(Path(pyspark.__file__).parent / "bin" / "spark-submit")
    job = [str(ROOT / "jobs" / "receive.py"), "receive.yaml"]
    command = [spark_submit, "--properties-file", str(ROOT / "conf" / "local.conf"), *job]
    variables = os.environ | {"THE_COOKIE": COOKIE}
    with (
        (tmp_path / "errors").open("w") as errors,
        subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=errors, text=True, cwd=tmp_path, env=variables
        ) as process,
    ):
        assert process.stdout is not None
        listening = next(line for line in process.stdout if "listens on" in line)
        # The script has become the Java process, so the signal reaches that alone.
        process.send_signal(signal.SIGTERM)
        rest = process.stdout.read()

    assert "rows go to parquet at rows" in listening
    assert "Stopping (SIGTERM) …" in rest
    assert "Ended in good order after" in rest
    terminal = (tmp_path / "errors").read_text(encoding="utf-8")
    assert "Traceback" not in terminal
    assert " INFO orders" not in terminal


class Recorder(PlainView):
    """A view that keeps everything that it is shown; ``on_listening`` is called when the receiver listens."""

    def __init__(self, on_listening: Callable[[], object] = lambda: None) -> None:
        self.said: list[str] = []
        super().__init__(0, echo=self.said.append)
        self._on_listening = on_listening

    def listening(self, *given: Any, **named: Any) -> None:
        super().listening(*given, **named)
        self._on_listening()


@pytest.fixture
def config(tmp_path: Path) -> Callable[..., ReceiveConfig]:
    def make(**changes: Any) -> ReceiveConfig:
        sink = {"format": "noop"}
        return parse(
            {"receiver": "here", "workers": 1, "checkpoint": str(tmp_path / "ck"), "sink": sink, **changes}, "r.yaml"
        )

    return make


def test_an_available_now_run_ends_by_itself(spark: SparkSession, config: Callable[..., ReceiveConfig]) -> None:
    view = Recorder()

    stopped_by = running.receive(config(trigger={"availableNow": True}, quietSeconds=0), view)

    assert stopped_by is None
    assert view.said[2].endswith("rows go to noop; it ends when all is read.")
    assert "0 rows in" in view.said[-1]
    assert not spark.streams.active
    assert spark.range(3).count() == 3


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_stops_the_query_in_good_order(
    spark: SparkSession, config: Callable[..., ReceiveConfig], number: signal.Signals
) -> None:
    view = Recorder(lambda: os.kill(os.getpid(), number))
    handlers = [signal.getsignal(each) for each in (signal.SIGINT, signal.SIGTERM)]

    stopped_by = running.receive(config(), view)

    assert stopped_by == number
    assert view.said[-2] == f"Stopping ({number.name}) …"
    assert view.said[-1].startswith("Ended in good order after")
    assert not spark.streams.active
    assert [signal.getsignal(each) for each in (signal.SIGINT, signal.SIGTERM)] == handlers


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"select": ["valeu"]}, r"Spark refuses the query: \[UNRESOLVED_COLUMN.*; check select, sink and trigger"),
        ({"sink": {"format": "nowhere"}}, r"Spark refuses the query: \[DATA_SOURCE_NOT_FOUND\]"),
        ({"trigger": {"processingTime": "often"}}, r"Spark refuses the query: .*often"),
    ],
)
def test_a_refusal_of_spark_is_one_sentence(
    spark: SparkSession, config: Callable[..., ReceiveConfig], changes: dict[str, Any], message: str
) -> None:
    with pytest.raises(ConfigurationError, match=message) as caught:
        running.receive(config(**changes), Recorder())

    assert "\n" not in caught.value.message


def test_a_failed_query_gives_our_own_reason_where_there_is_one() -> None:
    reason = "wallaroo_spark.errors.ReplayError: stream 7 is gone; wait [replay-late]"
    ours = Exception(f"[STREAM_FAILED] Query failed\n  File x\n{reason}\n")
    theirs = Exception("[STREAM_FAILED] Disk is full.\n\tat org.apache")

    assert str(running.failed_query(ours)) == "the query failed: stream 7 is gone; wait [replay-late]"
    assert running.failed_query(theirs).message == (
        "the query failed: [STREAM_FAILED] Disk is full; correct that and start it again: it continues from its "
        "checkpoint"
    )


def snapshot(rows: int) -> QuerySnapshot:
    return QuerySnapshot(ReceiverStatus("orders", 0.0, query=QueryStatus("running", committed_batch=3)), rows, 4, 10.0)


def test_with_json_each_line_is_an_object_with_its_event(config: Callable[..., ReceiveConfig]) -> None:
    said: list[str] = []
    view = PlainView(0.0, True, said.append)

    view.starting(config())
    view.serving(config())
    view.listening(config(), ["here:1"], "", "http://here/", "")
    view.show(snapshot(5))
    PlainView(3600.0, True, said.append).show(snapshot(6))
    view.stopping("SIGTERM")
    view.ended(snapshot(7))

    first, serves, listens, shown, stops, last = map(json.loads, said)
    assert first == {"event": "starting", "receiver": "here", "workers": 1}
    assert serves == {"event": "serving", "receiver": "here", "workers": 1}
    assert listens["addresses"] == ["here:1"]
    assert "registry" not in listens
    assert (shown["event"], shown["committed_batch"], shown["rows"]) == ("progress", 3, 5)
    assert stops == {"event": "stopping", "reason": "SIGTERM"}
    assert last == {"event": "ended", "rows": 7, "batches": 4, "seconds": 10.0}


def test_a_line_that_says_nothing_new_comes_more_seldom() -> None:
    said: list[str] = []
    view = PlainView(0.0, echo=said.append)
    seldom = PlainView(3600.0, echo=said.append)

    view.show(snapshot(1))
    view.show(snapshot(2))
    seldom.show(snapshot(3))

    assert [line.split(" ", 1)[1] for line in said] == [
        "batch 3 committed · 1 row since the start · 0 of 0 workers · 0 sessions · 0 B buffered · 0 faults",
        "batch 3 committed · 2 rows since the start · 0 of 0 workers · 0 sessions · 0 B buffered · 0 faults",
    ]


def test_standard_error_of_processes_started_inside_goes_to_the_file(tmp_path: Path) -> None:
    file = tmp_path / "spark.log"

    with standard_error_to(file):
        subprocess.run([sys.executable, "-c", "import sys; sys.stderr.write('noise')"], check=True)

    assert file.read_text(encoding="utf-8") == "noise"
