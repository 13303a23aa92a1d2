"""Stand-ins for the parts around a turn: the state, the table and the functions."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TypeVar

from proving.pipelines.validation import validate
from tests.pipelines.controller.one_key import ORDERS
from wallaroo_spark.engine.operator.turn import DEFAULT_LIMITS, InputRow, TurnLimits, TurnResult, take_turn
from wallaroo_spark.pipelines.controller.context import KeyEntries
from wallaroo_spark.pipelines.controller.messages import events as e
from wallaroo_spark.pipelines.controller.messages import instructions as i
from wallaroo_spark.pipelines.controller.messages.values import IN_SPARK, PartitionKey
from wallaroo_spark.pipelines.controller.stored.encoding import encode
from wallaroo_spark.pipelines.controller.stored.entries import Changes
from wallaroo_spark.pipelines.controller.stored.seen_ids import SeenCache
from wallaroo_spark.pipelines.schema.cloud_event import CloudEvent, Payload
from wallaroo_spark.streams.rows import Rank

I = TypeVar("I")  # noqa: E741  # an instruction


class CountedEntries(Mapping[bytes, bytes]):
    """A state that counts the accesses to each entry."""

    def __init__(self) -> None:
        self.data: dict[bytes, bytes] = {}
        self.reads: Counter[bytes] = Counter()
        self.writes: Counter[bytes] = Counter()

    def __getitem__(self, key: bytes) -> bytes:
        self.reads[key] += 1
        return self.data[key]

    def __iter__(self) -> Iterator[bytes]:
        return iter(self.data)

    def __len__(self) -> int:
        return len(self.data)

    def write(self, changes: Changes) -> None:
        for key, value in changes.items():
            self.writes[key] += 1
            if value is None:
                self.data.pop(key, None)
            else:
                self.data[key] = value


class Table:
    """The committed records of one partition. ``most`` records are read at once."""

    def __init__(self, most: int = 1000) -> None:
        self.records: list[CloudEvent] = []
        self.most = most
        self.reads: list[tuple[int, int]] = []

    def read(
        self, key: PartitionKey, first: int, last: int, *, most_bytes: int | None = None
    ) -> tuple[int, Sequence[CloudEvent]]:
        self.reads.append((first, last))
        assert last <= len(self.records), "records of this batch are not committed"
        found, size = [], 0
        for record in self.records[first - 1 : min(last, first - 1 + self.most)]:
            found.append(record)
            size += record.size
            if most_bytes is not None and size >= most_bytes:
                break
        return first, found


def upper(run: i.RunFunction) -> e.Event:
    """A function: the data of the root event in capitals."""
    assert run.root is not None
    return e.DeliveryAcked(None, IN_SPARK, run.delivery, Payload((run.root.data or b"").upper()))


class Functions:
    """Runs one Python function for each run."""

    def __init__(self, function: Callable[[i.RunFunction], e.Event] = upper) -> None:
        self.function = function
        self.calls: list[int] = []

    def run(self, runs: Sequence[i.RunFunction], now: int) -> Sequence[e.Event]:
        self.calls.append(len(runs))
        return [self.function(run) for run in runs]


class Shell:
    """A key whose turns are taken one after another, as batches that commit."""

    def __init__(self, key: PartitionKey = ORDERS, limits: TurnLimits = DEFAULT_LIMITS, most: int = 1000) -> None:
        self.key = key
        self.now = 1_000
        self.entries = CountedEntries()
        self.table = Table(most)
        self.functions = Functions()
        self.limits = limits
        self.cache = SeenCache()
        self.result: TurnResult

    def turn(self, *events: e.Event) -> list[i.Instruction]:
        """A batch with these events of one gateway."""
        rows = [InputRow(Rank.RECEIVED, "g0/1", 1, place, encode(event)) for place, event in enumerate(events)]
        return self.turn_of(rows)

    def turn_of(self, rows: Sequence[InputRow]) -> list[i.Instruction]:
        """A batch with these rows."""
        self.now += 10
        self.entries.reads.clear()
        self.entries.writes.clear()
        self.result = take_turn(
            self.key, self.now, rows, self.entries, self.table, self.functions, self.limits, self.cache
        )
        self.entries.write(self.result.changes)
        self.table.records += self.result.fresh
        validate(KeyEntries(self.entries.data))
        return self.result.instructions

    def of(self, kind: type[I]) -> list[I]:
        """The instructions of a kind in the last turn."""
        return [one for one in self.result.instructions if isinstance(one, kind)]
