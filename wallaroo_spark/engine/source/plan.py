"""Decides what the next batch reads, and what a planned batch consists of. Pure: no file, clock or Spark.

An offset alone, with the one before it, determines the content of a batch, because a batch may run again in another
process. Source: ``docs/pipelines/engine.md#the-source``.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import NamedTuple

from wallaroo_spark.engine.source.offsets import InputOffset
from wallaroo_spark.pipelines.controller.messages.events import PartitionDeclared
from wallaroo_spark.pipelines.controller.messages.plans import PartitionPlan, partition_plan
from wallaroo_spark.pipelines.controller.messages.values import PartitionKey
from wallaroo_spark.pipelines.controller.stored.encoding import encode
from wallaroo_spark.pipelines.declarations import PipelineDeclaration, StreamDeclaration
from wallaroo_spark.pipelines.schema.store import StoredSchema
from wallaroo_spark.streams.inbox import InboxFile, InboxPosition, Unread
from wallaroo_spark.streams.rows import Rank

MOST_VERSIONS = 50
"""The most versions of the schema that one batch applies. A choice that bounds the work of a batch."""
TIMER_AGAIN_MILLIS = 100
"""Time after which a batch is planned again for a timer that was due in an earlier batch and is still armed.

A choice. A key disarms a due timer, so this happens only when the batch's time is before the planned one, because the
clock of the driver was set back."""


@dataclass(frozen=True)
class Inputs:
    """Everything that a batch could read, as the source sees it at one moment."""

    now: int
    """The time in milliseconds since 1970 UTC."""
    unread: Mapping[str, Unread] = field(default_factory=lambda: MappingProxyType({}))
    """The files behind the position, by gateway and generation; claims were listed before files."""
    carried: Mapping[int, int] = field(default_factory=lambda: MappingProxyType({}))
    """The number of carried messages of each committed batch behind the offset's ``batch``."""
    first_timer: int | None = None
    """The earliest armed timer after the newest committed batch; None when no timer is armed."""
    schema: int = 0
    """The newest version of the schema, listed after the inbox."""
    first_occurrence: int | None = None
    """The earliest occurrence of a schedule behind the offset's ``time``; None without a schedule."""


class ReadFiles(NamedTuple):
    """Files of one gateway that a batch reads; all are of one generation."""

    gateway: str
    """The gateway."""
    generation: int
    """The generation."""
    first: int
    """The first file's number."""
    last: int
    """The last file's number, inclusive."""


class MadeRows(NamedTuple):
    """Rows that stand in no file: the same event for some partitions of a stream."""

    stream: str
    """Name of the stream as ``namespace/name``."""
    partitions: tuple[int, ...]
    """The partitions."""
    rank: Rank
    """The rank of the rows."""
    origin: str
    """Their origin."""
    sequence: int
    """Their sequence."""
    event: bytes | None
    """The encoded event; None where only time has passed."""


def next_offset(start: InputOffset, inputs: Inputs, max_rows: int) -> InputOffset:
    """The end of the next batch; ``start`` itself when there is nothing to read.

    ``max_rows`` bounds the events of gateways and the carried messages together, except that a batch reads at least one
    file of gateways and the messages of at least one batch, if there are any.
    """
    schema = inputs.schema
    if start.schema:
        schema = min(max(schema, start.schema), start.schema + MOST_VERSIONS)
    batch, carried = _carried(start.batch, inputs.carried, max_rows)
    # Events may need the newest version, so they wait until it is applied.
    unread = inputs.unread if schema >= inputs.schema else {}
    inbox = _inbox(start, unread, max_rows - carried)
    time = max(start.time, inputs.now)
    due = _timer_due(start.time, inputs) or (inputs.first_occurrence is not None and inputs.first_occurrence <= time)
    if not (carried or due or inbox != start.inbox or schema > start.schema):
        return start
    return InputOffset(inbox, batch, time, schema)


def holes(start: InputOffset, unread: Mapping[str, Unread]) -> list[tuple[str, int, int]]:
    """The files that are missing although a later file of the same generation is there: gateway, generation, number.

    A listing that runs while files are created may lack one of them; the next listing has it.
    """
    found = []
    for gateway, generations in sorted(unread.items()):
        at = start.inbox.get(gateway, InboxPosition())
        generation, files = _next_generation(at, generations)
        behind = generations.get(generation, ())
        if len(files) < len(behind):
            first = _first_sequence(at, generation)
            found.append((gateway, generation, first + len(files)))
    return found


def read_files(start: InputOffset, end: InputOffset) -> list[ReadFiles]:
    """The files of gateways that the batch between two offsets reads."""
    found = []
    for gateway, to in sorted(end.inbox.items()):
        at = start.inbox.get(gateway, InboxPosition())
        if to != at:
            found.append(ReadFiles(gateway, to.generation, _first_sequence(at, to.generation), to.sequence))
    return found


def carried_batches(start: InputOffset, end: InputOffset) -> range:
    """The batches whose carried messages the batch between two offsets reads."""
    return range(start.batch + 1, end.batch + 1)


def due_timers(timers: Mapping[str, int], end: InputOffset) -> Iterator[MadeRows]:
    """The rows of the timers that are due; ``timers`` is from the manifest of ``end.batch``.

    A timer that an earlier batch had as due and that is still armed is among them, so no timer is forgotten.
    """
    keys = sorted(_key(text) for text, at in timers.items() if at <= end.time)
    for stream, same in itertools.groupby(keys, key=lambda key: key.stream):
        yield MadeRows(stream, tuple(key.partition for key in same), Rank.DUE, "time", end.time, None)


def declared_versions(start: InputOffset, end: InputOffset) -> list[tuple[int, int]]:
    """The pairs of versions of the schema that the batch compares; version 0 is the empty schema.

    A new application begins with the newest version, because no partition has seen an earlier one.
    """
    if not start.schema:
        return [(0, end.schema)] if end.schema else []
    return list(itertools.pairwise(range(start.schema, end.schema + 1)))


def declared(before: StoredSchema, after: StoredSchema) -> Iterator[MadeRows]:
    """The rows of the partitions whose declaration differs in two versions; a removed stream is declared as None."""
    known, wanted = _plans(before), _plans(after)
    for stream in sorted(known.keys() | wanted.keys()):
        count, plan = wanted.get(stream, (0, None))
        known_count, known_plan = known.get(stream, (0, None))
        partitions = range(known_count) if plan is None else range(known_count if plan == known_plan else 0, count)
        if partitions:
            event = encode(PartitionDeclared(after.version, plan))
            yield MadeRows(stream, tuple(partitions), Rank.DECLARED, "schema", after.version, event)


def _plans(schema: StoredSchema) -> dict[str, tuple[int, PartitionPlan]]:
    """For each stream the number of its partitions and the plan of each of them."""
    streams = [one for one in schema.objects.values() if isinstance(one, StreamDeclaration)]
    pipelines: dict[str, list[PipelineDeclaration]] = {one.key.path: [] for one in streams}
    for one in schema.objects.values():
        if isinstance(one, PipelineDeclaration):
            pipelines.setdefault(one.input_key.path, []).append(one)
    partitions = {one.key: one.partitions for one in streams}
    return {one.key.path: (one.partitions, partition_plan(one, pipelines[one.key.path], partitions)) for one in streams}


def _carried(after: int, carried: Mapping[int, int], max_rows: int) -> tuple[int, int]:
    """The newest batch whose carried messages fit, and the number of messages; at least one batch with messages."""
    batch, rows = after, 0
    while (count := carried.get(batch + 1)) is not None and not (rows and rows + count > max_rows):
        batch, rows = batch + 1, rows + count
    return batch, rows


def _timer_due(time: int, inputs: Inputs) -> bool:
    first = inputs.first_timer
    if first is None or first > inputs.now:
        return False
    # The clock was set back behind the offset's time: no key has seen the time of a timer that is due now.
    set_back = inputs.now < time
    return set_back or first > time or inputs.now >= time + TIMER_AGAIN_MILLIS


def _inbox(start: InputOffset, unread: Mapping[str, Unread], max_rows: int) -> dict[str, InboxPosition]:
    """The positions after the batch. The gateways take turns, a file each, so none of them waits for the others."""
    ends = dict(start.inbox)
    waiting: dict[str, tuple[int, list[InboxFile]]] = {}
    for gateway in _in_turn(unread, start.batch):
        generation, files = _next_generation(start.inbox.get(gateway, InboxPosition()), unread[gateway])
        if files:
            waiting[gateway] = generation, files[::-1]
    rows, taken = 0, False
    while waiting:
        for gateway, (generation, files) in list(waiting.items()):
            if taken and rows + files[-1].rows > max_rows:
                return ends
            file = files.pop()
            rows, taken = rows + file.rows, True
            ends[gateway] = InboxPosition(generation, file.sequence)
            if not files:
                del waiting[gateway]
    return ends


def _in_turn(gateways: Iterable[str], turn: int) -> list[str]:
    """The gateways in an order that begins with another one in each batch."""
    names = sorted(gateways)
    first = turn % len(names) if names else 0
    return names[first:] + names[:first]


def _next_generation(at: InboxPosition, generations: Unread) -> tuple[int, list[InboxFile]]:
    """The generation that is read next, and its unread files up to the first hole.

    A newer generation is read once nothing of the older ones is unread. A batch reads files of one generation only, so
    its offsets tell which files those are, also when a superseded gateway writes another one later.
    """
    for generation in sorted(generations):
        files = generations[generation]
        if files:
            expected = itertools.count(_first_sequence(at, generation))
            return generation, [file for file, number in zip(files, expected, strict=False) if file.sequence == number]
    return at.generation, []


def _first_sequence(at: InboxPosition, generation: int) -> int:
    return at.sequence + 1 if generation == at.generation else 1


def _key(text: str) -> PartitionKey:
    stream, _, partition = text.rpartition("/")
    return PartitionKey(stream, int(partition))
