"""Common parts of the tests on a standalone cluster. They submit programs, because one process has one Spark
session."""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from pathlib import Path

import pyspark
import pytest

from tests.conftest import ROOT, StandaloneCluster

SUBMIT_SECONDS = 240

Submit = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture
def submit(standalone_cluster: StandaloneCluster, tmp_path: Path) -> Submit:
    """Run a program with spark-submit on the cluster: ``submit(program, *arguments, conf={…}, properties=path)``.

    Returns the finished process with its output; the caller judges the exit status.
    """

    def run(
        program: Path, *arguments: str, conf: dict[str, str] | None = None, properties: Path | None = None
    ) -> subprocess.CompletedProcess[str]:
        options = ["--master", standalone_cluster.url]
        if properties is not None:
            options += ["--properties-file", str(properties)]
        settings = {
            "spark.driver.host": "127.0.0.1",
            "spark.ui.enabled": "false",
            # Executors do not inherit the tests' path, and an installed package may bring a module `tests` of its own.
            "spark.executorEnv.PYTHONPATH": str(ROOT),
        }
        for name, value in (settings | (conf or {})).items():
            options += ["--conf", f"{name}={value}"]
        spark_submit = Path(pyspark.__file__).parent / "bin" / "spark-submit"
        return subprocess.run(
            [str(spark_submit), *options, str(program), *arguments],
            capture_output=True,
            text=True,
            check=False,
            timeout=SUBMIT_SECONDS,
            cwd=tmp_path,
        )

    return run
