"""The ids of a partition's records within the window of idempotence.

Each id is a digest of 16 bytes. The digests of consecutive records form a *chunk*, which is one entry, because a
partition may have thousands of records in a batch and each access to the state costs more than the whole record. All
chunks together are read when a process appends to a key first; then the process keeps the digests in a
:class:`SeenCache`. The head has a hash of all that was added and forgotten, which says whether the kept digests are
those of the state.

When partitions are added, some events are published to another partition than before. Each partition tells the others
then which of these records it has; they are entries of their own, and are remembered for one more window.

The window counts *active time*: a pause between two batches that append to the key counts for :data:`PAUSE_MILLIS` at
most. So an application that was down forgets nothing of the requests whose answers were lost, however long it was down.
Source: ``docs/pipelines/design.md#the-state-of-a-key``.
"""

from __future__ import annotations

import hashlib
import sys
from bisect import bisect_right
from collections import OrderedDict, deque
from collections.abc import Hashable, Iterator
from typing import NamedTuple

from wallaroo_spark.pipelines.controller.stored.encoding import decode, encode
from wallaroo_spark.pipelines.controller.stored.entries import Changes, Stored
from wallaroo_spark.pipelines.controller.stored.key_state import Head
from wallaroo_spark.pipelines.schema.cloud_event import HASH_BYTES

DIGEST_BYTES = 16
SMALL_CHUNK = 1024
"""A chunk with fewer digests than this is extended by the next batch. A batch with one record writes up to
16 KiB for it, and a window of 1,000,000 records has at most 1,000 chunks."""
MOST_CACHED = 2_000_000
"""The most digests that a process keeps. They take some 300 MB."""
PAUSE_MILLIS = 1000
"""The most time that a pause counts for. A busy partition has several batches a second."""
_KIND = b"c"
_ELSEWHERE = b"f"


class _Chunk(NamedTuple):
    """The digests of consecutive records."""

    times: tuple[tuple[int, int], ...]
    """First offset and active time of each batch that has records in the chunk."""
    digests: bytes
    """The digests, one behind the other."""
    hashes: bytes
    """For each the hash that decides the record's partition, one behind the other."""

    @property
    def first(self) -> int:
        return self.times[0][0]

    @property
    def size(self) -> int:
        return len(self.digests) // DIGEST_BYTES

    @property
    def end(self) -> int:
        return self.first + self.size

    def since(self, offset: int) -> _Chunk:
        """The part of the chunk from an offset on, which is in it."""
        if offset <= self.first:
            return self
        run = bisect_right(self.times, (offset, sys.maxsize)) - 1
        times = ((offset, self.times[run][1]), *self.times[run + 1 :])
        skipped = offset - self.first
        return _Chunk(times, self.digests[skipped * DIGEST_BYTES :], self.hashes[skipped * HASH_BYTES :])

    def digest(self, offset: int) -> bytes:
        begin = (offset - self.first) * DIGEST_BYTES
        return self.digests[begin : begin + DIGEST_BYTES]

    def hash(self, offset: int) -> bytes:
        begin = (offset - self.first) * HASH_BYTES
        return self.hashes[begin : begin + HASH_BYTES]


class Seen:
    """The decoded digests of a key."""

    def __init__(self) -> None:
        self.offsets: dict[bytes, int] = {}
        self.chunks: deque[_Chunk] = deque()
        self.elsewhere: dict[bytes, tuple[int, int, int]] = {}
        """Digest → the entry that has it, and the place of the record: its partition and offset."""

    @property
    def size(self) -> int:
        """Number of digests."""
        return len(self.offsets) + len(self.elsewhere)

    def load(self, stored: Stored, head: Head) -> None:
        """Read all chunks."""
        for first in head.seen_chunks:
            chunk = _Chunk(*decode(stored[_KIND + encode(first)]))
            self.chunks.append(chunk)
            for offset in range(max(first, head.seen_from), chunk.end):
                self.offsets[chunk.digest(offset)] = offset
        for number, _ in head.seen_elsewhere:
            self.load_elsewhere(number, *decode(stored[_ELSEWHERE + encode(number)]))

    def load_elsewhere(self, number: int, partition: int, digests: bytes, offsets: tuple[int, ...]) -> None:
        """Remember the ids of an entry of another partition."""
        for place, offset in enumerate(offsets):
            self.elsewhere[digests[place * DIGEST_BYTES : (place + 1) * DIGEST_BYTES]] = number, partition, offset


class SeenCache:
    """The digests of the keys that a process has handled last."""

    def __init__(self, most: int = MOST_CACHED) -> None:
        self._most = most
        self._kept: OrderedDict[Hashable, tuple[bytes, Seen]] = OrderedDict()

    def take(self, key: Hashable, trace: bytes) -> Seen | None:
        """The digests of a key, if they are those of this state. They are not kept any more: a turn changes them."""
        found = self._kept.pop(key, None)
        return found[1] if found is not None and found[0] == trace else None

    def keep(self, key: Hashable, trace: bytes, seen: Seen) -> None:
        """Keep the digests after a turn."""
        self._kept[key] = trace, seen
        while len(self._kept) > 1 and sum(one.size for _, one in self._kept.values()) > self._most:
            self._kept.popitem(last=False)


class SeenIds:
    """The ids of one key during one call of the controller."""

    def __init__(self, key: Hashable, stored: Stored, head: Head, cache: SeenCache | None = None) -> None:
        self._key, self._stored, self._head, self._cache = key, stored, head, cache
        self._seen: Seen | None = None
        self._added: list[tuple[bytes, bytes]] = []
        """Digest and hash of each record that this call adds."""
        self._elsewhere: dict[int, bytes | None] = {}
        """The changed entries with ids that other partitions have."""
        self._forgot = False
        self._gone: list[int] = []
        """First offsets of the chunks of which nothing is remembered any more."""
        self._oldest: tuple[int, int, bytes] | None = None
        """Offset, active time and digest of the oldest remembered record, once it was looked for."""

    def get(self, digest: bytes) -> int | None:
        """The offset of a remembered record; None for an unknown one."""
        return self._load().offsets.get(digest)

    def elsewhere(self, digest: bytes) -> tuple[int, int] | None:
        """Partition and offset of a record that another partition has; None for an unknown one."""
        found = self._load().elsewhere
        return found[digest][1:] if found and digest in found else None

    def all(self) -> Iterator[tuple[bytes, bytes, int]]:
        """Digest, hash of the partition, and offset of each remembered record of this partition, in their order."""
        seen, head = self._load(), self._head
        for chunk in seen.chunks:
            for offset in range(max(chunk.first, head.seen_from), chunk.end):
                yield chunk.digest(offset), chunk.hash(offset), offset
        for offset, (digest, hashed) in enumerate(self._added, self._first_added):
            yield digest, hashed, offset

    @property
    def _first_added(self) -> int:
        return self._head.last + 1 - len(self._added)

    def add(self, digest: bytes, hashed: bytes, offset: int) -> None:
        """Remember the record at the next offset, with the hash that decides its partition.

        :meth:`forget` was called before it in the same turn.
        """
        self._load().offsets[digest] = offset
        self._added.append((digest, hashed))

    def add_elsewhere(self, partition: int, digests: bytes, offsets: tuple[int, ...]) -> None:
        """Remember records that another partition has. :meth:`forget` was called before it in the same turn."""
        head, seen = self._head, self._load()
        number = head.seen_elsewhere[-1][0] + 1 if head.seen_elsewhere else 1
        head.seen_elsewhere.append((number, head.seen_clock))
        seen.load_elsewhere(number, partition, digests, offsets)
        self._elsewhere[number] = encode((partition, digests, offsets))

    def forget(self, now: int) -> None:
        """Forget the records that have left the window; ``now`` is the time of the batch."""
        head, seen = self._head, self._load()
        if not head.seen_clock:
            head.seen_clock = head.seen_now = now
        head.seen_clock += min(max(0, now - head.seen_now), PAUSE_MILLIS)
        head.seen_now = now
        while head.seen_elsewhere and head.seen_clock - head.seen_elsewhere[0][1] > head.window_millis:
            self._forget_elsewhere(seen, 1)
        while head.seen_from <= head.last:
            offset, written_at, digest = self._find_oldest(seen)
            if head.seen_clock - written_at <= head.window_millis and head.last - offset + 1 <= head.window_records:
                return
            if seen.offsets.get(digest) == offset:
                del seen.offsets[digest]
            head.seen_from += 1
            self._forgot = True

    def clear(self) -> None:
        """Forget all records."""
        head, seen = self._head, self._load()
        self._forget_elsewhere(seen, len(head.seen_elsewhere))
        if head.seen_from <= head.last:
            self._gone += [chunk.first for chunk in seen.chunks]
            seen.offsets.clear()
            seen.chunks.clear()
            self._added, self._oldest = [], None
            head.seen_from = head.last + 1
            self._forgot = True

    def _forget_elsewhere(self, seen: Seen, entries: int) -> None:
        """Forget the oldest entries of other partitions."""
        gone = {number for number, _ in self._head.seen_elsewhere[:entries]}
        if gone:
            del self._head.seen_elsewhere[:entries]
            seen.elsewhere = {digest: one for digest, one in seen.elsewhere.items() if one[0] not in gone}
            self._elsewhere.update(dict.fromkeys(gone))

    def _find_oldest(self, seen: Seen) -> tuple[int, int, bytes]:
        """Offset, active time and digest of the oldest remembered record."""
        offset = self._head.seen_from
        if self._oldest is None or self._oldest[0] != offset:
            while seen.chunks and seen.chunks[0].end <= offset:
                self._gone.append(seen.chunks.popleft().first)
            if seen.chunks:
                chunk = seen.chunks[0]
                _, written_at = chunk.times[bisect_right(chunk.times, (offset, sys.maxsize)) - 1]
                self._oldest = offset, written_at, chunk.digest(offset)
            else:
                self._oldest = offset, self._head.seen_clock, self._added[offset - self._first_added][0]
        return self._oldest

    def take_changes(self) -> Changes:
        """The changed chunks. This changes the head, which must be stored after it."""
        head, seen, changes = self._head, self._seen, Changes()
        if seen is None:
            return changes
        for first in self._gone:
            changes[_KIND + encode(first)] = None
        if self._added:
            digests, hashes = (b"".join(values) for values in zip(*self._added, strict=True))
            added = _Chunk(((self._first_added, head.seen_clock),), digests, hashes)
            if seen.chunks and seen.chunks[-1].size < SMALL_CHUNK:
                small = seen.chunks.pop()
                changes[_KIND + encode(small.first)] = None
                if small.end > head.seen_from:
                    small = small.since(head.seen_from)
                    times = (*small.times, *added.times)
                    added = _Chunk(times, small.digests + added.digests, small.hashes + added.hashes)
            seen.chunks.append(added)
            changes[_KIND + encode(added.first)] = encode(tuple(added))
        for number, entry in self._elsewhere.items():
            changes[_ELSEWHERE + encode(number)] = entry
        if self._added or self._forgot or self._gone or self._elsewhere:
            head.seen_chunks = [chunk.first for chunk in seen.chunks]
            text = head.seen_trace + head.seen_from.to_bytes(8, "big") + b"".join(digest for digest, _ in self._added)
            text += b"".join(encode(one) for one in self._elsewhere.items())
            head.seen_trace = hashlib.blake2b(text, digest_size=DIGEST_BYTES).digest()
        if self._cache is not None:
            self._cache.keep(self._key, head.seen_trace, seen)
        self._seen, self._added, self._gone, self._forgot, self._oldest = None, [], [], False, None
        self._elsewhere = {}
        return changes

    def _load(self) -> Seen:
        if self._seen is None:
            head = self._head
            self._seen = None if self._cache is None else self._cache.take(self._key, head.seen_trace)
            if self._seen is None:
                self._seen = Seen()
                self._seen.load(self._stored, head)
            if not self._seen.chunks:
                head.seen_from = max(head.seen_from, head.last + 1)
        return self._seen
