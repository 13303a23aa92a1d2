"""A worker's offer to a batch: how far the batch may go in each stream in which there are rows to read.

Source: ``docs/decisions/planning-costs-what-is-active.md``.
"""

from __future__ import annotations

from wallaroo_spark.inner.calls import PlanAnswer, PlanQuestion, StreamOffer
from wallaroo_spark.references import Reference, StreamKey
from wallaroo_spark.worker.buffer.buffer import Buffer


def offer(buffer: Buffer, question: PlanQuestion) -> PlanAnswer:
    """The answer to a planner's question. Its cost follows the number of streams with held rows.

    For a stream whose start the question does not name, the committed reference is taken as the start. Spark plans a
    batch when the batch before it is committed, and the notice of that commit comes later, so the committed reference
    is never ahead of the true start. Therefore no stream in which the batch has rows to read is left out.
    """
    told = question.starts
    starts: dict[StreamKey, Reference | None] = {}
    unknown: list[StreamKey] = []
    streams = buffer.with_rows()
    for stream in streams:
        key = stream.key
        if key in told:
            starts[key] = told[key]
        elif stream.continues_elsewhere:
            unknown.append(key)
        else:
            starts[key] = stream.committed
    streams = [stream for stream in streams if stream.key in starts]
    extents, rows, size = buffer.extents(streams, starts, question.max_rows, question.max_bytes)
    filled = {stream.key: stream.committed for stream in streams}
    return PlanAnswer(
        {key: StreamOffer(starts[key], extent.end, extent.rows, extent.bytes) for key, extent in extents.items()},
        rows,
        size,
        unknown,
        [key for key, start in told.items() if key not in extents and filled.get(key, start) != start],
    )
