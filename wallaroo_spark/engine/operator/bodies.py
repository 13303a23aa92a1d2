"""Columns of the outputs of a turn, as Arrow IPC streams. Pure.

Each builder takes values in order and keeps them as columns, because a turn may have 100,000 of them.
Source: ``docs/pipelines/engine.md#the-operator``.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import pyarrow as pa

from wallaroo_spark.pipelines.controller.messages.instructions import (
    InstanceBegan,
    InstanceEnded,
    SkippedRecords,
    StoreOutput,
    StorePointer,
)
from wallaroo_spark.streams.rows import HISTORY, HistoryKind

HistoryStep = InstanceBegan | InstanceEnded | SkippedRecords | StoreOutput | StorePointer
"""The instructions that are rows of the history."""


def ipc_stream(batches: Iterable[pa.RecordBatch], schema: pa.Schema) -> bytes:
    """Batches as the bytes of one Arrow IPC stream."""
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, schema) as writer:
        for batch in batches:
            writer.write_batch(batch)
    body: bytes = sink.getvalue().to_pybytes()
    return body


def columns(schema: pa.Schema, rows: int, **values: Sequence[Any]) -> pa.RecordBatch:
    """A batch of some columns of a schema; the other ones are null."""
    arrays = [
        pa.array(values[field.name], field.type) if field.name in values else pa.nulls(rows, field.type)
        for field in schema
    ]
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


def micros(times: Iterable[int]) -> list[int]:
    """Milliseconds as microseconds, the unit of the columns."""
    return [time * 1000 for time in times]


def history_batches(partition: int, now: int, steps: Sequence[HistoryStep]) -> Iterable[pa.RecordBatch]:
    """The rows of the history, a batch for each kind; the rows of a kind are in order."""
    by_kind: dict[type, list[Any]] = {}
    for step in steps:
        by_kind.setdefault(type(step), []).append(step)
    for kind, of_kind in by_kind.items():
        name, values = _STEPS[kind]
        rows = len(of_kind)
        yield columns(HISTORY, rows, partition=[partition] * rows, kind=[name] * rows, **values(of_kind, now))


def _began(steps: Sequence[InstanceBegan], now: int) -> dict[str, Sequence[Any]]:
    return {
        "pipeline": [step.pipeline for step in steps],
        "instance": [step.instance for step in steps],
        "at": micros(step.at for step in steps),
        "version": [step.version for step in steps],
    }


def _output(steps: Sequence[StoreOutput], now: int) -> dict[str, Sequence[Any]]:
    return {
        "pipeline": [step.delivery.pipeline for step in steps],
        "instance": [step.delivery.instance for step in steps],
        "at": micros(step.ended_at for step in steps),
        "stage": [step.delivery.stage for step in steps],
        "began_at": micros(step.began_at for step in steps),
        "output": [None if step.output is None else step.output.data for step in steps],
        "content_type": [None if step.output is None else step.output.content_type for step in steps],
    }


def _pointer(steps: Sequence[StorePointer], now: int) -> dict[str, Sequence[Any]]:
    return {
        "pipeline": [step.output.delivery.pipeline for step in steps],
        "instance": [step.output.delivery.instance for step in steps],
        "at": micros([now] * len(steps)),
        "stage": [step.output.delivery.stage for step in steps],
        "target_stream": [step.target.stream for step in steps],
        "target_partition": [step.target.partition for step in steps],
        "offsets": [step.offsets for step in steps],
        "reason": [step.reason or None for step in steps],
    }


def _ended(steps: Sequence[InstanceEnded], now: int) -> dict[str, Sequence[Any]]:
    return {
        "pipeline": [step.pipeline for step in steps],
        "instance": [step.instance for step in steps],
        "at": micros(step.at for step in steps),
        "began_at": micros(step.began_at for step in steps),
        "outcome": [step.outcome.value for step in steps],
        "reason": [step.reason or None for step in steps],
    }


def _skipped(steps: Sequence[SkippedRecords], now: int) -> dict[str, Sequence[Any]]:
    return {
        "pipeline": [step.pipeline for step in steps],
        "instance": [step.first for step in steps],
        "at": micros([now] * len(steps)),
        "offsets": [(step.first, step.last) for step in steps],
    }


_STEPS: dict[type, tuple[HistoryKind, Any]] = {
    InstanceBegan: (HistoryKind.BEGAN, _began),
    StoreOutput: (HistoryKind.OUTPUT, _output),
    StorePointer: (HistoryKind.POINTER, _pointer),
    InstanceEnded: (HistoryKind.ENDED, _ended),
    SkippedRecords: (HistoryKind.SKIPPED, _skipped),
}
