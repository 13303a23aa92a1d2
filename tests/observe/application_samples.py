"""Snapshots of applications that do not run."""

from __future__ import annotations

from typing import Any

from wallaroo_spark.observe.application import ApplicationStatus, GatewayStatus, PipelineStatus, StageStatus
from wallaroo_spark.observe.published import GaugeSum, Shapes, snapshot
from wallaroo_spark.observe.receiver import QueryStatus

NOW = 1_700_000_000.0
FULFIL = PipelineStatus(
    "shop/fulfil",
    "shop/orders",
    50,
    stages=(
        StageStatus("charge", (), False),
        StageStatus("reserve", (), True),
        StageStatus("ship", ("charge", "reserve"), False),
    ),
)
SHAPES = Shapes(3, {"shop/orders": 2, "shop/shipments": 1}, (FULFIL,))


def queue(**figures: Any) -> dict[str, Any]:
    """A stage of the pipeline on one partition."""
    return figures


def gauges(at: float, last: int = 0, *, cursor: int | None = None, did: Any = None, **stages: Any) -> dict[str, Any]:
    """The gauges of a partition of the orders after a turn at a time in seconds; ``did`` are counts of the pipeline."""
    done = last if cursor is None else cursor
    active = sum(one.get("waiting", 0) + one.get("running", 0) for one in stages.values())
    audit = {"group": "audit", "cursor": max(0, last - 4), "lag": min(4, last), "members": 1, "durable": True}
    groups = [{**audit, "since": at, "attempts": 2}]
    listed = [{"stage": name, **one} for name, one in stages.items()]
    pipeline = {"pipeline": "shop/fulfil", "active": active, "lag": last - done, "stages": listed, **(did or {})}
    partition = {"stream": "shop/orders", "partition": 0, "first": 1, "last": last, "groups": groups}
    return {"at": at, "partition": partition, "pipelines": [pipeline]}


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
