"""Objects that cannot be read to their end, without a server."""

from __future__ import annotations

import asyncio
import bz2
import gzip
import io
import lzma
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from wallaroo_spark.bridges.sources.s3_objects import ObjectStream, S3Bridge, S3Object
from wallaroo_spark.errors import ConfigurationError, ReplayError

LINES = b"".join(b"line %d\n" % number for number in range(200_000))


def stream(key: str, body: Any) -> ObjectStream:
    server = SimpleNamespace(get_object=lambda **_: {"Body": body})
    found = S3Object("logs", key, "etag", 1, 0)
    return ObjectStream(S3Bridge("s3://logs/"), server, found, asyncio.Semaphore(1), lambda: None)


async def read(one: ObjectStream) -> int:
    count = 0
    async for _ in one.read(None):
        count += 1
    return count


@pytest.mark.parametrize(("ending", "packed"), [("gz", gzip.compress), ("bz2", bz2.compress), ("xz", lzma.compress)])
async def test_a_compressed_object_that_is_damaged_ends_the_bridge(ending: str, packed: Any) -> None:
    data = packed(LINES)
    assert await read(stream(f"a.{ending}", io.BytesIO(data))) == 200_000
    middle = len(data) // 2
    damaged = data[:middle] + bytes(byte ^ 0xFF for byte in data[middle : middle + 64]) + data[middle + 64 :]
    for evil in (data[:middle], damaged, b"no such format" * 10):
        with pytest.raises(ConfigurationError, match=rf"object s3://logs/a.{ending} cannot be expanded \(") as refused:
            await read(stream(f"a.{ending}", io.BytesIO(evil)))
        assert refused.value.code == "source-setup"


async def test_a_connection_that_breaks_is_no_damage() -> None:
    class Broken(io.BytesIO):
        def read(self, size: int | None = -1, /) -> bytes:
            raise ConnectionResetError(104, "reset")

    one = stream("a.gz", Broken())
    with pytest.raises(ConnectionResetError):
        async for _ in one.records(None):
            pass


@pytest.fixture
def listed(monkeypatch: pytest.MonkeyPatch) -> list[S3Object]:
    """What a list of the bucket has."""
    found: list[S3Object] = []
    monkeypatch.setenv("AWS_DEFAULT_REGION", "us-east-1")
    monkeypatch.setattr(S3Bridge, "_listed", lambda *_: [replace(one) for one in found])
    return found


async def test_an_empty_object_may_become_one_with_lines(listed: list[S3Object]) -> None:
    listed += [S3Object("logs", "a", "empty", 0, 0), S3Object("logs", "b", "full", 2, 0)]
    streams = S3Bridge("s3://logs/", poll=0.01).streams()
    assert [one.name for one in await anext(streams)] == ["b"]
    listed[0] = S3Object("logs", "a", "full", 2, 1)
    assert [one.name for one in await anext(streams)] == ["a"]
    listed[0] = S3Object("logs", "a", "empty", 0, 2)
    with pytest.raises(ReplayError, match="the object s3://logs/a was replaced or deleted"):
        await anext(streams)
