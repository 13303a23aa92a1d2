"""How far streams have come: references, the streams that they are of, and the ranges between two of them.

References of several streams have two forms: flat, by :class:`StreamKey`, as the worker uses them, and nested, by scope
and stream id in decimal text, as Spark's offset log and the inner port's JSON have them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple, Self

Reference = int | str
"""A point of reference as Spark's offset log holds it: the id of the last message.

For an EPHEMERAL stream, whose messages cannot be asked for again, it is ``e:<slot>:<generation>:<position>``.
"""

References = Mapping[str, Mapping[str, Reference]]
"""Nested references: by scope (an instance, or ``""`` for ids of the whole source), then by decimal stream id."""


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


def merge(references: References, newer: References) -> dict[str, dict[str, Reference]]:
    """All of both, ``newer`` where both say something."""
    merged = {scope: dict(streams) for scope, streams in references.items()}
    for scope, streams in newer.items():
        merged.setdefault(scope, {}).update(streams)
    return merged


def changed(before: References | None, after: References) -> References:
    """The references of ``after`` that ``before`` does not have, or has otherwise."""
    known = before or {}
    differing = {
        scope: {
            stream: reference for stream, reference in streams.items() if known.get(scope, {}).get(stream) != reference
        }
        for scope, streams in after.items()
    }
    return {scope: streams for scope, streams in differing.items() if streams}


def ranges(start: References, end: References) -> list[PlannedRange]:
    """The ranges between two offsets, one for each stream that has another reference in ``end``."""
    before = flatten(start)
    return [PlannedRange(key, before.get(key), to) for key, to in flatten(end).items() if before.get(key) != to]


def slot_of_ephemeral(reference: Reference) -> int | None:
    """The slot whose buffer an ephemeral reference is of; None for a message id, which any slot may have."""
    return int(reference.split(":")[1]) if isinstance(reference, str) else None
