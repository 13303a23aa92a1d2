"""Fixtures for pytest: put ``pytest_plugins = ["wallaroo_spark.testing.plugin"]`` into the top-level ``conftest.py``.

``local_receiver`` uses your fixture ``spark``: a session with at least two task slots.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from wallaroo_spark.testing.fake_worker import FakeWorker

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from wallaroo_spark.testing.local import LocalReceiver


@pytest.fixture
def local_receiver(spark: SparkSession, tmp_path: Path) -> Iterator[LocalReceiver]:
    """A receiver with one worker that runs in the session ``spark``; it ends with the test."""
    from wallaroo_spark.testing.local import LocalReceiver

    with LocalReceiver(spark, tmp_path) as receiver:
        yield receiver


@pytest.fixture
def fake_worker() -> Iterator[FakeWorker]:
    """A worker for connectors, without Spark and Redis; it ends with the test."""
    with FakeWorker() as worker:
        yield worker
