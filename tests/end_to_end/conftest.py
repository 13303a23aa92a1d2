"""Fixtures of the tests of the whole path: a running receiver, without a query of the test before."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

from tests.receiver.support import COOKIE
from wallaroo_spark.receiver import Receiver

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@pytest.fixture(scope="module")
def receiver(spark: SparkSession) -> Iterator[Receiver]:
    """One running receiver for the tests of a file; each brings its own checkpoint, instances and streams."""
    with Receiver(spark, "orders", workers=2, cookie=COOKIE) as started:
        yield started


@pytest.fixture
def no_query_left(spark: SparkSession) -> Iterator[None]:
    """Stops the queries that a test leaves running, so that the next test begins with none."""
    yield
    for query in spark.streams.active:
        query.stop()
