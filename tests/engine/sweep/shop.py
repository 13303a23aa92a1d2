"""The application of the sweep: the shop of the examples with a stage in Spark, a transaction and two more streams."""

from __future__ import annotations

import json
import random
import threading
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow.parquet as pq

from proving.shop.judge import INPUTS, OUTPUTS, StreamRecord, Verdict, judge, rows_of
from tests.conftest import ROOT
from tests.waiting import SECONDS
from wallaroo_spark.client import Client, Event, Output, StageWork, stage
from wallaroo_spark.pipelines.schema.applying import apply_files
from wallaroo_spark.pipelines.schema.store import SchemaStore

MOST = (2, 3)
"""The values of ``maxParallel`` that versions of the schema have in turn."""
STREAMS = sorted({*INPUTS.values(), *(name for names in OUTPUTS.values() for name in names)})
REFUSED = 3
"""Each order whose number this divides fails, and is compensated."""
TIMEOUT = 15 * SECONDS
_RETRY = "    retry: {maxAttempts: 10, delay: 200ms, maxDelay: 500ms, deadLetterStream: failed}\n"
_CHANGES = {
    "maxParallel: 20": "maxParallel: {most}",
    # Each death of a worker or a gateway costs a delivery, so only the stage in Spark has a limit of them.
    _RETRY: "    after: [reserve]\n",
    "  - name: reserve\n": "  - name: reserve\n    run: tests.engine.sweep.shop:reserve\n"
    + _RETRY.replace("10,", "3,"),
}
_MORE = """
---
kind: Stream
name: ledger
namespace: shop
---
kind: Stream
name: reminders
namespace: shop
idempotencyWindow: 1h
---
kind: Stream
name: ticks
namespace: shop
idempotencyWindow: 1h
ttl: 1s
"""


def apply(folder: Path, version: int, *, quick: bool = False) -> None:
    """Apply a version of the schema; each has another ``maxParallel`` than the one before. ``quick``: with short
    delays between the deliveries of a stage."""
    text = (ROOT / "examples" / "shop" / "shop.yaml").read_text(encoding="utf-8")
    for old, new in _CHANGES.items():
        assert old in text
        text = text.replace(old, new.replace("{most}", str(MOST[version % 2])))
    if quick:
        text = text.replace("delay: 200ms, maxDelay: 500ms", "delay: 10ms, maxDelay: 20ms")
    document = folder.with_name("shop.yaml")
    document.write_text(text + _MORE, encoding="utf-8")
    apply_files(SchemaStore(str(folder)), [str(document)], time.time())


def _order(work: StageWork) -> Any:
    assert work.root_event is not None
    return work.root_event.value


def reserve(deliveries: pd.DataFrame) -> pd.DataFrame:
    """The stage that runs in Spark. There are no goods for some orders."""
    orders = [root["data"]["order"] for root in deliveries["root_event"]]
    if missing := [order for order in orders if not order % REFUSED]:
        raise ValueError(f"no goods for {missing}")
    return deliveries[[]].assign(output=[{"shelf": order % 7} for order in orders])


@stage("shop/fulfil", "pay", concurrency=2)
def pay(work: StageWork) -> Output:
    """Charge the customer."""
    order = _order(work)
    return Output(order, streams={"shop/receipts": Event("shop.order.paid", order)})


@stage("shop/fulfil", "ship", concurrency=2)
async def ship(work: StageWork) -> Output:
    """The ledger and the shipment are written with the output, or not at all."""
    told = {"order": _order(work)["order"], **work.outputs["reserve"]}
    transaction = await work.begin()
    await transaction.publish("shop/ledger", Event("shop.order.booked", told))
    return Output(told, streams={"shop/shipments": Event("shop.order.shipped", told)})


@stage("shop/compensate", "release", concurrency=2)
def release(work: StageWork) -> Any:
    """Give the goods back."""
    return {"order": _order(work)["order"]}


@stage("shop/compensate", "refund", concurrency=2)
def refund(work: StageWork) -> Output:
    """Tell the customer."""
    told = work.outputs["release"]
    return Output(told, streams={"shop/returns": Event("shop.order.returned", told)})


class Shop:
    """The publisher, the workers and the tables of one application."""

    def __init__(self, folder: Path, registry: str) -> None:
        self.folder, self._registry = folder, registry
        self.published = 0
        """Orders that were published; each is committed. Their numbers begin with 1."""
        self.reminders = 0
        self.ticks = 0
        self.answered: dict[int, tuple[int, int]] = {}
        """Order → the partition and the offset that its publisher was told."""
        self._files: dict[Path, list[dict[str, Any]]] = {}
        """The rows of the files of the history that were read; a file never changes."""

    def client(self) -> Client:
        """A client of the application, which finds it again after each death."""
        return Client(registry=self._registry, application=self.folder.name, source="/tests/sweep", timeout=TIMEOUT)

    @contextmanager
    def working(self) -> Iterator[None]:
        """Within the block, all stages outside Spark have a worker."""
        with self.client() as client:
            work = threading.Thread(target=lambda: client.work(pay, ship, release, refund), daemon=True)
            work.start()
            try:
                yield
            finally:
                client.stop()
                work.join(SECONDS)

    def publish(self, client: Client, orders: int = 2) -> None:
        """Publish orders, a delayed reminder and a tick that expires soon, and wait for their commits."""
        for number in range(self.published + 1, self.published + orders + 1):
            event = Event("shop.order.created", {"order": number, "price": number}, id=f"order-{number}")
            [place] = client.publish("shop/orders", event)
            self.answered[number] = place.partition, place.offset
        self.published += orders
        self.reminders += 1
        reminder = Event("shop.reminder", {"order": self.reminders}, id=f"reminder-{self.reminders}")
        client.publish("shop/reminders", reminder, delay=random.uniform(0.1, 2))
        self.ticks += 1
        client.publish("shop/ticks", Event("shop.tick", {"order": self.ticks}, id=f"tick-{self.ticks}"))

    def ended(self) -> int:
        """Number of instances that have ended."""
        return sum(row["kind"] == "ended" for row in self._history())

    @property
    def expected(self) -> int:
        """Number of instances that there will be: those that cannot be paid have a second one."""
        return self.published + self.published // REFUSED

    def verdict(self) -> Verdict:
        """Judge the tables, when all is done and the driver has ended in good order."""
        published = range(1, self.published + 1)
        unpayable = [number for number in published if not number % REFUSED]
        streams = {name: self._records(name) for name in STREAMS}
        verdict = judge(published, rows_of(self._history()), streams, unpayable)
        booked = Counter(one.order for one in self._records("shop/ledger"))
        paid = Counter(set(published) - set(unpayable))
        verdict.expect(booked == paid, f"shop/ledger: {booked - paid} too many, {paid - booked} missing")
        reminded = Counter(one.order for one in self._records("shop/reminders"))
        wanted = Counter(range(1, self.reminders + 1))
        verdict.expect(reminded == wanted, f"shop/reminders: {reminded - wanted} too many, {wanted - reminded} missing")
        ticks = self._records("shop/ticks")
        kept = sorted(one.offset for one in ticks)
        verdict.expect(kept == list(range(self.ticks - len(kept) + 1, self.ticks + 1)), f"shop/ticks has {kept}")
        verdict.counts["expired"] = self.ticks - len(kept)
        places = {one.order: (one.partition, one.offset) for one in streams["shop/orders"]}
        verdict.expect(places == self.answered, "publishers were told other offsets than those of their orders")
        most = verdict.most_active["shop/fulfil"]
        verdict.expect(most <= max(MOST), f"{most} instances were active, and maxParallel was never above {max(MOST)}")
        return verdict

    def _history(self) -> Sequence[dict[str, Any]]:
        for file in (self.folder / "history").glob("*.parquet"):
            if file not in self._files:
                self._files[file] = pq.ParquetFile(file).read().to_pylist()
        return [row for rows in self._files.values() for row in rows]

    def _records(self, stream: str) -> list[StreamRecord]:
        return [
            StreamRecord(int(file.parent.name.partition("=")[2]), row["offset"], row["data"])
            for file in sorted((self.folder / "streams" / stream).glob("partition=*/*.parquet"))
            for row in pq.ParquetFile(file).read().to_pylist()
        ]


def describe(verdict: Verdict) -> str:
    """The broken promises and the counts, for a message."""
    return json.dumps([verdict.broken, verdict.counts, verdict.most_active], indent=1)
