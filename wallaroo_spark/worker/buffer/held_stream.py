"""The uncommitted rows of one stream, by position and by reference.

A *position* counts rows in the order in which they were accepted. It means the same row for as long as the buffer
exists. A *reference* is the entry in Spark's offset log: the message id, or ``e:<slot>:<generation>:<position>`` for an
ephemeral stream, whose messages cannot be sent again.

Source: ``docs/protocol.md#points-of-reference``.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from wallaroo_spark.columnar import StreamRows
from wallaroo_spark.errors import RemoteProtocolError
from wallaroo_spark.protocol import Fault, Flags, broken
from wallaroo_spark.references import Reference, StreamKey
from wallaroo_spark.worker.buffer.ephemeral import Origin, ReadPosition
from wallaroo_spark.worker.buffer.replays import IncreasingIds, NotIncreasing, ReferenceRule, rule_for
from wallaroo_spark.worker.buffer.segments import SEGMENT_OVERHEAD, HeldLot, Lots, LotSlice, Segment


class Extent(NamedTuple):
    """A part of a stream that a batch may take."""

    end: Reference
    rows: int
    """Number of rows."""
    bytes: int
    """Memory of the rows, in bytes."""


class HeldStream:
    """The held rows of one stream at the positions ``[start, end)``, the rule that recognises replays, and its sender.

    ``position`` is the first position. Ids can be opaque only in the drafts, where a stream belongs to an instance;
    the ids of v3 always increase.
    """

    def __init__(
        self,
        key: StreamKey,
        lots: Lots,
        origin: Origin,
        message_ids: str,
        committed: Reference | None,
        position: int = 0,
    ) -> None:
        self.key = key
        self.name = ""
        self.owner: int | None = None
        """The number of the connection that sends the stream; None while there is none."""
        self.ended = False
        """Whether the sender has ended the stream."""
        self.broken_off = False
        """Whether new rows are refused: held rows were dropped, and the sender was not asked to resend them yet."""
        self.ephemeral: bool | None = None
        """Whether its messages are EPHEMERAL; None before the first message."""
        self.increasing = message_ids != "opaque" or not key.scope
        """Whether message ids increase within the stream."""
        self.committed = committed
        """The committed reference; None if no batch with the stream is committed."""
        self.first = position
        """The position at which it started to count."""
        self.start = position
        """The position of the first held row."""
        self.end = position
        """The position behind the last held row."""
        self.size = 0
        """Bytes of memory of the held rows."""
        self.rows: deque[int] = deque()
        """The segments, oldest first, as row numbers of the table in ``lots``."""
        self.lots = lots
        self._origin = origin
        self._rule: ReferenceRule = rule_for(self.increasing, self._committed_id, may_go_back=not self.key.scope)
        self._stable_end = position
        self._unstable_rows = 0
        """The number of accepted rows with UNSTABLE_REFERENCE; 0 means that no row needs a look."""
        self._read_position = ReadPosition(position)

    def __repr__(self) -> str:
        return (
            f"HeldStream({self.key.scope!r}/{self.key.stream_id}, {self.start}..{self.end}, committed={self.committed})"
        )

    @property
    def _committed_id(self) -> int | None:
        return self.committed if isinstance(self.committed, int) else None

    @property
    def empty(self) -> bool:
        """Whether no rows are held."""
        return self.start == self.end

    @property
    def repeating(self) -> bool:
        """Whether its sender must repeat messages first, so that new messages are recognised; only with opaque ids."""
        return not self.ended and not self.ephemeral and self._rule.repeating

    @property
    def segments(self) -> list[Segment]:
        """Its segments, oldest first."""
        return [Segment(self.lots, row) for row in self.rows]

    @property
    def cost(self) -> int:
        """Bytes of memory of its rows and segments."""
        return self.size + len(self.rows) * SEGMENT_OVERHEAD

    @property
    def stable_end(self) -> int:
        """The last position at which a batch may end."""
        return self.end if self.ephemeral else self._stable_end

    @property
    def ends_stable(self) -> bool:
        """Whether it holds rows, all of which have stable ids."""
        return self._stable_end == self.end > self.start and not self._unstable_rows

    @property
    def continues_elsewhere(self) -> bool:
        """Whether it is an ephemeral stream whose committed reference is of another buffer.

        Then its rows here follow a reference that a planner knows and this buffer may not know.
        """
        return (
            bool(self.ephemeral) and isinstance(self.committed, str) and self._origin.position(self.committed) is None
        )

    def open(self, name: str, notified: int) -> None:
        """Handle a NOTIFY. Rows behind the last stable reference are dropped, because the sender may change them."""
        self.name, self.ended, self.broken_off = name, False, False
        self.drop_unstable()
        if not self.ephemeral:
            self._rule.resume(notified, self._committed_id)

    def close(self) -> None:
        """Record the end of the stream. A batch may end there even at an unstable reference, because nobody resumes the
        stream from it.
        """
        self.ended = True
        self._stable_end = self.end

    def drop_unstable(self) -> None:
        """Drop the rows behind the last stable reference."""
        if self.stable_end != self.end:
            self._drop_tail(self._stable_end)
            self._rule.rewind(self._id_before(self._stable_end))

    def drop(self) -> None:
        """Drop all rows; uncommitted ones must be resent."""
        if self.ephemeral:
            # A plan may contain the position, so it must never mean another row.
            self._drop_head(self.end)
        else:
            self._drop_tail(self.start)
        self.ended = False
        self._rule = rule_for(self.increasing, self._committed_id, may_go_back=not self.key.scope)

    def append(self, rows: StreamRows, held: HeldLot, received_at: int, instance: str) -> Segment | None:
        """Accept the new messages among these rows of ``held``; return their segment, or None when none is new.

        Raises :class:`RemoteProtocolError` when the stream has both ephemeral and other messages, or when opaque ids
        are not repeated in the order of sending; then no row is accepted. Also raises it when ids do not increase; then
        the rows before the wrong id are accepted.
        """
        self._settle_kind(not rows.lot.plain and bool(int(rows.flags[0]) & Flags.EPHEMERAL))
        low, high, size = rows.low, rows.high, rows.size
        try:
            new = None if self.ephemeral else self._rule.select(rows.message_ids, rows.flags, rising=rows.rising)
        except NotIncreasing as found:
            if found.at:
                self.append(rows.head(found.at), held, received_at, instance)
            raise broken(Fault.IDS_NOT_INCREASING, self._not_increasing(found)) from None
        except RemoteProtocolError:
            self._rule.rewind(self._id_before(self.end))
            raise
        if new is not None:
            kept = np.flatnonzero(new)
            if not len(kept):
                return None
            if len(kept) == kept[-1] - kept[0] + 1:
                low, high = low + int(kept[0]), low + int(kept[-1]) + 1
            else:
                held = self.lots.hold(held.lot.take(kept + low))
                low, high = 0, len(kept)
            size = int(held.lot.sizes[low:high].sum())
        columns = (np.array([value], np.int64) for value in (self.end, low, high, size))
        (row,) = self.lots.add(held, held.receipt(instance, received_at), *columns).tolist()
        self.rows.append(row)
        self.size += size
        self.end += high - low
        segment = Segment(self.lots, row)
        self._count_stable(segment)
        return segment

    def senders(self) -> set[str]:
        """The instances that have sent its rows."""
        return {segment.receipt.instance for segment in self.segments}

    def takes(self, first_id: int) -> bool:
        """Whether messages without flags, with ids that increase from ``first_id``, are certainly all new."""
        rule = self._rule
        return (
            type(rule) is IncreasingIds
            and not self.ephemeral
            and not self.broken_off
            and (rule.last is None or first_id > rule.last)
        )

    def taken(self, row: int, count: int, size: int, last_id: int) -> None:
        """Record that a row of the table has become the last segment, with ``count`` messages that it :meth:`takes`."""
        self.rows.append(row)
        self.ephemeral = False
        self.size += size
        self._stable_end = self.end = self.end + count
        assert isinstance(self._rule, IncreasingIds)
        self._rule.accepted(last_id)

    def _not_increasing(self, found: NotIncreasing) -> str:
        return (
            f"stream {self.key.stream_id}: message {found.message_id} was sent behind message {found.highest}, and "
            "with messageIds=increasing ids increase from one NOTIFY to the next; set messageIds=opaque for other ids"
        )

    def recover(self) -> None:
        """Become consistent after an error: the rows of the segments are held, and no later message is accepted."""
        segments = self.segments
        if segments:
            self.start, self.end = segments[0].first, segments[-1].end
        else:
            self.start = self.end
        self.size = sum(segment.size for segment in segments)
        self._stable_end, self._unstable_rows = self.start, 0
        for segment in segments:
            self._count_stable(segment)
        if self.ended:
            self._stable_end = self.end
        if not self.ephemeral:
            self._rule.rewind(self._id_before(self.end))

    def _count_stable(self, segment: Segment) -> None:
        """Record the positions in the last segment at which a batch may end."""
        if segment.held.lot.plain:
            self._stable_end = segment.end
            return
        stable = segment.stable_ends()
        self._unstable_rows += len(segment) - len(stable)
        if len(stable):
            self._stable_end = int(stable[-1])

    def _settle_kind(self, ephemeral: bool) -> None:
        """Compare the kind of a session's messages with the held rows and the committed reference."""
        if ephemeral != bool(self.ephemeral) and not self.empty:
            kinds = "EPHEMERAL messages follow others" if ephemeral else "others follow EPHEMERAL messages"
            raise broken(Fault.MIXED_EPHEMERAL, f"in stream {self.key.stream_id} {kinds} that are not committed yet")
        if ephemeral and self._committed_id is not None:
            reason = f"stream {self.key.stream_id} has a committed reference, {self._committed_id}, and cannot go on"
            raise broken(Fault.MIXED_EPHEMERAL, f"{reason} as an EPHEMERAL one; use another stream id")
        self.ephemeral = ephemeral

    def position_after(self, reference: Reference | None) -> int | None:
        """The position of the first row behind a reference; None when the held rows do not follow the reference."""
        if reference is None and not self.ephemeral:
            return self.start if self._committed_id is None else None
        if reference is None or isinstance(reference, str) != bool(self.ephemeral):
            return self.start
        if isinstance(reference, str):
            position = self._origin.position(reference)
            return max(
                self.start, min(self._read_position.behind(reference) if position is None else position, self.end)
            )
        if not self.increasing:
            return self.start if reference == self.committed else self._find(reference)
        if self._committed_id is not None and reference <= self._committed_id:
            return self.start if reference == self._committed_id else None
        last_ids = self.lots.table.last_id
        for row in self.rows:
            if last_ids[row] > reference:
                segment = Segment(self.lots, row)
                return segment.first + int(np.searchsorted(segment.ids, np.uint64(reference), side="right"))
        return self.end

    def _find(self, reference: int) -> int | None:
        for segment in reversed(self.segments):
            found = np.flatnonzero(segment.ids == np.uint64(reference))
            if len(found):
                return segment.first + int(found[-1]) + 1
        return None

    def reference_at(self, position: int) -> Reference | None:
        """The reference of the last row before a position."""
        if self.ephemeral:
            return self._origin.reference(position)
        return self._id_before(position)

    def _id_before(self, position: int) -> int | None:
        if self.rows and position == self.end:
            return int(self.lots.table.last_id[self.rows[-1]])
        for segment in self.segments:
            if segment.first < position <= segment.end:
                return int(segment.ids[position - 1 - segment.first])
        return self._committed_id

    def extent(self, start: Reference | None, max_rows: int | None, max_bytes: int | None) -> Extent | None:
        """The part that a batch with this start may take within the limits; None when it may take no row.

        The first row always fits. A batch ends only at a stable id, so it may exceed a limit to reach one.
        """
        if start == self.committed and not self.ephemeral:
            begin: int | None = self.start
        else:
            begin = None if self._is_past(start) else self.position_after(start)
        if begin is None or begin >= self.stable_end:
            return None
        end = self.stable_end
        if max_rows is not None or max_bytes is not None:
            end = self._stable_cut(begin, self._cut(begin, end, max_rows, max_bytes))
        reference = self.reference_at(end)
        if reference is None or reference == start:
            return None
        return Extent(reference, end - begin, self._size(begin, end))

    def owes(self, start: Reference) -> bool:
        """Whether rows up to ``start``, which Spark has committed, are still held. No ACK was sent for them then."""
        begin = self.position_after(start)
        return begin is not None and begin > self.start

    def _cut(self, begin: int, end: int, max_rows: int | None, max_bytes: int | None) -> int:
        if max_rows is not None:
            end = min(end, begin + max(1, max_rows))
        if max_bytes is None:
            return end
        left = max_bytes
        for segment in self._within(begin, end):
            first = max(begin, segment.first)
            ends = np.cumsum(segment.sizes[first - segment.first : end - segment.first])
            fitting = int(np.searchsorted(ends, left, side="right"))
            if fitting < len(ends):
                return max(begin + 1, first + fitting)
            left -= int(ends[-1])
        return end

    def _stable_cut(self, begin: int, end: int) -> int:
        if not self._unstable_rows or self.ephemeral or end >= self.stable_end:
            return end
        above = self.stable_end
        best = None
        for segment in self._within(begin, self.stable_end):
            for position in segment.stable_ends().tolist():
                if position <= begin:
                    continue
                if position <= end:
                    best = position
                else:
                    above = min(above, position)
        return best if best is not None else above

    def _within(self, begin: int, end: int) -> Iterator[Segment]:
        """The segments that contain some of the positions ``begin`` to ``end``."""
        for row in self.rows:
            segment = Segment(self.lots, row)
            if segment.first >= end:
                return
            if segment.end > begin:
                yield segment

    def _size(self, begin: int, end: int) -> int:
        if (begin, end) == (self.start, self.end):
            return self.size
        size = 0
        for segment in self._within(begin, end):
            inside = segment.first >= begin and segment.end <= end
            size += segment.size if inside else segment.slice(begin, end).size
        return size

    def delivery(self, begin: int, end: int) -> Iterator[tuple[LotSlice, Reference]]:
        """The held rows at positions ``begin`` to ``end``: slices of lots, each with the reference of its last row."""
        for segment in self._within(begin, end):
            part = segment.slice(begin, end)
            behind = segment.first + part.high - segment.low
            yield part, self._origin.reference(behind) if self.ephemeral else part.last_id

    def range(self, start: Reference | None, end: Reference) -> tuple[int, int] | None:
        """The positions of a planned range (start, end] if all its rows are held; otherwise None.

        The range is complete when ``end`` has arrived, or the stream's end, or, with increasing ids, a greater id.
        """
        begin = self.position_after(start)
        if begin is None or self._is_past(start):
            return None
        if isinstance(end, str):
            return self._ephemeral_range(begin, end)
        if self.ephemeral:
            return None
        if self.increasing:
            last = self._id_before(self.end)
            # After an unstable message another message with the same id may follow, which belongs to the range.
            whole = last is not None and (last > end or (last == end and self._stable_end == self.end))
            if self.ended or whole:
                return begin, self.position_after(end) or begin
            return None
        stop = self.position_after(end)
        if stop is None:
            return (begin, self.end) if self.ended else None
        return begin, stop

    def _is_past(self, start: Reference | None) -> bool:
        """Whether some of the rows behind ``start`` are committed, and therefore no longer held."""
        if not self.increasing or self._committed_id is None:
            return False
        return not isinstance(start, int) or start < self._committed_id

    def _ephemeral_range(self, begin: int, end: str) -> tuple[int, int] | None:
        position = self._origin.position(end)
        if position is None:
            return (begin, begin) if self._origin.same_slot(end) else None
        if position > self.end:
            return None
        self._read_position.was_read(position)
        return begin, max(begin, position)

    def has_whole(self, start: Reference | None, end: Reference) -> bool:
        """Whether :meth:`range` would return a range that begins at the first held row; decided by the ids alone."""
        if not self.rows or start != self.committed or self.ephemeral or not self.increasing or isinstance(end, str):
            return False
        if self.ended:
            return True
        last = self.lots.table.last_id[self.rows[-1]]
        return bool(last > end or (last == end and self._stable_end == self.end))

    def rises_to(self, reference: Reference) -> bool:
        """Whether :meth:`commit` of this reference drops segments by comparing their ids alone."""
        return (
            isinstance(reference, int)
            and self.increasing
            and not self.ephemeral
            and (self._committed_id is None or reference > self._committed_id)
        )

    def drop_first(self, reference: Reference, count: int, size: int, start: int) -> None:
        """Commit a reference that it :meth:`rises_to`: drop the first ``count`` segments, which have ``size`` bytes.

        ``start`` is the position of the first remaining segment; without one it has no meaning. The caller removes the
        rows from the table.
        """
        assert isinstance(reference, int)
        self._rule.commit(reference)
        self.committed = reference
        self.size -= size
        if count == len(self.rows):
            self.rows.clear()
            self.start = self.end
        elif count:
            for _ in range(count):
                self.rows.popleft()
            self.start = start
        self._stable_end = max(self._stable_end, self.start)

    def commit(self, reference: Reference) -> bool:
        """Drop the committed rows. Returns whether the reference advanced."""
        if reference == self.committed:
            return False
        behind = self.position_after(reference)
        if isinstance(reference, int) and not self.ephemeral:
            if self.increasing and self._committed_id is not None and reference < self._committed_id:
                return False
            self._rule.commit(reference)
        self.committed = reference
        # An opaque reference that is not held is newer than all held rows: they were sent again after its delivery.
        self._commit_head(self.end if behind is None else behind)
        return True

    def rewind(self, reference: Reference | None) -> bool:
        """Set the reference from which the query continues; return whether the sender must resend."""
        before = self.committed
        if reference == before:
            return False
        joined = self._joins(reference)
        if joined is not None:
            self.committed = reference
            if isinstance(reference, int):
                self._rule.commit(reference)
            self._commit_head(joined)
            return False
        self.committed, ended = reference, self.ended
        self.drop()
        ahead = self.increasing and isinstance(reference, int) and (not isinstance(before, int) or reference > before)
        # A query that is ahead needs no rows again, so the stream's end stays valid.
        self.ended = ended and ahead
        return not ahead and not self.ephemeral

    def _joins(self, reference: Reference | None) -> int | None:
        """The position at which the held rows follow ``reference`` without a gap; None when there is a gap."""
        if self.ephemeral:
            return self.position_after(reference)
        if reference is None or isinstance(reference, str):
            return self.start if self.committed is None or isinstance(self.committed, str) else None
        if not self.increasing:
            return self._find(reference)
        last = self._id_before(self.end)
        floor = self._committed_id
        reachable = (floor is None or reference >= floor) and last is not None and reference <= last
        return self.position_after(reference) if reachable else None

    def _commit_head(self, position: int) -> None:
        """Drop the rows before a position, which are committed."""
        parts = [
            (segment.receipt.received_at, min(segment.end, position)) for segment in self._within(self.start, position)
        ]
        if parts:
            received, ends = (np.array(column, np.int64) for column in zip(*parts, strict=True))
            self.lots.commit_ages.add(received, np.diff(ends, prepend=self.start))
        self._drop_head(position)

    def _drop_head(self, position: int) -> None:
        if position >= self.end:
            dropped = list(self.rows)
            self.rows.clear()
            self.size = 0
        else:
            dropped = []
            while (first := Segment(self.lots, self.rows[0])).end <= position:
                dropped.append(self.rows.popleft())
                self.size -= first.size
            if first.first < position:
                self.size -= first.keep(position, first.end)
        self.lots.remove(np.array(dropped, np.int64))
        self.start = max(self.start, position)
        self._stable_end = max(self._stable_end, self.start)

    def _drop_tail(self, position: int) -> None:
        dropped = []
        while self.rows and (last := Segment(self.lots, self.rows[-1])).end > position:
            if last.first < position:
                self.size -= last.keep(last.first, position)
                break
            dropped.append(self.rows.pop())
            self.size -= last.size
        self.lots.remove(np.array(dropped, np.int64))
        self.end = max(self.start, position)
        self._stable_end = min(self._stable_end, self.end)
