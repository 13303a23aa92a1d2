"""How far a batch may go: the ends of all slots together, within Spark's limits.

Pure: the answers of the slots come in as values. Source: ``docs/options.md``.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from wallaroo_spark.references import PlannedRange, Reference, StreamKey, slot_of_ephemeral


@dataclass(frozen=True)
class Limits:
    """The most that one batch may have, and the rows that it waits for. None means no such limit."""

    max_rows: int | None = None
    max_bytes: int | None = None
    min_rows: int | None = None


@dataclass(frozen=True)
class Plan:
    """Where a batch would end, what it would read, and which slot has which stream."""

    ends: dict[str, dict[str, Reference]]
    rows: int
    bytes: int
    holders: dict[StreamKey, int]

    @property
    def empty(self) -> bool:
        """Whether there is nothing to read."""
        return not self.ends


def combine(answers: Mapping[int, Mapping[str, Any]]) -> Plan:
    """The slots' answers as one plan. Where two have the same stream the further end counts.

    That happens while a stream moves to another slot. Ids name the messages, so that either slot reads the right ones.
    """
    ends: dict[str, dict[str, Reference]] = {}
    holders: dict[StreamKey, int] = {}
    for slot in sorted(answers):
        for scope, streams in answers[slot]["ends"].items():
            for stream_id, end in streams.items():
                other = ends.get(scope, {}).get(stream_id)
                if other is not None and not _further(end, other):
                    continue
                ends.setdefault(scope, {})[stream_id] = end
                holders[StreamKey(scope, int(stream_id))] = slot
    rows, size = (sum(answer[key] for answer in answers.values()) for key in ("rows", "bytes"))
    return Plan(ends, rows, size, holders)


def _further(end: Reference, other: Reference) -> bool:
    return isinstance(end, int) and isinstance(other, int) and end > other


def shares(answers: Mapping[int, Mapping[str, Any]], limits: Limits) -> dict[int, tuple[int | None, int | None]]:
    """The rows and bytes that each slot may give, in proportion to those that it has; empty when all of them fit."""
    rows, size = (sum(answer[key] for answer in answers.values()) for key in ("rows", "bytes"))
    rows_over = limits.max_rows is not None and rows > limits.max_rows
    bytes_over = limits.max_bytes is not None and size > limits.max_bytes
    if not rows_over and not bytes_over:
        return {}
    return {
        slot: (
            _share(limits.max_rows, answer["rows"], rows) if rows_over else None,
            _share(limits.max_bytes, answer["bytes"], size) if bytes_over else None,
        )
        for slot, answer in answers.items()
        if answer["rows"]
    }


def _share(limit: int | None, part: int, whole: int) -> int:
    assert limit is not None
    return max(1, limit * part // max(1, whole))


def slot_of(planned: PlannedRange, holders: Mapping[StreamKey, int], assigned: Mapping[str, int]) -> int:
    """The slot to ask first for a range: that of the stream, the only one that can have it, or a guess."""
    known = holders.get(planned.key)
    if known is not None:
        return known
    ephemeral = slot_of_ephemeral(planned.end)
    return assigned.get(planned.key.scope, 0) if ephemeral is None else ephemeral
