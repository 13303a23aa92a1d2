"""The power of a machine fails while a receiver runs: with ``fsync`` no acknowledged message is lost, none comes twice.

See ``test_power_loss.py``, which does the same with applications.
"""

from __future__ import annotations

import random
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import pytest

from tests.receiver.support import COOKIE, Feeders, addresses, numbered, payload, payloads
from tests.storage.cut_disk import CutDisk, powered_on, require_loop_devices
from tests.waiting import SECONDS, eventually
from wallaroo_spark import Receiver
from wallaroo_spark.checkpoint import power_loss

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.timeout(20 * SECONDS)
MORE = 50


class Cut(NamedTuple):
    """A cut of the power."""

    image: Path
    """The image of the disk."""
    acknowledged: int
    """The last message that was acknowledged before."""


class Sink:
    """A receiver whose query writes files, with its checkpoint, on a disk."""

    def __init__(self, spark: SparkSession, disk: Path, *, fsync: bool) -> None:
        self.rows = str(disk / "rows")
        self._spark, self._checkpoint = spark, str(disk / "checkpoint")
        self.receiver = Receiver(spark, "orders", workers=1, cookie=COOKIE, lease_seconds=3, fsync=fsync)

    def __enter__(self) -> Sink:
        self.receiver.start()
        try:
            rows = self.receiver.stream().select("stream", "message_id", "value")
            writer = rows.writeStream.format("parquet").option("path", self.rows)
            self.receiver.start_query(writer, checkpoint=self._checkpoint)
        except BaseException:
            self.receiver.stop()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.receiver.stop()

    def values(self) -> list[bytes]:
        """The values of all rows."""
        return [bytes(row.value) for row in self._spark.read.parquet(self.rows).select("value").collect()]


def cuts(spark: SparkSession, disk: CutDisk, count: int, *, fsync: bool, seed: int = 1) -> list[Cut]:
    """Send messages, and cut the power that many times, at moments that the seed decides."""
    waits, ending = random.Random(seed), threading.Event()
    found: list[Cut] = []
    with Sink(spark, disk.mounted, fsync=fsync) as sink, Feeders() as feeders:
        opened = feeders.connect("shop-a", addresses(sink.receiver)).open("a")

        def send() -> None:
            number = 0
            while not ending.wait(0.01):
                number += 1
                opened.send(payload("a", number), id=number)

        sending = feeders.run(send)
        for _ in range(count):
            known = opened.acknowledged or 0
            eventually(lambda known=known: (opened.acknowledged or 0) > known + 20)
            time.sleep(waits.uniform(0.0, 1.5))
            acknowledged = opened.acknowledged or 0
            found.append(Cut(disk.cut(), acknowledged))
        ending.set()
        sending.result(SECONDS)
    return found


def lost(spark: SparkSession, disk: Path, cut: Cut, feeders: Feeders, *, fsync: bool) -> set[bytes]:
    """The acknowledged messages that the sink does not have after a cut, when the connector has sent the others again.

    All of them if the query does not start. The connector cannot send again what was acknowledged.
    """
    with powered_on(cut.image, disk):
        try:
            with Sink(spark, disk, fsync=fsync) as sink:
                connector = feeders.connect("shop-a", addresses(sink.receiver))
                last = cut.acknowledged + MORE
                feeders.feed(connector, numbered("a", cut.acknowledged + 1, last)).result(SECONDS)
                values = sink.values()
        except Exception as error:
            print(str(error)[:300])
            if fsync:
                raise
            return set(payloads("a", 1, cut.acknowledged))
    assert len(values) == len(set(values))
    missing = set(payloads("a", 1, cut.acknowledged)) - set(values)
    assert missing or sorted(values) == sorted(payloads("a", 1, last))
    return missing


def another_boot(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What a machine that was started again says of itself."""
    (folder / "boot_id").write_text("another run of the machine")
    monkeypatch.setattr(power_loss, "BOOT", folder / "boot_id")


def test_an_acknowledged_message_is_there_after_a_loss_of_power(
    spark: SparkSession, tmp_path: Path, feeders: Feeders, monkeypatch: pytest.MonkeyPatch
) -> None:
    require_loop_devices()
    with CutDisk(tmp_path) as disk:
        found = cuts(spark, disk, 2, fsync=True)
    another_boot(tmp_path, monkeypatch)
    for cut in found:
        assert lost(spark, disk.mounted, cut, feeders, fsync=True) == set()


def test_without_fsync_the_same_cut_loses_acknowledged_messages(
    spark: SparkSession, tmp_path: Path, feeders: Feeders
) -> None:
    require_loop_devices()
    with CutDisk(tmp_path) as disk:
        [cut] = cuts(spark, disk, 1, fsync=False)
    assert lost(spark, disk.mounted, cut, feeders, fsync=False)


@pytest.mark.long
@pytest.mark.timeout(60 * SECONDS)
def test_an_acknowledged_message_is_there_after_many_losses_of_power(
    spark: SparkSession, tmp_path: Path, feeders: Feeders, monkeypatch: pytest.MonkeyPatch
) -> None:
    require_loop_devices()
    with CutDisk(tmp_path) as disk:
        found = cuts(spark, disk, 25, fsync=True, seed=7)
    print("acknowledged before each cut:", [cut.acknowledged for cut in found])
    another_boot(tmp_path, monkeypatch)
    for cut in found:
        assert lost(spark, disk.mounted, cut, feeders, fsync=True) == set()
