"""The feed that carries messages between keys: durable, in order for each pair of keys, late, and repeating itself."""

from __future__ import annotations

import random

from wallaroo_spark.pipelines.controller.messages.events import CarriedIn
from wallaroo_spark.pipelines.controller.messages.instructions import CarryOut
from wallaroo_spark.pipelines.controller.messages.values import PartitionKey


class Feed:
    """Messages by pair of keys, with the number of those that were delivered."""

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

    @property
    def empty(self) -> bool:
        """Whether everything was delivered."""
        return all(self._done[pair] == len(log) for pair, log in self._logs.items())
