"""Finds the rows of a batch, or the instances, that a turn cannot process, and notes and sets them aside.

A turn that fails has changed nothing, so it may be taken again with a part of its rows. A task that fails leaves a
*note* of what it failed at in ``_wallaroo/failed/`` of the application's folder. The verb ``wallaroo-spark pipelines
set-aside`` moves it to ``_wallaroo/set_aside/``, while the application does not run. A driver that starts reads those
notes, and the query goes on without these rows: their events are in a dead-letter stream, or in a file beside the note.
Source: ``docs/pipelines/running.md#events-that-are-set-aside``.
"""

from __future__ import annotations

import base64
import bisect
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

from wallaroo_spark.engine.application.housekeeping import DriverInbox
from wallaroo_spark.engine.operator.turn import FunctionRunner, InputRow
from wallaroo_spark.engine.set_aside import FailedRow, SetAside, decoded, records_of
from wallaroo_spark.errors import CheckpointError, ConfigurationError, WallarooError, shown_error
from wallaroo_spark.json_text import json_line
from wallaroo_spark.pipelines.controller.context import CallContext
from wallaroo_spark.pipelines.controller.messages.events import Event, PartitionDeclared, RecordsPublished
from wallaroo_spark.pipelines.controller.messages.instructions import RunFunction
from wallaroo_spark.pipelines.controller.messages.values import Durability, Failure, PartitionKey, ReplyTo, dead_letter
from wallaroo_spark.pipelines.controller.stored.encoding import decode, encode
from wallaroo_spark.pipelines.controller.stored.entries import Stored
from wallaroo_spark.pipelines.schema.cloud_event import CloudEvent, partition_of
from wallaroo_spark.pipelines.schema.declarations import PipelineDeclaration, StreamDeclaration
from wallaroo_spark.pipelines.schema.names import stream_key
from wallaroo_spark.pipelines.schema.store import SchemaStore, StoredSchema
from wallaroo_spark.sidecar.folder import SidecarFolder
from wallaroo_spark.storage.locations import Location
from wallaroo_spark.streams.inbox import DRIVER
from wallaroo_spark.streams.places import FAILED, SET_ASIDE
from wallaroo_spark.streams.stream_table import TableReader

MOST_FOUND = 20
"""The most rows and instances that are looked for in one turn. Each takes some 20 turns."""
MOST_IDS = 10
"""The most ids of events that a note names. They are enough to recognize a request."""
LONGEST_ERROR = 1000
"""The most characters of an error in a note."""
NEXT_RECORDS = 1000
"""The records behind a cursor that may be the failing ones. As many as one read has."""

Turn = Callable[[Sequence[InputRow], SetAside], None]
"""Takes a turn with these rows, without what is set aside; raises when that fails."""


class RememberedRuns:
    """A runner of functions that calls a function once for the same work, however often the turn is taken."""

    def __init__(self, runner: FunctionRunner) -> None:
        self._runner = runner
        self._known: dict[RunFunction, Event] = {}

    def run(self, runs: Sequence[RunFunction], now: int) -> Sequence[Event]:
        """The results, in the order of the runs."""
        new = [run for run in runs if run not in self._known]
        self._known.update(zip(new, self._runner.run(new, now) if new else (), strict=True))
        return [self._known[run] for run in runs]


def failing(
    key: PartitionKey, now: int, rows: Sequence[InputRow], stored: Stored, aside: SetAside, turn: Turn
) -> list[FailedRow]:
    """The rows and instances without which the turn succeeds, or the first of them; none when it succeeds with all.

    ``rows`` are in the order of the turn.
    """
    found: list[FailedRow] = []
    while len(found) < MOST_FOUND:
        search = _Search(key, now, stored, SetAside.of(*aside.notes, *found), turn)
        error = search.error(rows)
        one = None if error is None else search.instance([]) or search.row(rows)
        if error is None or one is None:
            break
        found.append(replace(one, error=shown_error(error, LONGEST_ERROR), at=now))
    return found


class _Search:
    """The search for what a turn of a key fails at, beside what is known already."""

    def __init__(self, key: PartitionKey, now: int, stored: Stored, aside: SetAside, turn: Turn) -> None:
        self._key, self._now, self._stored, self._aside, self._turn = key, now, stored, aside, turn

    def error(self, rows: Sequence[InputRow], *more: FailedRow) -> BaseException | None:
        """The error of the turn with these rows, also without ``more``; None when it succeeds."""
        try:
            self._turn(rows, SetAside.of(*self._aside.notes, *more) if more else self._aside)
        except Exception as error:
            return error
        return None

    def row(self, rows: Sequence[InputRow]) -> FailedRow | None:
        """The first row with which the turn fails, with the places of its records.

        It is an instance if the row has no record, and only makes room for that instance.
        """
        left = [row for row in rows if row.event is not None]
        if not left or self.error([]) is not None:
            return None
        count = _first(len(left), lambda some: self.error(left[:some]) is not None)
        until, row = left[:count], left[count - 1]
        assert row.event is not None
        event = decoded(row.event)
        kind = "an event that cannot be decoded" if event is None else type(event).__name__
        one = FailedRow(*self._key, row.rank, row.origin, row.sequence, row.place, kind=kind)
        records = records_of(one, row.event)
        if not records and (instance := self.instance(until)) is not None:
            return instance
        if len(records) > 1:
            bad = _records(len(records), lambda out: self.error(until, replace(one, records=tuple(out))) is None)
            one, records = replace(one, records=tuple(bad)), [records[place] for place in bad] or records
        ids = tuple(f"{record.source} {record.id}"[:200] for record in records[:MOST_IDS])
        return replace(one, ids=ids)

    def instance(self, rows: Sequence[InputRow]) -> FailedRow | None:
        """The instance with which the turn fails; None when it fails without any instance, or does not fail."""
        if self.error(rows) is None:
            return None
        known = self._aside.instances.get(self._key, {})
        candidates = [
            FailedRow(*self._key, pipeline=name, offset=number)
            for name, number in self._candidates(rows)
            if (name, number) not in known
        ]

        def fails(some: int) -> bool:
            """Whether the turn fails with the first candidates, ``some`` of them, and without the others."""
            return self.error(rows, *candidates[some:]) is not None

        return None if fails(0) else candidates[_first(len(candidates), fails) - 1]

    def _candidates(self, rows: Sequence[InputRow]) -> list[tuple[str, int]]:
        """The active instances of the key, and those that begin next, also of pipelines that these rows declare."""
        try:
            context = CallContext(self._key, self._now, self._stored)
            head, found = context.head, [*context.entries.instances.all_keys()]
        except Exception:
            return []
        cursors = {name: one.cursor for name, one in head.pipelines.items()}
        for row in rows:
            event = decoded(row.event) if row.event is not None else None
            plans = event.plan.pipelines if isinstance(event, PartitionDeclared) and event.plan is not None else ()
            for plan in plans:
                start = plan.start.cursor(head.last) if plan.start is not None else 0
                cursors.setdefault(plan.name, max(start, head.first - 1))
        return found + [(name, at + more) for name, at in cursors.items() for more in range(1, NEXT_RECORDS + 1)]


def _first(most: int, fails: Callable[[int], bool]) -> int:
    """The least number from 1 to ``most`` at which something fails that fails at ``most`` and not at 0."""
    return bisect.bisect_left(range(1, most), True, key=fails) + 1


def _records(count: int, succeeds: Callable[[Sequence[int]], bool]) -> list[int]:
    """The records of a row without which the turn succeeds; none when there are many, or it needs the whole row."""
    bad: list[int] = []
    while len(bad) < MOST_FOUND:
        rest = [place for place in range(count) if place not in bad]
        if len(rest) < 2 or not succeeds([*bad, *rest]):
            return []
        bad.append(_next(bad, rest, succeeds))
        if succeeds(bad):
            return bad
    return []


def _next(bad: Sequence[int], rest: Sequence[int], succeeds: Callable[[Sequence[int]], bool]) -> int:
    return rest[_first(len(rest), lambda some: not succeeds([*bad, *rest[some:]])) - 1]


_NOTE, _EVENT, _LETTERS, _LINES = ".json", ".event", ".letters", ".jsonl"


class FailedRows:
    """The notes of the application in ``folder``: those that tasks have left, or those that were set aside."""

    def __init__(self, folder: Location, spark: Any = None, *, aside: bool = False) -> None:
        self._folder = SidecarFolder(folder, SET_ASIDE if aside else FAILED, spark=spark)
        self.identity = self._folder.identity
        """Name of the folder, for people."""

    def all(self) -> list[FailedRow]:
        """The notes. Raises :class:`CheckpointError` when they cannot be read."""
        found = []
        for name in sorted(self._folder.names()):
            if name.endswith(_NOTE):
                data = self._folder.read(name)
                try:
                    found.append(FailedRow.from_json(data or b""))
                except (ValueError, TypeError, KeyError) as error:
                    raise CheckpointError(
                        f"{self.identity}/{name} is no note of a failed row: {error}; restore the file, or remove it, "
                        "and the row is read again",
                        code="checkpoint-damaged",
                        file=name,
                    ) from error
        return found

    def write(self, row: FailedRow, event: bytes | None = None) -> None:
        """Write a note durably, with the encoded event of its row."""
        if event is not None:
            self._folder.write(row.name + _EVENT, event)
        self._folder.write(row.name + _NOTE, row.to_json().encode())

    def event(self, row: FailedRow) -> bytes:
        """The encoded event of a row; empty for none."""
        return self._folder.read(row.name + _EVENT) or b""

    def write_letters(self, row: FailedRow, letters: Sequence[CloudEvent]) -> None:
        """Write the dead letters of a row durably."""
        self._folder.write(row.name + _LETTERS, encode(tuple(letters)))

    def letters(self, row: FailedRow) -> tuple[CloudEvent, ...]:
        """The dead letters of a row."""
        found: tuple[CloudEvent, ...] = decode(self._folder.read(row.name + _LETTERS) or encode(()))
        return found

    def write_lines(self, row: FailedRow, letters: Sequence[CloudEvent]) -> str:
        """Write the dead letters of a row for people, a line for each; return the name of the file."""
        lines = (_line(letter) for letter in letters)
        self._folder.write(row.name + _LINES, "".join(f"{line}\n" for line in lines).encode())
        return f"{self.identity}/{row.name}{_LINES}"

    def remove(self, row: FailedRow) -> None:
        """Remove a note."""
        for ending in (_NOTE, _EVENT):
            self._folder.delete(row.name + ending)

    def clear(self) -> None:
        """Remove all notes."""
        for name in self._folder.names():
            self._folder.delete(name)


def _line(event: CloudEvent) -> str:
    """An event in the JSON format of CloudEvents, as ``publish --cloudevents`` reads it."""
    found = {"specversion": "1.0", "id": event.id, "source": event.source, "type": event.type, **dict(event.attributes)}
    if event.data is not None:
        found["data_base64"] = base64.b64encode(event.data).decode()
    return json_line(found)


class SetAsideRow(NamedTuple):
    """A row, or an instance, that was set aside."""

    row: FailedRow
    """The note."""
    events: int
    """Number of its events."""
    file: str
    """The file with its events; empty when a stream gets them."""


def set_aside(folder: str, to: str = "", spark: Any = None) -> list[SetAsideRow]:
    """Set aside every row at which a task of the application in ``folder`` has failed.

    Its events go to the stream ``to`` (``namespace/name``); without it, to the dead-letter stream of a pipeline whose
    input it is; without one, to a file. Raises :class:`ConfigurationError` for a stream that is not declared, and
    :class:`CheckpointError`.
    """
    schema = SchemaStore(folder, spark).newest()
    if to and stream_key(to, "") not in schema.objects:
        streams = ", ".join(sorted(key.path for key in schema.objects if key.kind == "Stream"))
        raise ConfigurationError(
            f"the application in {folder} has no stream {to}; it has {streams or 'none'}", code="stream-unknown"
        )
    failed, aside = FailedRows(folder, spark), FailedRows(folder, spark, aside=True)
    found = []
    for note in failed.all():
        event = failed.event(note)
        records = _record(folder, spark, note) if note.pipeline else records_of(note, event)
        reason = f"it was set aside: {note.error}"
        failure = Failure(reason, 1, note.at, note.key, note.offset, note.pipeline)
        letters = [dead_letter(record, failure) for record in records]
        stream = to or _letter_stream(schema, note)
        declared = schema.objects.get(stream_key(stream, "")) if stream else None
        partitions = declared.partitions if isinstance(declared, StreamDeclaration) else 1
        done = replace(note, to=stream, partitions=partitions, published=not (stream and letters))
        aside.write_letters(done, letters)
        file = aside.write_lines(done, letters) if letters and not stream else ""
        aside.write(done, event)
        failed.remove(note)
        found.append(SetAsideRow(done, len(letters), file))
    return found


def publish_letters(aside: FailedRows, inbox: DriverInbox) -> None:
    """Write the dead letters that are not in their streams yet into the driver's inbox.

    After a crash in between they are written there again, and the streams know them by their ids.
    """
    for note in aside.all():
        if note.published:
            continue
        by_partition: dict[int, list[CloudEvent]] = {}
        for letter in aside.letters(note):
            by_partition.setdefault(partition_of(letter, note.partitions), []).append(letter)
        # The answer has no reader, so the controller is told to send none.
        reply = ReplyTo(DRIVER, 0, 0)
        events: list[tuple[PartitionKey, Event]] = [
            (PartitionKey(note.to, partition), RecordsPublished(reply, tuple(some), Durability.RECEIVED))
            for partition, some in sorted(by_partition.items())
        ]
        inbox.write(events)
        aside.write(replace(note, published=True))


def _letter_stream(schema: StoredSchema, note: FailedRow) -> str:
    """The dead-letter stream of a pipeline whose input the event is; empty for none."""
    for key, one in sorted(schema.objects.items()):
        if not isinstance(one, PipelineDeclaration) or one.input_key.path != note.stream:
            continue
        streams = [stage.retry.dead_letter_stream for stage in one.stages if stage.retry.dead_letter_stream]
        if streams and note.pipeline in ("", key.path):
            return stream_key(streams[0], one.namespace).path
    return ""


def _record(folder: str, spark: Any, note: FailedRow) -> list[CloudEvent]:
    """The record that began an instance; none if it is not in the table, as in the batch that has failed."""
    try:
        first, records = TableReader(folder, spark).read(note.key, note.offset, note.offset)
    except WallarooError:
        return []
    return [*records] if first == note.offset else []
