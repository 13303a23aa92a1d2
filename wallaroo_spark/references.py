"""How far streams have come: references, the streams that they are of, and the ranges between two of them.

A *reference* is what Spark's offset log holds: the message id, or ``e:<slot>:<generation>:<position>`` for an
ephemeral stream, which nobody can ask for again.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

Reference = int | str


class StreamKey(NamedTuple):
    """A stream's identity: ``scope`` is its connector instance, or empty where ids belong to the whole source (v3)."""

    scope: str
    stream_id: int


References = Mapping[str, Mapping[str, Reference]]
"""References by scope and stream id (as decimal text), the form in which Spark's offset log holds them."""


@dataclass(frozen=True, slots=True)
class PlannedRange:
    """Rows of one stream behind ``start``, up to and including ``end``."""

    key: StreamKey
    start: Reference | None
    end: Reference


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
