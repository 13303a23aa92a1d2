"""Rows on their way from a worker to the reader of a task, and reading ahead."""

from __future__ import annotations

import json
import queue
import struct
import threading
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Generic, TypeVar

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from wallaroo_spark.columnar import ROW_SCHEMA, CommonColumns, to_rows
from wallaroo_spark.references import Reference

T = TypeVar("T")
_LOOK_SECONDS = 0.1
"""Seconds after which the reading thread looks whether the iterator was closed."""
_END_SECONDS = 1.0
"""How long a cancelled thread may take to end. A choice: a thread that hangs is left alone; its call has a deadline."""


class ReadAhead(Generic[T]):
    """An iterator over ``items``. A thread reads up to ``depth`` items before they are asked for.

    An error of ``items`` is raised in place of the item. When the iterator is closed before its end, the closing
    thread calls ``cancel``, which must make ``items`` end. Raises :class:`TimeoutError` when the next item does not
    come within ``silence`` seconds.
    """

    def __init__(self, items: Iterator[T], cancel: Callable[[], None], silence: float, depth: int = 3) -> None:
        self._items = items
        self._cancel = cancel
        self._silence = silence
        self._found: queue.Queue[T | _End] = queue.Queue(depth)
        self._closed = threading.Event()
        self._thread = threading.Thread(target=self._read, name="wallaroo-read-ahead", daemon=True)

    def __iter__(self) -> Iterator[T]:
        self._thread.start()
        try:
            while not isinstance(found := self._next(), _End):
                yield found
            if found.error is not None:
                raise found.error
        finally:
            self._closed.set()
            if self._thread.is_alive():
                self._cancel()
                self._thread.join(_END_SECONDS)

    def _next(self) -> T | _End:
        try:
            return self._found.get(timeout=self._silence)
        except queue.Empty:
            raise TimeoutError(f"nothing came within {self._silence:g} s") from None

    def _read(self) -> None:
        error: Exception | None = None
        try:
            for item in self._items:
                if not self._put(item):
                    return
        except Exception as raised:
            error = raised
        self._put(_End(error))

    def _put(self, item: T | _End) -> bool:
        while not self._closed.is_set():
            try:
                self._found.put(item, timeout=_LOOK_SECONDS)
            except queue.Full:
                continue
            return True
        return False


class _End:
    """The end of the items, with the error that ended them, if any."""

    def __init__(self, error: Exception | None) -> None:
        self.error = error


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
