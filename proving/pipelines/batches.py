"""Spark's part of a simulated history: batches are planned, run, perhaps lost and run again, and committed.

Each key takes its turn as in the operator: in one of some processes, which keep the ids of records that they have seen,
also those of a batch that was lost. Committed are together: the entries of each key, the records of its table, its
timer, and the instructions.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

from proving.pipelines.feed import Alarm
from proving.pipelines.validation import validate
from proving.simulator.engine.core import Violation
from wallaroo_spark.engine.operator.turn import DEFAULT_LIMITS, InputRow, TurnLimits, take_turn
from wallaroo_spark.engine.source.plan import Calendar, InputOffset, Inputs, due_timers, next_offset
from wallaroo_spark.pipelines.controller.context import KeyEntries
from wallaroo_spark.pipelines.controller.messages.events import Event
from wallaroo_spark.pipelines.controller.messages.instructions import Instruction, RunFunction
from wallaroo_spark.pipelines.controller.messages.values import PartitionKey
from wallaroo_spark.pipelines.controller.stored.encoding import encode
from wallaroo_spark.pipelines.controller.stored.entries import Changes
from wallaroo_spark.pipelines.controller.stored.key_state import Head
from wallaroo_spark.pipelines.controller.stored.seen_ids import SeenCache
from wallaroo_spark.pipelines.schema.cloud_event import CloudEvent

RunStage = Callable[[PartitionKey, RunFunction], Event]
PROCESSES = 2
MOST_CACHED = 40
"""Ids that a process keeps, so that it forgets those of some keys."""
MOST_READ = 3
"""The most records of one answer of a table."""
MOST_READS = 300
"""Reads of one key in one batch; more is a circle."""


class Turn(NamedTuple):
    """The committed turn of one key."""

    key: PartitionKey
    now: int
    """The time of the batch."""
    events: Sequence[Event]
    said: list[Instruction]
    armed: int | None
    """The timer after it."""
    changes: Changes
    """The changed entries."""
    head: Head
    """The state of the key after it; only to be read."""
    fresh_from: int
    """Offset of the first record that it appends."""
    fresh: tuple[CloudEvent, ...]
    """The records that it appends."""


class Batches:
    """The committed state of all keys, the clock of the driver, and the processes of the tasks."""

    def __init__(self, dice: random.Random, run_stage: RunStage) -> None:
        self._dice = dice
        self._run_stage = run_stage
        self.clock = 1_000_000_000_000
        """The clock of the driver, in milliseconds; it may be set back."""
        self.time = 0
        """The time of the newest offset, which is never set back."""
        self.schema = 0
        """The version of the schema that is applied."""
        self.calendar = Calendar()
        """Up to where the events of the schedule are made."""
        self.alarm = Alarm()
        """The schedule."""
        self.scheduled = ""
        """The id of the schedule's event in the newest batch; empty without one."""
        self.count = 0
        self.lost = 0
        self.paused = 0
        """Turns that ended at their limit."""
        self.stored: dict[PartitionKey, dict[bytes, bytes]] = {}
        self.tables: dict[PartitionKey, list[CloudEvent]] = {}
        """All records that were ever written; those before ``deleted`` cannot be read."""
        self.deleted: dict[PartitionKey, int] = {}
        """Key → the first record that retention has left."""
        self.timers: dict[PartitionKey, int] = {}
        self._caches = [SeenCache(MOST_CACHED) for _ in range(PROCESSES)]

    def plan(
        self, inputs: Mapping[PartitionKey, Sequence[Event]], schema: int, ready: bool
    ) -> list[tuple[PartitionKey, Sequence[Event]]]:
        """The events of each key of the next batch; none when there is nothing to do. ``schema``: the newest version,
        whose declarations are among the inputs; ``ready``: the keys have heard what these made the others say."""
        applied = -1 if ready else self.count + 2
        start = InputOffset(
            batch=self.count, time=self.time, schema=self.schema, applied=applied, calendar=self.calendar
        )
        # All inputs count as carried messages of the batch before this one, whose manifest has the timers.
        carried = {self.count + 1: len(inputs)}
        first, upcoming = min(self.timers.values(), default=None), self.alarm.first(schema, start.calendar.time)
        seen = Inputs(self.clock, carried=carried, first_timer=first, schema=schema, first_occurrence=upcoming)
        end = next_offset(start, seen, 1000)
        if end == start:
            return []
        self.time, self.schema, self.calendar = end.time, end.schema, end.calendar
        self.scheduled = self.alarm.wanted(start.calendar, end.calendar)
        found = {key: [*events] for key, events in inputs.items()}
        for key, event in self.alarm.rows(start, end):
            found.setdefault(key, []).append(event)
        timers = {str(key): at for key, at in self.timers.items()}
        due = {PartitionKey(rows.stream, number) for rows in due_timers(timers, end) for number in rows.partitions}
        return [(key, found.get(key, ())) for key in sorted({*found, *due})]

    def run(
        self, planned: Sequence[tuple[PartitionKey, Sequence[Event]]], lose: float, between: Callable[[], None]
    ) -> list[Turn]:
        """Run a planned batch until it is committed. Each attempt is lost with the probability ``lose``, and then
        ``between`` is called."""
        # Spark reads the clock after the source has.
        now, first = self.clock + self._dice.choice((0, 0, 3)), None
        limits = self._dice.choice((DEFAULT_LIMITS, TurnLimits(records=1), TurnLimits(records=5)))
        while True:
            runs: list[RunFunction] = []
            turns = [self._turn(key, now, events, limits, runs) for key, events in planned]
            if not runs:
                # The results of functions may differ.
                if first is not None and turns != first:
                    raise Violation("a batch that runs again has other results")
                first = turns
            if self._dice.random() >= lose:
                break
            self.lost += 1
            if self._dice.random() < 0.3:
                self._caches[self._dice.randrange(PROCESSES)] = SeenCache(MOST_CACHED)
            between()
        self.count += 1
        for turn in turns:
            self._commit(turn)
        return turns

    def _turn(
        self, key: PartitionKey, now: int, events: Sequence[Event], limits: TurnLimits, runs: list[RunFunction]
    ) -> Turn:
        stored = self.stored.get(key, {})
        rows = [InputRow(0, "", number, 0, encode(event)) for number, event in enumerate(events)]
        self._dice.shuffle(rows)
        cache, functions = self._dice.choice(self._caches), _Functions(key, self._run_stage, runs)
        result = take_turn(key, now, rows, stored, _Table(self, key), functions, limits, cache)
        table = len(self.tables.get(key, ()))
        if result.fresh and result.fresh_from != table + 1:
            raise Violation(f"{key}: records at {result.fresh_from}, and the table has {table}")
        assert result.head is not None
        return Turn(
            key,
            now,
            events,
            result.instructions,
            result.armed,
            result.changes,
            result.head,
            result.fresh_from,
            tuple(result.fresh),
        )

    def _commit(self, turn: Turn) -> None:
        key = turn.key
        stored = self.stored.setdefault(key, {})
        _apply(stored, turn.changes)
        entries = KeyEntries(stored)
        if entries.head != turn.head:
            raise Violation(f"{key}: {entries.head} is stored, and the turn had {turn.head}")
        validate(entries)
        for name, progress in turn.head.pipelines.items():
            if progress.cursor < turn.head.last and progress.has_room and turn.armed is None:
                raise Violation(f"{key}: {name} has room and records to go on with, and nothing wakes it")
        if turn.armed is None:
            self.timers.pop(key, None)
        else:
            self.timers[key] = turn.armed
        if turn.armed == turn.now + 1:
            self.paused += 1
        if turn.fresh:
            self.tables.setdefault(key, []).extend(turn.fresh)
        # The files of expired records are deleted some time after their key has heard it.
        if self._dice.random() < 0.5:
            self.deleted[key] = turn.head.first

    def leftovers(self) -> list[str]:
        """What is in the state though nothing is active."""
        kinds = {
            b"i": "an instance",
            b"I": "instances",
            b"w": "a waiting place",
            b"W": "waiting places",
            b"t": "a transaction",
            b"s": "a staged statement",
            b"l": "delayed records",
        }
        return [
            f"{key} has {kinds[name[:1]]}"
            for key, stored in self.stored.items()
            for name in stored
            if name[:1] in kinds
        ]


def _apply(stored: dict[bytes, bytes], changes: Changes) -> None:
    for name, value in changes.items():
        if value is None:
            stored.pop(name, None)
        else:
            stored[name] = value


class _Table:
    """The committed records of one key's stream."""

    def __init__(self, batches: Batches, key: PartitionKey) -> None:
        self._records = batches.tables.get(key, [])
        self._first = batches.deleted.get(key, 1)
        self._key, self._reads = key, 0

    def read(
        self, key: PartitionKey, first: int, last: int, *, most_bytes: int | None = None
    ) -> tuple[int, Sequence[CloudEvent]]:
        """Some records of a range."""
        del most_bytes
        self._reads += 1
        if self._reads > MOST_READS:
            raise Violation(f"{self._key} reads for ever")
        begin = max(first, self._first)
        return begin, self._records[begin - 1 : min(last, begin + MOST_READ - 1)]


class _Functions:
    """The functions of the stages of one key."""

    def __init__(self, key: PartitionKey, run_stage: RunStage, ran: list[RunFunction]) -> None:
        self._key, self._run_stage, self._ran = key, run_stage, ran

    def run(self, runs: Sequence[RunFunction], now: int) -> Sequence[Event]:
        """The results of some runs."""
        self._ran += runs
        return [self._run_stage(self._key, one) for one in runs]
