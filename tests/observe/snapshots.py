"""Snapshots of a receiver for tests, with the parts that a test names."""

from __future__ import annotations

from typing import Any

from wallaroo_spark.observe.receiver import (
    InstanceStatus,
    QueryStatus,
    ReceiverStatus,
    SlotStatus,
    StreamStatus,
    Totals,
)

NOW = 1000.0


def slot(number: int = 0, state: str = "serving", **fields: Any) -> SlotStatus:
    return SlotStatus(number, state, **{"ready": True, "generation": 1, "sessions": 1, **fields})


def instance(name: str = "shop-1", state: str = "streaming", **fields: Any) -> InstanceStatus:
    given: dict[str, Any] = {"credits": 100, "last_frame_age": 0.1, "since": NOW - 60, **fields}
    return InstanceStatus(given.pop("slot", 0), name, state, **given)


def stream(stream_id: int = 7, **fields: Any) -> StreamStatus:
    return StreamStatus(fields.pop("slot", 0), "shop-1", "shop-1", stream_id, name="orders.jsonl", **fields)


def receiver(**fields: Any) -> ReceiverStatus:
    """A healthy receiver with one slot and one connector that sends."""
    given: dict[str, Any] = {
        "time": NOW,
        "running": True,
        "driver": "host/1/a",
        "query": QueryStatus("running", committed_batch=40, phase="idle"),
        "slots": (slot(),),
        "instances": (instance(),),
        "streams": (stream(),),
        **fields,
    }
    rows = sum(one.rows for one in given["slots"])
    given.setdefault("totals", Totals(rows=rows, sessions=len(given["instances"])))
    return ReceiverStatus("orders", **given)
