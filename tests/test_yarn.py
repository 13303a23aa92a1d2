"""conf/yarn.conf on Hadoop's YARN and HDFS: an executor and the application master are killed."""

from __future__ import annotations

import subprocess
import sys

import pytest

from tests.conftest import ROOT

SECONDS = 1500.0


@pytest.mark.long
@pytest.mark.no_cover
@pytest.mark.timeout(SECONDS + 60)
def test_the_configuration_of_yarn_loses_and_repeats_nothing() -> None:
    pytest.importorskip("hdfs_native", reason="it reads the table on HDFS: pip install hdfs-native fsspec")
    command = [sys.executable, "-m", "proving.yarn"]
    ended = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False, timeout=SECONDS)

    assert ended.returncode == 0, ended.stdout + ended.stderr[-3000:]
    clean = "120,000 messages: 0 lost, 0 repeated, 0 out of order, 0 altered, 0 acknowledged too early"
    assert ended.stdout.splitlines()[-1].endswith(clean)
