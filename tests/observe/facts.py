"""Snapshots of a receiver, as tests of metrics and health need them."""

from __future__ import annotations

from typing import Any

from wallaroo_spark.observe.receiver import QueryStatus, ReceiverStatus, SlotStatus


def slot(number: int = 0, generation: int = 1, **fields: Any) -> SlotStatus:
    """A slot whose worker serves."""
    known = {"state": "serving", "holder": f"host/{generation}", "pid": 100 + generation, "submissions": 1}
    return SlotStatus(number, generation=generation, **{**known, **fields})


def receiver(*slots: SlotStatus, time: float = 1000.0, **fields: Any) -> ReceiverStatus:
    """A receiver whose query runs."""
    known: dict[str, Any] = {"running": True, "driver": "host/1/abc", "query": QueryStatus("running", id="q")}
    return ReceiverStatus("orders", time, slots=slots, **{**known, **fields})
