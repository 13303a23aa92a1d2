"""The servers of this folder's tests with killed drivers."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.storage.servers import HdfsServer, S3Server


@pytest.fixture(
    params=[pytest.param(server, marks=pytest.mark.long) for server in (HdfsServer, S3Server)], ids=["hdfs", "s3a"]
)
def server(request: pytest.FixtureRequest) -> Iterator[HdfsServer | S3Server]:
    """An HDFS and an S3, one after the other."""
    made: HdfsServer | S3Server = request.param()
    try:
        made.start()
        yield made
    finally:
        made.remove()
