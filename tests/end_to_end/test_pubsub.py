"""Totals of orders, batch by batch, to subscribers that come and go, while workers, publishers and the driver are
killed: each sees whole epochs only, none twice, and none missing behind its first.
"""

from __future__ import annotations

import json
import os
import random
import select
import signal
import subprocess
import threading
from collections import defaultdict
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil
import pytest

from proving.processes import descendants, listeners
from tests.pubsub.running import COOKIE, TOPIC, Client
from tests.receiver.drivers import Drivers
from tests.receiver.support import Feeders
from tests.waiting import eventually
from wallaroo_spark.pubsub.messages import Snapshot
from wallaroo_spark.pubsub.subscribing.subscription import Subscription, subscribe
from wallaroo_spark.pubsub.times import Epoch
from wallaroo_spark.pubsub.topic_catalog import TopicCatalog
from wallaroo_spark.registry import EmbeddedRedis
from wallaroo_spark.registry.embedded import lasting_port

SEED = 20261121
LEAD = 60
"""Messages that a connector sends before the first of them is acknowledged."""
MOST_EPOCHS = 5
SECONDS = 240.0
"""How long anything may take: a machine that has much else to do is no failure."""

Row = list[object]


@dataclass
class Visit:
    """The items of a subscriber from its start to its end: rows by epoch, and the frontier."""

    rows: dict[int, list[Row]] = field(default_factory=lambda: defaultdict(list))
    frontiers: list[int] = field(default_factory=list)

    def check(self, published: Callable[[int], list[Row]]) -> None:
        """Check that the epochs are whole, from the first one to the last, and that no incomplete epoch has rows."""
        assert self.frontiers == sorted(set(self.frontiers))
        if not self.rows:
            return
        first, end = min(self.rows), self.frontiers[-1]
        assert first >= self.frontiers[0]
        shown = {epoch: sorted(rows) for epoch, rows in self.rows.items()}
        assert shown == {epoch: rows for epoch in range(first, end) if (rows := published(epoch))}


class Play:
    """A driver that publishes, connectors that feed it, and subscribers in threads."""

    def __init__(self, folder: Path, stack: ExitStack) -> None:
        self.folder = folder
        self.registry = stack.enter_context(EmbeddedRedis()).url
        self.drivers = stack.enter_context(Drivers(folder, "tests.pubsub.driver"))
        self.topics = stack.enter_context(TopicCatalog(self.registry))
        self.feeders = stack.enter_context(Feeders())
        self.pool = stack.enter_context(ThreadPoolExecutor(8, "subscriber"))
        self.enough = threading.Event()
        self._open: set[Subscription] = set()
        stack.callback(self._leave)
        self.port = lasting_port(range(2))
        self.driver = self.start()

    def start(self) -> subprocess.Popen[bytes]:
        return self.drivers.start(self.port, self.registry)

    def feed(self, name: str) -> Future[None]:
        """Send orders for as long as there are not enough."""
        connector = self.feeders.connect(name, f"127.0.0.1:{self.port},127.0.0.1:{self.port + 1}")

        def send() -> None:
            stream, number = connector.open(name), 0
            while not self.enough.wait(0.02):
                while number < (stream.acknowledged or 0) + LEAD:
                    number += 1
                    stream.send(str(number).encode(), id=number)

        return self.feeders.run(send)

    def visit(self, leave: Callable[[Visit], bool]) -> Visit:
        """Subscribe, and take items until ``leave`` returns true at a frontier, or the topic ends."""
        seen = Visit()
        with subscribe(TOPIC, registry=self.registry, cookie=COOKIE, wait=SECONDS, lost_after=SECONDS) as subscription:
            self._open.add(subscription)
            for item in subscription:
                if isinstance(item, Epoch):
                    assert isinstance(item.epoch, int)
                    for row in item.batch.to_pylist():
                        seen.rows[item.epoch].append([row["instance"], row["total"], row["orders"]])
                else:
                    (time,) = item.frontier
                    assert isinstance(time, int)
                    seen.frontiers.append(time)
                    if leave(seen):
                        break
        self._open.discard(subscription)
        return seen

    def _leave(self) -> None:
        self.enough.set()
        for subscription in list(self._open):
            subscription.close()

    def comes_and_goes(self, seed: int) -> Future[list[Visit]]:
        """Subscribe again and again, for some epochs each time."""
        chance = random.Random(seed)

        def run() -> list[Visit]:
            visits = []
            while not self.enough.is_set():
                most = chance.randint(1, MOST_EPOCHS)
                visits.append(self.visit(lambda seen, most=most: len(seen.rows) >= most or self.enough.is_set()))
            return visits

        return self.pool.submit(run)

    def stays(self) -> Future[Visit]:
        """Subscribe until the topic ends."""
        return self.pool.submit(lambda: self.visit(lambda seen: False))

    def committed(self) -> int:
        """The newest batch that is committed, -1 before the first."""
        folder = self.folder / "checkpoint" / "commits"
        return max((int(path.name) for path in folder.glob("[0-9]*")), default=-1)

    def until(self, batch: int) -> None:
        """Wait until a batch is committed."""

        def there() -> bool:
            assert self.driver.poll() is None, self.drivers.log(self.driver)
            return self.committed() >= batch

        eventually(there, seconds=SECONDS)

    def go_on(self, batches: int) -> None:
        """Wait until so many more batches are committed."""
        self.until(self.committed() + batches)

    def published(self, batch: int) -> list[Row]:
        """The totals of a batch."""
        rows: list[Row] = json.loads((self.folder / "totals" / f"{batch}.json").read_text())
        return rows

    def kill_worker(self) -> None:
        """Kill the process of the first of the receiver's workers."""
        self._signal(self.port, signal.SIGKILL)

    def address(self, partition: int) -> str:
        """Where a partition is served now, empty while it is not."""
        place = self.topics.served(TOPIC).get(partition)
        return place.address if place is not None else ""

    def freeze_publisher(self, partition: int, batches: int) -> tuple[str, list[psutil.Process]]:
        """Stop what serves a partition while so many batches are committed; where it serves it, and the processes.

        On a slow machine that lasts so long that the driver may have given them up, and Spark ended them, meanwhile.
        """
        eventually(lambda: self.address(partition), seconds=SECONDS)
        address = self.address(partition)
        stopped = self._signal(int(address.rpartition(":")[2]), signal.SIGSTOP)
        self.go_on(batches)
        return address, stopped

    def kill_publisher(self, partition: int, behind: int) -> None:
        """Kill the process that serves a partition when it is so many batches behind, and wait until another does."""
        address, stopped = self.freeze_publisher(partition, behind)
        for process in stopped:
            with suppress(psutil.NoSuchProcess):
                process.kill()
        eventually(lambda: self.address(partition) not in (address, ""), seconds=SECONDS)

    def _signal(self, port: int, number: int) -> list[psutil.Process]:
        eventually(lambda: listeners(port, descendants(self.driver.pid)), seconds=SECONDS)
        processes = [psutil.Process(pid) for pid in listeners(port, descendants(self.driver.pid))]
        for process in processes:
            process.send_signal(number)
        return processes

    def kill_driver(self) -> None:
        """Kill the driver and all that runs in it, and start another on the same checkpoint."""
        os.killpg(self.driver.pid, signal.SIGKILL)
        self.driver.wait()
        self.driver = self.start()


@pytest.fixture
def play(tmp_path: Path) -> Iterator[Play]:
    with ExitStack() as stack:
        yield Play(tmp_path, stack)


def slow_one(play: Play, partition: int) -> Client:
    """Somebody who subscribes and does not read."""
    eventually(lambda: play.address(partition), seconds=SECONDS)
    client = Client(play.address(partition), receive_bytes=4096)
    client.hello(partition)
    assert isinstance(client.take(), Snapshot)
    return client


def is_cut_off(client: Client) -> bool:
    """Whether the publisher has closed, whatever of it was not read."""
    poll = select.poll()
    poll.register(client.fileno(), select.POLLHUP)
    return bool(poll.poll(0))


@pytest.mark.long
@pytest.mark.spark
@pytest.mark.timeout(900)
def test_changing_subscribers_get_whole_epochs_while_every_process_is_killed(play: Play) -> None:
    feeds = [play.feed(name) for name in ("shop-a", "shop-b", "shop-c", "shop-d")]
    guests = [play.comes_and_goes(SEED + number) for number in range(3)]
    play.until(1)
    with slow_one(play, 1) as slow:
        play.go_on(2)
        late = play.stays()
        play.kill_publisher(0, behind=0)
        play.go_on(2)
        play.kill_worker()
        play.go_on(2)
        eventually(lambda: is_cut_off(slow), seconds=SECONDS)
        play.go_on(2)
    play.kill_publisher(1, behind=2)
    play.go_on(2)
    play.freeze_publisher(0, 1)
    play.kill_driver()
    play.go_on(3)
    futures: list[Future[Any]] = [*feeds, *guests, late]
    assert not any(future.done() for future in futures), "none of them has failed"

    play.enough.set()
    for feed in feeds:
        feed.result(SECONDS)
    play.drivers.end(play.driver)
    stayed = late.result(SECONDS)
    visits = [one for guest in guests for one in guest.result(SECONDS)]

    for one in (*visits, stayed):
        one.check(play.published)
    assert stayed.frontiers[-1] == play.committed() + 1
    assert sum(len(one.rows) for one in visits) > play.committed()
    assert len(visits) > 6
