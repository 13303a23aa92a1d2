"""A decoded run taken apart by stream. Source: ``style.md`` on runs; ``design.md``, rule 3 (order within a stream)."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from wallaroo_spark.columnar.decode import DecodedRun, number_streams


@dataclass(frozen=True, eq=False)
class StreamRows:
    """What a run holds of one stream, in the order in which it was sent.

    ``stored`` has the columns of :data:`~.schema.STORED_SCHEMA`; the arrays beside it are those of
    :class:`~.decode.DecodedRun`, an entry per row.
    """

    stream_id: int
    stored: pa.RecordBatch
    message_ids: NDArray[np.uint64]
    flags: NDArray[np.uint16]
    sizes: NDArray[np.int64]


def by_stream(decoded: DecodedRun, *, end: int | None = None, ignored: Collection[int] = ()) -> list[StreamRows]:
    """The first ``end`` messages of a run, stream by stream in order of first appearance, without ``ignored`` ones.

    A run of one stream is sliced, not copied. Of a run of several each stream gets a copy of its own, so that a stream
    which waits long for its commit keeps nothing of the others in memory.
    """
    count = decoded.count if end is None else min(end, decoded.count)
    if count == 0:
        return []
    if len(decoded.spans) == 1:
        stream_id = decoded.spans[0].stream_id
        return [] if stream_id in ignored else [_rows(decoded, stream_id, slice(0, count))]
    numbers, stream_ids = number_streams(decoded.stream_ids[:count])
    order = np.argsort(numbers, kind="stable")
    edges = np.cumsum(np.bincount(numbers, minlength=len(stream_ids)))[:-1]
    return [
        _rows(decoded, stream_id, rows)
        for stream_id, rows in zip(stream_ids.tolist(), np.split(order, edges), strict=True)
        if stream_id not in ignored
    ]


def _rows(decoded: DecodedRun, stream_id: int, rows: slice | NDArray[np.intp]) -> StreamRows:
    if isinstance(rows, slice):
        stored = decoded.stored.slice(rows.start, rows.stop - rows.start)
    else:
        stored = decoded.stored.take(pa.array(rows))
    return StreamRows(stream_id, stored, decoded.message_ids[rows], decoded.flags[rows], decoded.sizes[rows])
