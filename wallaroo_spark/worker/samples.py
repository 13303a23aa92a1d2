"""Samples of the held rows, for people who look at messages on their way; on the event loop's thread.

A sample copies a few rows and leaves the buffer, its reads and its plans as they are. Source:
``docs/debug-a-connector.md#look-at-live-messages``; ``docs/security.md#the-fleets-token``.
"""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import Iterator
from itertools import islice
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from wallaroo_spark.columnar import CommonColumns, to_rows
from wallaroo_spark.errors import TransportError
from wallaroo_spark.inner.calls import MOST_BYTES, MOST_ROWS, SAMPLE_SCHEMA, MessageSample, SampleQuestion
from wallaroo_spark.worker.buffer.buffer import Buffer
from wallaroo_spark.worker.buffer.held_stream import HeldStream
from wallaroo_spark.worker.reads import Reads

GAP_SECONDS = 0.1
"""Least seconds between two samples of a worker, however many callers there are. That is ten samples a second."""
LOOK_SECONDS = 0.02
"""Least seconds between two looks at the streams while a caller waits."""
MOST_CALLERS = 4
"""Most callers that wait at once; each takes a thread of the inner port. A choice."""
MOST_STREAMS = 1000
"""Most streams in one sample; further ones are not looked at. It bounds the answer."""


class Samples:
    """Takes samples of the buffer of some reads, with one rate for all callers."""

    def __init__(self, reads: Reads) -> None:
        self._reads = reads
        self._next = 0.0
        self._callers = 0

    async def take(self, question: SampleQuestion) -> MessageSample:
        """The newest rows of the streams in question behind the caller's cursor; waits for some, for a limited time.

        Raises :class:`TransportError` when too many callers wait.
        """
        if self._callers >= MOST_CALLERS:
            raise TransportError(
                f"{MOST_CALLERS} programs sample this worker already, as many as may; end one of them",
                code="too-many-samplers",
            )
        self._callers += 1
        try:
            until = time.monotonic() + question.wait
            self._next = max(time.monotonic(), self._next) + GAP_SECONDS
            await asyncio.sleep(self._next - GAP_SECONDS - time.monotonic())
            while True:
                found = self._look(question)
                left = until - time.monotonic()
                if found.rows.num_rows or left <= 0:
                    return found
                await self._reads.next_change(left)
                await asyncio.sleep(LOOK_SECONDS)
        finally:
            self._callers -= 1

    def _look(self, question: SampleQuestion) -> MessageSample:
        streams = list(islice(_matching(self._reads.buffer, question), MOST_STREAMS))
        cursor = {stream.key: stream.end for stream in streams}
        batches: list[pa.RecordBatch] = []
        rows, size = min(question.rows, MOST_ROWS), MOST_BYTES
        # The newest rows of each stream in turn, until a limit is reached.
        for number, stream in enumerate(streams):
            share = max(1, rows // (len(streams) - number))
            # A record batch has many records, and is not cut.
            batch = _newest(stream, question, 1 if _packed(stream) else min(share, rows))
            if batch is None:
                continue
            used = sum(len(value or b"") for name in ("key", "value") for value in batch[name].to_pylist())
            if batches and used > size:
                break
            batches.append(batch)
            rows, size = rows - batch.num_rows, size - used
            if rows <= 0 or size <= 0:
                break
        return MessageSample(pa.Table.from_batches(batches, SAMPLE_SCHEMA), cursor)


def _matching(buffer: Buffer, question: SampleQuestion) -> Iterator[HeldStream]:
    for stream in buffer.with_rows():
        names, scopes = [stream.name, str(stream.key.stream_id)], ["", stream.key.scope]
        if _packed(stream):
            from wallaroo_spark.doors.kafka.rows import client_of, topic_of

            names.append(topic_of(stream.name)[0])
            scopes.append(client_of(stream.key.scope))
        if question.stream in ("*", *names) and (not question.instance or question.instance in scopes):
            yield stream


def _packed(stream: HeldStream) -> bool:
    """Whether the rows of a stream are record batches of a Kafka client, which its reader takes apart."""
    return stream.key.scope.startswith("kafka/")


def _newest(stream: HeldStream, question: SampleQuestion, rows: int) -> pa.RecordBatch | None:
    """Copies of the newest rows of a stream behind the cursor, without those of other instances. Record batches are not
    cut."""
    begin = max(stream.start, question.cursor.get(stream.key, stream.start), stream.end - rows)
    found: list[pa.RecordBatch] = []
    for part, _ in stream.delivery(begin, stream.end) if begin < stream.end else ():
        if question.instance and part.receipt.instance != question.instance and not _packed(stream):
            continue
        common = CommonColumns.one((stream.name, stream.key.stream_id), part.receipt, part.stored.num_rows)
        most = sys.maxsize if _packed(stream) else question.cut
        found.append(_cut(to_rows(part.stored, common, include_boundaries=True), most))
    return pa.concat_batches(found) if found else None


def _cut(rows: pa.RecordBatch, most: int) -> pa.RecordBatch:
    """Copies of rows whose keys and payloads are cut, with the size of each payload in front of that."""
    columns: dict[str, Any] = {name: rows[name] for name in rows.schema.names}
    columns["size"] = pc.fill_null(pc.binary_length(rows["value"]), 0).cast(pa.int64())
    for name in ("key", "value"):
        columns[name] = pc.binary_slice(rows[name], 0, most)
    return pa.RecordBatch.from_arrays([columns[name] for name in SAMPLE_SCHEMA.names], schema=SAMPLE_SCHEMA)
