"""The contents of a checkpoint as values, without files: offset logs, commit logs, and conclusions from both.

The formats are those of PySpark 4.3. A file of ``offsets/`` has a line with its version, a line of JSON with the
batch's metadata, and then, in version 1, a line per source in the plan's order, ``-`` for a source without an offset;
in version 2, a line ``id:offset`` per source with an offset, in any order, where ids are numbers or the sources' names.
A file of ``commits/`` has a line with its version and a line of JSON.
"""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from wallaroo_spark.errors import CheckpointError
from wallaroo_spark.references import Reference, References

OFFSET_LOG_VERSIONS = ("v1", "v2")
SOURCE_OFFSET_VERSION = 1
_NO_OFFSET = "-"
_GREATEST_ID = (1 << 64) - 1


@dataclass(frozen=True)
class PlannedBatch:
    """The end references of one batch, in the streams of one receiver.

    A query may have several sources of one receiver, which may be at different references: then ``references`` has the
    first one of each stream, because the messages behind it are still needed. ``undecided`` names the streams, by scope
    and stream id, for which the first one is unknown, because their references have no order.
    """

    batch: int
    references: References
    undecided: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True)
class QueryProgress:
    """How far a query is. ``planned`` is the newest batch in the offset log while no commit has caught up with it."""

    committed: PlannedBatch | None
    planned: PlannedBatch | None


def parse_offsets(batch: int, text: str, receiver: str) -> PlannedBatch | None:
    """The part of ``offsets/<batch>`` that belongs to ``receiver``, or None when it has none there.

    Raises :class:`CheckpointError` for a format that is not known, and a file that is cut short or damaged.
    """
    where = f"offsets/{batch}"
    lines = _source_lines(batch, text)
    ours = [offset for line in lines if (offset := _source_offset(where, line, receiver)) is not None]
    if not ours:
        return None
    ordered = all(offset.get("ids") != "opaque" for offset in ours)
    references, undecided = _first([_references(where, offset) for offset in ours], ordered)
    return PlannedBatch(batch, references, undecided)


def receivers_in(batch: int, text: str) -> tuple[str, ...]:
    """The receivers that have a source in ``offsets/<batch>``, sorted. Raises as :func:`parse_offsets` does."""
    values = [_json(line) for line in _source_lines(batch, text)]
    return tuple(sorted({str(value["receiver"]) for value in values if _is_ours(value) and "receiver" in value}))


def is_commit(text: str) -> bool:
    """Whether ``text`` is the whole of a commit file: its version, then a JSON object."""
    version, _, body = text.partition("\n")
    return re.fullmatch(r"v\d+", version.strip()) is not None and isinstance(_json(body), dict)


def newest_committed(offset_batches: Collection[int], commit_batches: Collection[int]) -> int | None:
    """The newest batch that has its plan in ``offsets/`` and for which a commit of it, or of a later one, exists.

    Batches commit in order, so a commit speaks for those before it; it need not have a plan of its own, which Spark's
    log clean-up may have taken, or asynchronous progress tracking never written.
    """
    if not commit_batches:
        return None
    last = max(commit_batches)
    return max((batch for batch in offset_batches if batch <= last), default=None)


def newest_planned(offset_batches: Collection[int], commit_batches: Collection[int]) -> int | None:
    """The newest batch in ``offsets/`` when it is beyond every commit, else None."""
    newest = max(offset_batches, default=None)
    return newest if newest is not None and newest > max(commit_batches, default=-1) else None


def holes(offset_batches: Collection[int], commit_batches: Collection[int]) -> tuple[int, ...]:
    """The batches that neither log has, behind one that both have: only asynchronous progress leaves such gaps.

    Under asynchronous progress a planned range may change. A clean-up that was cut short leaves other gaps: it removes
    the oldest files of the offset log, in any order, and then those of the commit log. So for the batches it was
    removing, either the commit log still has all of them, or the offset log has nothing older.
    """
    oldest = min({*offset_batches} & {*commit_batches}, default=None)
    if oldest is None:
        return ()
    present = sorted(batch for batch in {*offset_batches, *commit_batches} if batch >= oldest)
    return tuple(missing for before, after in pairwise(present) for missing in range(before + 1, after))


def _source_lines(batch: int, text: str) -> list[str]:
    """The offsets of all sources of a batch, one a source."""
    where = f"offsets/{batch}"
    version, _, rest = text.partition("\n")
    if version.strip() not in OFFSET_LOG_VERSIONS:
        raise CheckpointError(
            f"{where} starts with {version[:20]!r}, and only the offset log formats "
            f"{' and '.join(OFFSET_LOG_VERSIONS)} are known; use a Spark release that writes one of these",
            batch=batch,
        )
    metadata, _, body = rest.partition("\n")
    lines = [line for line in body.split("\n") if line.strip()]
    # Spark 2 left the metadata line empty; JSON that does not end says that the file does not either.
    if (not lines and version.strip() == "v1") or (metadata.strip() and not isinstance(_json(metadata), dict)):
        raise _damaged(where, "is cut short")
    return [line.partition(":")[2] for line in lines] if version.strip() == "v2" else lines


def _first(sources: Sequence[References], ordered: bool) -> tuple[References, tuple[tuple[str, str], ...]]:
    """Of each stream the reference that no source has yet to reach, and the streams of which that cannot be told.

    A stream that one source has nothing of is left out: for that source it begins at its first message. ``ordered``
    is whether the ids of the instances' streams increase. Ephemeral references of several buffers have no order either,
    and are left out: nothing of them can be asked for again.
    """
    first: dict[str, dict[str, Reference]] = {}
    undecided = []
    for scope, streams in sources[0].items():
        first[scope] = {}
        for stream in streams:
            found = [source.get(scope, {}).get(stream) for source in sources]
            known = [reference for reference in found if reference is not None]
            if len(known) < len(sources):
                continue
            # Ids of the whole source, which v3 has, always increase.
            earliest = _earliest(known, ordered or not scope)
            if earliest is not None:
                first[scope][stream] = earliest
            elif all(isinstance(reference, int) for reference in known):
                undecided.append((scope, stream))
    return first, tuple(undecided)


def _earliest(references: Sequence[Reference], ordered: bool) -> Reference | None:
    """The reference that comes first; None when they differ and have no order."""
    if len(set(references)) == 1:
        return references[0]
    numbers = [reference for reference in references if isinstance(reference, int)]
    if len(numbers) == len(references):
        return min(numbers) if ordered else None
    buffers = {str(reference).rpartition(":")[0] for reference in references}
    positions = [str(reference).rpartition(":")[2] for reference in references]
    # Positions within one worker's buffer have an order; those of different buffers have none.
    if numbers or len(buffers) > 1 or not all(position.isdecimal() for position in positions):
        return None
    return min(references, key=lambda reference: int(str(reference).rpartition(":")[2]))


def _is_ours(value: Any) -> bool:
    return isinstance(value, dict) and "wallaroo" in value


def _source_offset(where: str, line: str, receiver: str) -> dict[str, Any] | None:
    """The offset in ``line`` when it is one of ``receiver``; lines of other kinds of sources may hold anything."""
    if line.strip() == _NO_OFFSET:
        return None
    value = _json(line)
    if value is None and '"wallaroo"' in line:
        raise _damaged(where, "has an offset of ours that is not JSON")
    if not _is_ours(value) or value.get("receiver") != receiver:
        return None
    if value["wallaroo"] != SOURCE_OFFSET_VERSION:
        raise CheckpointError(
            f"{where} has an offset of version {value['wallaroo']!r}, and this release reads version "
            f"{SOURCE_OFFSET_VERSION}; use the release that wrote it, or a new checkpoint",
            receiver=receiver,
        )
    found: dict[str, Any] = value
    return found


def _references(where: str, offset: Mapping[str, Any]) -> References:
    scopes = offset.get("streams")
    if not isinstance(scopes, dict):
        raise _damaged(where, "has an offset without streams")
    return {scope: _streams(where, scope, streams) for scope, streams in scopes.items()}


def _streams(where: str, scope: str, streams: Any) -> Mapping[str, Reference]:
    if not isinstance(streams, dict):
        raise _damaged(where, f"has no streams in the scope {scope!r}")
    for stream, reference in streams.items():
        number = isinstance(reference, int) and not isinstance(reference, bool)
        if not (stream.isascii() and stream.isdigit()):
            raise _damaged(where, f"has the stream id {stream!r}, which is not a decimal number")
        if not (isinstance(reference, str) or (number and 0 <= reference <= _GREATEST_ID)):
            raise _damaged(where, f"has the reference {reference!r} in stream {stream}")
    return streams


def _json(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        return None


def _damaged(where: str, problem: str) -> CheckpointError:
    return CheckpointError(
        f"{where} {problem}; if it stays so, restore the checkpoint or start with a new one", file=where
    )
