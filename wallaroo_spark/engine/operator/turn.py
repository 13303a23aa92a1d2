"""The turn of one key in one batch: events in, instructions out, with all that can be answered within the batch.

A turn calls the controller, answers its ``ReadRecords`` from the table, runs its functions, and gives the answers back,
until nothing is left to answer. :class:`TurnLimits` bound it. Pure: the tables and the functions are arguments.
Source: ``docs/pipelines/engine.md#the-operator``.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple, Protocol

from wallaroo_spark.engine.set_aside import NOTHING, SetAside
from wallaroo_spark.errors import PipelineError
from wallaroo_spark.pipelines.controller.context import CallContext
from wallaroo_spark.pipelines.controller.controller import KeyController
from wallaroo_spark.pipelines.controller.messages.events import DeliveryAcked, Event, RecordsRead
from wallaroo_spark.pipelines.controller.messages.instructions import ArmTimer, Instruction, ReadRecords, RunFunction
from wallaroo_spark.pipelines.controller.messages.values import PartitionKey
from wallaroo_spark.pipelines.controller.stored.entries import Changes, Stored
from wallaroo_spark.pipelines.controller.stored.key_state import Head
from wallaroo_spark.pipelines.controller.stored.seen_ids import SeenCache
from wallaroo_spark.pipelines.schema.cloud_event import CloudEvent


class InputRow(NamedTuple):
    """One row of INPUT for a key. Rows are sorted as tuples; no two of a batch have the same first four fields."""

    rank: int
    """The rank: see :class:`~wallaroo_spark.streams.rows.Rank`."""
    origin: str
    """Where the event comes from."""
    sequence: int
    """Its number there."""
    place: int
    """Its place within that number."""
    event: bytes | None
    """The encoded event; None where only time has passed."""


class Tables(Protocol):
    """The committed records of all partitions."""

    def read(
        self, key: PartitionKey, first: int, last: int, *, most_bytes: int | None = None
    ) -> tuple[int, Sequence[CloudEvent]]:
        """The records of a range, or the first of them: at least one, and not many behind ``most_bytes``.

        Returns the offset of the first one, which is greater than ``first`` when retention has removed records.
        """


class FunctionRunner(Protocol):
    """Runs functions of stages."""

    def run(self, runs: Sequence[RunFunction], now: int) -> Sequence[Event]:
        """The results: one DeliveryAcked or DeliveryNacked for each run, in the same order."""


class TurnLimits(NamedTuple):
    """The limits of one turn. Past them no records are read; the key is woken for the rest in a later batch."""

    records: int = 100_000
    """Records that are read behind cursors. As many as a batch has rows at most by default."""
    bytes: int = 64 << 20
    """Bytes of the records that are read and of the results of functions. A choice: a task has some hundred MiB."""


DEFAULT_LIMITS = TurnLimits()


class TurnResult(NamedTuple):
    """The results of a turn."""

    instructions: list[Instruction]
    """The instructions for the outside, in order: no ReadRecords, RunFunction or ArmTimer."""
    armed: int | None
    """When the key is to be woken; None: not at all."""
    fresh_from: int
    """Offset of the first record that this turn appends."""
    fresh: Sequence[CloudEvent]
    """The records that this turn appends."""
    changes: Changes
    """The changed entries."""
    head: Head
    """The state of the key after the turn; only to be read."""


def take_turn(
    key: PartitionKey,
    now: int,
    rows: Iterable[InputRow],
    stored: Stored,
    tables: Tables,
    functions: FunctionRunner,
    limits: TurnLimits = DEFAULT_LIMITS,
    cache: SeenCache | None = None,
    aside: SetAside = NOTHING,
) -> TurnResult:
    """Take the turn of a key; ``cache`` belongs to the process and to one application.

    ``aside`` is what the query goes on without.

    Raises :class:`PipelineError` for an event that only a defect can cause.
    """
    given = (aside.event(key, in_order(row), row.event) for row in sorted(rows, key=in_order) if row.event is not None)
    events = [event for event in given if event is not None]
    controller = KeyController(CallContext(key, now, stored, cache, aside.instances.get(key, {})))
    instructions: list[Instruction] = []
    records_left, bytes_left = limits
    while True:
        runs: list[RunFunction] = []
        answers: list[Event] = []
        for one in controller.handle(events):
            if isinstance(one, RunFunction):
                runs.append(one)
            elif isinstance(one, ReadRecords):
                answers.append(_read(key, one, tables, controller.fresh_from - 1, max(1, bytes_left)))
            elif not isinstance(one, ArmTimer):
                instructions.append(one)
        if runs:
            answers += functions.run(runs, now)
        if not answers:
            break
        for answer in answers:
            records, size = _cost(answer)
            records_left, bytes_left = records_left - records, bytes_left - size
        if records_left <= 0 or bytes_left <= 0:
            controller.pause()
        events = answers
    return TurnResult(
        instructions,
        controller.armed,
        controller.fresh_from,
        controller.fresh,
        controller.take_changes(),
        controller.context.head,
    )


def in_order(row: InputRow) -> tuple[int, str, int, int]:
    """The key by which rows are sorted."""
    return row[:4]


def _read(key: PartitionKey, question: ReadRecords, tables: Tables, committed: int, most_bytes: int) -> RecordsRead:
    """Read records behind a cursor. They are of earlier batches, because the controller has those of this batch."""
    last = min(question.first + question.limit - 1, committed)
    if question.first > last:
        raise PipelineError(
            f"{key}: pipeline {question.pipeline} asks for record {question.first}, and the last committed one is "
            f"{committed}; this is a defect, report it",
            code="pipeline-state",
        )
    first, records = tables.read(key, question.first, last, most_bytes=most_bytes)
    if not records and first <= last:
        raise PipelineError(
            f"{key}: records {question.first} to {last} are not in the table of {key.stream}; restore its files",
            code="pipeline-records-missing",
            first=question.first,
            last=last,
        )
    return RecordsRead(question.pipeline, question.first, first, tuple(records))


def _cost(answer: Event) -> tuple[int, int]:
    """The records and the bytes that an answer takes of the limits of its turn."""
    if isinstance(answer, RecordsRead):
        return len(answer.records), sum(record.size for record in answer.records)
    if isinstance(answer, DeliveryAcked):
        written = sum(record.size for one in answer.stream_outputs for record in one.records)
        return 0, written + (len(answer.output.data) if answer.output is not None else 0)
    return 0, 0
