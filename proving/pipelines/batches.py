"""Spark's part of a simulated history: batches are planned, run, perhaps lost and run again, and committed.

Committed are together: the entries of each key, the records of its table, and the instructions.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence

from proving.simulator.engine.core import Violation
from wallaroo_spark.pipelines.controller import controller
from wallaroo_spark.pipelines.controller.messages.events import Event, RecordsRead
from wallaroo_spark.pipelines.controller.messages.instructions import (
    AppendRecords,
    ArmTimer,
    Instruction,
    ReadRecords,
)
from wallaroo_spark.pipelines.controller.messages.values import CloudEvent, PartitionKey
from wallaroo_spark.pipelines.controller.stored.entries import Changes, KeyEntries
from wallaroo_spark.pipelines.controller.stored.validation import validate

Inputs = Mapping[PartitionKey, Sequence[Event]]
MOST_READS = 200
"""Reads of one key in one batch; more is a circle."""


class Batches:
    """The committed state of all keys."""

    def __init__(self, dice: random.Random) -> None:
        self._dice = dice
        self.now = 1_000_000
        self.count = 0
        self.lost = 0
        self.stored: dict[PartitionKey, dict[bytes, bytes]] = {}
        self.tables: dict[PartitionKey, list[CloudEvent]] = {}
        self.timers: dict[PartitionKey, int] = {}
        self.late_reads: dict[PartitionKey, list[ReadRecords]] = {}

    def run(
        self, inputs: Inputs, lose: float, between: Callable[[], None]
    ) -> list[tuple[PartitionKey, list[Instruction]]]:
        """Run a batch until it is committed. Returns the instructions of each key.

        Each attempt is lost with the probability ``lose``, and then ``between`` is called.
        """
        now, first, reads_now = self.now, None, self._dice.random() < 0.7
        while True:
            results = [self._run(key, now, events, reads_now) for key, events in self._with_timers(inputs, now)]
            if first is not None and results != first:
                raise Violation("a batch that runs again has other results")
            first = results
            if self._dice.random() >= lose:
                break
            self.lost += 1
            between()
        self.count += 1
        for key, said, changes in results:
            self._commit(key, said, changes)
            if not reads_now:
                self.late_reads.setdefault(key, []).extend(one for one in said if isinstance(one, ReadRecords))
        return [(key, said) for key, said, _ in results]

    def _with_timers(self, inputs: Inputs, now: int) -> list[tuple[PartitionKey, Sequence[Event]]]:
        due = {key for key, at in self.timers.items() if at <= now}
        late = self.late_reads.keys()
        return [(key, inputs.get(key, ())) for key in sorted({*inputs, *due, *late})]

    def _run(
        self, key: PartitionKey, now: int, events: Sequence[Event], reads_now: bool
    ) -> tuple[PartitionKey, list[Instruction], Changes]:
        stored, all_changes = dict(self.stored.get(key, {})), Changes()
        table = list(self.tables.get(key, ()))
        waiting = [*(self._answer(one, table) for one in self.late_reads.get(key, ())), *events]
        all_said: list[Instruction] = []
        for _ in range(MOST_READS):
            said, changes = controller.handle(key, now, stored, waiting)
            for name, value in changes.items():
                if value is None:
                    stored.pop(name, None)
                else:
                    stored[name] = value
            all_changes.update(changes)
            all_said += said
            for one in said:
                if isinstance(one, AppendRecords):
                    if one.first != len(table) + 1:
                        raise Violation(f"{key}: records at {one.first}, and the table has {len(table)}")
                    table += one.records
            waiting = [self._answer(one, table) for one in said if isinstance(one, ReadRecords) and reads_now]
            if not waiting:
                validate(KeyEntries(stored))
                return key, all_said, all_changes
        raise Violation(f"{key} reads for ever")

    def _answer(self, question: ReadRecords, table: list[CloudEvent]) -> Event:
        begin = question.first - 1
        return RecordsRead(
            question.pipeline, question.first, question.first, tuple(table[begin : begin + question.limit])
        )

    def _commit(self, key: PartitionKey, said: list[Instruction], changes: Changes) -> None:
        stored = self.stored.setdefault(key, {})
        for name, value in changes.items():
            if value is None:
                stored.pop(name, None)
            else:
                stored[name] = value
        self.late_reads.pop(key, None)
        if self.timers.get(key, self.now + 1) <= self.now:
            del self.timers[key]
        for one in said:
            if isinstance(one, AppendRecords):
                self.tables.setdefault(key, []).extend(one.records)
            elif isinstance(one, ArmTimer):
                if one.at is None:
                    self.timers.pop(key, None)
                else:
                    self.timers[key] = one.at

    def leftovers(self) -> list[str]:
        """What is in the state though nothing is active."""
        kinds = {
            b"i": "an instance",
            b"w": "a waiting place",
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
