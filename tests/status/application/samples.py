"""Snapshots of applications that do not run."""

from __future__ import annotations

from typing import Any

from wallaroo_spark.status import QueryStatus
from wallaroo_spark.status.application.gauges import GaugeSum
from wallaroo_spark.status.application.model import ApplicationStatus, GatewayStatus
from wallaroo_spark.status.application.snapshot import PipelineShape, Shapes, StageShape, snapshot

NOW = 1_700_000_000.0
FULFIL = PipelineShape(
    "shop/fulfil",
    "shop/orders",
    50,
    (
        StageShape("charge", (), False),
        StageShape("reserve", (), True),
        StageShape("ship", ("charge", "reserve"), False),
    ),
)
SHAPES = Shapes(3, {"shop/orders": 2, "shop/shipments": 1}, (FULFIL,))


def queue(waiting: int = 0, running: int = 0, members: int = 0) -> dict[str, int]:
    return {"waiting": waiting, "running": running, "members": members}


def gauges(at: float, last: int = 0, *, cursor: int | None = None, did: Any = None, **stages: Any) -> dict[str, Any]:
    """The gauges of a partition of the orders after a turn at a time in seconds."""
    done = last if cursor is None else cursor
    active = sum(one["waiting"] + one["running"] for one in stages.values())
    pipeline = {"cursor": done, "active": active, "most": 50, "stages": stages}
    group = {"cursor": max(0, last - 4), "members": 1, "durable": True, "open": True, "since": at * 1000, "attempts": 2}
    found = {"at": at * 1000, "last": last, "first": 1}
    return {**found, "groups": {"audit": group}, "pipelines": {"shop/fulfil": pipeline}, "did": did or {}}


def base(**fields: Any) -> ApplicationStatus:
    """The facts of a driver whose application works."""
    known: dict[str, Any] = {
        "running": True,
        "driver": "node/1/abc",
        "query": QueryStatus("running", committed_batch=7, committed_at=NOW - 2, phase="idle", since=NOW - 2),
        "commit_age": 2.0,
        "gateways": (GatewayStatus("g0", "serving", "node:7300", age=0.5, members=2, submissions=1),),
    }
    return ApplicationStatus("shop", NOW, "/data/shop", **{**known, **fields})


def status(*batches: dict[str, Any], **fields: Any) -> ApplicationStatus:
    """A snapshot after these batches of the first partition of the orders."""
    total = GaugeSum()
    for batch, one in enumerate(batches):
        total.add(batch, {"shop/orders/0": one})
    return snapshot(base(**fields), total, SHAPES, [{"shop/fulfil charge": 12.0}])
