"""jobs/receive.py on a standalone cluster: all processes are real, and the committed rows are the lines of the
files."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psutil
import pytest
from chispa import assert_df_equality

from tests.cluster.conftest import Submit
from tests.conftest import ROOT, StandaloneCluster
from tests.waiting import eventually
from wallaroo_spark.registry import EmbeddedRedis

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

PROGRAM = [sys.executable, "-m", "wallaroo_spark.cli.main"]
COOKIE = "cookie-of-the-cluster"
REVISIONS = ("draft-be", "draft-le", "v3")
LINES = 2000
SEND_SECONDS = 180

YAML = """
receiver: cluster
registry: env:WALLAROO_REGISTRY
workers: 2
cookie: env:WALLAROO_COOKIE
maxOffsetsPerTrigger: 2500
checkpoint: {directory}/checkpoint
sink: {{format: parquet, path: {directory}/rows}}
select: [instance, stream, message_id, CAST(value AS STRING) AS text]
"""


@pytest.fixture
def registry_url(monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """A Redis for every process of the test, named by the environment as on a real cluster."""
    with EmbeddedRedis() as server:
        monkeypatch.setenv("WALLAROO_REGISTRY", server.url)
        monkeypatch.setenv("WALLAROO_COOKIE", COOKIE)
        yield server.url


@pytest.fixture
def job(tmp_path: Path) -> Path:
    """The job's YAML file, and beside it a file of lines for each revision."""
    for revision in REVISIONS:
        lines = "".join(f"{revision} line {number}\n" for number in range(LINES))
        (tmp_path / f"{revision}.txt").write_text(lines, encoding="utf-8")
    file = tmp_path / "receive.yaml"
    file.write_text(YAML.format(directory=tmp_path), encoding="utf-8")
    return file


def verb(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [*PROGRAM, *arguments, "--registry", "env:WALLAROO_REGISTRY", "--receiver", "cluster"]
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=SEND_SECONDS)


def send(directory: Path, revision: str) -> Any:
    """Send a revision's file; return the totals that the last line reports for it."""
    file = str(directory / f"{revision}.txt")
    ended = verb(
        "send", file, "--instance", f"shop-{revision}", "--revision", revision, "--cookie", COOKIE, "--json"
    )  # fmt: skip
    assert ended.returncode == 0, ended.stderr
    return json.loads(ended.stdout.splitlines()[-1])


def expected(spark: SparkSession, directory: Path) -> DataFrame:
    """The rows that the files are: a line's reference is the offset behind it."""
    rows = []
    for revision in REVISIONS:
        file, offset = directory / f"{revision}.txt", 0
        for line in file.read_bytes().splitlines(keepends=True):
            offset += len(line)
            rows.append((f"shop-{revision}", str(file), offset, line.decode().rstrip("\n")))
    return spark.createDataFrame(rows, "instance string, stream string, message_id bigint, text string")


def assert_rows_are_the_files(spark: SparkSession, directory: Path) -> None:
    found = spark.read.parquet(str(directory / "rows"))
    assert_df_equality(
        found.orderBy("instance", "message_id"),
        expected(spark, directory).orderBy("instance", "message_id"),
        ignore_nullable=True,
    )


@pytest.mark.long
@pytest.mark.usefixtures("registry_url")
def test_the_checks_are_a_job_of_the_cluster(submit: Submit, job: Path) -> None:
    finished = submit(ROOT / "jobs" / "check.py", str(job), properties=ROOT / "conf" / "standalone.conf")

    assert finished.returncode == 0, finished.stdout + finished.stderr
    assert finished.stdout.splitlines()[-1] == "The receiver can be started."
    assert "executors" in finished.stdout


@pytest.mark.long
@pytest.mark.usefixtures("registry_url")
def test_an_available_now_job_takes_what_three_connectors_send(
    submit: Submit, job: Path, tmp_path: Path, spark: SparkSession
) -> None:
    ends = ["trigger.availableNow=true", f"instances=[{', '.join(f'shop-{revision}' for revision in REVISIONS)}]"]
    ends += ["quietSeconds=1", "availableNowTimeout=120"]
    with ThreadPoolExecutor(len(REVISIONS)) as threads:
        sending = [threads.submit(send, tmp_path, revision) for revision in REVISIONS]
        finished = submit(
            ROOT / "jobs" / "receive.py",
            str(job),
            *(argument for one in ends for argument in ("--set", one)),
            properties=ROOT / "conf" / "standalone.conf",
        )
        sent = [future.result() for future in sending]

    assert finished.returncode == 0, finished.stdout + finished.stderr
    assert f"{len(REVISIONS) * LINES:,} rows in" in finished.stdout
    assert COOKIE not in finished.stdout
    assert [summary["messages"] for summary in sent] == [LINES] * len(REVISIONS)
    assert_rows_are_the_files(spark, tmp_path)


def in_the_projects_python_on_the_cluster(pid: int) -> bool:
    """Whether a worker's process is of this Python, in a directory of an executor of the standalone cluster."""
    worker = psutil.Process(pid)
    return worker.exe() == os.path.realpath(sys.executable) and Path(worker.cwd()).parent.parent.name == "work"


def assert_executors_tell_time_level_and_slot(folders: set[Path]) -> None:
    """The workers' lines in the executors' standard error, as JSON, without the secrets."""
    texts = [file.read_text(encoding="utf-8") for folder in folders for file in folder.glob("*/stderr")]
    lines = [json.loads(line) for text in texts for line in text.splitlines() if line.startswith('{"time"')]

    assert {line["slot"] for line in lines} >= {0, 1}
    assert all(line["time"].endswith("Z") and line["receiver"] == "cluster" for line in lines)
    assert any(line["level"] == "info" and "says HELLO" in line["message"] for line in lines)
    assert not any(COOKIE in text for text in texts)


@pytest.mark.long
@pytest.mark.usefixtures("registry_url")
def test_a_job_outlives_a_killed_worker_and_stops_when_terminated(
    submit: Submit, job: Path, tmp_path: Path, spark: SparkSession, standalone_cluster: StandaloneCluster
) -> None:
    before = set(standalone_cluster.state.glob("work/*"))
    with ThreadPoolExecutor(1 + len(REVISIONS)) as threads:
        running = threads.submit(
            submit,
            ROOT / "jobs" / "receive.py",
            str(job),
            "--set",
            "trigger.processingTime=500 milliseconds",
            "--set",
            "logFormat=json",
            "--set",
            "logLevel=debug",
            properties=ROOT / "conf" / "standalone.conf",
        )
        first = send(tmp_path, "draft-be")
        slots = json.loads(verb("status", "--json").stdout)
        workers = {slot["pid"]: slot["counts"] for slot in slots["slots"]}
        where = [in_the_projects_python_on_the_cluster(pid) for pid in workers]
        victim = next(pid for pid, counts in workers.items() if counts.get("messages"))
        os.kill(victim, signal.SIGKILL)
        others = [threads.submit(send, tmp_path, revision) for revision in REVISIONS[1:]]
        sent = [first, *(future.result() for future in others)]
        # Spark may run the task of the killed worker again within its job; that is a death, too.
        shown = eventually(
            lambda: found if (found := json.loads(verb("status", "--json").stdout))["totals"]["died"] else None,
            pause=1.0,
        )
        driver = int(shown["driver"].split("/")[1])
        # spark-submit has become the Java process above the driver's Python, and the signal reaches that alone.
        psutil.Process(driver).parent().send_signal(signal.SIGTERM)
        finished = running.result()

    assert_executors_tell_time_level_and_slot(set(standalone_cluster.state.glob("work/*")) - before)
    assert where == [True, True]
    assert "Stopping (SIGTERM) …" in finished.stdout
    assert "Ended in good order after" in finished.stdout
    assert f"{len(REVISIONS) * LINES:,} rows in" in finished.stdout
    assert COOKIE not in finished.stdout
    assert "Traceback" not in finished.stderr
    assert [summary["messages"] for summary in sent] == [LINES] * len(REVISIONS)
    assert_rows_are_the_files(spark, tmp_path)
