"""The power of a machine fails while an application runs: with ``fsync`` nothing that was answered is lost.

The disk is an image on a loop device, and a cut is a copy of it (``cut_disk.py``). An application is started on the
copy. Without ``fsync`` the same cuts lose what was answered, so the test can see a loss.
"""

from __future__ import annotations

import contextlib
import random
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import pytest

from tests.engine.application import shop
from tests.storage.cut_disk import CutDisk, powered_on, require_loop_devices
from tests.waiting import SECONDS, eventually
from wallaroo_spark import read_instances, read_stream
from wallaroo_spark.client import Client, Event, EventPlace
from wallaroo_spark.engine import Application
from wallaroo_spark.errors import WallarooError
from wallaroo_spark.registry import EmbeddedRedis

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.timeout(20 * SECONDS)


class Cut(NamedTuple):
    """A cut of the power."""

    image: Path
    """The image of the disk."""
    answered: dict[str, EventPlace | None]
    """The events that were answered before, by id; without a place if they were answered as received."""


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[CutDisk]:
    require_loop_devices()
    with CutDisk(tmp_path) as mounted:
        yield mounted


def application(spark: SparkSession, redis: EmbeddedRedis, folder: Path, *, fsync: bool) -> Application:
    return Application(
        spark,
        str(folder),
        name=folder.parent.name,
        registry=redis.url,
        state_partitions=2,
        move_seconds=0.2,
        fsync=fsync,
        status_page="off",
    )


class Publisher:
    """Publishes to two streams of the shop, one event after the other, for as long as the block lasts."""

    def __init__(self, client: Client) -> None:
        self._client = client
        self._ending = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self.answered: dict[str, EventPlace | None] = {}

    def __enter__(self) -> Publisher:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ending.set()
        self._thread.join(SECONDS)

    def _run(self) -> None:
        for number in range(1_000_000):
            if self._ending.is_set():
                return
            order = shop.order(number)
            [place] = self._client.publish("shop/orders", order)
            self.answered[order.id] = place
            entry = Event("t", number, id=f"entry-{number}", source="/tests/power")
            self._client.publish("shop/ledger", entry, durability="received")
            self.answered[entry.id] = None


def cuts(
    spark: SparkSession, redis: EmbeddedRedis, disk: CutDisk, count: int, *, fsync: bool, seed: int = 1
) -> list[Cut]:
    """Run the shop on a disk, and cut its power that many times, at moments that the seed decides."""
    waits = random.Random(seed)
    folder = Path(shop.declare(disk.mounted))
    found: list[Cut] = []
    with (
        application(spark, redis, folder, fsync=fsync) as running,
        Client(registry=redis.url, application=running.name, timeout=SECONDS) as client,
        shop.working(client),
        Publisher(client) as publisher,
    ):
        for _ in range(count):
            known = len(publisher.answered)
            eventually(lambda known=known: len(publisher.answered) > known + 2)
            time.sleep(waits.uniform(0.0, 1.5))
            answered = dict(publisher.answered)
            found.append(Cut(disk.cut(), answered))
    return found


def lost(spark: SparkSession, redis: EmbeddedRedis, cut: Cut, *, fsync: bool) -> set[str]:
    """The answered events that an application does not have after a cut; all of them if it does not start."""
    with powered_on(cut.image) as at, contextlib.ExitStack() as last:
        folder = at / "shop"
        running = application(spark, redis, folder, fsync=fsync)
        last.callback(running.stop)
        try:
            running.start()
            client = last.enter_context(Client(registry=redis.url, application=running.name, timeout=SECONDS))
            last.enter_context(shop.working(client))
            # Whatever is answered now comes behind what was answered before.
            last_order = shop.order(10_000_000)
            client.publish("shop/orders", last_order)
            client.publish("shop/ledger", Event("t", 0, id="last", source="/tests/power"))
        except WallarooError as error:
            print(error)
            return set(cut.answered)
        except Exception as error:
            # Spark's own, of a file that it cannot read.
            print(str(error)[:200])
            return set(cut.answered)
        orders = in_table(spark, folder, "orders", last_order.id)
        entries = in_table(spark, folder, "ledger", "last")
        assert len({one for _, one in orders}) == len(orders)
        found = {one: place for place, one in orders} | {one: None for _, one in entries}
        assert len(found) == len(orders) + len(entries)
        missing = {one for one, place in cut.answered.items() if one not in found}
        for one, place in cut.answered.items():
            if place is not None and one not in missing:
                assert found[one] == (place.partition, place.offset)
        if not missing:
            eventually(lambda: all_done(spark, folder, len(orders)), pause=0.2)
        return missing


def in_table(spark: SparkSession, folder: Path, stream: str, last: str) -> list[tuple[tuple[int, int], str]]:
    """The places and ids of the records of a stream, once the last one is there."""

    def read() -> list[tuple[tuple[int, int], str]]:
        rows = read_stream(spark, str(folder), f"shop/{stream}").select("partition", "offset", "id").collect()
        found = [((row.partition, row.offset), row.id) for row in rows]
        return found if any(one == last for _, one in found) else []

    return eventually(read, pause=0.2)


def all_done(spark: SparkSession, folder: Path, count: int) -> bool:
    """Whether each order has one instance, which is done, and one shipment."""
    outcomes = [row.outcome for row in read_instances(spark, str(folder)).select("outcome").collect()]
    assert len(outcomes) <= count
    return outcomes == ["done"] * count and read_stream(spark, str(folder), "shop/shipments").count() == count


def test_what_was_answered_is_there_after_a_loss_of_power(
    spark: SparkSession, disk: CutDisk, own_redis: EmbeddedRedis
) -> None:
    for cut in cuts(spark, own_redis, disk, 1, fsync=True):
        assert lost(spark, own_redis, cut, fsync=True) == set()


def test_without_fsync_the_same_cut_loses_what_was_answered(
    spark: SparkSession, disk: CutDisk, own_redis: EmbeddedRedis
) -> None:
    [cut] = cuts(spark, own_redis, disk, 1, fsync=False)
    assert lost(spark, own_redis, cut, fsync=False)


@pytest.mark.long
@pytest.mark.timeout(60 * SECONDS)
def test_what_was_answered_is_there_after_many_losses_of_power(
    spark: SparkSession, disk: CutDisk, own_redis: EmbeddedRedis
) -> None:
    found = cuts(spark, own_redis, disk, 25, fsync=True, seed=7)
    answered = [len(cut.answered) for cut in found]
    print("answered before each cut:", answered)
    for cut in found:
        assert lost(spark, own_redis, cut, fsync=True) == set()
