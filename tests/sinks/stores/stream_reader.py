"""The events that the sink ``stream`` has made readable, as the application's source finds them."""

from __future__ import annotations

import time
from pathlib import Path
from typing import NamedTuple

from wallaroo_spark.engine.source.datasource import divided, read_rows
from wallaroo_spark.engine.source.inputs import InputFiles
from wallaroo_spark.engine.source.plan import InputOffset, next_offset
from wallaroo_spark.pipelines.controller.messages.events import RecordsPublished
from wallaroo_spark.pipelines.controller.messages.values import PartitionKey
from wallaroo_spark.pipelines.controller.stored.encoding import decode
from wallaroo_spark.pipelines.schema.applying import apply_files
from wallaroo_spark.pipelines.schema.cloud_event import CloudEvent
from wallaroo_spark.pipelines.schema.store import SchemaStore

SCHEMA = """
kind: Namespace
name: shop
---
kind: Stream
name: orders
namespace: shop
partitions: {partitions}
---
kind: Stream
name: refused
namespace: shop
"""


class Placed(NamedTuple):
    """A published event."""

    key: PartitionKey
    """The partition that is told."""
    divided: int
    """The number of partitions among which it was divided; 0 when the row has named its own."""
    event: CloudEvent
    """The event."""


def declare(folder: Path, partitions: int = 1) -> str:
    """Apply a schema with the streams ``shop/orders`` and ``shop/refused`` to an application; return its folder."""
    folder.mkdir(parents=True, exist_ok=True)
    document = folder / "shop.yaml"
    document.write_text(SCHEMA.format(partitions=partitions), encoding="utf-8")
    apply_files(SchemaStore(str(folder / "shop")), [str(document)], time.time())
    return str(folder / "shop")


def published(application: str, most_rows: int = 1_000_000) -> list[Placed]:
    """All events of the inbox, in the order in which batches of the application read them."""
    inputs, start, found = InputFiles(application), InputOffset(), list[Placed]()
    while (end := next_offset(start, inputs.look(start), most_rows)).inbox != start.inbox:
        rows = [row for task in divided(application, inputs.content(start, end)) for piece in read_rows(task)
                for row in piece.to_pylist()]  # fmt: skip
        for row in sorted(rows, key=lambda row: (row["rank"], row["origin"], row["sequence"], row["place"])):
            event = decode(row["event"]) if row["event"] else None
            if isinstance(event, RecordsPublished):
                key = PartitionKey(row["stream"], row["partition"])
                found += [Placed(key, event.partitions, record) for record in event.records]
        start = end
    return found


def payloads(application: str) -> list[str]:
    """Their payloads, as texts."""
    return [(one.event.data or b"").decode() for one in published(application)]
