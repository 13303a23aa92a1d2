"""A worker's answer as values of the model. Pure; a field that an answer lacks has its default."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

from wallaroo_spark.status.model import InstanceStatus, ReadStatus, Refusal, SlotStatus, StreamStatus
from wallaroo_spark.status.schema import record_from_json


def slot_of(known: SlotStatus, answer: Mapping[str, Any], now: float) -> SlotStatus:
    """Add a worker's answer, received at ``now``, to the known state of its slot."""
    read = answer.get("read")
    return dataclasses.replace(
        known,
        address=str(answer.get("connect") or known.address),
        host=str(answer.get("host", "")),
        executor=str(answer.get("executor", "")),
        pid=answer.get("pid"),
        ready=bool(answer.get("ready")),
        registry_away=bool(answer.get("registry_away")),
        stopping=str(answer.get("stopping") or ""),
        epoch=int(answer.get("epoch", 0)),
        batch=int(answer.get("batch", -1)),
        memory_budget=int(answer.get("budget_bytes", 0)),
        memory_used=int(answer.get("buffered_bytes", 0)),
        unfinished_bytes=int(answer.get("unfinished_bytes", 0)),
        pressure=str(answer.get("pressure", "")),
        connections=int(answer.get("connections", 0)),
        sessions=int(answer.get("sessions", 0)),
        waiting=int(answer.get("waiting", 0)),
        credits=int(answer.get("credits", 0)),
        instances=len(answer.get("instances", ())),
        streams=int(answer.get("streams", 0)),
        rows=int(answer.get("rows", 0)),
        rows_in=int(answer.get("rows_in", 0)),
        rows_out=int(answer.get("counts", {}).get("committed", 0)),
        ack_age=answer.get("ack_age"),
        counts={str(name): int(count) for name, count in answer.get("counts", {}).items()},
        refusals=tuple(_refusal(refusal, now) for refusal in answer.get("refusals", ())),
        read=record_from_json(ReadStatus, read) if read else None,
        warnings=tuple(map(str, answer.get("warnings", ()))),
    )


def _refusal(value: Mapping[str, Any], now: float) -> Refusal:
    return record_from_json(Refusal, {**value, "at": now - float(value.get("age", 0.0))})


def instances_of(slot: int, answer: Mapping[str, Any], now: float) -> list[InstanceStatus]:
    """The instances of an answer, in its order."""
    return [
        record_from_json(
            InstanceStatus, {**one, "slot": slot, "since": now - float(one["age"]) if "age" in one else None}
        )
        for one in answer.get("instance_list", ())
    ]


def streams_of(slot: int, answer: Mapping[str, Any]) -> list[StreamStatus]:
    """The streams of an answer, in its order."""
    return [record_from_json(StreamStatus, {**one, "slot": slot}) for one in answer.get("stream_list", ())]
