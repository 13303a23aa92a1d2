"""What comes into keys beside clients: the messages of other keys, and the events of a schedule."""

from __future__ import annotations

import itertools
import random

from proving.pipelines.shop import ORDERS, TRIGGER
from wallaroo_spark.engine.source.plan import Calendar, InputOffset, UpcomingTimes, occurrences
from wallaroo_spark.pipelines.controller.messages.events import CarriedIn, Event
from wallaroo_spark.pipelines.controller.messages.instructions import CarryOut
from wallaroo_spark.pipelines.controller.messages.values import PartitionKey
from wallaroo_spark.pipelines.controller.stored.encoding import decode
from wallaroo_spark.pipelines.schema.declarations import ScheduleDeclaration, StreamDeclaration
from wallaroo_spark.pipelines.schema.store import StoredSchema

MINUTE = 60_000
STEPS = {"* * * * *": MINUTE, "*/2 * * * *": 2 * MINUTE}
"""The times that a schedule may have → the milliseconds between two of them."""
_NAMESPACE, _STREAM = ORDERS.split("/")


class Feed:
    """The messages between keys, with the number of those that were delivered: durable, in order for each pair of
    keys, late, and repeating themselves."""

    def __init__(self, dice: random.Random) -> None:
        self._dice = dice
        self._logs: dict[tuple[PartitionKey, PartitionKey], list[CarriedIn]] = {}
        self._done: dict[tuple[PartitionKey, PartitionKey], int] = {}

    def add(self, source: PartitionKey, message: CarryOut) -> None:
        """A committed instruction."""
        pair = (source, message.target)
        self._logs.setdefault(pair, []).append(CarriedIn(source, message.sequence, message.message))
        self._done.setdefault(pair, 0)

    def take(self, repeat: float, late: float) -> list[tuple[PartitionKey, CarriedIn]]:
        """The messages of the next batch."""
        found = []
        for pair, log in self._logs.items():
            done = self._done[pair]
            if done < len(log) and self._dice.random() >= late:
                begin = max(0, done - self._dice.randint(1, 3)) if self._dice.random() < repeat else done
                end = self._dice.randint(done + 1, len(log)) if late else len(log)
                found += [(pair[1], message) for message in log[begin:end]]
                self._done[pair] = end
        return found

    def mark(self) -> dict[tuple[PartitionKey, PartitionKey], int]:
        """The number of messages of each pair so far."""
        return {pair: len(log) for pair, log in self._logs.items()}

    def has_passed(self, mark: dict[tuple[PartitionKey, PartitionKey], int]) -> bool:
        """Whether all messages that were there at a mark are delivered."""
        return all(self._done[pair] >= count for pair, count in mark.items())

    @property
    def empty(self) -> bool:
        """Whether everything was delivered."""
        return all(self._done[pair] == len(log) for pair, log in self._logs.items())


class Alarm:
    """A schedule of the stream of orders. It is declared, changed and deleted; a batch has the newest of its times."""

    def __init__(self) -> None:
        self._versions = {0: StoredSchema()}
        self._upcoming = UpcomingTimes()
        self.cron = ""
        """Its times; empty while it is not declared."""

    def applied(self, version: int, partitions: int, clock: int) -> None:
        """A version of the schema is written; ``partitions``: those of the stream, 0 without one."""
        objects: list[ScheduleDeclaration | StreamDeclaration] = []
        if self.cron:
            objects.append(_schedule(self.cron))
        if partitions:
            objects.append(StreamDeclaration(name=_STREAM, namespace=_NAMESPACE, partitions=partitions))
        self._versions[version] = StoredSchema(version, {one.key: one for one in objects}, applied_at=clock / 1000)

    def first(self, schema: int, after: int) -> int | None:
        """The next time."""
        return self._upcoming.first(self._versions[schema], after)

    def rows(self, start: InputOffset, end: InputOffset) -> list[tuple[PartitionKey, Event]]:
        """The events of a batch."""
        return [
            (PartitionKey(rows.stream, partition), decode(rows.event or b""))
            for rows in occurrences(self._versions.__getitem__, start.calendar, end.calendar)
            for partition in rows.partitions
        ]

    def wanted(self, start: Calendar, end: Calendar) -> str:
        """The id of the event that a batch has to have; empty for none. Not by the product's own rules."""
        known = [(self._cron_of(number), number) for number in range(start.schema, end.schema + 1)]
        changed = [number for (before, _), (cron, number) in itertools.pairwise(known) if cron != before]
        since = round(self._versions[changed[-1]].applied_at * 1000) if changed else start.time
        cron, streams = known[-1][0], self._versions[end.schema].objects.values()
        if not cron or not any(isinstance(one, StreamDeclaration) for one in streams):
            return ""
        newest = end.time // STEPS[cron] * STEPS[cron]
        return _schedule(cron).occurrence(newest).id if newest > since else ""

    def _cron_of(self, version: int) -> str:
        found = self._versions[version].objects.values()
        return next((one.cron for one in found if isinstance(one, ScheduleDeclaration)), "")


def _schedule(cron: str) -> ScheduleDeclaration:
    return ScheduleDeclaration(name="alarm", namespace=_NAMESPACE, stream=_STREAM, cron=cron, type=TRIGGER)
