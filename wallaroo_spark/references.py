"""How far streams have come: references, the streams that they are of, and the ranges between two of them.

References of several streams have two forms: flat, by :class:`StreamKey`, as the worker uses them, and nested, by scope
and stream id in decimal text, as Spark's offset log and the inner port's JSON have them.
"""

from __future__ import annotations

import json
import threading
from collections import deque
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple, Self

Reference = int | str
"""A point of reference as Spark's offset log holds it: the id of the last message.

For an EPHEMERAL stream, whose messages cannot be asked for again, it is ``e:<slot>:<generation>:<position>``.
"""

References = Mapping[str, Mapping[str, Reference]]
"""Nested references: by scope (an instance, or ``""`` for ids of the whole source), then by decimal stream id."""

Changes = Mapping[str, Mapping[str, Reference | None]]
"""New references of some streams, nested as :data:`References`; None where the stream is forgotten."""


class StreamKey(NamedTuple):
    """A stream's identity: ``scope`` is its connector instance, or empty where ids belong to the whole source (v3)."""

    scope: str
    stream_id: int


@dataclass(frozen=True, slots=True)
class PlannedRange:
    """The rows of one stream that a batch reads: behind ``start``, up to and including ``end``.

    ``start`` is None where the stream is read from its beginning.
    """

    key: StreamKey
    start: Reference | None
    end: Reference

    @classmethod
    def from_json(cls, value: Any) -> Self:
        """The range that :meth:`to_json` has given. Raises ValueError for a stream id that is not a number."""
        scope, stream_id, start, end = value
        return cls(StreamKey(scope, int(stream_id)), start, end)

    def to_json(self) -> list[Any]:
        """Scope, decimal stream id, start and end: a JSON reader may not keep a u64 as it is, but keeps text."""
        return [self.key.scope, str(self.key.stream_id), self.start, self.end]

    def __str__(self) -> str:
        instance = f"instance {self.key.scope!r} " if self.key.scope else ""
        return f"{instance}stream {self.key.stream_id} ({self.start}, {self.end}]"


def nest(references: Mapping[StreamKey, Reference]) -> dict[str, dict[str, Reference]]:
    """Flat references, nested."""
    nested: dict[str, dict[str, Reference]] = {}
    for key, reference in references.items():
        nested.setdefault(key.scope, {})[str(key.stream_id)] = reference
    return nested


def flatten(references: References) -> dict[StreamKey, Reference]:
    """Nested references, flat. Raises ValueError for a stream id that is not a number."""
    return {
        StreamKey(scope, int(stream_id)): reference
        for scope, streams in references.items()
        for stream_id, reference in streams.items()
    }


class VersionedReferences(Mapping[str, Mapping[str, Reference]]):
    """References of many streams as they stand at one version; the next version costs its changes, not all streams.

    A version never changes. The versions of a line share one dictionary, which is that of the newest, and the changes
    between the last of them: so the changes between two of these, in either direction, are cheap, and so is a single
    reference. Iterating copies all streams. Versions may be used from several threads.
    """

    __slots__ = ("_line", "_version", "count", "json_bytes")

    count: int
    """The number of streams."""
    json_bytes: int
    """The length of the references as JSON text."""

    def __init__(self, line: _Line, version: int, count: int, json_bytes: int) -> None:
        self._line, self._version, self.count, self.json_bytes = line, version, count, json_bytes

    @classmethod
    def of(cls, references: References) -> VersionedReferences:
        """The first version of a line of its own; ``references`` itself when it is a version of a line already."""
        if isinstance(references, VersionedReferences):
            return references
        line = _Line({scope: dict(streams) for scope, streams in references.items() if streams})
        count = sum(map(len, line.streams.values()))
        size = sum(
            _scope_bytes(scope) + sum(_stream_bytes(stream, reference) for stream, reference in streams.items())
            for scope, streams in line.streams.items()
        )
        return cls(line, 0, count, size)

    def with_changes(self, changes: Changes) -> VersionedReferences:
        """The version with these changes; cheap when this one is the newest of its line."""
        line = self._line
        with line.lock:
            if self._version != line.newest:
                line = _Line(line.at(self._version))
            count, size = line.advance(changes)
            return VersionedReferences(line, line.newest, self.count + count, self.json_bytes + size)

    def changes_since(self, other: References | None) -> Changes | None:
        """The changes that lead from ``other`` to this version; None when that is not known.

        It is known for the last versions of one line, of which ``other`` may be the newer one. A stream that went back
        to where it was counts as changed.
        """
        if not isinstance(other, VersionedReferences) or other._line is not self._line:
            return None
        with self._line.lock:
            return self._line.between(other._version, self._version)

    def reference(self, scope: str, stream: str) -> Reference | None:
        """The reference of one stream; None when there is none."""
        line = self._line
        with line.lock:
            # The first change behind this version says where the stream stood at it.
            for step in line.behind(self._version):
                if stream in step.undo.get(scope, _NOTHING):
                    return step.undo[scope][stream]
            return line.streams.get(scope, _NOTHING).get(stream)

    def plain(self) -> dict[str, dict[str, Reference]]:
        """All references, copied."""
        with self._line.lock:
            return self._line.at(self._version)

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
        """As of a dictionary."""
        return self.plain().items()

    def __eq__(self, other: object) -> bool:
        if self is other:
            return True
        if isinstance(other, VersionedReferences):
            same = other._line is self._line and other._version == self._version
            return same or (self.count == other.count and self.plain() == other.plain())
        return self.plain() == other if isinstance(other, Mapping) else NotImplemented

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        return f"VersionedReferences({self.count} streams, version {self._version})"


_NOTHING: Mapping[str, Reference | None] = {}
_KEPT_STEPS = 64
_KEPT_CHANGES = 10_000
"""Changes that a line remembers at least; beyond, it remembers as many as it has streams, so that a line costs at most
some times its streams."""


class _Step(NamedTuple):
    """The way from one version to the next, and back."""

    changes: dict[str, dict[str, Reference | None]]
    undo: dict[str, dict[str, Reference | None]]
    size: int


class _Line:
    """The versions of one line; ``lock`` guards all of it, and the callers hold it."""

    def __init__(self, streams: dict[str, dict[str, Reference]]) -> None:
        self.lock = threading.Lock()
        self.streams = streams
        self.newest = 0
        self._steps: deque[_Step] = deque()
        self._kept = 0
        self._count = sum(map(len, streams.values()))

    def advance(self, changes: Changes) -> tuple[int, int]:
        """Make another version the newest; by how much it has more streams, and more bytes of JSON."""
        done: dict[str, dict[str, Reference | None]] = {}
        undo: dict[str, dict[str, Reference | None]] = {}
        count = size = total = 0
        for scope, streams in changes.items():
            known = self.streams.get(scope)
            if known is None:
                known = {}
            before = {stream: known.get(stream) for stream in streams}
            differing = {stream: new for stream, new in streams.items() if new != before[stream]}
            if not differing:
                continue
            size -= _scope_bytes(scope) if known else 0
            for stream, new in differing.items():
                old = before[stream]
                if old is not None:
                    count, size = count - 1, size - _stream_bytes(stream, old)
                if new is None:
                    del known[stream]
                else:
                    known[stream] = new
                    count, size = count + 1, size + _stream_bytes(stream, new)
            if known:
                size += _scope_bytes(scope)
                self.streams[scope] = known
            else:
                self.streams.pop(scope, None)
            done[scope] = differing
            undo[scope] = {stream: before[stream] for stream in differing}
            total += len(differing)
        self._steps.append(_Step(done, undo, total))
        self.newest += 1
        self._kept += total
        self._count += count
        self._trim()
        return count, size

    def _trim(self) -> None:
        limit = max(_KEPT_CHANGES, self._count)
        while len(self._steps) > _KEPT_STEPS or (self._kept > limit and len(self._steps) > 2):
            self._kept -= self._steps.popleft().size

    def behind(self, version: int) -> list[_Step]:
        """The steps from a version to the newest. Raises LookupError when they are forgotten."""
        number = self.newest - version
        if number > len(self._steps):
            raise LookupError(f"version {version} of the references is forgotten; the newest is {self.newest}")
        return [self._steps[index] for index in range(len(self._steps) - number, len(self._steps))] if number else []

    def between(self, before: int, after: int) -> Changes | None:
        """The changes from one version to another; None when the older one is forgotten."""
        if before == after:
            return {}
        if self.newest - min(before, after) > len(self._steps):
            return None
        steps = self.behind(min(before, after))[: abs(after - before)]
        ways = [step.changes for step in steps] if before < after else [step.undo for step in reversed(steps)]
        if len(ways) == 1:
            return ways[0]
        merged: dict[str, dict[str, Reference | None]] = {}
        for way in ways:
            for scope, streams in way.items():
                merged.setdefault(scope, {}).update(streams)
        return merged

    def at(self, version: int) -> dict[str, dict[str, Reference]]:
        """All references at a version, copied. Raises LookupError when the way back is forgotten."""
        found = {scope: streams.copy() for scope, streams in self.streams.items()}
        for step in reversed(self.behind(version)):
            for scope, streams in step.undo.items():
                known = found.setdefault(scope, {})
                for stream, old in streams.items():
                    if old is None:
                        known.pop(stream, None)
                    else:
                        known[stream] = old
                if not known:
                    del found[scope]
        return found


def _scope_bytes(scope: str) -> int:
    return len(json.dumps(scope)) + 6


def _stream_bytes(stream: str, reference: Reference) -> int:
    """The bytes of ``"stream": reference, `` as JSON text."""
    return len(stream) + len(str(reference)) + (6 if isinstance(reference, int) else 8)


def plain(references: References) -> References:
    """The references as dictionaries, which can become JSON."""
    return references.plain() if isinstance(references, VersionedReferences) else references


def merge(references: References, newer: References) -> dict[str, dict[str, Reference]]:
    """All of both, ``newer`` where both say something."""
    merged = {scope: dict(streams) for scope, streams in references.items()}
    for scope, streams in newer.items():
        merged.setdefault(scope, {}).update(streams)
    return merged


def changed(before: References | None, after: References) -> References:
    """The references of ``after`` that ``before`` does not have, or has otherwise."""
    if isinstance(after, VersionedReferences) and (changes := after.changes_since(before)) is not None:
        return _without_forgotten(changes)
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
    """The ranges between two offsets, one for each stream that has another reference in ``end``."""
    if isinstance(end, VersionedReferences) and isinstance(start, VersionedReferences):
        changes, back = end.changes_since(start), start.changes_since(end)
        if changes is not None and back is not None:
            return [
                PlannedRange(StreamKey(scope, int(stream)), back[scope][stream], to)
                for scope, streams in _without_forgotten(changes).items()
                for stream, to in streams.items()
                if back[scope][stream] != to
            ]
    before = flatten(start)
    return [PlannedRange(key, before.get(key), to) for key, to in flatten(end).items() if before.get(key) != to]


def _without_forgotten(changes: Changes) -> dict[str, dict[str, Reference]]:
    """The changes of streams that are not forgotten."""
    kept = {
        scope: {stream: reference for stream, reference in streams.items() if reference is not None}
        for scope, streams in changes.items()
    }
    return {scope: streams for scope, streams in kept.items() if streams}


def slot_of_ephemeral(reference: Reference) -> int | None:
    """The slot whose buffer an ephemeral reference is of; None for a message id, which any slot may have."""
    return int(reference.split(":")[1]) if isinstance(reference, str) else None
