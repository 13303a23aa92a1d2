"""Writes record batches of one schema to a binary stream, in Arrow's IPC formats."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pyarrow as pa


def write_arrow(
    stream: Any,
    batches: Iterable[pa.RecordBatch],
    *,
    schema: pa.Schema | None = None,
    compression: str | None = None,
    random_access: bool = False,
) -> int:
    """Write batches in Arrow's streaming format, or with ``random_access`` in its file format; return the row count.

    ``schema`` is by default that of the first batch; with neither a schema nor a batch, no byte is written.
    ``compression`` is ``lz4``, ``zstd`` or None. Errors of the stream and of ``batches`` are passed on.
    """
    new = pa.ipc.new_file if random_access else pa.ipc.new_stream
    options = pa.ipc.IpcWriteOptions(compression=compression)
    writer = None if schema is None else new(stream, schema, options=options)
    rows = 0
    for batch in batches:
        if writer is None:
            writer = new(stream, batch.schema, options=options)
        writer.write_batch(batch)
        rows += batch.num_rows
    if writer is not None:
        writer.close()
    return rows


def as_arrow_stream(batch: pa.RecordBatch) -> bytes:
    """Return one batch as the bytes of an Arrow IPC stream, its schema included."""
    sink = pa.BufferOutputStream()
    write_arrow(sink, [batch])
    data: bytes = sink.getvalue().to_pybytes()
    return data
