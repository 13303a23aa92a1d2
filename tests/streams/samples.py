"""Outputs of keys as the operator returns them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pyarrow as pa

from wallaroo_spark.pipelines.schema.cloud_event import CloudEvent
from wallaroo_spark.sidecar.task_access import as_arrow_stream
from wallaroo_spark.streams.rows import HISTORY, INPUT, OUTBOX, OUTPUT, OutputKind, as_rows

ORDERS = "shop/orders"
GONE = "shop/gone"
"""A stream that is deleted, and declared anew."""
NOON = 1_700_000_000_000


def event(offset: int) -> CloudEvent:
    """The event at an offset."""
    return CloudEvent(f"e{offset}", "/shop", "paid", f"body {offset}".encode(), (("subject", f"order {offset}"),))


def output(kind: OutputKind, **fields: Any) -> dict[str, Any]:
    """A row of OUTPUT of the key shop/orders/0, with these fields in place of the usual ones."""
    nothing = {"stream": ORDERS, "partition": 0, "target": "", "first": None, "last": None, "rows": 0, "body": None}
    return {**nothing, "kind": str(kind), **fields}


def records(
    first: int, last: int, *, stream: str = ORDERS, partition: int = 0, written_at: int = NOON
) -> dict[str, Any]:
    """Records at the offsets from first to last."""
    rows = as_rows(first, [event(offset) for offset in range(first, last + 1)], written_at)
    return output(
        OutputKind.RECORDS,
        stream=stream,
        partition=partition,
        first=first,
        last=last,
        rows=rows.num_rows,
        body=as_arrow_stream(rows),
    )


def forgotten(before: int, *, stream: str = ORDERS, partition: int = 0) -> dict[str, Any]:
    """The records before an offset are those of a deleted stream."""
    return output(OutputKind.FORGET, stream=stream, partition=partition, first=before)


def rows_of(kind: OutputKind, rows: Sequence[dict[str, Any]], **fields: Any) -> dict[str, Any]:
    """An output with a body of these rows."""
    schema = {OutputKind.HISTORY: HISTORY, OutputKind.CARRIED: INPUT, OutputKind.OUTBOX: OUTBOX}[kind]
    body = as_arrow_stream(pa.RecordBatch.from_pylist(list(rows), schema))
    return output(kind, rows=len(rows), body=body, **fields)


def outputs(*rows: dict[str, Any]) -> list[pa.RecordBatch]:
    """Rows of OUTPUT, in two batches."""
    batch = pa.RecordBatch.from_pylist(list(rows), OUTPUT)
    half = batch.num_rows // 2
    return [batch.slice(0, half), batch.slice(half)]


def canonical(event: CloudEvent) -> CloudEvent:
    """The event as it comes back from a table: the attributes with columns first, then the extensions in their order.

    Of an attribute that stands there twice, the last value stays.
    """
    if not event.attributes:
        return event
    values = dict(event.attributes)
    first = tuple(
        (name, values.pop(name)) for name in ("subject", "time", "datacontenttype", "dataschema") if name in values
    )
    return event._replace(attributes=(*first, *values.items()))
