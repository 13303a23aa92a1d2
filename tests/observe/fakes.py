"""Snapshots of a receiver that does not exist."""

from __future__ import annotations

import dataclasses
import math

from wallaroo_spark.observe.causes import with_causes
from wallaroo_spark.observe.receiver import (
    Cause,
    InstanceStatus,
    QueryStatus,
    ReceiverStatus,
    SinkStatus,
    SlotStatus,
    StreamStatus,
    Totals,
)
from wallaroo_spark.runtime.long_jobs import Death

BUDGET = 256 << 20


def running(time: float, *, step: int = 0, trouble: str = "", slots: int = 2, streams: int = 6) -> ReceiverStatus:
    """A receiver with connectors that send; ``trouble`` is ``sink``, ``lost`` or empty."""
    rows_in = [int(12_000 * step + 4_000 * math.sin(step / 9 + slot) * step / 20) for slot in range(slots)]
    age = 0.4 + 0.3 * math.sin(step / 5) + (6.5 if trouble == "sink" else 0)
    fleet = tuple(
        SlotStatus(
            slot,
            "serving",
            holder=f"worker-{slot}",
            host=f"node-{slot % 3}",
            executor=str(slot % 3),
            generation=1,
            submissions=1,
            ready=True,
            memory_budget=BUDGET,
            memory_used=(40 + slot % 7) << 20,
            sessions=1,
            instances=1,
            streams=streams // slots,
            rows=9_000,
            rows_in=rows_in[slot],
            rows_out=max(0, rows_in[slot] - 9_000),
            ack_age=age,
            credits=500,
        )
        for slot in range(slots)
    )
    if trouble == "lost":
        death = Death(time - 4, 1, "ExecutorLostFailure (executor 1 exited caused by one of the running tasks)")
        fleet = (
            dataclasses.replace(
                fleet[0], state="lost", died=1, deaths=(death,), last_error=death.error, submissions=2, sessions=0
            ),
            *fleet[1:],
        )
    instances = tuple(
        InstanceStatus(
            one.slot,
            f"shop-{one.slot}",
            "streaming",
            since=time - step,
            revision="draft-be",
            program="orders",
            peer=f"10.0.0.{one.slot % 250}:40112",
            credits=500,
            frames=one.rows_in,
            last_frame_age=0.1,
            streams=streams // slots,
            open_streams=streams // slots,
            rows=9_000,
            bytes=3 << 20,
            rows_in=one.rows_in,
            rows_out=one.rows_in - 9_000,
            ack_age=age,
        )
        for one in fleet
        if one.state == "serving"
    )
    flows = tuple(
        StreamStatus(
            one.slot,
            one.name,
            one.name,
            number,
            f"orders-{one.slot}-{number}.jsonl",
            received=1_000 * step + number,
            planned=1_000 * step - 2_000,
            committed=1_000 * step - 4_000,
            rows=4_000,
            bytes=1 << 20,
            lag_rows=2_000,
            ack_age=age + number / 10,
            rows_in=one.rows_in // 3,
            rows_out=one.rows_in // 3 - 4_000,
        )
        for one in instances
        for number in range(one.streams)
    )
    batch = step // 2
    work = 260 + 90 * (batch % 5) + (6_000 if trouble == "sink" and batch % 4 == 0 else 0)
    query = QueryStatus(
        "running",
        id="8b0c",
        run_id="11aa",
        checkpoint="file:/var/lib/orders/checkpoint",
        trigger="as soon as possible",
        committed_batch=batch,
        committed_at=time - 0.5,
        batch=batch + 1,
        phase="writing",
        since=time - (66.2 if trouble == "sink" else 0.3),
        reported_batch=batch,
        input_rows=24_000,
        durations={
            "latestOffset": 8,
            "getBatch": 0,
            "queryPlanning": 21,
            "walCommit": 17,
            "addBatch": work,
            "commitOffsets": 19,
            "triggerExecution": 80 + work,
        },
    )
    serving = [one for one in fleet if one.state == "serving"]
    totals = Totals(
        slots,
        len(serving),
        sessions=len(serving),
        instances=len(instances),
        streams=len(flows),
        rows=sum(one.rows for one in serving),
        bytes=sum(one.memory_used for one in serving),
        budget=BUDGET * slots,
        credits=1_000,
        rows_in=sum(one.rows_in for one in serving),
        ack_age=age,
    )
    status = ReceiverStatus(
        "orders",
        time,
        True,
        driver="driver-1/4711/a0",
        query=query,
        slots=fleet,
        instances=instances,
        streams=flows,
        totals=totals,
        sinks=(SinkStatus("postgres", "finished", batch),),
    )
    return with_causes(status)


def of(status: ReceiverStatus, sentence: str, *, healthy: bool = True) -> ReceiverStatus:
    """The same snapshot with another sentence of cause."""
    return dataclasses.replace(status, cause=Cause("flowing" if healthy else "sink-slow", sentence, healthy))
