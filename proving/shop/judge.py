"""The promises of the shop, checked against the history of its instances and the records of its streams. Pure."""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

STAGES: Mapping[str, tuple[str, ...]] = {
    "shop/fulfil": ("pay", "reserve", "ship"),
    "shop/compensate": ("release", "refund"),
}
"""The stages of each pipeline."""
OUTPUTS: Mapping[str, tuple[str, ...]] = {
    "shop/fulfil": ("shop/receipts", "shop/shipments"),
    "shop/compensate": ("shop/returns",),
}
"""The stream outputs of each pipeline, of which an instance writes one event to each."""
INPUTS = {"shop/fulfil": "shop/orders", "shop/compensate": "shop/failed"}
"""The input stream of each pipeline."""
MAX_PARALLEL = {"shop/fulfil": 20, "shop/compensate": 50}
"""The most active instances in a partition of the input stream."""

Instance = tuple[str, int, int]
"""Pipeline, partition and number."""


@dataclass(frozen=True)
class HistoryRow:
    """A row of the history of instances, as far as the judge looks at it."""

    pipeline: str
    partition: int
    """Partition of its input stream."""
    instance: int
    """Offset of the event that began the instance."""
    kind: str
    """Kind of the row: a value of HistoryKind."""
    at: datetime
    """Time of the batch."""
    stage: str | None = None
    """The stage, of an output or a pointer."""
    target: tuple[str, int] | None = None
    """Stream and partition of a pointer."""
    offsets: tuple[int, ...] = ()
    """Offsets of the records of a pointer."""
    outcome: str | None = None
    """How the instance ended."""
    began_at: datetime | None = None
    """When the stage could begin."""

    @property
    def of(self) -> Instance:
        """Its instance."""
        return self.pipeline, self.partition, self.instance


@dataclass(frozen=True)
class StreamRecord:
    """A record of a stream."""

    partition: int
    offset: int
    data: bytes
    """Its payload."""

    @property
    def order(self) -> int:
        """The number of the order that it is about."""
        return int(json.loads(self.data)["order"])


@dataclass
class Verdict:
    """What was counted, and each broken promise."""

    counts: Counter[str] = field(default_factory=Counter)
    """Name → number, for the table."""
    most_active: dict[str, int] = field(default_factory=dict)
    """Pipeline → the most active instances that one partition ever had."""
    broken: list[str] = field(default_factory=list)
    """A sentence for each broken promise."""

    def expect(self, holds: bool, sentence: str) -> None:
        """Note a promise that does not hold."""
        if not holds:
            self.broken.append(sentence)


def judge(
    published: Iterable[int],
    history: Sequence[HistoryRow],
    streams: Mapping[str, Sequence[StreamRecord]],
    unpayable: Iterable[int],
) -> Verdict:
    """Judge a run in which the orders ``published`` were published and nothing is active any more.

    ``unpayable`` are the orders that cannot be paid: they are compensated, and all others are shipped.
    """
    verdict = Verdict()
    orders, bad = set(published), set(unpayable)
    _streams(verdict, streams)
    _orders(verdict, streams, orders, bad)
    for pipeline in STAGES:
        rows = [row for row in history if row.pipeline == pipeline]
        _instances(verdict, pipeline, rows, streams[INPUTS[pipeline]])
        _stages(verdict, pipeline, rows)
        _pointers(verdict, pipeline, rows, streams)
        _parallel(verdict, pipeline, rows)
    return verdict


def _streams(verdict: Verdict, streams: Mapping[str, Sequence[StreamRecord]]) -> None:
    for name, records in streams.items():
        verdict.counts[f"records of {name}"] = len(records)
        by_partition: dict[int, list[int]] = defaultdict(list)
        for record in records:
            by_partition[record.partition].append(record.offset)
        for partition, offsets in by_partition.items():
            whole = sorted(offsets) == list(range(1, len(offsets) + 1))
            verdict.expect(whole, f"{name}/{partition} has holes or repeated offsets")


def _orders(verdict: Verdict, streams: Mapping[str, Sequence[StreamRecord]], orders: set[int], bad: set[int]) -> None:
    wanted = {
        "shop/orders": orders,
        "shop/receipts": orders - bad,
        "shop/shipments": orders - bad,
        "shop/failed": bad & orders,
        "shop/returns": bad & orders,
    }
    for name, numbers in wanted.items():
        found = Counter(record.order for record in streams[name])
        missing, more = numbers - found.keys(), found.keys() - numbers
        twice = sorted(order for order, times in found.items() if times > 1)
        verdict.expect(not missing, f"{name} lacks {len(missing)} orders, such as {sorted(missing)[:3]}")
        verdict.expect(not more, f"{name} has {len(more)} orders too many, such as {sorted(more)[:3]}")
        verdict.expect(not twice, f"{name} has {len(twice)} orders more than once, such as {twice[:3]}")


def _instances(verdict: Verdict, pipeline: str, rows: Sequence[HistoryRow], inputs: Sequence[StreamRecord]) -> None:
    began = Counter(row.of for row in rows if row.kind == "began")
    ended = Counter(row.of for row in rows if row.kind == "ended")
    wanted = {(pipeline, record.partition, record.offset) for record in inputs}
    verdict.counts[f"instances of {pipeline}"] = len(began)
    verdict.expect(not wanted - began.keys(), f"{pipeline}: {len(wanted - began.keys())} inputs have no instance")
    verdict.expect(not began.keys() - wanted, f"{pipeline}: {len(began.keys() - wanted)} instances have no input")
    for name, found in (("began", began), ("ended", ended)):
        often = [one for one, times in found.items() if times > 1]
        verdict.expect(not often, f"{pipeline}: {len(often)} instances {name} more than once, such as {often[:3]}")
    open_ones = began.keys() - ended.keys()
    verdict.expect(
        not open_ones, f"{pipeline}: {len(open_ones)} instances have not ended, such as {list(open_ones)[:3]}"
    )
    for row in rows:
        if row.kind == "ended":
            verdict.counts[f"{pipeline} {row.outcome}"] += 1


def _stages(verdict: Verdict, pipeline: str, rows: Sequence[HistoryRow]) -> None:
    done = {row.of for row in rows if row.kind == "ended" and row.outcome == "done"}
    outputs: dict[Instance, Counter[str]] = defaultdict(Counter)
    for row in rows:
        if row.kind == "output":
            outputs[row.of][row.stage or ""] += 1
            verdict.counts[f"outputs of {pipeline}"] += 1
    for instance, found in outputs.items():
        often = [stage for stage, times in found.items() if times > 1]
        verdict.expect(not often, f"{instance}: stages {often} have more than one output")
    incomplete = [one for one in done if set(outputs[one]) != set(STAGES[pipeline])]
    verdict.expect(not incomplete, f"{pipeline}: {len(incomplete)} instances are done without all outputs")


def _pointers(
    verdict: Verdict, pipeline: str, rows: Sequence[HistoryRow], streams: Mapping[str, Sequence[StreamRecord]]
) -> None:
    pointed: Counter[tuple[str, int, int]] = Counter()
    by_instance: dict[Instance, Counter[str]] = defaultdict(Counter)
    for row in rows:
        if row.kind == "pointer" and row.target is not None and row.target[0] in OUTPUTS[pipeline]:
            by_instance[row.of][row.target[0]] += len(row.offsets)
            pointed.update((*row.target, offset) for offset in row.offsets)
    written = {(name, one.partition, one.offset) for name in OUTPUTS[pipeline] for one in streams[name]}
    verdict.expect(
        pointed.keys() == written,
        f"{pipeline}: {len(pointed.keys() ^ written)} records without a pointer, or the reverse",
    )
    verdict.expect(not [one for one, times in pointed.items() if times > 1], f"{pipeline}: a record has two pointers")
    for row in rows:
        if row.kind == "ended" and row.outcome == "done":
            each = all(by_instance[row.of][name] == 1 for name in OUTPUTS[pipeline])
            verdict.expect(each, f"{row.of} has not one event in each stream output: {dict(by_instance[row.of])}")


def _parallel(verdict: Verdict, pipeline: str, rows: Sequence[HistoryRow]) -> None:
    # Within one batch all rows have one time; those that end make room before others begin.
    most = 0
    for partition in {row.partition for row in rows}:
        changes = Counter[datetime]()
        for row in rows:
            if row.partition == partition and row.kind in ("began", "ended"):
                changes[row.at] += 1 if row.kind == "began" else -1
        active = 0
        for at in sorted(changes):
            active += changes[at]
            most = max(most, active)
    verdict.most_active[pipeline] = most
    limit = MAX_PARALLEL[pipeline]
    verdict.expect(most <= limit, f"{pipeline}: {most} instances were active at once, and {limit} are permitted")


def rows_of(table: Iterable[Mapping[str, Any]]) -> list[HistoryRow]:
    """The rows of the history's table."""
    return [
        HistoryRow(
            row["pipeline"],
            row["partition"],
            row["instance"],
            str(row["kind"]),
            row["at"],
            row["stage"],
            None if row["target_stream"] is None else (row["target_stream"], row["target_partition"]),
            tuple(row["offsets"] or ()),
            row["outcome"],
            row["began_at"],
        )
        for row in table
    ]
