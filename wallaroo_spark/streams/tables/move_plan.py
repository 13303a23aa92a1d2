"""Which files of committed batches become which files of the tables. Pure.

Files of one partition that follow each other become one file until it is large, so the number of files in a table
depends on how often they are moved and not on the number of batches. A plan is stored before anything is moved. A
process that finds a stored plan carries out the same plan, so a record is never in two files of a table.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

from wallaroo_spark.pipelines.controller.messages.values import PartitionKey
from wallaroo_spark.streams.batch_outputs.files import Manifest, OutputFile
from wallaroo_spark.streams.rows import OutputKind

LARGE_BYTES = 16 << 20
"""The size from which a file is moved as it is, and up to which small files are joined.

A choice: it bounds the driver's memory and work, and Spark reads files of this size well.
"""
FORMAT = 1
"""The version of the stored form."""


@dataclass(frozen=True)
class Move:
    """One file of a table, and the files of batches that it is made of."""

    kind: OutputKind
    """RECORDS or HISTORY."""
    key: PartitionKey
    """The partition of records; of the history, no stream and partition 0."""
    first: int
    """First offset of records; first batch of the history."""
    last: int
    """Last offset of records; last batch of the history."""
    number: int
    """Number of the file among those of the history; 0 for records."""
    sources: tuple[tuple[int, str], ...]
    """Batch and name of each file, in the order of the rows."""


class Forgotten(NamedTuple):
    """The records of a partition whose stream was deleted."""

    key: PartitionKey
    """The partition."""
    before: int
    """The first offset that stays."""


@dataclass(frozen=True)
class MovePlan:
    """The moves of some batches that follow each other."""

    first: int
    """First batch."""
    last: int
    """Last batch, inclusive."""
    moves: tuple[Move, ...]
    """The moves; their order does not matter."""
    forgotten: tuple[Forgotten, ...] = ()
    """The records to delete before the moves; none of them is moved."""

    def to_json(self) -> bytes:
        """Encode as the stored form."""
        return json.dumps(
            {
                "version": FORMAT,
                "first": self.first,
                "last": self.last,
                "moves": [vars(move) for move in self.moves],
                "forgotten": self.forgotten,
            }
        ).encode()

    @classmethod
    def from_json(cls, data: bytes) -> MovePlan:
        """Decode the stored form. Raises ``ValueError``, ``KeyError`` or ``TypeError`` when it is malformed."""
        values = json.loads(data)
        if values["version"] != FORMAT:
            raise ValueError(f"version {values['version']!r} is not known")
        moves = tuple(_move(move) for move in values["moves"])
        # A plan of an earlier release has no such field.
        forgotten = tuple(Forgotten(PartitionKey(*key), int(before)) for key, before in values.get("forgotten", ()))
        return cls(int(values["first"]), int(values["last"]), moves, forgotten)


def plan_moves(first: int, last: int, manifests: Iterable[Manifest], large: int = LARGE_BYTES) -> MovePlan:
    """The plan for the batches from ``first`` to ``last``; ``manifests`` are theirs, in their order."""
    parts: dict[tuple[OutputKind, PartitionKey], list[OutputFile]] = {}
    known = tuple(manifests)
    forgotten: dict[PartitionKey, int] = {}
    for manifest in known:
        for file in manifest.of(OutputKind.FORGET):
            forgotten[file.key] = max(file.first or 0, forgotten.get(file.key, 0))
    for manifest in known:
        for file in manifest.files:
            if file.kind is OutputKind.RECORDS and (file.last or 0) < forgotten.get(file.key, 0):
                continue
            if file.kind in (OutputKind.RECORDS, OutputKind.HISTORY):
                parts.setdefault((file.kind, file.key), []).append(file)
    moves = []
    for (kind, key), files in parts.items():
        for number, joined in enumerate(_joined(files, large)):
            sources = tuple((file.batch, file.name) for file in joined)
            if kind is OutputKind.HISTORY:
                moves.append(Move(kind, key, first, last, number, sources))
            else:
                moves.append(Move(kind, key, joined[0].first or 0, joined[-1].last or 0, 0, sources))
    return MovePlan(first, last, tuple(moves), tuple(Forgotten(*one) for one in sorted(forgotten.items())))


def _joined(files: Iterable[OutputFile], large: int) -> Iterator[list[OutputFile]]:
    """Files that follow each other, in groups of at most ``large`` bytes; a larger file stands alone."""
    group: list[OutputFile] = []
    size = 0
    for file in files:
        follows = not group or file.kind is OutputKind.HISTORY or file.first == (group[-1].last or 0) + 1
        if group and (size + file.bytes > large or not follows):
            yield group
            group, size = [], 0
        group.append(file)
        size += file.bytes
    if group:
        yield group


def _move(values: dict[str, Any]) -> Move:
    return Move(
        OutputKind(values["kind"]),
        PartitionKey(*values["key"]),
        int(values["first"]),
        int(values["last"]),
        int(values["number"]),
        tuple((int(batch), str(name)) for batch, name in values["sources"]),
    )
