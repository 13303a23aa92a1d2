"""Decides what the next batch reads, and what a planned batch consists of. Pure: no file, clock or Spark.

The source's offset, as it stands in Spark's offset log, with the one before it determines the content of a batch,
because a batch may run again in another process. A schedule whose time zone this machine does not know has no times;
:func:`zone_problems` names it. Source: ``docs/pipelines/engine.md#the-source`` and
``docs/pipelines/schema.md#schedules``.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, NamedTuple

from wallaroo_spark.errors import CheckpointError
from wallaroo_spark.pipelines.controller.messages.events import PartitionDeclared, RecordsPublished
from wallaroo_spark.pipelines.controller.messages.plans import partition_plans
from wallaroo_spark.pipelines.controller.messages.values import Durability, PartitionKey, ReplyTo
from wallaroo_spark.pipelines.controller.stored.encoding import encode
from wallaroo_spark.pipelines.schema.cloud_event import partition_of
from wallaroo_spark.pipelines.schema.cron import newest_time, next_time, zone_problem
from wallaroo_spark.pipelines.schema.declarations import ScheduleDeclaration, StreamDeclaration
from wallaroo_spark.pipelines.schema.names import ObjectKey
from wallaroo_spark.pipelines.schema.store import StoredSchema
from wallaroo_spark.streams.inbox import DRIVER, InboxFile, InboxPosition, Unread, positions_of
from wallaroo_spark.streams.rows import Rank


class Calendar(NamedTuple):
    """Up to where the events of schedules are made."""

    time: int = 0
    """Milliseconds since 1970 UTC."""
    schema: int = 0
    """The version of the schema whose schedules were followed until then."""


@dataclass(frozen=True)
class InputOffset:
    """How far the inputs of an application are read. Two equal offsets are the same text in Spark's log."""

    inbox: Mapping[str, InboxPosition] = field(default_factory=lambda: MappingProxyType({}))
    """The last file that is read of each gateway."""
    batch: int = -1
    """The newest batch whose carried messages are read; its manifest has the timers. -1 before the first batch."""
    time: int = 0
    """The time up to which timers are due, in milliseconds since 1970 UTC."""
    schema: int = 0
    """The version of the schema; 0 before the first."""
    applied: int = -1
    """The batch that applied this version; -1 for the first. Its carried messages are read before events of gateways
    and of schedules: with them a partition that was added learns what the others know."""
    calendar: Calendar = Calendar()
    """It stays behind ``time`` and ``schema`` in a batch that takes no events, because of ``applied``."""

    def to_json(self) -> dict[str, Any]:
        """Return the offset as JSON values."""
        inbox = {gateway: self.inbox[gateway]._asdict() for gateway in sorted(self.inbox)}
        numbers = {name: getattr(self, name) for name in _NUMBERS}
        return {"inbox": inbox, "calendar": self.calendar._asdict(), **numbers}

    @classmethod
    def from_json(cls, value: Any) -> InputOffset:
        """Decode :meth:`to_json`. Raises :class:`CheckpointError` for anything else."""
        try:
            calendar = Calendar(**{name: int(number) for name, number in value["calendar"].items()})
            numbers = {name: int(value[name]) for name in _NUMBERS}
            return cls(positions_of(value["inbox"]), calendar=calendar, **numbers)
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise CheckpointError(
                f"the offset {str(value)[:200]} is not one of the source wallaroo_pipelines ({error!r}); restore the "
                "checkpoint, or use the release that wrote it",
                code="checkpoint-damaged",
            ) from error


_NUMBERS = ("batch", "time", "schema", "applied")
MOST_VERSIONS = 50
"""The most versions of the schema that one batch applies. It bounds the work of a batch."""
BATCH_BYTES = 64 << 20
"""Bytes of events of gateways and of carried messages from which a batch takes no more. All of them may be of
one key, whose turn has them in memory several times."""
TIMER_AGAIN_MILLIS = 100
"""Time after which a batch is planned again for a timer that was due in an earlier batch and is still armed.

A key disarms a due timer, so this happens only when the batch's time is before the planned one, because the
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
    carried_bytes: Mapping[int, int] = field(default_factory=lambda: MappingProxyType({}))
    """Their bytes."""
    first_timer: int | None = None
    """The earliest armed timer after the newest committed batch; None when no timer is armed."""
    schema: int = 0
    """The newest version of the schema, listed after the inbox."""
    first_occurrence: int | None = None
    """The earliest occurrence of a schedule behind the offset's ``calendar``; None without a schedule."""


class ReadFiles(NamedTuple):
    """Files of one gateway that a batch reads; all are of one generation."""

    gateway: str
    generation: int
    first: int
    """The first file's number."""
    last: int
    """The last file's number, inclusive."""


class MadeRows(NamedTuple):
    """Rows that stand in no file: the same event for some partitions of a stream."""

    stream: str
    """Name of the stream as ``namespace/name``."""
    partitions: tuple[int, ...]
    rank: Rank
    origin: str
    """Their origin."""
    sequence: int
    """Their sequence."""
    event: bytes | None
    """The encoded event; None where only time has passed."""

    @property
    def rows(self) -> int:
        """Number of the rows."""
        return len(self.partitions)


def next_offset(start: InputOffset, inputs: Inputs, max_rows: int, max_bytes: int = BATCH_BYTES) -> InputOffset:
    """The end of the next batch; ``start`` itself when there is nothing to read.

    ``max_rows`` and ``max_bytes`` bound the events of gateways and the carried messages together, except that a batch
    reads at least one file of gateways and the messages of at least one batch, if there are any.
    """
    room = _Room(max_rows, max_bytes)
    schema = inputs.schema
    if start.schema:
        schema = min(max(schema, start.schema), start.schema + MOST_VERSIONS)
    batch = _carried(start.batch, inputs, room)
    carried = not room.untouched
    applied = start.applied
    if start.schema and schema > start.schema:
        applied = max(inputs.carried, default=start.batch) + 1
    # Events may need the newest version, so they wait until it is applied, and until the partitions that it adds have
    # heard what the others know.
    ready = schema >= inputs.schema and batch >= applied
    inbox = _inbox(start, inputs.unread if ready else {}, room)
    time = max(start.time, inputs.now)
    calendar = Calendar(time, schema) if ready else start.calendar
    due = inputs.first_occurrence is not None and inputs.first_occurrence <= calendar.time
    if not (carried or due or _timer_due(start.time, inputs) or inbox != start.inbox or schema > start.schema):
        return start
    return InputOffset(inbox, batch, time, schema, applied, calendar)


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


def unclaimed(start: InputOffset, unread: Mapping[str, Unread]) -> dict[str, InboxPosition]:
    """The positions whose generation, and every newer one, has no claim: gateways that may have lost their inbox."""
    return {gateway: at for gateway, at in start.inbox.items() if at.generation and not unread.get(gateway)}


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
    known, wanted = partition_plans(before.objects.values()), partition_plans(after.objects.values())
    for stream in sorted(known.keys() | wanted.keys()):
        old, new = known.get(stream), wanted.get(stream)
        if old != new and (plan := new or old) is not None:
            event = encode(PartitionDeclared(after.version, new))
            yield MadeRows(stream, tuple(range(plan.partitions)), Rank.DECLARED, "schema", after.version, event)


class _Room:
    """The part of a batch's limits that is left."""

    def __init__(self, rows: int, bytes: int) -> None:
        self._rows, self._bytes = rows, bytes
        self.untouched = True

    def has(self, rows: int, bytes: int) -> bool:
        """Whether these rows and bytes are within the rest of the limits."""
        return rows <= self._rows and bytes <= self._bytes

    def take(self, rows: int, bytes: int) -> None:
        """Take rows and bytes from the rest of the limits."""
        self._rows, self._bytes, self.untouched = self._rows - rows, self._bytes - bytes, self.untouched and not rows


def _carried(after: int, inputs: Inputs, room: _Room) -> int:
    """The newest batch whose carried messages have room; at least one batch with messages."""
    batch = after
    while (count := inputs.carried.get(batch + 1)) is not None:
        size = inputs.carried_bytes.get(batch + 1, 0)
        if count and not room.untouched and not room.has(count, size):
            break
        batch += 1
        room.take(count, size)
    return batch


def _timer_due(time: int, inputs: Inputs) -> bool:
    first = inputs.first_timer
    if first is None or first > inputs.now:
        return False
    # The clock was set back behind the offset's time: no key has seen the time of a timer that is due now.
    set_back = inputs.now < time
    return set_back or first > time or inputs.now >= time + TIMER_AGAIN_MILLIS


def _inbox(start: InputOffset, unread: Mapping[str, Unread], room: _Room) -> dict[str, InboxPosition]:
    """The positions after the batch. The gateways take turns, a file each, so none of them waits for the others."""
    ends = dict(start.inbox)
    waiting: dict[str, tuple[int, list[InboxFile]]] = {}
    for gateway in _in_turn(unread, start.batch):
        generation, files = _next_generation(start.inbox.get(gateway, InboxPosition()), unread[gateway])
        if files:
            waiting[gateway] = generation, files[::-1]
    taken = False
    while waiting:
        for gateway, (generation, files) in list(waiting.items()):
            if taken and not room.has(files[-1].rows, files[-1].bytes):
                return ends
            file, taken = files.pop(), True
            room.take(file.rows, file.bytes)
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


class UpcomingTimes:
    """The next time of each schedule; a time is computed once."""

    def __init__(self) -> None:
        self._known: dict[tuple[str, str], tuple[int, int | None]] = {}

    def first(self, schema: StoredSchema, after: int) -> int | None:
        """The earliest time of a schedule behind ``after``, in milliseconds since 1970 UTC; None without one."""
        wanted = {(one.cron, one.time_zone) for one in _schedules(schema).values() if not zone_problem(one.time_zone)}
        self._known = {times: self._next(times, after) for times in wanted}
        return min((following for _, following in self._known.values() if following is not None), default=None)

    def _next(self, times: tuple[str, str], after: int) -> tuple[int, int | None]:
        known = self._known.get(times)
        if known is not None and known[0] <= after and (known[1] is None or after < known[1]):
            return known
        return after, next_time(*times, after)


def occurrences(version: Callable[[int], StoredSchema], start: Calendar, end: Calendar) -> Iterator[MadeRows]:
    """The events of a batch, between the calendars of its offsets; at most one for each schedule.

    Of several times of a schedule only the newest counts. ``version`` returns a version of the schema, an empty one for
    0. A schedule that is new, or has other times, begins when the first version with it was applied.
    """
    schema = version(end.schema)
    for key, schedule in sorted(_schedules(schema).items()):
        stream = schema.objects.get(schedule.target_key)
        if not isinstance(stream, StreamDeclaration) or zone_problem(schedule.time_zone):
            continue
        since = _since(key, version, start, end)
        at = newest_time(schedule.cron, schedule.time_zone, since, end.time) if since < end.time else None
        if at is not None:
            yield _row(schedule, stream, at)


def _since(key: ObjectKey, version: Callable[[int], StoredSchema], start: Calendar, end: Calendar) -> int:
    """The time behind which the times of a schedule count."""
    first = version(end.schema)
    for number in range(end.schema - 1, start.schema - 1, -1):
        before = version(number)
        if _times(before, key) != _times(first, key):
            return round(first.applied_at * 1000)
        first = before
    return start.time


def _times(schema: StoredSchema, key: ObjectKey) -> tuple[str, str] | None:
    schedule = _schedules(schema).get(key)
    return None if schedule is None else (schedule.cron, schedule.time_zone)


def zone_problems(schema: StoredSchema) -> list[str]:
    """A sentence for each schedule that this machine cannot follow."""
    return [
        f"schedule {key.path} has no times: {problem}, or install its zones on this machine with: pip install tzdata"
        for key, one in sorted(_schedules(schema).items())
        if (problem := zone_problem(one.time_zone))
    ]


def _row(schedule: ScheduleDeclaration, stream: StreamDeclaration, at: int) -> MadeRows:
    event = schedule.occurrence(at)
    # The answer has no reader, so the controller is told to send none.
    published = RecordsPublished(ReplyTo(DRIVER, 0, 0), (event,), Durability.RECEIVED)
    partition = partition_of(event, stream.partitions)
    origin = f"schedule/{schedule.key.path}"
    return MadeRows(stream.key.path, (partition,), Rank.RECEIVED, origin, at, encode(published))


def _schedules(schema: StoredSchema) -> dict[ObjectKey, ScheduleDeclaration]:
    """The schedules of streams; those of exchanges are the gateways'."""
    return {key: one for key, one in schema.objects.items() if isinstance(one, ScheduleDeclaration) and one.stream}
