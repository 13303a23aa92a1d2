"""The contents of a checkpoint as values, without file access: the offset log, the commit log, and conclusions of both.

The formats are those of PySpark 4.3. A file of ``offsets/`` has a line with its version, a line of JSON with the
batch's metadata, and then, in version 1, a line per source in the plan's order, ``-`` for a source without an offset;
in version 2, a line ``id:offset`` per source with an offset, in any order, where ids are numbers or the sources' names.
A file of ``commits/`` has a line with its version and a line of JSON.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

from wallaroo_spark.errors import CheckpointError
from wallaroo_spark.references import Reference, References, with_endings
from wallaroo_spark.sidecar.plan_files import NAMED_VERSION, NamedPlan

OFFSET_LOG_VERSIONS = ("v1", "v2")
"""The versions of Spark's offset log that this module reads."""
SOURCE_OFFSET_VERSION = 1
"""The version of this package's own offsets, in their field ``wallaroo``."""
_NO_OFFSET = "-"
_GREATEST_ID = (1 << 64) - 1


@dataclass(frozen=True)
class PlannedBatch:
    """The end references of one batch, for the streams of one receiver."""

    batch: int
    """Spark's batch id."""
    references: References
    """The end reference of each stream.

    Several sources of a query may read one receiver and have different references. Then this is the earliest one,
    because the messages after it are still needed.
    """
    undecided: tuple[tuple[str, str], ...] = ()
    """Streams, as (scope, stream id), whose earliest reference is not known, because the references have no order."""
    partial: tuple[tuple[str, str], ...] = field(default=(), compare=False)
    """Streams that are left out although some source has a reference of them; they are not forgotten."""


@dataclass(frozen=True)
class QueryProgress:
    """The newest committed batch and the batch that runs, for the streams of one receiver."""

    committed: PlannedBatch | None
    """The plan of the newest committed batch; None before the first commit."""
    planned: PlannedBatch | None
    """The plan of the newest batch in the offset log when that batch is not committed, otherwise None."""


def parse_offsets(
    batch: int, text: str, receiver: str, plans: Callable[[NamedPlan], References]
) -> PlannedBatch | None:
    """Parse ``offsets/<batch>``: return the references of ``receiver``, or None when the batch has no source of it.

    ``text`` is the content of the file. ``plans`` finds the references of a plan that lies beside the checkpoint.
    Raises :class:`CheckpointError` for an unknown format, for a file that is truncated or damaged, and for a plan that
    cannot be found.
    """
    where = f"offsets/{batch}"
    offsets = _offsets_of(batch, text, receiver)
    if not offsets:
        return None
    # Sources of one receiver mostly read the same.
    distinct = [offset for index, offset in enumerate(offsets) if offset not in offsets[:index]]
    found = [_references(where, offset, plans) for offset in distinct]
    if len(found) == 1:
        return PlannedBatch(batch, found[0])
    ordered = all(offset.get("ids") != "opaque" for offset in offsets)
    references, undecided = _earliest_of_sources(found, ordered)
    all_streams = {(scope, stream) for source in found for scope, streams in source.items() for stream in streams}
    partial = sorted((scope, stream) for scope, stream in all_streams if stream not in references.get(scope, {}))
    return PlannedBatch(batch, references, undecided, tuple(partial))


def oldest_base(batch: int, text: str, receiver: str) -> int | None:
    """The least number of a snapshot that ``offsets/<batch>`` leads to for ``receiver``; None when it names no plan.

    Raises as :func:`parse_offsets` does.
    """
    named = [_named(f"offsets/{batch}", offset) for offset in _offsets_of(batch, text, receiver)]
    return min((plan.base.number for plan in named if plan is not None), default=None)


def receivers_in(batch: int, text: str) -> tuple[str, ...]:
    """Return the names of the receivers with a source in ``offsets/<batch>``, sorted.

    Raises :class:`CheckpointError` as :func:`parse_offsets` does.
    """
    values = [_json(line) for line in _source_lines(batch, text)]
    return tuple(sorted({str(value["receiver"]) for value in values if _is_ours(value) and "receiver" in value}))


def settings_in(batch: int, text: str) -> dict[str, str]:
    """Return Spark's settings that ``offsets/<batch>`` has recorded. Raises as :func:`parse_offsets` does."""
    _source_lines(batch, text)
    metadata = _json(text.split("\n")[1])
    settings = metadata.get("conf") if isinstance(metadata, dict) else None
    return {str(name): str(value) for name, value in settings.items()} if isinstance(settings, dict) else {}


def offsets_in(batch: int, text: str) -> tuple[Any, ...]:
    """Return the offset of each source in ``offsets/<batch>``, as JSON values in the file's order.

    A source without an offset is left out. Raises :class:`CheckpointError` as :func:`parse_offsets` does.
    """
    lines = [line for line in _source_lines(batch, text) if line.strip() != _NO_OFFSET]
    values = tuple(_json(line) for line in lines)
    if None in values:
        raise _damaged(f"offsets/{batch}", "has an offset that is not JSON")
    return values


def is_commit(text: str) -> bool:
    """Whether ``text`` is a complete commit file: a line with its version, then a JSON object."""
    version, _, body = text.partition("\n")
    return re.fullmatch(r"v\d+", version.strip()) is not None and isinstance(_json(body), dict)


def newest_committed(offset_batches: Collection[int], commit_batches: Collection[int]) -> int | None:
    """Return the newest batch in ``offsets/`` that is committed: it, or a later batch, has a commit file.

    Batches commit in order, so a commit file also commits all earlier batches. The batch of the newest commit file may
    have no file in ``offsets/``: Spark's log clean-up may have removed it, or asynchronous progress tracking may never
    have written it.
    """
    if not commit_batches:
        return None
    last = max(commit_batches)
    return max((batch for batch in offset_batches if batch <= last), default=None)


def newest_planned(offset_batches: Collection[int], commit_batches: Collection[int]) -> int | None:
    """Return the newest batch in ``offsets/`` if it is newer than every commit, otherwise None."""
    newest = max(offset_batches, default=None)
    return newest if newest is not None and newest > max(commit_batches, default=-1) else None


def holes(offset_batches: Collection[int], commit_batches: Collection[int]) -> tuple[int, ...]:
    """Return the batches that are in neither log although an earlier batch is in both.

    Only asynchronous progress tracking leaves such gaps; with it a planned range may change. An interrupted clean-up
    leaves other gaps: Spark removes the oldest files of the offset log, in any order, and then those of the commit log.
    So either the commit log still has all of these batches, or the offset log has no earlier batch.
    """
    oldest = min({*offset_batches} & {*commit_batches}, default=None)
    if oldest is None:
        return ()
    present = sorted(batch for batch in {*offset_batches, *commit_batches} if batch >= oldest)
    return tuple(missing for before, after in pairwise(present) for missing in range(before + 1, after))


def _offsets_of(batch: int, text: str, receiver: str) -> list[dict[str, Any]]:
    where = f"offsets/{batch}"
    lines = _source_lines(batch, text)
    return [offset for line in lines if (offset := _source_offset(where, line, receiver)) is not None]


def _source_lines(batch: int, text: str) -> list[str]:
    """Return the text of the offsets of a batch, one for each source."""
    where = f"offsets/{batch}"
    version, _, rest = text.partition("\n")
    if version.strip() not in OFFSET_LOG_VERSIONS:
        raise CheckpointError(
            f"{where} starts with {version[:20]!r}, and only the offset log formats "
            f"{' and '.join(OFFSET_LOG_VERSIONS)} are known; use a Spark release that writes one of these",
            code="checkpoint-version",
            batch=batch,
        )
    metadata, _, body = rest.partition("\n")
    lines = [line for line in body.split("\n") if line.strip()]
    # Spark 2 left the metadata line empty. Metadata that are not whole JSON show that the file is truncated.
    if (not lines and version.strip() == "v1") or (metadata.strip() and not isinstance(_json(metadata), dict)):
        raise _damaged(where, "is truncated")
    return [line.partition(":")[2] for line in lines] if version.strip() == "v2" else lines


def _earliest_of_sources(
    sources: Sequence[References], ordered: bool
) -> tuple[References, tuple[tuple[str, str], ...]]:
    """Return the earliest reference of each stream in all sources, and the streams whose earliest one is not known.

    ``ordered`` says whether the message ids of the streams increase. A stream that some source has no reference of is
    left out, because that source reads the stream from its first message. Ephemeral references to several buffers have
    no order either; their streams are left out, because their messages cannot be requested again.
    """
    earliest: dict[str, dict[str, Reference]] = {}
    undecided = []
    for scope, streams in sources[0].items():
        earliest[scope] = {}
        for stream in streams:
            references = [source.get(scope, {}).get(stream) for source in sources]
            known = [reference for reference in references if reference is not None]
            if len(known) < len(sources):
                continue
            # In v3 (an empty scope) message ids always increase.
            reference = _earliest(known, ordered or not scope)
            if reference is not None:
                earliest[scope][stream] = reference
            elif all(isinstance(reference, int) for reference in known):
                undecided.append((scope, stream))
    return earliest, tuple(undecided)


def _earliest(references: Sequence[Reference], ordered: bool) -> Reference | None:
    """Return the earliest reference; None when they differ and have no order."""
    if len(set(references)) == 1:
        return references[0]
    numbers = [reference for reference in references if isinstance(reference, int)]
    if len(numbers) == len(references):
        return min(numbers) if ordered else None
    buffers = {str(reference).rpartition(":")[0] for reference in references}
    positions = [str(reference).rpartition(":")[2] for reference in references]
    # Positions in one worker's buffer have an order; positions in different buffers have none.
    if numbers or len(buffers) > 1 or not all(position.isdecimal() for position in positions):
        return None
    return min(references, key=lambda reference: int(str(reference).rpartition(":")[2]))


def _is_ours(value: Any) -> bool:
    return isinstance(value, dict) and "wallaroo" in value


def _source_offset(where: str, line: str, receiver: str) -> dict[str, Any] | None:
    """Parse a source's offset; None for the offset of another receiver, or of another kind of source.

    Raises :class:`CheckpointError` for a damaged offset and for one of another version.
    """
    if line.strip() == _NO_OFFSET:
        return None
    value = _json(line)
    if value is None and '"wallaroo"' in line:
        raise _damaged(where, "has an offset of this package that is not JSON")
    if not _is_ours(value) or value.get("receiver") != receiver:
        return None
    if value["wallaroo"] not in (SOURCE_OFFSET_VERSION, NAMED_VERSION):
        raise CheckpointError(
            f"{where} has an offset of version {value['wallaroo']!r}, and this release reads versions "
            f"{SOURCE_OFFSET_VERSION} and {NAMED_VERSION}; use the release that wrote it, or a new checkpoint",
            code="checkpoint-version",
            receiver=receiver,
        )
    offset: dict[str, Any] = value
    return offset


def _named(where: str, offset: Mapping[str, Any]) -> NamedPlan | None:
    try:
        return NamedPlan.of(offset)
    except ValueError as error:
        raise _damaged(where, f"does not name a plan: {error}") from None


def _references(where: str, offset: Mapping[str, Any], plans: Callable[[NamedPlan], References]) -> References:
    named = _named(where, offset)
    if named is not None:
        return plans(named)
    scopes = offset.get("streams")
    if not isinstance(scopes, dict):
        raise _damaged(where, "has an offset without streams")
    for scope, streams in scopes.items():
        _streams(where, scope, streams)
    try:
        return with_endings(scopes, offset.get("endings"))
    except (TypeError, KeyError, ValueError, AttributeError) as error:
        raise _damaged(where, f"has ended streams that cannot be read: {error!r}") from None


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
        f"{where} {problem}; if this error persists, restore the checkpoint or start with a new one",
        code="checkpoint-damaged",
        file=where,
    )
