"""Spark's part of a simulated history: batches are planned, run, perhaps lost and run again, and committed.

Each key takes its turn as in the operator: in one of some processes, which keep the ids of records that they have seen,
also those of a batch that was lost. Committed are together: the entries of each key, the records of its table, its
timer, and the instructions.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

from proving.simulator.engine.core import Violation
from wallaroo_spark.engine.operator.turn import DEFAULT_LIMITS, InputRow, TurnLimits, take_turn
from wallaroo_spark.engine.source.offsets import InputOffset
from wallaroo_spark.engine.source.plan import Inputs, due_timers, next_offset
from wallaroo_spark.pipelines.controller.messages.events import Event
from wallaroo_spark.pipelines.controller.messages.instructions import AppendRecords, Instruction, RunFunction
from wallaroo_spark.pipelines.controller.messages.values import CloudEvent, PartitionKey
from wallaroo_spark.pipelines.controller.stored.encoding import encode
from wallaroo_spark.pipelines.controller.stored.entries import Changes, KeyEntries
from wallaroo_spark.pipelines.controller.stored.seen_ids import SeenCache
from wallaroo_spark.pipelines.controller.stored.validation import validate

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
    """The key."""
    now: int
    """The time of the batch."""
    said: list[Instruction]
    """The instructions."""
    armed: int | None
    """The timer after it."""
    changes: Changes
    """The changed entries."""


class Batches:
    """The committed state of all keys, the clock of the driver, and the processes of the tasks."""

    def __init__(self, dice: random.Random, run_stage: RunStage) -> None:
        self._dice = dice
        self._run_stage = run_stage
        self.clock = 1_000_000_000_000
        """The clock of the driver, in milliseconds; it may be set back."""
        self.time = 0
        """The time of the newest offset, which is never set back."""
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

    def plan(self, inputs: Mapping[PartitionKey, Sequence[Event]]) -> list[tuple[PartitionKey, Sequence[Event]]]:
        """The events of each key of the next batch; none when there is nothing to do."""
        start = InputOffset(batch=self.count, time=self.time)
        first = min(self.timers.values(), default=None)
        # All inputs count as carried messages of the batch before this one, whose manifest has the timers.
        carried = {self.count + 1: len(inputs)}
        end = next_offset(start, Inputs(self.clock, carried=carried, first_timer=first), 1000)
        if end == start:
            return []
        self.time = end.time
        timers = {str(key): at for key, at in self.timers.items()}
        due = {PartitionKey(rows.stream, number) for rows in due_timers(timers, end) for number in rows.partitions}
        return [(key, inputs.get(key, ())) for key in sorted({*inputs, *due})]

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
        stored = dict(self.stored.get(key, {}))
        rows = [InputRow(0, "", number, 0, encode(event)) for number, event in enumerate(events)]
        self._dice.shuffle(rows)
        cache, functions = self._dice.choice(self._caches), _Functions(key, self._run_stage, runs)
        result = take_turn(key, now, rows, stored, _Table(self, key), functions, limits, cache)
        _apply(stored, result.changes)
        table = len(self.tables.get(key, ()))
        for one in result.said:
            if isinstance(one, AppendRecords):
                if one.first != table + 1:
                    raise Violation(f"{key}: records at {one.first}, and the table has {table}")
                table += len(one.records)
        entries = KeyEntries(stored)
        validate(entries)
        for name, progress in entries.head.pipelines.items():
            if progress.cursor < entries.head.last and progress.has_room and result.armed is None:
                raise Violation(f"{key}: {name} has room and records to go on with, and nothing wakes it")
        return Turn(key, now, result.said, result.armed, result.changes)

    def _commit(self, turn: Turn) -> None:
        key = turn.key
        _apply(self.stored.setdefault(key, {}), turn.changes)
        if turn.armed is None:
            self.timers.pop(key, None)
        else:
            self.timers[key] = turn.armed
        if turn.armed == turn.now + 1:
            self.paused += 1
        for one in turn.said:
            if isinstance(one, AppendRecords):
                self.tables.setdefault(key, []).extend(one.records)
        # The files of expired records are deleted some time after their key has heard it.
        if self._dice.random() < 0.5:
            self.deleted[key] = KeyEntries(self.stored[key]).head.first

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

    def read(self, partition: int, first: int, last: int) -> tuple[int, Sequence[CloudEvent]]:
        """Some records of a range."""
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
