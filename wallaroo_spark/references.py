"""Points of reference: positions in streams, and the ranges of messages between two positions.

A mapping of streams to references has two forms. The flat form has a :class:`StreamKey` as key; workers use it. The
nested form has two levels, the scope and the stream id as decimal text; Spark's offset log and the JSON on the inner
port use it. Source: ``docs/protocol.md#points-of-reference``.

Versions of the references of many streams, and the functions that take plain references and versions alike.

A batch changes few of the streams that a query knows. So successive references share their storage, and two of them
are compared by the changes between them. Source: ``docs/protocol.md#points-of-reference``.
"""

from __future__ import annotations

import json
import threading
from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, NamedTuple, Self, TypeVar

R = TypeVar("R")

Reference = int | str
"""A position in a stream, as it stands in Spark's offset log: the id of the last message before the position.

The messages of an EPHEMERAL stream cannot be requested again. The reference of such a stream is the text
``e:<slot>:<generation>:<position>``: a position in the buffer of the worker that holds this generation of the slot.
"""

References = Mapping[str, Mapping[str, Reference]]
"""Nested references: first by scope (see :class:`StreamKey`), then by stream id as decimal text."""

Changes = Mapping[str, Mapping[str, Reference | None]]
"""New references of some streams, nested like :data:`References`; None means that the stream is removed."""


class StreamKey(NamedTuple):
    """The identity of a stream within a receiver."""

    scope: str
    """The connector instance that owns the id; ``""`` in v3, where an id belongs to the whole source."""
    stream_id: int
    """The id that the connector gives the stream, a u64."""


class PlannedRange(NamedTuple):
    """The messages of one stream that a batch reads: those after ``start``, up to and including ``end``."""

    key: StreamKey
    start: Reference | None
    """The reference of the last message that is not read; None when the stream is read from its beginning."""
    end: Reference
    """The reference of the last message that is read."""

    @classmethod
    def from_json(cls, value: Any) -> Self:
        """Convert the list that :meth:`to_json` returns back to a range.

        Raises ValueError for a list of another length and for a stream id that is not a number.
        """
        scope, stream_id, start, end = value
        return cls(StreamKey(scope, int(stream_id)), start, end)

    def to_json(self) -> list[Any]:
        """Return the list of scope, stream id, start and end.

        The stream id is decimal text, because many JSON readers round a u64.
        """
        return [self.key.scope, str(self.key.stream_id), self.start, self.end]

    def __str__(self) -> str:
        instance = f"instance {self.key.scope!r} " if self.key.scope else ""
        return f"{instance}stream {self.key.stream_id} ({self.start}, {self.end}]"


class Leaving(NamedTuple):
    """The streams that are forgotten next: those that ended at this time or before."""

    before: int
    """Milliseconds since 1970 UTC, by the clock of the plans."""
    since: int
    """When the plan was made that named them, in milliseconds by the same clock."""
    token: str
    """A random text that no other group of leaving streams has; workers confirm it."""


class EndingChanges(NamedTuple):
    """The ended streams of a plan, as differences from its parent."""

    at: int
    """When the plan was made, in milliseconds since 1970 UTC; never before the time of its parent."""
    times: Mapping[str, Mapping[str, int | None]]
    """When streams ended, nested like :data:`References`; None for a stream that is open again or forgotten."""
    leaving: Leaving | None
    """The streams that are forgotten next; None when there are none."""


def nest(references: Mapping[StreamKey, R]) -> dict[str, dict[str, R]]:
    """Convert flat references to the nested form."""
    nested: dict[str, dict[str, R]] = {}
    for key, reference in references.items():
        nested.setdefault(key.scope, {})[str(key.stream_id)] = reference
    return nested


def flatten(references: Mapping[str, Mapping[str, R]]) -> dict[StreamKey, R]:
    """Convert nested references to the flat form. Raises ValueError for a stream id that is not a number."""
    return {
        StreamKey(scope, int(stream_id)): reference
        for scope, streams in references.items()
        for stream_id, reference in streams.items()
    }


def merge(*parts: Mapping[str, Mapping[str, R]]) -> dict[str, dict[str, R]]:
    """Return the union of references or changes; a stream that is in several has its reference from the last one."""
    merged: dict[str, dict[str, R]] = {}
    for part in parts:
        for scope, streams in part.items():
            merged.setdefault(scope, {}).update(streams)
    return merged


def slot_of_ephemeral(reference: Reference) -> int | None:
    """The slot whose buffer holds the message of an ephemeral reference; None for a message id, which names no slot."""
    return int(reference.split(":")[1]) if isinstance(reference, str) else None


class VersionedReferences(Mapping[str, Mapping[str, Reference]]):
    """An immutable snapshot of the references of many streams, which shares its storage with later snapshots.

    The snapshots that :meth:`with_changes` derives from each other form a line. A line stores one dictionary, of its
    newest version, and the changes between its last versions. So the time of :meth:`with_changes`,
    :meth:`changes_since` and :meth:`references_of` grows with the number of changes and not with the number of streams;
    iterating copies all streams. May be used from several threads.
    """

    __slots__ = ("_line", "_version", "count", "endings")

    count: int
    """The number of streams."""
    endings: Endings | None
    """The ended ones among them; None where the receiver remembers streams for good."""

    def __init__(self, line: _Line, version: int, count: int, endings: Endings | None = None) -> None:
        self._line, self._version, self.count, self.endings = line, version, count, endings

    @classmethod
    def of(cls, references: References) -> VersionedReferences:
        """Return the first version of a new line; ``references`` itself if it already is a version of a line."""
        if isinstance(references, VersionedReferences):
            return references
        line = _Line({scope: dict(streams) for scope, streams in references.items() if streams})
        return cls(line, 0, sum(map(len, line.streams.values())))

    def with_endings(self, endings: EndingChanges | None) -> VersionedReferences:
        """Return the same references with these changes of the ended streams; None: nothing is known of ends."""
        return VersionedReferences(self._line, self._version, self.count, Endings.after(self.endings, endings))

    def with_changes(self, changes: Changes) -> VersionedReferences:
        """Return the version with these changes applied. Copies all streams unless this is the newest of its line."""
        line = self._line
        with line.lock:
            if self._version != line.newest:
                line = _Line(line.at(self._version))
            more = line.advance(changes)
            return VersionedReferences(line, line.newest, self.count + more, self.endings)

    def longer_than(self, json_bytes: int) -> bool:
        """Return whether the references have more than ``json_bytes`` bytes as JSON text."""
        return self.count * _LEAST_BYTES > json_bytes or len(json.dumps(self.plain())) > json_bytes

    def changes_since(self, other: References | None) -> Changes | None:
        """Return the changes that lead from ``other`` to this version; None when the line no longer stores them.

        ``other`` may be older or newer than this version; for a version of another line the result is None. A stream
        that has changed and changed back is among the changes.
        """
        if not isinstance(other, VersionedReferences) or other._line is not self._line:
            return None
        with self._line.lock:
            return self._line.between(other._version, self._version)

    def references_of(self, keys: Iterable[StreamKey]) -> dict[StreamKey, Reference | None]:
        """Return the references of some streams; None for a stream that is unknown. Raises LookupError for a forgotten
        version.
        """
        line = self._line
        with line.lock:
            behind = line.behind(self._version)
            streams = line.streams
            found = {key: streams.get(key.scope, _NOTHING).get(str(key.stream_id)) for key in keys}
            for step in reversed(behind):
                for key in found:
                    undo = step.undo.get(key.scope, _NOTHING)
                    if (stream := str(key.stream_id)) in undo:
                        found[key] = undo[stream]
            return found

    def plain(self) -> dict[str, dict[str, Reference]]:
        """Return a copy of all references. Raises LookupError for a forgotten version."""
        with self._line.lock:
            return self._line.at(self._version)

    def of_scope(self, scope: str) -> dict[str, Reference]:
        """Return a copy of the references of one scope; empty if it has none. Raises LookupError as :meth:`plain`."""
        line = self._line
        with line.lock:
            found = dict(line.streams.get(scope, {}))
            for step in reversed(line.behind(self._version)):
                _apply(found, step.undo.get(scope, _NOTHING))
            return found

    def __getitem__(self, scope: str) -> Mapping[str, Reference]:
        with self._line.lock:
            if self._version == self._line.newest:
                return dict(self._line.streams[scope])
            return self._line.at(self._version)[scope]

    def __iter__(self) -> Iterator[str]:
        return iter(self.plain())

    def __len__(self) -> int:
        return len(self.plain())

    def items(self) -> Any:
        """The scopes with their streams, as ``dict.items`` returns them; copies all streams."""
        return self.plain().items()

    def __eq__(self, other: object) -> bool:
        if self is other:
            return True
        if isinstance(other, VersionedReferences):
            same = other._line is self._line and other._version == self._version
            return same or (self.count == other.count and self.plain() == other.plain())
        return self.plain() == other if isinstance(other, Mapping) else NotImplemented

    __hash__ = None  # type: ignore[assignment]  # typeshed types it as a method

    def __repr__(self) -> str:
        return f"VersionedReferences({self.count} streams, version {self._version})"


class Endings(NamedTuple):
    """The ended streams of a plan."""

    at: int
    """When the plan was made, in milliseconds since 1970 UTC."""
    times: VersionedReferences
    """When each stream ended, in milliseconds, in place of a reference."""
    leaving: Leaving | None
    """The streams that are forgotten next; None when there are none."""

    @classmethod
    def after(cls, before: Endings | None, changes: EndingChanges | None) -> Endings | None:
        """Return the ended streams of a plan, whose parent has ``before``."""
        if changes is None:
            return None
        times = VersionedReferences.of({}) if before is None else before.times
        return cls(changes.at, times.with_changes(changes.times), changes.leaving)

    def all_changes(self) -> EndingChanges:
        """Return all of them, as the changes of a plan whose parent knows none."""
        return EndingChanges(self.at, self._plain(), self.leaving)

    def to_json(self) -> dict[str, Any]:
        """Return them as JSON values, the same for equal ones; :func:`with_endings` reads them."""
        plain = self._plain()
        times = {
            scope: {stream: plain[scope][stream] for stream in sorted(plain[scope], key=int)} for scope in sorted(plain)
        }
        return {"at": self.at, "times": times, "leaving": None if self.leaving is None else list(self.leaving)}

    def ended_before(self, time: int) -> list[tuple[int, StreamKey]]:
        """Return the streams that ended at ``time`` or before, with when, the oldest first; looks at all streams."""
        return sorted(
            (ended, StreamKey(scope, int(stream)))
            for scope, streams in self._plain().items()
            for stream, ended in streams.items()
            if ended <= time
        )

    def leaving_streams(self) -> list[StreamKey]:
        """Return the streams that are forgotten next."""
        return [] if self.leaving is None else [key for _, key in self.ended_before(self.leaving.before)]

    def _plain(self) -> dict[str, dict[str, int]]:
        return self.times.plain()  # type: ignore[return-value]  # times are integers


_NOTHING: Mapping[str, Reference | None] = {}
_LEAST_BYTES = 6
"""The length of the shortest stream as JSON text, ``"1": 0``."""
_KEPT_STEPS = 64
"""Versions that a line can go back. A choice: readers ask for versions of the last few batches."""
_KEPT_CHANGES = 10_000
"""Changes that a line may store; with more streams than that, as many changes as streams.

A choice that bounds the memory of a line to a small multiple of the memory of its streams.
"""


class _Step(NamedTuple):
    """The changes from one version to the next, in both directions."""

    changes: dict[str, dict[str, Reference | None]]
    """The references of the later version; None for a removed stream."""
    undo: dict[str, dict[str, Reference | None]]
    """The references of the earlier version, of the same streams; None for a stream that was not there."""
    size: int
    """The number of changed streams."""


def _apply(known: dict[str, Reference], changes: Mapping[str, Reference | None]) -> None:
    """Change the references of one scope; None removes a stream."""
    for stream, reference in changes.items():
        if reference is None:
            known.pop(stream, None)
        else:
            known[stream] = reference


class _Line:
    """The storage of the versions of one line. The callers of its methods hold ``lock``, which guards all of it."""

    def __init__(self, streams: dict[str, dict[str, Reference]]) -> None:
        self.lock = threading.Lock()
        self.streams = streams
        self.newest = 0
        self._steps: deque[_Step] = deque()
        self._kept = 0
        self._count = sum(map(len, streams.values()))

    def advance(self, changes: Changes) -> int:
        """Apply changes as a new version; return the difference in the number of streams."""
        done: dict[str, dict[str, Reference | None]] = {}
        undo: dict[str, dict[str, Reference | None]] = {}
        total, before = 0, self._count
        for scope, streams in changes.items():
            known = self.streams.get(scope, {})
            differing = {stream: new for stream, new in streams.items() if new != known.get(stream)}
            if not differing:
                continue
            done[scope] = differing
            undo[scope] = {stream: known.get(stream) for stream in differing}
            total += len(differing)
            self._count -= len(known)
            _apply(known, differing)
            self._count += len(known)
            if known:
                self.streams[scope] = known
            else:
                del self.streams[scope]
        self._steps.append(_Step(done, undo, total))
        self.newest += 1
        self._kept += total
        self._trim()
        return self._count - before

    def _trim(self) -> None:
        limit = max(_KEPT_CHANGES, self._count)
        while len(self._steps) > _KEPT_STEPS or (self._kept > limit and len(self._steps) > 2):
            self._kept -= self._steps.popleft().size

    def behind(self, version: int) -> list[_Step]:
        """Return the steps from a version to the newest, oldest first. Raises LookupError for a forgotten version."""
        number = self.newest - version
        if number > len(self._steps):
            raise LookupError(f"version {version} of the references is forgotten; the newest is {self.newest}")
        return [self._steps[index] for index in range(len(self._steps) - number, len(self._steps))] if number else []

    def between(self, before: int, after: int) -> Changes | None:
        """Return the changes from one version to another; None when the older one is forgotten."""
        if before == after:
            return {}
        if self.newest - min(before, after) > len(self._steps):
            return None
        steps = self.behind(min(before, after))[: abs(after - before)]
        ways = [step.changes for step in steps] if before < after else [step.undo for step in reversed(steps)]
        return ways[0] if len(ways) == 1 else merge(*ways)

    def at(self, version: int) -> dict[str, dict[str, Reference]]:
        """Return a copy of all references at a version. Raises LookupError for a forgotten version."""
        found = {scope: streams.copy() for scope, streams in self.streams.items()}
        for step in reversed(self.behind(version)):
            for scope, streams in step.undo.items():
                known = found.setdefault(scope, {})
                _apply(known, streams)
                if not known:
                    del found[scope]
        return found


def references_of(references: References, keys: Iterable[StreamKey]) -> dict[StreamKey, Reference | None]:
    """Return the references of several streams, None for one that has none.

    The time does not depend on the number of other streams.
    """
    if isinstance(references, VersionedReferences):
        return references.references_of(keys)
    return {key: references.get(key.scope, {}).get(str(key.stream_id)) for key in keys}


def of_scope(references: References, scope: str) -> Mapping[str, Reference]:
    """Return the references of one scope; the time does not depend on the number of other streams."""
    return references.of_scope(scope) if isinstance(references, VersionedReferences) else references.get(scope, {})


def plain(references: References) -> References:
    """Convert the references to plain dictionaries, which can be written as JSON."""
    return references.plain() if isinstance(references, VersionedReferences) else references


def endings_of(references: References) -> Endings | None:
    """Return the ended streams among these; None where the receiver remembers streams for good."""
    return references.endings if isinstance(references, VersionedReferences) else None


def with_endings(references: References, value: Any) -> References:
    """Return references with the ended streams that :meth:`Endings.to_json` has written; ``value`` may be None.

    Raises KeyError, TypeError or ValueError for another value.
    """
    if value is None:
        return references
    leaving = None if value["leaving"] is None else Leaving(*value["leaving"])
    return VersionedReferences.of(references).with_endings(EndingChanges(int(value["at"]), value["times"], leaving))


def all_changes(before: References, after: References) -> Changes | None:
    """Return the changes from ``before`` to ``after``, with None for each stream that is forgotten.

    The result is None where ``before`` is a version that is no longer stored.
    """
    if isinstance(after, VersionedReferences) and (changes := after.changes_since(before)) is not None:
        return changes
    try:
        known = plain(before)
    except LookupError:
        return None
    kept = plain(after)
    gone: Changes = {
        scope: dict.fromkeys(lost)
        for scope, streams in known.items()
        if (lost := streams.keys() - kept.get(scope, {}).keys())
    }
    return merge(changed(known, after), gone)


def changed(before: References | None, after: References) -> References:
    """Return the references of ``after`` whose stream is not in ``before`` or has another reference there."""
    if isinstance(after, VersionedReferences) and (changes := after.changes_since(before)) is not None:
        return without_forgotten(changes)
    try:
        known = plain(before or {})
    except LookupError:
        known = {}
    differing = {
        scope: {
            stream: reference for stream, reference in streams.items() if known.get(scope, {}).get(stream) != reference
        }
        for scope, streams in after.items()
    }
    return {scope: streams for scope, streams in differing.items() if streams}


def ranges(start: References, end: References) -> list[PlannedRange]:
    """Return the ranges between two offsets: one for each stream of ``end`` whose reference in ``start`` differs."""
    if isinstance(end, VersionedReferences) and isinstance(start, VersionedReferences):
        changes, back = end.changes_since(start), start.changes_since(end)
        if changes is not None and back is not None:
            return [
                PlannedRange(StreamKey(scope, int(stream)), back[scope][stream], to)
                for scope, streams in without_forgotten(changes).items()
                for stream, to in streams.items()
                if back[scope][stream] != to
            ]
    before = flatten(start)
    return [PlannedRange(key, before.get(key), to) for key, to in flatten(end).items() if before.get(key) != to]


def without_forgotten(changes: Changes) -> dict[str, dict[str, Reference]]:
    """Return the changes of streams that are not forgotten."""
    kept = {
        scope: {stream: reference for stream, reference in streams.items() if reference is not None}
        for scope, streams in changes.items()
    }
    return {scope: streams for scope, streams in kept.items() if streams}
