"""The asset bundle of conf/databricks: its jobs name what exists, and its program uses the session that is there."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest
import yaml
from click.testing import CliRunner

from tests.conftest import LOCAL_SPARK, ROOT
from tests.waiting import SECONDS
from wallaroo_spark.cli.main import cli
from wallaroo_spark.options import Options
from wallaroo_spark.registry import EmbeddedRedis

BUNDLE = ROOT / "conf" / "databricks"
SETTINGS = yaml.safe_load((BUNDLE / "databricks.yml").read_text(encoding="utf-8"))
JOBS: dict[str, Any] = SETTINGS["resources"]["jobs"]
EXTRAS = ("worker", "cli", "pipelines")
RUNTIME = {"numpy", "pandas", "pyarrow"}
"""Packages that Databricks' runtimes bring, in versions that belong together."""


def task(job: str) -> dict[str, Any]:
    """The one task of a job."""
    (found,) = JOBS[job]["tasks"]
    return dict(found)


def parameters(job: str, volume: Path) -> list[str]:
    """The arguments of a job's program, with a folder in place of the volume and the bundle's in place of its files."""
    given: list[str] = task(job)["spark_python_task"]["parameters"]
    places = {"${var.volume}": str(volume), "${workspace.file_path}": str(BUNDLE)}
    for name, place in places.items():
        given = [text.replace(name, place) for text in given]
    assert not [text for text in given if "${" in text]
    return given


def test_the_cluster_has_cores_for_the_workers_and_no_secret() -> None:
    cluster = SETTINGS["variables"]["cluster"]["default"]
    receiver = yaml.safe_load((BUNDLE / "receive.yaml").read_text(encoding="utf-8"))

    assert "autoscale" not in cluster
    assert cluster["num_workers"] * 2 >= Options.parse({"workers": receiver["workers"]}).workers + 1
    assert all(value.startswith("{{secrets/") for value in cluster["spark_env_vars"].values())
    assert all(job["max_concurrent_runs"] == 1 for job in JOBS.values())


def test_the_libraries_are_those_of_the_extras() -> None:
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["optional-dependencies"]
    wanted: set[str] = set()
    waiting = list(EXTRAS)
    while waiting:
        for requirement in extras[waiting.pop()]:
            inner = re.fullmatch(r"wallaroo-spark\[(.*)\]", requirement)
            waiting += inner[1].split(",") if inner else []
            wanted |= set() if inner else {requirement}
    libraries = [row["pypi"]["package"] for row in SETTINGS["variables"]["libraries"]["default"] if "pypi" in row]

    assert set(libraries) == {text for text in wanted if re.split("[<>=]", text)[0] not in RUNTIME}


@pytest.mark.parametrize("job", ["receive", "receive_available"])
def test_the_parameters_of_a_receiving_job_are_valid(job: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in SETTINGS["variables"]["cluster"]["default"]["spark_env_vars"]:
        monkeypatch.setenv(name, "redis://redis.example:6379")
    verb, *arguments = parameters(job, tmp_path)
    ended = CliRunner().invoke(cli, ["validate", *arguments])

    assert verb == "receive"
    assert json.loads(ended.output)["valid"] is True


PROGRAM = """
import runpy, sys
from pyspark.sql import SparkSession

made = SparkSession.builder.master("local[4]").appName("that of Databricks")
for name, value in {settings!r}.items():
    made = made.config(name, value)
made = made.getOrCreate()
sys.argv = {argv!r}
runpy.run_path(sys.argv[0], run_name="__main__")
assert not made.sparkContext._jsc.sc().isStopped() and made.sparkContext.appName == "that of Databricks"
print("the session goes on")
made.stop()
"""


@pytest.mark.long
@pytest.mark.spark
@pytest.mark.parametrize("job", ["receive", "receive_available"])
def test_a_job_runs_in_the_session_that_is_there_and_leaves_it(
    job: str, tmp_path: Path, redis_server: EmbeddedRedis
) -> None:
    argv = [str(BUNDLE / "job.py"), *parameters(job, tmp_path)]
    environment = os.environ | {"WALLAROO_COOKIE": "a cookie", "WALLAROO_REGISTRY": redis_server.url}
    command = [sys.executable, "-c", PROGRAM.format(settings=LOCAL_SPARK, argv=argv)]
    with subprocess.Popen(command, env=environment, cwd=tmp_path, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        lines = []
        for line in process.stdout:
            lines.append(line)
            # That job runs until somebody cancels it.
            if job == "receive" and '"listening"' in line:
                process.send_signal(signal.SIGTERM)
        assert process.wait(SECONDS) == 0
    assert lines[-1] == "the session goes on\n"
