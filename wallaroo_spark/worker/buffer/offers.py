"""A worker's offer to a batch: how far the batch may go in each stream in which there are rows to read.

Source: ``docs/decisions/planning-costs-what-is-active.md``.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import NamedTuple

from wallaroo_spark.inner.calls import PlanAnswer, PlanQuestion, StreamOffer
from wallaroo_spark.references import Reference, StreamKey
from wallaroo_spark.worker.buffer.buffer import Buffer


class StreamEnds(NamedTuple):
    """The ends of streams of which a planner is told."""

    ended: Mapping[StreamKey, Reference]
    """Streams that ended at this committed reference, of which no notice has said that the driver knows it."""
    leaving: str
    """The token of the leaving streams; empty when there are none."""
    wanted: Collection[StreamKey]
    """Leaving streams that are open here, or were asked for."""


def offer(buffer: Buffer, question: PlanQuestion, ends: StreamEnds | None = None) -> PlanAnswer:
    """The answer to a planner's question. Its cost follows the number of streams with held rows.

    ``ends`` are the ends that the driver has not recorded; None where it records none.

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
        {} if ends is None else ends.ended,
        "" if ends is None else ends.leaving,
        () if ends is None else tuple(ends.wanted),
    )
