"""The one writer of Arrow IPC: record batches of one schema to a binary stream."""

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
    """Write batches in Arrow's streaming format, or with ``random_access`` in its file format; the number of rows.

    The schema is that of the first batch unless it is given. Without both, nothing is written. ``compression`` is
    ``lz4``, ``zstd`` or None. Raises what the stream and ``batches`` raise.
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
    """One batch as an Arrow IPC stream with its schema."""
    sink = pa.BufferOutputStream()
    write_arrow(sink, [batch])
    data: bytes = sink.getvalue().to_pybytes()
    return data
