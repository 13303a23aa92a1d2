"""The uncommitted rows that a worker holds: a held stream for each stream, within a budget of bytes.

Source: ``docs/architecture.md#rules``, rules 4 and 6 and ``docs/architecture.md#workers-keep-uncommitted-rows``.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from itertools import chain
from typing import Any

import numpy as np
from numpy.typing import NDArray

from wallaroo_spark.columnar import Grouped, Lot, StreamRows
from wallaroo_spark.inner.calls import shares
from wallaroo_spark.protocol import Fault, broken
from wallaroo_spark.references import PlannedRange, Reference, StreamKey
from wallaroo_spark.worker.buffer.ephemeral import Origin
from wallaroo_spark.worker.buffer.found import FoundRange, FoundRanges
from wallaroo_spark.worker.buffer.held_stream import Extent, HeldStream
from wallaroo_spark.worker.buffer.segments import HeldLot, Lots

STREAM_OVERHEAD = 2048
"""Bytes counted for a stream in addition to its name and its rows: its objects here and its entries in sessions.

An estimate, rounded up.
"""


class Buffer:
    """The streams of one worker with their held rows, the references that Spark has committed, and the bytes in use."""

    def __init__(self, budget: int, origin: Origin, message_ids: str) -> None:
        self.budget = budget
        """Limit in bytes of the held rows and incomplete frames; ``overhead`` has a limit of the same size."""
        self.overhead = 0
        """Bytes counted for the streams themselves, without their rows."""
        self.unfinished = 0
        """Bytes of incomplete frames, which take memory as rows do."""
        self.version = 0
        """A number that increases with each change that may matter to a plan or a waiting read."""
        self.streams: dict[StreamKey, HeldStream] = {}
        """The streams that are open here or have held rows."""
        self.committed: dict[StreamKey, Reference] = {}
        """The committed references of all streams of the scopes that the worker follows."""
        self._filled: dict[StreamKey, HeldStream] = {}
        """The streams with held rows; a stream that has become empty may still be among them."""
        self._names: dict[StreamKey, str] = {}
        """Names of streams that have a committed reference and are no longer in ``streams``."""
        self._lots = Lots()
        self.commit_ages = self._lots.commit_ages
        """The rows that were committed lately, with the times at which they were received."""
        self._scopes: dict[str, set[StreamKey]] = {}
        """The keys of ``committed``, by scope."""
        self._by_scope: dict[str, dict[int, HeldStream]] = {}
        """The streams of ``streams``, by scope and stream id."""
        self._origin = origin
        self._message_ids = message_ids
        self.rows = 0
        """The number of rows that were ever accepted."""

    @property
    def held(self) -> int:
        """Bytes of the held rows."""
        return self._lots.used

    @property
    def used(self) -> int:
        """Bytes of the held rows and of incomplete frames, which may become rows."""
        return self._lots.used + self.unfinished

    def open(self, key: StreamKey, name: str, notified: int) -> HeldStream:
        """Open a stream because of its NOTIFY, and return it; it is created if it is not in ``streams``.

        Raises :class:`RemoteProtocolError` when the budget has no room for one more stream.
        """
        stream = self.streams.get(key)
        more = _overhead(name) - (_overhead(stream.name) if stream else 0)
        if self.overhead + more > self.budget:
            reason = f"this worker has {len(self.streams)} streams, as many as its memoryBudget of {self.budget} allows"
            raise broken(Fault.TOO_MANY_STREAMS, f"{reason}; end some, or raise it")
        if stream is None:
            # No stream has passed this position, because it counts the rows of all streams.
            committed = self.committed.get(key)
            stream = HeldStream(key, self._lots, self._origin, self._message_ids, committed, self.rows)
            self.streams[key] = stream
            self._by_scope.setdefault(key.scope, {})[key.stream_id] = stream
        stream.open(name, notified)
        self.overhead += more
        self._lots.settle()
        self.version += 1
        return stream

    def hold(self, lot: Lot) -> HeldLot:
        """Register rows that have arrived, so that :meth:`append` can accept them stream by stream."""
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

    def of_scope(self, scope: str) -> Mapping[int, HeldStream]:
        """The streams of a scope, by their ids."""
        return self._by_scope.get(scope, {})

    def append_parts(
        self,
        held: HeldLot,
        grouped: Grouped,
        parts: NDArray[np.int64],
        streams: list[HeldStream],
        receipts: NDArray[np.int64],
    ) -> int:
        """Accept parts of a lot in which no message has flags, is a replay or breaks a rule.

        ``parts`` are their indexes in ``grouped``, ``streams`` has a different stream for each, and ``receipts`` the
        index of each part's receipt in the lot's ``receipts``. Returns the number of rows.
        """
        lows, highs, sizes = grouped.lows[parts], grouped.highs[parts], grouped.sizes[parts]
        counts = highs - lows
        firsts = np.array([stream.end for stream in streams], np.int64)
        rows = self._lots.add(held, receipts, firsts, lows, highs, sizes).tolist()
        last_ids = held.lot.message_ids[highs - 1].tolist()
        self._filled.update([(stream.key, stream) for stream in streams if not stream.rows])
        columns = zip(streams, rows, counts.tolist(), sizes.tolist(), last_ids, strict=True)
        for stream, row, count, size, last_id in columns:
            stream.taken(row, count, size, last_id)
        total = int(counts.sum())
        self.rows += total
        self.version += 1
        return total

    def settle(self, held: HeldLot) -> None:
        """Release the memory of the lot's other rows, because all its new rows were accepted."""
        self._lots.touch(held)
        self._lots.settle()
        self._lots.merge()

    def merge(self) -> None:
        """Save memory without dropping rows: join small lots."""
        self._lots.merge(tight=True)

    def end(self, stream: HeldStream) -> None:
        """Record that the stream has ended; its unstable last rows may be delivered now."""
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
        mine = self._by_scope[stream.key.scope]
        del mine[stream.key.stream_id]
        if not mine:
            del self._by_scope[stream.key.scope]
        if stream.key.scope and stream.key in self.committed:
            self._names[stream.key] = stream.name

    def name(self, key: StreamKey) -> str:
        """The name of a stream; empty when no NOTIFY here has told it, because Spark's offset log has only ids."""
        stream = self.streams.get(key)
        return stream.name if stream else self._names.get(key, "")

    def recover(self, streams: Iterable[HeldStream]) -> None:
        """Make these streams consistent after an error interrupted a change: only the rows that they hold count.

        Their senders must resend messages that were accepted and are not held.
        """
        for stream in streams:
            stream.recover()
        self._lots.recover(chain.from_iterable(stream.rows for stream in self.streams.values()))
        self._filled = {key: stream for key, stream in self.streams.items() if not stream.empty}
        self.overhead = sum(_overhead(stream.name) for stream in self.streams.values())
        self.version += 1

    def reference(self, key: StreamKey) -> int | None:
        """The last committed message id of a stream; None when the stream cannot be resumed from an id."""
        reference = self.committed.get(key)
        return reference if isinstance(reference, int) else None

    def senders(self) -> set[str]:
        """The instances that have sent held rows."""
        scopes = {key.scope for key in self.streams if key.scope}
        shared = (stream for key, stream in self.streams.items() if not key.scope)
        return scopes | {instance for stream in shared for instance in stream.senders()}

    def resumable(self, scope: str) -> Iterator[tuple[StreamKey, int]]:
        """Iterate over the streams of a scope that have a committed reference."""
        for key in self._scopes.get(scope, ()):
            reference = self.committed[key]
            if isinstance(reference, int):
                yield key, reference

    def commit(
        self, references: Mapping[StreamKey, Reference] | Mapping[StreamKey, Reference | None]
    ) -> list[HeldStream]:
        """Drop the rows up to these committed references; return the streams whose reference advanced.

        A stream with None is forgotten: no reference of it is committed any more.
        """
        moved, rising = [], []
        for key, reference in references.items():
            stream = self.streams.get(key)
            if reference is None:
                self.forget_committed(key)
            elif stream is None:
                self._set_committed(key, reference)
            elif stream.rises_to(reference):
                rising.append((stream, reference))
            elif stream.commit(reference):
                self._set_committed(key, reference)
                moved.append(stream)
        moved += self._commit_rising(rising)
        self._lots.settle()
        return moved

    def _commit_rising(self, streams: list[tuple[HeldStream, Reference]]) -> Iterator[HeldStream]:
        """:meth:`commit` for streams for which :meth:`HeldStream.rises_to` is true: all their segments in one pass."""
        table = self._lots.table
        counts = np.fromiter((len(stream.rows) for stream, _ in streams), np.int64, len(streams))
        ends = np.cumsum(counts)
        rows = np.fromiter(chain.from_iterable(stream.rows for stream, _ in streams), np.int64)
        references = np.repeat(np.array([reference for _, reference in streams], np.uint64), counts)
        whole = table.last_id[rows] <= references
        cut = np.flatnonzero(~whole & (table.first_id[rows] <= references))
        # A commit within a segment is rare, because a plan ends there only under a limit.
        alone = set(np.searchsorted(ends, cut, side="right").tolist())
        for number in alone:
            whole[ends[number] - counts[number] : ends[number]] = False
        before = np.concatenate([[0], np.cumsum(whole)])
        freed = np.concatenate([[0], np.cumsum(np.where(whole, table.size[rows], 0))])
        begins = ends - counts
        dropped, sizes = before[ends] - before[begins], freed[ends] - freed[begins]
        following = begins + dropped
        left = following < ends
        starts = np.zeros(len(streams), np.int64)
        starts[left] = table.first[rows[following[left]]]
        columns = zip(streams, dropped.tolist(), sizes.tolist(), starts.tolist(), strict=True)
        for number, ((stream, reference), count, size, start) in enumerate(columns):
            if number in alone:
                stream.commit(reference)
            else:
                stream.drop_first(reference, count, size, start)
            self._set_committed(stream.key, reference)
            yield stream
        committed = rows[whole]
        self._lots.count_committed(committed)
        self._lots.remove(committed)

    def rewind(
        self, references: Mapping[StreamKey, Reference], scopes: Collection[str] | None = None
    ) -> list[StreamKey]:
        """Set exactly these references, from which the query continues; return the streams that must be sent again.

        They are all references of these scopes; None: of all scopes.
        """
        if scopes is None:
            scopes = list(self._scopes.keys() | self._by_scope.keys())
        known = [key for scope in scopes for key in sorted(self._scopes.get(scope, ()))]
        back = [
            key
            for key in known
            if key not in self.streams and self._went_back(key, self.committed[key], references.get(key))
        ]
        for scope in scopes:
            for stream in self.of_scope(scope).values():
                if stream.rewind(references.get(stream.key)):
                    back.append(stream.key)
        self._lots.settle()
        for key in known:
            if key not in references:
                self._remove_committed(key)
        for key, reference in references.items():
            self._set_committed(key, reference)
        self.version += 1
        return back

    def forget_scope(self, scope: str) -> None:
        """Forget the committed references of a scope without streams."""
        assert not self.of_scope(scope), scope
        for key in list(self._scopes.get(scope, ())):
            self._remove_committed(key)

    def _went_back(self, key: StreamKey, before: Reference, after: Reference | None) -> bool:
        """Whether a stream without held rows must be sent again; with opaque ids any other reference means that."""
        if not isinstance(before, int) or before == after:
            return False
        opaque = self._message_ids == "opaque" and key.scope
        return bool(opaque) or not isinstance(after, int) or after < before

    def forget_committed(self, key: StreamKey) -> None:
        """Forget the committed reference of a stream. Held rows stay, and begin the stream anew."""
        if key not in self.committed:
            return
        self._remove_committed(key)
        stream = self.streams.get(key)
        if stream is not None:
            stream.committed = None
            self.version += 1

    def _remove_committed(self, key: StreamKey) -> None:
        del self.committed[key]
        self._names.pop(key, None)
        mine = self._scopes[key.scope]
        mine.discard(key)
        if not mine:
            del self._scopes[key.scope]

    def _set_committed(self, key: StreamKey, reference: Reference) -> None:
        self.committed[key] = reference
        self._scopes.setdefault(key.scope, set()).add(key)

    def extents(
        self,
        streams: Iterable[HeldStream],
        start: Mapping[StreamKey, Reference | None],
        max_rows: int | None,
        max_bytes: int | None,
    ) -> tuple[dict[StreamKey, Extent], int, int]:
        """The part of each of these streams that a batch with this start may take.

        The limits hold for all streams together, and are divided in proportion to the rows of each. Each stream may
        have at least one message in the batch, so many streams together may exceed a small limit. Returns also the rows
        and the bytes that the batch would have without limits.
        """
        whole: dict[StreamKey, tuple[HeldStream, Extent]] = {}
        behind: list[tuple[HeldStream, int]] = []
        for stream in streams:
            reference = start.get(stream.key)
            if stream.ends_stable and isinstance(reference, int) and stream.rises_to(reference):
                behind.append((stream, reference))
            elif (extent := stream.extent(reference, None, None)) is not None:
                whole[stream.key] = stream, extent
        for stream, extent in self._extents_behind(behind):
            whole[stream.key] = stream, extent
        rows, size = sum(e.rows for _, e in whole.values()), sum(e.bytes for _, e in whole.values())
        most = shares({key: (extent.rows, extent.bytes) for key, (_, extent) in whole.items()}, max_rows, max_bytes)
        found = {
            key: stream.extent(start.get(key), *most[key]) if most else extent
            for key, (stream, extent) in whole.items()
        }
        return {key: extent for key, extent in found.items() if extent is not None}, rows, size

    def _extents_behind(self, streams: list[tuple[HeldStream, int]]) -> Iterator[tuple[HeldStream, Extent]]:
        """:meth:`HeldStream.extent` without limits, for streams that end at a stable id and that
        :meth:`HeldStream.rises_to` their start: all their segments in one pass.

        A batch is planned before the notice of the commit before it, so this is so for most streams of most plans.
        """
        if not streams:
            return
        table = self._lots.table
        counts = np.fromiter((len(stream.rows) for stream, _ in streams), np.int64, len(streams))
        ends = np.cumsum(counts)
        rows = np.fromiter(chain.from_iterable(stream.rows for stream, _ in streams), np.int64)
        starts = np.repeat(np.array([reference for _, reference in streams], np.uint64), counts)
        behind = table.first_id[rows] > starts
        cut = np.flatnonzero(~behind & (table.last_id[rows] > starts))
        alone = set(np.searchsorted(ends, cut, side="right").tolist())
        lengths, sizes = (
            np.diff(np.concatenate([[0], np.cumsum(np.where(behind, column, 0))])[[0, *ends.tolist()]])
            for column in (table.high[rows] - table.low[rows], table.size[rows])
        )
        last_ids = table.last_id[rows[ends - 1]]
        columns = zip(streams, last_ids.tolist(), lengths.tolist(), sizes.tolist(), strict=True)
        for number, ((stream, reference), last_id, length, size) in enumerate(columns):
            if number in alone:
                extent = stream.extent(reference, None, None)
                if extent is not None:
                    yield stream, extent
            elif length:
                yield stream, Extent(last_id, length, size)

    def with_rows(self) -> list[HeldStream]:
        """The streams with held rows. The time does not depend on the number of other streams."""
        for key in [key for key, stream in self._filled.items() if stream.empty]:
            del self._filled[key]
        return list(self._filled.values())

    def plannable(self) -> bool:
        """Whether a batch could take any held row."""
        return any(stream.start < stream.stable_end for stream in self.with_rows())

    def owes(self, start: Mapping[StreamKey, Reference]) -> bool:
        """Whether some sender waits for an ACK of messages up to ``start``, all of which Spark has committed."""
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

    def find_all(self, ranges: Mapping[int, PlannedRange]) -> FoundRanges:
        """The planned ranges that are held completely, by their indexes in ``ranges``."""
        found = FoundRanges()
        alone: dict[int, FoundRange] = {}
        indexes: list[int] = []
        streams: list[HeldStream] = []
        ends: list[Reference] = []
        for index, planned in ranges.items():
            stream = self.streams.get(planned.key)
            if stream is not None and stream.has_whole(planned.start, planned.end):
                indexes.append(index)
                streams.append(stream)
                ends.append(planned.end)
            elif (one := self.find(planned)) is not None:
                alone[index] = one
        if indexes:
            for index in self._find_whole(found, indexes, streams, ends):
                one = self.find(ranges[index])
                assert one is not None
                alone[index] = one
        found.add(alone)
        return found

    def _find_whole(
        self, found: FoundRanges, indexes: list[int], streams: list[HeldStream], ends: list[Reference]
    ) -> list[int]:
        """Find ranges from the first held row on, in one pass; return the indexes of those that end in a segment."""
        table = self._lots.table
        counts = np.fromiter((len(stream.rows) for stream in streams), np.int64, len(streams))
        rows = np.fromiter(chain.from_iterable(stream.rows for stream in streams), np.int64)
        numbers = np.repeat(np.array(indexes, np.int64), counts)
        references = np.repeat(np.array(ends, np.uint64), counts)
        whole = table.last_id[rows] <= references
        cut = set(numbers[~whole & (table.first_id[rows] <= references)].tolist())
        if cut:
            whole &= ~np.isin(numbers, np.array(list(cut), np.int64))
        for index, stream in zip(indexes, streams, strict=True):
            if index not in cut:
                found.streams[index] = stream.name, stream.key.stream_id
        mine = rows[whole]
        columns: dict[str, NDArray[Any]] = {
            name: getattr(table, name)[mine].astype(np.int64, copy=False)
            for name in ("serial", "low", "high", "size", "receipt")
        }
        lots = [self._lots.of(serial) for serial in np.unique(columns["serial"]).tolist()]
        found.add_rows(numbers[whole], lots, {**columns, "last_id": table.last_id[mine]})
        return sorted(cut)

    def _lost(self, planned: PlannedRange) -> FoundRange | None:
        """An empty range for an ephemeral range of this slot whose buffer is gone; None for others.

        Ephemeral messages are delivered at most once and cannot be resent.
        """
        if isinstance(planned.end, str) and self._origin.same_slot(planned.end):
            return FoundRange(planned.key, "", ())
        return None


def _overhead(name: str) -> int:
    return STREAM_OVERHEAD + len(name)
