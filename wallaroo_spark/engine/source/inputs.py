"""Looks at the inputs of an application: its inbox, the manifests of committed batches, its schema and the clock.

Source: ``docs/pipelines/engine.md#the-source``.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from wallaroo_spark.checkpoint import CheckpointFiles, CommitFollower
from wallaroo_spark.engine.source import plan
from wallaroo_spark.engine.source.plan import InputOffset, Inputs, MadeRows
from wallaroo_spark.errors import CheckpointError
from wallaroo_spark.pipelines.schema.store import SchemaStore, StoredSchema
from wallaroo_spark.storage.locations import Location, within
from wallaroo_spark.streams.batch_outputs import BatchOutputs, Manifest, OutputFile
from wallaroo_spark.streams.inbox import InboxFile, InboxReader, Unread
from wallaroo_spark.streams.places import CHECKPOINT
from wallaroo_spark.streams.rows import OutputKind


class UnreadFile(NamedTuple):
    """A file of a gateway that a batch reads."""

    gateway: str
    generation: int
    """The generation of the gateway."""
    file: InboxFile

    @property
    def rows(self) -> int:
        """Number of its events."""
        return self.file.rows


BatchPart = MadeRows | OutputFile | UnreadFile
"""A part of what a batch reads: rows that stand in no file, carried messages, or events of a gateway."""


class InputFiles:
    """The inputs of the application at ``location``, as a process without a Spark session opens it.

    Methods raise :class:`wallaroo_spark.errors.CheckpointError` and :class:`wallaroo_spark.errors.PipelineError` when
    files cannot be read.
    """

    def __init__(self, location: Location) -> None:
        self._inbox = InboxReader(location)
        self._schemas = SchemaStore(location)
        self._outputs = BatchOutputs(location)
        self._commits = CommitFollower(CheckpointFiles(within(location, CHECKPOINT)))
        self._manifests: dict[int, Manifest] = {}
        self._versions: dict[int, StoredSchema] = {}
        self._timer: tuple[int, int | None] = -1, None
        self._upcoming = plan.UpcomingTimes()
        self._occurrence: tuple[tuple[int, int], int | None] = (0, 0), None

    def look(self, start: InputOffset) -> Inputs:
        """Return all that a batch behind ``start`` could read now."""
        unread = self._unread(start)
        # A gateway accepts events for a stream once it has seen its version, so a version that an event needs is listed
        # when the schema is listed after the event's file.
        schema = self._schemas.seen_version(fresh=any(files for one in unread.values() for files in one.values()))
        # The number of the batch that applies a version must be right: events wait for what this batch carries.
        committed = self._commits.newest(fresh=schema > start.schema)
        carried = {} if committed is None else self._carried(start.batch, committed)
        return Inputs(
            time.time_ns() // 1_000_000,
            unread,
            {batch: sum(file.rows for file in files) for batch, files in carried.items()},
            {batch: sum(file.bytes for file in files) for batch, files in carried.items()},
            None if committed is None else self._first_timer(committed),
            schema,
            self._first_occurrence(start),
        )

    def content(self, start: InputOffset, end: InputOffset) -> list[BatchPart]:
        """Return all that the batch between two offsets reads."""
        found: list[BatchPart] = []
        for before, after in plan.declared_versions(start, end):
            found += plan.declared(self._version(before), self._version(after))
        if end.batch >= 0:
            found += plan.due_timers(self._manifest(end.batch).timers, end)
        found += plan.occurrences(self._version, start.calendar, end.calendar)
        for batch in plan.carried_batches(start, end):
            found += self._manifest(batch).of(OutputKind.CARRIED)
        return [*found, *self._planned(start, end)]

    def _unread(self, start: InputOffset) -> Mapping[str, Unread]:
        """The unread files. Raises :class:`CheckpointError` when one, or a claim, is missing in a second listing."""
        unread = self._inbox.unread(start.inbox)
        if lost := plan.unclaimed(start, unread):
            self._inbox.require_claims(lost)
        if not plan.holes(start, unread):
            return unread
        unread = self._inbox.unread(start.inbox, fresh=True)
        for gateway, generation, sequence in plan.holes(start, unread):
            raise _missing(gateway, generation, sequence)
        return unread

    def _planned(self, start: InputOffset, end: InputOffset) -> Sequence[UnreadFile]:
        wanted = plan.read_files(start, end)
        if not wanted:
            return ()
        unread = self._inbox.unread(start.inbox)
        found = []
        for one in wanted:
            files = {file.sequence: file for file in unread.get(one.gateway, {}).get(one.generation, ())}
            for sequence in range(one.first, one.last + 1):
                if sequence not in files:
                    raise _missing(one.gateway, one.generation, sequence)
                found.append(UnreadFile(one.gateway, one.generation, files[sequence]))
        return found

    def _carried(self, after: int, committed: int) -> dict[int, Sequence[OutputFile]]:
        """The carried messages of each batch behind ``after``; forgets manifests that are not needed."""
        self._manifests = {batch: kept for batch, kept in self._manifests.items() if batch >= min(after, committed)}
        return {batch: [*self._manifest(batch).of(OutputKind.CARRIED)] for batch in range(after + 1, committed + 1)}

    def _first_occurrence(self, start: InputOffset) -> int | None:
        """The first time of a schedule behind an offset."""
        key = start.schema, start.calendar.time
        if self._occurrence[0] != key:
            self._occurrence = key, self._upcoming.first(self._version(start.schema), start.calendar.time)
        return self._occurrence[1]

    def _first_timer(self, batch: int) -> int | None:
        """The earliest armed timer after a batch."""
        if self._timer[0] != batch:
            self._timer = batch, min(self._manifest(batch).timers.values(), default=None)
        return self._timer[1]

    def _manifest(self, batch: int) -> Manifest:
        """The manifest of a committed batch."""
        if batch not in self._manifests:
            manifest = self._outputs.manifest(batch)
            if manifest is None:
                raise CheckpointError(
                    f"batch {batch} is committed and has no manifest in {self._outputs!r}; restore the folder "
                    "_wallaroo along with the checkpoint",
                    code="inbox-missing",
                    batch=batch,
                )
            self._manifests[batch] = manifest
        return self._manifests[batch]

    def _version(self, number: int) -> StoredSchema:
        if number not in self._versions:
            self._versions = {kept: one for kept, one in self._versions.items() if kept >= number - 1}
            self._versions[number] = self._schemas.version(number) if number else StoredSchema()
        return self._versions[number]


def offset_of(files: CheckpointFiles, batch: int | None) -> InputOffset:
    """The end of a committed batch; the beginning of everything without one, and when Spark has deleted it.

    ``files`` is the application's checkpoint.
    """
    offsets = None if batch is None else files.source_offsets(batch)
    return InputOffset.from_json(offsets[0]) if offsets else InputOffset()


def _missing(gateway: str, generation: int, sequence: int) -> CheckpointError:
    return CheckpointError(
        f"the inbox of gateway {gateway} lacks file {sequence} of generation {generation}, and the checkpoint has to "
        "read it; restore the folder _wallaroo along with the checkpoint",
        code="inbox-missing",
        gateway=gateway,
        generation=generation,
    )
