"""All that a worker holds and that is not committed: a ledger a stream, within a budget of bytes.

Source: ``design.md``, rules 4 and 6, and "Workers keep what is not committed".
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from wallaroo_spark.columnar import StreamRows
from wallaroo_spark.worker.ledger import Extent, Ledger, Origin, Reference, StreamKey
from wallaroo_spark.worker.segment import SEGMENT_OVERHEAD, Chunk, Segment

References = Mapping[str, Mapping[str, Reference]]
"""References by scope and stream id (as decimal text), the form in which Spark's offset log holds them."""


@dataclass(frozen=True, slots=True)
class PlannedRange:
    """Rows of one stream behind ``start``, up to and including ``end``."""

    key: StreamKey
    start: Reference | None
    end: Reference


@dataclass(frozen=True, slots=True)
class FoundRange:
    """A planned range that is here, as pieces to deliver, with the reference that each piece leads up to."""

    key: StreamKey
    name: str
    pieces: tuple[tuple[Segment, Reference], ...]


def nest(references: Mapping[StreamKey, Reference]) -> dict[str, dict[str, Reference]]:
    """The inverse of :func:`flatten`."""
    nested: dict[str, dict[str, Reference]] = {}
    for key, reference in references.items():
        nested.setdefault(key.scope, {})[str(key.stream_id)] = reference
    return nested


def flatten(references: References) -> dict[StreamKey, Reference]:
    """References by stream key. Raises ValueError for a stream id that is not a number."""
    return {
        StreamKey(scope, int(stream_id)): reference
        for scope, streams in references.items()
        for stream_id, reference in streams.items()
    }


class Buffer:
    """The ledgers of one worker, the references that Spark has committed, and the bytes in use."""

    def __init__(self, budget: int, origin: Origin, message_ids: str) -> None:
        self.budget = budget
        self.used = 0
        self.version = 0
        self.ledgers: dict[StreamKey, Ledger] = {}
        self.committed: dict[StreamKey, Reference] = {}
        self._origin = origin
        self._message_ids = message_ids

    def open(self, key: StreamKey, name: str, notified: int) -> Ledger:
        """The ledger of a stream that is notified, made where there is none."""
        ledger = self.ledgers.get(key)
        if ledger is None:
            ledger = Ledger(key, self._origin, self._message_ids, self.committed.get(key))
            self.ledgers[key] = ledger
        self._free(ledger.open(name, notified))
        self.version += 1
        return ledger

    def append(self, rows: Iterable[tuple[Ledger, StreamRows]], received_at: int, instance: str) -> int:
        """Take in one run, already told apart by stream, and say how many of its messages were new."""
        pairs = list(rows)
        chunk = Chunk(0)
        accepted = 0
        try:
            for ledger, part in pairs:
                segments = chunk.segments
                accepted += ledger.append(part, received_at, instance, chunk)
                if chunk.segments > segments:
                    chunk.size += int(part.sizes.sum()) + SEGMENT_OVERHEAD
        finally:
            if chunk.segments:
                self.used += chunk.size
                self.version += 1
        return accepted

    def end(self, ledger: Ledger) -> None:
        """The stream has ended; an unstable end may be delivered now."""
        ledger.ended = True
        self.version += 1

    def forget(self, ledger: Ledger) -> None:
        """Drop a ledger that holds nothing and that nobody sends any more."""
        assert ledger.empty, ledger
        del self.ledgers[ledger.key]

    def reference(self, key: StreamKey) -> int | None:
        """The last committed message id of a stream, None when there is none that can be resumed from."""
        reference = self.committed.get(key)
        return reference if isinstance(reference, int) else None

    def resumable(self, scope: str) -> Iterator[tuple[StreamKey, int]]:
        """Each stream of a scope of which something is committed."""
        for key, reference in self.committed.items():
            if key.scope == scope and isinstance(reference, int):
                yield key, reference

    def commit(self, references: Mapping[StreamKey, Reference]) -> list[Ledger]:
        """Spark has committed up to these; the ledgers that moved."""
        moved = []
        for key, reference in references.items():
            ledger = self.ledgers.get(key)
            if ledger is None:
                self.committed[key] = reference
                continue
            dropped = ledger.commit(reference)
            if dropped is not None:
                self.committed[key] = reference
                self._free(dropped)
                moved.append(ledger)
        return moved

    def rewind(self, references: Mapping[StreamKey, Reference]) -> list[Ledger]:
        """The query goes on from exactly these; the ledgers whose senders must send again."""
        rewound = []
        for key, ledger in self.ledgers.items():
            dropped, again = ledger.rewind(references.get(key))
            self._free(dropped)
            if again:
                rewound.append(ledger)
        self.committed = dict(references)
        self.version += 1
        return rewound

    def extents(
        self, start: Mapping[StreamKey, Reference], max_rows: int | None = None, max_bytes: int | None = None
    ) -> dict[StreamKey, Extent]:
        """What a batch that starts at ``start`` may take of each stream.

        Limits are for all streams together and are shared out in proportion to what each has; as each stream may take
        one message at least, many streams may exceed a small limit.
        """
        whole = self._extents(start, {})
        rows, size = sum(e.rows for e in whole.values()), sum(e.bytes for e in whole.values())
        rows_over = max_rows is not None and rows > max_rows
        bytes_over = max_bytes is not None and size > max_bytes
        if not rows_over and not bytes_over:
            return whole
        shares = {
            key: (
                _share(max_rows, extent.rows, rows) if rows_over else None,
                _share(max_bytes, extent.bytes, size) if bytes_over else None,
            )
            for key, extent in whole.items()
        }
        return self._extents(start, shares)

    def _extents(
        self, start: Mapping[StreamKey, Reference], shares: Mapping[StreamKey, tuple[int | None, int | None]]
    ) -> dict[StreamKey, Extent]:
        found = {}
        for key, ledger in self.ledgers.items():
            if shares and key not in shares:
                continue
            extent = ledger.extent(start.get(key), *shares.get(key, (None, None)))
            if extent is not None:
                found[key] = extent
        return found

    def find(self, planned: PlannedRange) -> FoundRange | None:
        """A planned range, once all of it is here."""
        ledger = self.ledgers.get(planned.key)
        if ledger is None:
            return self._lost(planned)
        positions = ledger.range(planned.start, planned.end)
        if positions is None:
            return None
        begin, end = positions
        pieces = ((segment, ledger.reference_at(segment.end)) for segment in ledger.rows(begin, end))
        return FoundRange(planned.key, ledger.name, tuple((s, r) for s, r in pieces if r is not None))

    def _lost(self, planned: PlannedRange) -> FoundRange | None:
        """An ephemeral range of this slot whose buffer is gone: it was delivered at most once, and not again."""
        if isinstance(planned.end, str):
            return FoundRange(planned.key, "", ())
        return None

    def _free(self, segments: Iterable[Segment]) -> None:
        for segment in segments:
            segment.chunk.segments -= 1
            if not segment.chunk.segments:
                self.used -= segment.chunk.size

    def validate(self) -> None:
        """Check what must always hold; for tests."""
        chunks: dict[int, list[Any]] = {}
        for key, ledger in self.ledgers.items():
            assert ledger.key == key
            assert ledger.committed == self.committed.get(key), (ledger, self.committed.get(key))
            ledger.validate()
            for segment in ledger.segments:
                chunks.setdefault(id(segment.chunk), [segment.chunk, 0])[1] += 1
        for chunk, held in chunks.values():
            assert chunk.segments == held, (chunk, held)
        assert self.used == sum(chunk.size for chunk, _ in chunks.values()), self.used


def _share(limit: int | None, part: int, whole: int) -> int:
    assert limit is not None
    return max(1, limit * part // max(1, whole))
