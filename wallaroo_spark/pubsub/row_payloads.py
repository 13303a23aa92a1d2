"""Rows on the wire: one MessagePack binary with an Arrow IPC stream of the schema and one record batch.

Every message contains the schema, so that each message can be decoded alone. Source: ``docs/pubsub.md#on-the-wire``.
"""

from __future__ import annotations

from typing import Any

import msgpack
import pyarrow as pa

from wallaroo_spark.protocol.faults import Fault, broken
from wallaroo_spark.sidecar.arrow_ipc import as_arrow_stream

# First byte of a MessagePack binary → size in bytes of the length field behind it.
_BINARIES = {0xC4: 1, 0xC5: 2, 0xC6: 4}


def pack_rows(rows: pa.RecordBatch) -> bytes:
    """Encode a record batch as the payload of a data message."""
    packed: bytes = msgpack.packb(as_arrow_stream(rows))
    return packed


def unpack_rows(payload: bytes | memoryview) -> pa.RecordBatch:
    """Decode a payload without copying. Arrow's buffers are validated, because a peer has written them.

    Raises :class:`RemoteProtocolError` when the payload is not one binary with exactly one record batch.
    """
    try:
        with pa.ipc.open_stream(pa.py_buffer(_binary(memoryview(payload)))) as reader:
            batches = list(reader)
            rows = batches[0] if batches else _none_of(reader.schema)
        rows.validate(full=True)
        # Arrow decodes column names only on access, so that access is part of the check.
        _ = rows.schema.names, str(rows.schema)
    except (pa.ArrowException, OSError, EOFError, ValueError) as error:
        raise broken(Fault.INVALID_TEXT, f"rows are not an Arrow IPC stream: {str(error)[:200]}") from None
    if len(batches) > 1:
        raise broken(Fault.OVERLONG_FRAME, f"a message has {len(batches)} record batches; expected exactly one")
    return rows


def _none_of(schema: pa.Schema) -> Any:
    return pa.RecordBatch.from_pylist([], schema=schema)


def _binary(payload: memoryview) -> memoryview:
    width = _BINARIES.get(payload[0]) if payload else None
    if width is None:
        raise broken(Fault.INVALID_TEXT, "the rows of a message are not one MessagePack binary")
    length = int.from_bytes(payload[1 : 1 + width], "big")
    begin = 1 + width
    if len(payload) != begin + length:
        raise broken(
            Fault.TRUNCATED_FRAME,
            f"a message has {len(payload) - begin} bytes of rows, and its binary announces {length}",
        )
    return payload[begin:]
