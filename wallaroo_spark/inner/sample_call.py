"""A sample of a worker's messages: the question of a caller and the worker's answer, as bytes.

Source: ``docs/debug-a-connector.md#look-at-live-messages``.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field

import pyarrow as pa

from wallaroo_spark.columnar import ROW_SCHEMA
from wallaroo_spark.references import StreamKey

MOST_ROWS = 1000
"""Most rows of one sample. A choice that bounds the answer."""
MOST_BYTES = 1 << 20
"""Bytes of keys and payloads after which no further stream is added to a sample. A choice."""
LONGEST_CUT = 64 << 10
"""Most bytes of one payload in a sample. A choice."""
MOST_WAIT = 5.0
"""Longest wait of one question, in seconds; a caller asks again. A choice."""
SAMPLE_SCHEMA = ROW_SCHEMA.append(pa.field("size", pa.int64()))
"""The rows of Spark, and the size of the payload, which may be cut."""
_CURSOR = b"cursor"


@dataclass(frozen=True)
class SampleQuestion:
    """Which messages a caller wants to see."""

    stream: str
    """The name or the id of the stream; ``*`` for all streams."""
    instance: str = ""
    """The connector instance; empty for all."""
    rows: int = 100
    """Most messages; at most :data:`MOST_ROWS` are given."""
    cut: int = 4096
    """Bytes behind which keys and payloads are cut; at most :data:`LONGEST_CUT`."""
    wait: float = 0.0
    """Seconds to wait for a message; at most :data:`MOST_WAIT`."""
    cursor: Mapping[StreamKey, int] = field(default_factory=dict)
    """The cursor of the sample before, behind which the messages are new."""

    def encode(self) -> bytes:
        """The question as :meth:`decode` takes it."""
        return json.dumps({**vars(self), "cursor": _listed(self.cursor)}).encode()

    @classmethod
    def decode(cls, body: bytes) -> SampleQuestion:
        """The question of these bytes, within the limits."""
        given = json.loads(body)
        return cls(
            str(given["stream"]),
            str(given["instance"]),
            max(1, min(int(given["rows"]), MOST_ROWS)),
            max(0, min(int(given["cut"]), LONGEST_CUT)),
            max(0.0, min(float(given["wait"]), MOST_WAIT)),
            _cursor(given["cursor"]),
        )


@dataclass(frozen=True)
class MessageSample:
    """Copies of some messages that a worker holds."""

    rows: pa.Table
    """The messages, with the columns of :data:`SAMPLE_SCHEMA`."""
    cursor: Mapping[StreamKey, int]
    """For each stream in question the position behind the messages that were there."""

    def encode(self) -> bytes:
        """The sample as :meth:`decode` takes it."""
        rows = self.rows.replace_schema_metadata({_CURSOR: json.dumps(_listed(self.cursor))})
        sink = pa.BufferOutputStream()
        with pa.ipc.new_stream(sink, rows.schema) as writer:
            writer.write_table(rows)
        encoded: bytes = sink.getvalue().to_pybytes()
        return encoded

    @classmethod
    def decode(cls, body: bytes) -> MessageSample:
        """The sample of these bytes."""
        rows = pa.ipc.open_stream(body).read_all()
        return cls(rows, _cursor(json.loads(rows.schema.metadata[_CURSOR])))


def _listed(cursor: Mapping[StreamKey, int]) -> list[tuple[str, str, int]]:
    """Stream ids as text, because many JSON readers round a u64."""
    return [(key.scope, str(key.stream_id), position) for key, position in cursor.items()]


def _cursor(listed: list[tuple[str, str, int]]) -> dict[StreamKey, int]:
    return {StreamKey(scope, int(stream_id)): int(position) for scope, stream_id, position in listed}
