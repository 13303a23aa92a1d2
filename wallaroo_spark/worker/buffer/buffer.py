"""The uncommitted rows that a worker holds: a held stream for each stream, within a budget of bytes.

Source: ``docs/architecture.md#rules``, rules 4 and 6 and ``docs/architecture.md#workers-keep-what-is-not-committed``.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

from wallaroo_spark.columnar import Lot, StreamRows
from wallaroo_spark.protocol import Fault, broken
from wallaroo_spark.references import PlannedRange, Reference, StreamKey
from wallaroo_spark.worker.buffer.ephemeral import Origin
from wallaroo_spark.worker.buffer.held_stream import Extent, HeldStream
from wallaroo_spark.worker.buffer.segments import HeldLot, Lots, LotSlice


@dataclass(frozen=True, slots=True)
class FoundRange:
    """A planned range that is held completely."""

    key: StreamKey
    """Key of the stream."""
    name: str
    """Name of the stream."""
    slices: tuple[tuple[LotSlice, Reference], ...]
    """Slices of lots to deliver, each with the reference that is reached behind it."""


STREAM_OVERHEAD = 2048
"""Bytes counted for a stream beside its name and its rows: its held stream, and the entries of sessions.

An estimate, rounded up.
"""


class Buffer:
    """The streams of one worker, the references that Spark has committed, and the bytes in use.

    ``unfinished`` are the bytes of frames that have not come to their end, which take memory as rows do. ``version``
    grows with every change that a plan or a waiting read may care about. The streams themselves are counted
    apart from rows, in ``overhead``, and may cost as much again. ``rows`` is how many ever came in.
    """

    def __init__(self, budget: int, origin: Origin, message_ids: str) -> None:
        self.budget = budget
        self.overhead = 0
        self.unfinished = 0
        self.version = 0
        self.streams: dict[StreamKey, HeldStream] = {}
        self.committed: dict[StreamKey, Reference] = {}
        self._filled: dict[StreamKey, HeldStream] = {}
        self._names: dict[StreamKey, str] = {}
        self._lots = Lots()
        self._scopes: dict[str, set[StreamKey]] = {}
        self._origin = origin
        self._message_ids = message_ids
        self.rows = 0

    @property
    def held(self) -> int:
        """Bytes of the held rows."""
        return self._lots.used

    @property
    def used(self) -> int:
        """Bytes of the held rows and of incomplete frames, which may become rows."""
        return self._lots.used + self.unfinished

    def open(self, key: StreamKey, name: str, notified: int) -> HeldStream:
        """The rows of a stream that is notified, made where there is none.

        Raises :class:`RemoteProtocolError` when there are more streams than the budget has room for.
        """
        stream = self.streams.get(key)
        more = _overhead(name) - (_overhead(stream.name) if stream else 0)
        if self.overhead + more > self.budget:
            reason = f"this worker has {len(self.streams)} streams, as many as its memoryBudget of {self.budget} allows"
            raise broken(Fault.TOO_MANY_STREAMS, f"{reason}; end some, or raise it")
        if stream is None:
            # As many rows as ever came in is a position that no stream has passed.
            stream = HeldStream(key, self._origin, self._message_ids, self.committed.get(key), self.rows)
            self.streams[key] = stream
        stream.open(name, notified)
        self.overhead += more
        self._lots.settle()
        self.version += 1
        return stream

    def hold(self, lot: Lot) -> HeldLot:
        """Rows that have arrived, to :meth:`append` them stream by stream."""
        return self._lots.hold(lot)

    def append(
        self, held: HeldLot, parts: Iterable[tuple[HeldStream, StreamRows]], received_at: int, instance: str
    ) -> None:
        """Accept the new rows of one run, already sorted by stream. Raises :class:`RemoteProtocolError`."""
        for stream, part in parts:
            before = stream.end
            try:
                stream.append(part, held, received_at, instance)
            finally:
                if stream.end != before:
                    self.rows += stream.end - before
                    self._filled[stream.key] = stream
                    self.version += 1

    def settle(self, held: HeldLot) -> None:
        """All new rows of a lot were accepted."""
        self._lots.touch(held)
        self._lots.settle()
        self._lots.merge()

    def merge(self) -> None:
        """Make room where that costs nothing: join lots that arrived in small pieces."""
        self._lots.merge(tight=True)

    def end(self, stream: HeldStream) -> None:
        """The stream has ended; an unstable end may be delivered now."""
        stream.close()
        self.version += 1

    def drop(self, stream: HeldStream) -> None:
        """Drop a stream's rows; the uncommitted ones must be resent."""
        stream.drop()
        self._lots.settle(tight=True)
        self.version += 1

    def drop_unstable(self, stream: HeldStream) -> None:
        """Drop a stream's rows behind its last stable reference."""
        stream.drop_unstable()
        self._lots.settle(tight=True)
        self.version += 1

    def forget(self, stream: HeldStream) -> None:
        """Forget a stream without held rows."""
        assert stream.empty, stream
        self.overhead -= _overhead(stream.name)
        del self.streams[stream.key]
        if stream.key.scope and stream.key in self.committed:
            self._names[stream.key] = stream.name

    def name(self, key: StreamKey) -> str:
        """The name of a stream, empty when no NOTIFY has told it here; Spark's offset log has only ids."""
        stream = self.streams.get(key)
        return stream.name if stream else self._names.get(key, "")

    def recover(self, streams: Iterable[HeldStream]) -> None:
        """An error has stopped short what was done to these streams: go by the rows that they hold, whatever it was.

        What they had accepted and do not hold has to be sent again.
        """
        for stream in streams:
            stream.recover()
        self._lots.recover(segment for stream in self.streams.values() for segment in stream.segments)
        self.overhead = sum(_overhead(stream.name) for stream in self.streams.values())
        self.version += 1

    def reference(self, key: StreamKey) -> int | None:
        """The last committed message id of a stream, None when there is none that can be resumed from."""
        reference = self.committed.get(key)
        return reference if isinstance(reference, int) else None

    def senders(self) -> set[str]:
        """The instances that have sent held rows."""
        scopes = {key.scope for key in self.streams if key.scope}
        shared = (stream for key, stream in self.streams.items() if not key.scope)
        return scopes | {segment.instance for stream in shared for segment in stream.segments}

    def resumable(self, scope: str) -> Iterator[tuple[StreamKey, int]]:
        """Iterate over the streams of a scope that have a committed reference."""
        for key in self._scopes.get(scope, ()):
            reference = self.committed[key]
            if isinstance(reference, int):
                yield key, reference

    def commit(self, references: Mapping[StreamKey, Reference]) -> list[HeldStream]:
        """Spark has committed up to these references; returns the streams that moved."""
        moved = []
        for key, reference in references.items():
            stream = self.streams.get(key)
            if stream is None:
                self._set_committed(key, reference)
                continue
            if stream.commit(reference):
                self._set_committed(key, reference)
                moved.append(stream)
        self._lots.settle()
        return moved

    def rewind(self, references: Mapping[StreamKey, Reference]) -> list[StreamKey]:
        """The query goes on from exactly these references; returns the streams that must be sent again."""
        back = [
            key
            for key, reference in self.committed.items()
            if key not in self.streams and self._went_back(key, reference, references.get(key))
        ]
        for key, stream in self.streams.items():
            if stream.rewind(references.get(key)):
                back.append(key)
        self._lots.settle()
        self.committed.clear()
        self._scopes.clear()
        self._names = {key: name for key, name in self._names.items() if key in references}
        for key, reference in references.items():
            self._set_committed(key, reference)
        self.version += 1
        return back

    def _went_back(self, key: StreamKey, before: Reference, after: Reference | None) -> bool:
        """Whether a stream without held rows is needed again; with opaque ids any change means that."""
        if not isinstance(before, int) or before == after:
            return False
        opaque = self._message_ids == "opaque" and key.scope
        return bool(opaque) or not isinstance(after, int) or after < before

    def _set_committed(self, key: StreamKey, reference: Reference) -> None:
        self.committed[key] = reference
        self._scopes.setdefault(key.scope, set()).add(key)

    def extents(
        self, start: Mapping[StreamKey, Reference | None], max_rows: int | None = None, max_bytes: int | None = None
    ) -> dict[StreamKey, Extent]:
        """How much of each stream a batch that starts at ``start`` may take.

        Limits hold for all streams together, and are divided in proportion to the held rows of each. As each stream may
        take at least one message, many streams may exceed a small limit.
        """
        return self.shared_extents(self.with_rows(), start, max_rows, max_bytes)[0]

    def shared_extents(
        self,
        streams: Iterable[HeldStream],
        start: Mapping[StreamKey, Reference | None],
        max_rows: int | None,
        max_bytes: int | None,
    ) -> tuple[dict[StreamKey, Extent], int, int]:
        """As :meth:`extents`, of these streams; and the rows and bytes that there would be without limits."""
        whole = {
            stream.key: (stream, extent)
            for stream in streams
            if (extent := stream.extent(start.get(stream.key), None, None)) is not None
        }
        rows, size = sum(e.rows for _, e in whole.values()), sum(e.bytes for _, e in whole.values())
        rows_over = max_rows is not None and rows > max_rows
        bytes_over = max_bytes is not None and size > max_bytes
        if not rows_over and not bytes_over:
            return {key: extent for key, (_, extent) in whole.items()}, rows, size
        shared = {}
        for key, (stream, extent) in whole.items():
            most_rows = _share(max_rows, extent.rows, rows) if rows_over else None
            most_bytes = _share(max_bytes, extent.bytes, size) if bytes_over else None
            cut = stream.extent(start.get(key), most_rows, most_bytes)
            if cut is not None:
                shared[key] = cut
        return shared, rows, size

    def with_rows(self) -> list[HeldStream]:
        """The streams of which rows are held; the time does not depend on how many others there are."""
        for key in [key for key, stream in self._filled.items() if stream.empty]:
            del self._filled[key]
        return list(self._filled.values())

    def plannable(self) -> bool:
        """Whether a batch could take any held row."""
        return any(stream.start < stream.stable_end for stream in self.with_rows())

    def owes(self, start: Mapping[StreamKey, Reference]) -> bool:
        """Whether the sender of a stream waits for an ACK of what Spark has committed: all up to ``start``."""
        return any(stream.key in start and stream.owes(start[stream.key]) for stream in self.with_rows())

    def find(self, planned: PlannedRange) -> FoundRange | None:
        """Return a planned range once it is held completely; None before."""
        stream = self.streams.get(planned.key)
        if stream is None:
            return self._lost(planned)
        positions = stream.range(planned.start, planned.end)
        if positions is None:
            return None
        begin, end = positions
        return FoundRange(planned.key, stream.name, tuple(stream.delivery(begin, end)))

    def _lost(self, planned: PlannedRange) -> FoundRange | None:
        """An ephemeral range of this slot whose buffer is gone. It is delivered at most once, and cannot be resent."""
        if isinstance(planned.end, str) and self._origin.same_slot(planned.end):
            return FoundRange(planned.key, "", ())
        return None

    def validate(self) -> None:
        """Check the invariants; for tests."""
        for key, stream in self.streams.items():
            assert stream.key == key
            assert stream.committed == self.committed.get(key), (stream, self.committed.get(key))
            stream.validate()
            assert stream.empty or self._filled.get(key) is stream, stream
        held = {segment.held for stream in self.streams.values() for segment in stream.segments}
        assert self.held == sum(lot.cost for lot in held), self.held
        for lot in held:
            lot.validate()
        assert self.overhead == sum(_overhead(stream.name) for stream in self.streams.values()), self.overhead
        assert sum(len(keys) for keys in self._scopes.values()) == len(self.committed)


def _overhead(name: str) -> int:
    return STREAM_OVERHEAD + len(name)


def _share(limit: int | None, part: int, whole: int) -> int:
    assert limit is not None
    return max(1, limit * part // max(1, whole))
