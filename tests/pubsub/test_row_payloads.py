"""Rows as the payload of a message, and invalid payloads."""

from __future__ import annotations

import msgpack
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from wallaroo_spark.errors import RemoteProtocolError
from wallaroo_spark.pubsub.messages import pack_rows, unpack_rows

ROWS = pa.record_batch({"sku": ["a", None, "b"], "total": pa.array([1, 2, 3], pa.int64())})


def stream_of(*batches: pa.RecordBatch) -> bytes:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, ROWS.schema) as writer:
        for batch in batches:
            writer.write_batch(batch)
    data: bytes = sink.getvalue().to_pybytes()
    return data


@pytest.mark.parametrize("rows", [ROWS, ROWS.slice(1, 1), ROWS.slice(0, 0), pa.record_batch({"t": ["é" * 40_000] * 2})])
def test_rows_survive_a_message(rows: pa.RecordBatch) -> None:
    assert unpack_rows(pack_rows(rows)).equals(rows)


def test_a_payload_is_one_binary_of_any_width() -> None:
    data = stream_of(ROWS)
    for payload in (msgpack.packb(data), b"\xc5" + len(data).to_bytes(2, "big") + data):
        assert unpack_rows(memoryview(payload)).equals(ROWS)
    assert unpack_rows(msgpack.packb(stream_of())).num_rows == 0


@pytest.mark.parametrize(
    ("payload", "says"),
    [
        (b"", "not one MessagePack binary"),
        (msgpack.packb(["hello", "world"]), "not one MessagePack binary"),
        (msgpack.packb(b"nonsense"), "not an Arrow IPC stream"),
        (msgpack.packb(stream_of(ROWS)[:200]), "not an Arrow IPC stream"),
        (pack_rows(ROWS)[:-1], "its binary announces"),
        (pack_rows(ROWS) + b"\xc0", "its binary announces"),
        (msgpack.packb(stream_of(ROWS, ROWS)), "has 2 record batches"),
    ],
)
def test_a_payload_that_is_not_a_batch_of_rows_is_refused(payload: bytes, says: str) -> None:
    with pytest.raises(RemoteProtocolError, match=says):
        unpack_rows(payload)


@given(st.integers(0, len(stream_of(ROWS)) - 1), st.integers(0, 255))
def test_a_damaged_stream_never_does_more_than_raise(place: int, byte: int) -> None:
    data = bytearray(stream_of(ROWS))
    data[place] = byte
    try:
        rows = unpack_rows(msgpack.packb(bytes(data)))
    except RemoteProtocolError:
        return
    assert len(rows.to_pylist()) == rows.num_rows
