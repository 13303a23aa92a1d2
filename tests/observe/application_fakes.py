"""Snapshots of an application that does not exist."""

from __future__ import annotations

from wallaroo_spark.observe.application import (
    ApplicationStatus,
    GatewayStatus,
    GroupStatus,
    PartitionState,
    PipelineStatus,
    StageStatus,
)
from wallaroo_spark.observe.causes import with_cause
from wallaroo_spark.observe.receiver import QueryStatus

DURATIONS = {"latestOffset": 20, "walCommit": 15, "addBatch": 240, "commitOffsets": 18, "triggerExecution": 330}


def empty(time: float) -> ApplicationStatus:
    """An application whose schema has a stream alone, before its first batch."""
    gateway = GatewayStatus("g0", "serving", "127.0.0.1:7300", "node-0", 1, 1, 0.3)
    partitions = (PartitionState("shop/orders", 0),)
    query = QueryStatus("running", phase="idle", since=time)
    return with_cause(
        ApplicationStatus(
            "shop", time, "/data/shop", True, "node-0/1/ab", 1, query, gateways=(gateway,), partitions=partitions
        )
    )


def busy(time: float, *, step: int = 0, trouble: bool = False) -> ApplicationStatus:
    """A shop with orders in all stages; with ``trouble`` no program ships, and a gateway has died."""
    gateways = [
        GatewayStatus(
            f"g{number}", "serving", f"10.0.0.{number}:7300", f"node-{number}", 2, 1, 0.4, 7, 12, 0.3, 31, 40, 2, 180,
            counts={"inbox-events": 900.0 * step},
        )
        for number in range(3)
    ]  # fmt: skip
    if trouble:
        gateways[1] = GatewayStatus("g1", "down", submissions=4, last_error="ExecutorLostFailure (executor 1 exited)")
    partitions = tuple(
        PartitionState(
            "shop/orders", number, 1, 40_000 + 300 * step, 40_000 + 300 * step, 3,
            (
                GroupStatus("audit", 39_000 + 300 * step, 1_000, 2, True, 1, 0.4),
                GroupStatus("late", 5, 39_995, 0, True),
            ),
        )
        for number in range(4)
    )  # fmt: skip
    stages = (
        StageStatus("charge", (), members=8, waiting=4, running=60, done=9_000 + 80 * step, oldest=1.4),
        StageStatus("reserve", (), in_spark=True, done=9_100 + 80 * step),
        StageStatus("score-the-risk-of-this-order", ("charge",), members=4, running=3, done=8_900 + 70 * step),
        StageStatus(
            "ship", ("charge", "reserve"), members=0 if trouble else 6, waiting=70, running=0 if trouble else 12,
            done=8_000 + 60 * step, unserved=95.0 if trouble else None,
        ),
        StageStatus("tidy", ("ship", "score-the-risk-of-this-order"), members=2, done=7_990 + 60 * step),
    )  # fmt: skip
    pipelines = (
        PipelineStatus("shop/fulfil", "shop/orders", 50, 180, 420, 9_200, 7_990, 12, 1, 12, stages=stages),
        PipelineStatus(
            "shop/mail",
            "shop/shipments",
            20,
            2,
            0,
            810,
            800,
            stages=(StageStatus("send", members=1, running=2, done=800),),
        ),
    )
    query = QueryStatus(
        "running", committed_batch=100 + step, committed_at=time - 0.4, batch=101 + step, phase="writing",
        since=time - 0.2,
        reported_batch=100 + step, input_rows=2_700 + 10 * step, durations=DURATIONS,
    )  # fmt: skip
    return with_cause(
        ApplicationStatus(
            "shop",
            time,
            "/data/shop",
            True,
            "node-0/1/ab",
            3,
            query,
            1,
            0.4,
            98 + step,
            0,
            tuple(gateways),
            partitions,
            pipelines,
        )
    )
