"""Rows on their way from a worker to a task: a batch of stored columns, and metadata beside it.

The metadata has the marks of ranges, and the columns that many rows share. It begins with columns of numbers, whose
lengths its head tells; then comes JSON with names and with the references that are not numbers. The name of a range's
stream is sent once in the answer to a request.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from wallaroo_spark.columnar import ROW_SCHEMA, CommonColumns, to_rows
from wallaroo_spark.references import Reference

Mark = tuple[int, Reference | None, bool]
"""A range's index, the reference of its last row so far (None: it has no rows), and whether the range is complete."""
_HEAD = struct.Struct("<II")
"""The number of marks and the number of entries."""


@dataclass(frozen=True, eq=False)
class Marks:
    """Marks as columns; each range occurs once."""

    ranges: NDArray[np.int64]
    """The indexes of the ranges."""
    references: NDArray[np.uint64]
    """The references that are message ids; without meaning at the places that are in ``others``."""
    done: NDArray[np.bool_]
    """Whether each range is complete."""
    others: Mapping[int, str | None]
    """The references that are not message ids, by their place in the column."""

    def to_list(self) -> list[Mark]:
        """The marks one by one."""
        references: list[Reference | None] = self.references.tolist()
        for place, reference in self.others.items():
            references[place] = reference
        return list(zip(self.ranges.tolist(), references, self.done.tolist(), strict=True))


@dataclass(frozen=True, eq=False)
class RowsByRange:
    """The columns that many rows share, as entries: each entry is for the next ``rows`` rows of the batch."""

    mark: NDArray[np.int32]
    """The place of the entry's range among the marks."""
    receipt: NDArray[np.int32]
    """An index in ``receipts``."""
    rows: NDArray[np.int32]
    """The number of rows of each entry."""
    receipts: list[tuple[str, int]]
    """Instances, each with the time of receipt in µs since 1970 UTC."""


def pack(marks: Marks, entries: RowsByRange, streams: Mapping[int, tuple[str, int]]) -> bytes:
    """The metadata of a batch of stored columns.

    ``streams`` has the stream's name and id for each range that no earlier metadata of the answer has named.
    """
    numbers = [
        marks.ranges.astype("<i8", copy=False),
        marks.references.astype("<u8", copy=False),
        marks.done.astype("<i8"),
        entries.mark.astype("<i4", copy=False),
        entries.receipt.astype("<i4", copy=False),
        entries.rows.astype("<i4", copy=False),
    ]
    names = {
        "others": list(marks.others.items()),
        "receipts": entries.receipts,
        "streams": [list(streams), *zip(*streams.values(), strict=True)],
    }
    head = _HEAD.pack(len(marks.ranges), len(entries.rows))
    return b"".join([head, *(column.tobytes() for column in numbers), json.dumps(names).encode()])


class Unpacker:
    """Makes rows of a worker's answer to one request; ``boundaries`` says whether BOUNDARY messages are rows."""

    def __init__(self, *, boundaries: bool) -> None:
        self._boundaries = boundaries
        self._streams: dict[int, tuple[str, int]] = {}

    def unpack(self, stored: pa.RecordBatch, text: bytes) -> tuple[pa.RecordBatch, list[Mark]]:
        """The rows for Spark and the marks, from a stored batch and the metadata that :func:`pack` has made."""
        count, entries = _HEAD.unpack_from(text)
        at = _HEAD.size
        kinds = enumerate(("<i8", "<u8", "<i8"))
        ranges, references, done = (np.frombuffer(text, kind, count, at + 8 * count * n) for n, kind in kinds)
        at += 3 * 8 * count
        mark, receipt, rows = (np.frombuffer(text, "<i4", entries, at + 4 * entries * n) for n in range(3))
        names = json.loads(text[at + 3 * 4 * entries :])
        named = names["streams"]
        self._streams.update(zip(named[0], zip(*named[1:], strict=True), strict=True))
        marks = Marks(ranges, references, done != 0, dict(names["others"])).to_list()
        if not entries:
            return no_rows(ROW_SCHEMA), marks
        streams = [self._streams[index] for index in ranges.tolist()]
        common = CommonColumns(streams, names["receipts"], mark, receipt, rows)
        return to_rows(stored, common, include_boundaries=self._boundaries), marks


def no_rows(schema: pa.Schema) -> pa.RecordBatch:
    """A batch without rows."""
    return pa.RecordBatch.from_pylist([], schema=schema)
