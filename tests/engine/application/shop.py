"""The shop of the tests: orders are charged outside Spark, reserved inside Spark, and then shipped."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tests.waiting import SECONDS
from wallaroo_spark.client import Client, Event, Output, stage
from wallaroo_spark.pipelines.schema.applying import apply_files
from wallaroo_spark.pipelines.schema.store import SchemaStore

if TYPE_CHECKING:
    from wallaroo_spark.client import StageWork

SCHEMA = """
kind: Namespace
name: shop
---
kind: Stream
name: orders
namespace: shop
partitions: 2
idempotencyWindow: 1h
---
kind: Stream
name: shipments
namespace: shop
---
kind: Stream
name: ledger
namespace: shop
---
kind: Stream
name: brief
namespace: shop
ttl: 1s
---
kind: Pipeline
name: fulfil
namespace: shop
inputStream: orders
triggers: [shop.order.created]
maxParallel: {most}
startPoint: {{location: beginning}}
stages:
  - name: charge
  - name: reserve
    run: tests.engine.application.stage_functions:reserve
  - name: ship
    dependencies: [root_event, charge, reserve]
    streamOutputs: [shipments]
  - name: tidy
    after: [ship]
"""
MORE = """
kind: Pipeline
name: more
namespace: shop
inputStream: ledger
triggers: [shop.counted]
stages:
  - name: count
    run: {function}
"""
"""A pipeline that is declared later."""
STAGES = ("charge", "reserve", "ship", "tidy")
ORDER = "shop.order.created"


def declare(folder: Path, most: int = 50) -> str:
    """Apply the shop's schema to an application below ``folder``; return the application's folder."""
    application = folder / "shop"
    apply(application, SCHEMA.format(most=most))
    return str(application)


def apply(application: Path, text: str) -> None:
    """Apply documents to an application."""
    document = application.with_suffix(".yaml")
    document.write_text(text, encoding="utf-8")
    apply_files(SchemaStore(str(application)), [str(document)], time.time())


def order(number: int) -> Event:
    """An order; the same number is the same event."""
    return Event(ORDER, {"order": number}, id=f"order-{number}", source="/tests/shop")


@stage("shop/fulfil", "charge")
def charge(work: StageWork) -> Any:
    """Charge for an order."""
    assert work.root_event is not None
    return {"paid": work.root_event.value["order"]}


@stage("shop/fulfil", "ship")
def ship(work: StageWork) -> Any:
    """Ship what is paid and reserved, and say so on a stream."""
    assert work.root_event is not None
    number = work.root_event.value["order"]
    return Output({"shipped": number}, streams={"shop/shipments": [Event("shop.shipped", {"order": number})]})


@stage("shop/fulfil", "tidy")
def tidy(work: StageWork) -> Any:
    """The last step, without an output."""
    return None


@contextmanager
def working(client: Client) -> Iterator[None]:
    """Within the block, the stages outside Spark have a worker."""
    thread = threading.Thread(target=lambda: client.work(charge, ship, tidy), name="stages", daemon=True)
    thread.start()
    try:
        yield
    finally:
        client.stop()
        thread.join(SECONDS)


def number_of(event: Event) -> int:
    """The number of the order that an event is about."""
    return int(event.value["order"])
