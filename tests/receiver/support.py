"""Common parts of the tests of the whole path: connectors that feed a receiver, and sinks that keep each batch."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, Self

from pyspark.sql import DataFrame, Row, SparkSession

from wallaroo_spark.connector import Backoff, BlockingConnector, FeedResult, Record, Records
from wallaroo_spark.receiver import Receiver

COOKIE = "biscuit"
QUICK = Backoff(initial=0.05, maximum=0.5, give_up_after=120)


def addresses(receiver: Receiver) -> str:
    """Where the receiver's workers listen, as connectors are told."""
    return ",".join(receiver.addresses)


def payload(stream: str, number: int) -> bytes:
    """The payload of message ``number`` of a stream."""
    return f"{stream} {number}".encode()


def payloads(stream: str, first: int, last: int) -> list[bytes]:
    """The payloads of the messages from ``first`` to ``last``, in order."""
    return [payload(stream, number) for number in range(first, last + 1)]


def numbered(stream: str, first: int, last: int) -> Records:
    """A replayable source of the messages from ``first`` to ``last``."""
    return Records(stream, lambda: [Record(number, payload(stream, number)) for number in range(first, last + 1)])


class Feeders:
    """Connectors that feed sources, each in a thread of its own, until all is acknowledged."""

    def __init__(self) -> None:
        self._pool = ThreadPoolExecutor(16, "feeder")
        self._connectors: list[BlockingConnector] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for connector in self._connectors:
            connector.close()
        self._pool.shutdown(cancel_futures=True)

    def connect(self, instance: str, workers: str = "", **settings: Any) -> BlockingConnector:
        """A connector that comes back quickly; closed in the end."""
        if "registry" not in settings:
            settings["workers"] = workers
        given = {"cookie": COOKIE, "retry": QUICK, **settings}
        connector = BlockingConnector("orders", instance=instance, **given)
        self._connectors.append(connector)
        return connector

    def feed(self, connector: BlockingConnector, source: Records, *, end: bool = True) -> Future[FeedResult]:
        """Feed a source; the future's result comes when all of it is acknowledged."""
        return self._pool.submit(connector.feed, source, end=end)

    def run(self, work: Callable[[], Any]) -> Future[Any]:
        """Something else that blocks."""
        return self._pool.submit(work)


class Batches:
    """A foreachBatch sink that keeps each batch's rows under its number, so a batch that is run again counts once.

    ``hold`` has batches wait before they are done, until ``go()``; ``entered`` is set while one waits. While ``broken``
    is set, the first batch that has rows fails.
    """

    def __init__(self) -> None:
        self.rows: dict[int, list[Row]] = {}
        self.entered = threading.Event()
        self._gate = threading.Event()
        self._held: Callable[[int], bool] = lambda number: False
        self.broken = False

    def hold(self, batch: Callable[[int], bool]) -> None:
        """Have batches with these numbers wait, after they have read their rows."""
        self.entered.clear()
        self._gate.clear()
        self._held = batch

    def go(self) -> None:
        """Let a held batch go, and all that follow."""
        self._held = lambda number: False
        self._gate.set()

    def __call__(self, frame: DataFrame, number: int) -> None:
        rows = frame.collect()
        if rows and self.broken:
            raise RuntimeError("the sink is broken")
        if self._held(number):
            self.entered.set()
            assert self._gate.wait(120)
        self.rows[number] = rows

    @property
    def all(self) -> list[Row]:
        """The rows of all batches, in the order of the batches and of the rows within."""
        return [row for number in sorted(self.rows) for row in self.rows[number]]

    def values(self, stream: str) -> list[bytes]:
        """The received payloads of a stream, in order."""
        return [bytes(row.value) for row in self.all if row.stream == stream]


def rows_of(spark: SparkSession, receiver: Receiver, **options: Any) -> DataFrame:
    """The receiver's stream read by format name, with options of its own for this one query."""
    return spark.readStream.format("wallaroo").option("receiver", receiver.name).options(**options).load()
