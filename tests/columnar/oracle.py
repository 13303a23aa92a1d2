"""The expected columns, computed message by message with the decoders of the revision's table."""

from __future__ import annotations

from typing import Any

import pyarrow as pa

from tests.protocol.pairs import sound_messages
from tests.protocol.spans import spans
from wallaroo_spark.columnar import Decoded, StreamRows, by_stream
from wallaroo_spark.protocol import V3, Flags, Message, MessageRun

NANOSECONDS = {"ns": 1, "us": 1_000, "ms": 1_000_000, "s": 1_000_000_000}
EARLIEST, LATEST = -62_135_596_800_000_000, 253_402_300_799_999_999


def signed(number: int) -> int:
    """The bits of a u64 as an i64."""
    return number - 2**64 if number >= 2**63 else number


def microseconds(revision_is_v3: bool, event_time: int | None, unit: str) -> int | None:
    if event_time is None or (revision_is_v3 and event_time == 0):
        return None
    found = signed(event_time) * NANOSECONDS[unit] // 1_000
    return found if EARLIEST <= found <= LATEST else None


def rows(messages: list[Message], run: MessageRun, unit: str) -> list[dict[str, Any]]:
    v3 = run.revision is V3
    return [
        {
            "message_id": None if m.message_id is None else signed(m.message_id),
            "event_time": microseconds(v3, m.event_time, unit),
            "key": (m.key or None) if v3 else m.key,
            "value": m.payload,
            "flags": int(m.flags),
        }
        for m in messages
    ]


def stored_part(part: StreamRows) -> pa.RecordBatch:
    """The stored columns of one stream's rows."""
    return part.lot.stored.slice(part.low, len(part))


def stored_rows(decoded: Decoded) -> list[dict[str, Any]]:
    """The columns in the order sent, as plain values."""
    return batch_rows(decoded.columns())


def batch_rows(stored: pa.RecordBatch) -> list[dict[str, Any]]:
    """A stored batch as plain values, event times in µs (a datetime does not reach every end of the range)."""
    names = stored.schema.names
    times = stored["event_time"].cast("int64").to_pylist()
    columns = [times if name == "event_time" else stored[name].to_pylist() for name in names]
    return [dict(zip(names, row, strict=True)) for row in zip(*columns, strict=True)]


def check(decoded: Decoded, run: MessageRun, unit: str) -> None:
    """Everything a decoded run says, against the messages one by one."""
    messages, error = sound_messages(run)
    stored = decoded.columns()
    stored.validate(full=True)
    assert decoded.count == stored.num_rows == len(messages)
    assert stored_rows(decoded) == rows(messages, run, unit)
    assert decoded.fields.stream_ids.tolist() == [m.stream_id for m in messages]
    assert decoded.fields.message_ids.tolist() == [m.message_id or 0 for m in messages]
    assert decoded.fields.flags.tolist() == [int(m.flags) for m in messages]
    marks = [(m.stream_id, bool(m.flags & Flags.EOS), bool(m.flags & Flags.EPHEMERAL)) for m in messages]
    (by_run,) = by_stream(decoded)
    assert by_run.spans == spans(marks)
    payloads = [len(m.payload or b"") + len(m.key or b"") for m in messages]
    assert (decoded.sizes > payloads).all()
    assert len(set((decoded.sizes - payloads).tolist())) <= 1
    assert (decoded.error is None) == (error is None)
    if decoded.error and error:
        assert (decoded.error.message, decoded.error.fields) == (error.message, error.fields)
