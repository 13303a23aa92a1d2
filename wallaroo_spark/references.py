"""Points of reference: positions in streams, and the ranges of messages between two positions.

A mapping of streams to references has two forms. The flat form has a :class:`StreamKey` as key; workers use it. The
nested form has two levels, the scope and the stream id as decimal text; Spark's offset log and the JSON on the inner
port use it. Source: ``docs/protocol.md#points-of-reference``.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple, Self

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
    """The stream."""
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


def nest(references: Mapping[StreamKey, Reference]) -> dict[str, dict[str, Reference]]:
    """Convert flat references to the nested form."""
    nested: dict[str, dict[str, Reference]] = {}
    for key, reference in references.items():
        nested.setdefault(key.scope, {})[str(key.stream_id)] = reference
    return nested


def flatten(references: References) -> dict[StreamKey, Reference]:
    """Convert nested references to the flat form. Raises ValueError for a stream id that is not a number."""
    return {
        StreamKey(scope, int(stream_id)): reference
        for scope, streams in references.items()
        for stream_id, reference in streams.items()
    }


def merge(references: References, newer: References) -> dict[str, dict[str, Reference]]:
    """Return the union of both; a stream that is in both has its reference from ``newer``."""
    merged = {scope: dict(streams) for scope, streams in references.items()}
    for scope, streams in newer.items():
        merged.setdefault(scope, {}).update(streams)
    return merged


def slot_of_ephemeral(reference: Reference) -> int | None:
    """The slot whose buffer holds the message of an ephemeral reference; None for a message id, which names no slot."""
    return int(reference.split(":")[1]) if isinstance(reference, str) else None
