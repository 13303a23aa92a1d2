"""A stream that ended is forgotten after ``streamRetention``, in the checkpoint and in the workers; open ones stay."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tests.receiver.support import COOKIE, Batches, Feeders, addresses
from tests.waiting import eventually
from wallaroo_spark.receiver import Receiver
from wallaroo_spark.registry import EmbeddedRedis

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def newest_offset(checkpoint: Path) -> dict[str, Any]:
    batch = max(int(path.name) for path in (checkpoint / "offsets").iterdir() if path.name.isdigit())
    found: dict[str, Any] = json.loads((checkpoint / "offsets" / str(batch)).read_text().splitlines()[2])
    return found


def test_an_ended_stream_is_forgotten_and_begins_again_and_an_open_one_goes_on(
    spark: SparkSession, own_redis: EmbeddedRedis, feeders: Feeders, tmp_path: Path
) -> None:
    checkpoint, batches = tmp_path / "checkpoint", Batches()
    options: dict[str, Any] = {"registry": own_redis.url, "cookie": COOKIE, "lease_seconds": 2, "stream_retention": 1}
    with Receiver(spark, "orders", workers=1, **options) as receiver:
        receiver.start(receiver.stream().writeStream.foreachBatch(batches), checkpoint=str(checkpoint))
        busy = feeders.connect("busy", addresses(receiver)).open("open")
        shop = feeders.connect("shop", addresses(receiver))
        stream = shop.open("a")
        stream.send(b"one", id=1)
        stream.end()
        stream.flushed()
        assert "shop" in newest_offset(checkpoint)["streams"]
        shop.close()

        def forgotten() -> bool:
            busy.send(b"x")
            return "shop" not in newest_offset(checkpoint)["streams"]

        eventually(forgotten)
        again = feeders.connect("shop", addresses(receiver)).open("a")
        assert again.reference is None
        again.send(b"one", id=1)
        again.flushed()
        busy.flushed()
        assert newest_offset(checkpoint)["streams"]["shop"] == {str(again.id): 1}
    assert batches.values("a") == [b"one", b"one"]
