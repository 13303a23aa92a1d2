"""Calculations on a run's figures: medians, percentiles, goals and their table."""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any

Point = tuple[float, float]


@dataclass(frozen=True)
class Spread:
    """Repetitions of one measurement; ``values`` are in the order of measuring."""

    values: tuple[float, ...]

    @classmethod
    def of(cls, values: Iterable[float]) -> Spread:
        """Collect at least one value."""
        return cls(tuple(float(value) for value in values))

    @property
    def middle(self) -> float:
        """The median."""
        return median(self.values)

    def to_json(self) -> dict[str, Any]:
        """Median, least and greatest value, and all values."""
        return {
            "median": self.middle,
            "least": min(self.values),
            "most": max(self.values),
            "repetitions": list(self.values),
        }


def percentile(weighted: Iterable[tuple[float, int]], share: float) -> float:
    """The least value that a fraction ``share`` of the weight does not exceed; pairs are (value, weight).

    NaN without any weight.
    """
    ordered = sorted(pair for pair in weighted if pair[1] > 0)
    wanted = share * sum(weight for _, weight in ordered)
    seen = 0
    for value, weight in ordered:
        seen += weight
        if seen >= wanted:
            return value
    return math.nan


def at(points: Sequence[Point], time: float) -> float:
    """A count at a time, on straight lines between points (time, count) in order of time; constant outside of them."""
    if not points:
        return 0.0
    index = bisect_right(points, time, key=lambda point: point[0])
    if index == 0:
        return points[0][1]
    if index == len(points):
        return points[-1][1]
    (before, low), (after, high) = points[index - 1], points[index]
    return low + (high - low) * (time - before) / (after - before)


def rates(points: Sequence[Point], edges: Sequence[float]) -> list[float]:
    """The growth of a count a second, from each edge to the next."""
    counts = [at(points, edge) for edge in edges]
    return [(counts[index + 1] - counts[index]) / (edges[index + 1] - edges[index]) for index in range(len(edges) - 1)]


@dataclass(frozen=True)
class Goal:
    """The goal of a figure: at least ``limit`` (at most, unless ``more``), better ``aim``."""

    key: str
    """Its key in ``bench.json``."""
    what: str
    """The measured figure in words."""
    unit: str
    """The unit of the figure."""
    limit: float
    """The bound that the figure must meet."""
    aim: float
    """The better bound that the work aims at."""
    more: bool = True
    """Whether higher figures are better."""

    def says(self, value: float | None) -> str:
        """The verdict on a measured value."""
        if value is None or math.isnan(value):
            return "not measured"
        if self._holds(value, self.aim):
            return "aim met"
        return "met" if self._holds(value, self.limit) else "missed"

    def _holds(self, value: float, bound: float) -> bool:
        return value >= bound if self.more else value <= bound

    @property
    def bounds(self) -> str:
        """Limit and aim as text."""
        sign = "≥" if self.more else "≤"
        return f"{sign} {amount(self.limit)} (aim {amount(self.aim)}) {self.unit}".rstrip()


GOALS = (
    Goal("decode", "decode, varied 20-180 B, slowest revision, one stream", "msg/s a core", 3e6, 6e6),
    Goal("active", "10,000 active streams, ten messages each a batch, in a worker", "msg/s a core", 2.5e5, 5e5),
    Goal("noop_100", "end to end, 100 B, into noop", "msg/s", 1.2e6, 2e6),
    Goal("noop_1k", "end to end, 1 KB, into noop", "MB/s", 300, 600),
    Goal(
        "cpu",
        "CPU a message of worker, reading task and JVM as a ratio to the ceiling, 100 B into noop",
        "x",
        3,
        2,
        False,
    ),
    Goal("latency", "ACK latency p50 at half load as a ratio to a micro-batch of one row", "x", 2, 1.3, False),
    Goal("fanin", "CPU of 1,000 connectors as a ratio to 1 at the same total rate", "x", 1.5, 1.2, False),
    Goal("sdk", "one Python connector, 100 B, send_many, slowest revision", "msg/s", 5e5, 1e6),
    Goal("send", "one Python connector, 100 B, send awaited one by one, slowest revision", "msg/s", 1.5e5, 2.5e5),
    Goal("sessions", "10,000 sessions, a message a second each: processor time of the worker", "cores", 1, 0.5, False),
    Goal("session", "resident memory of the worker for a quiet session, of 10,000", "KiB", 30, 10, False),
    Goal("memory", "worker's peak memory above its budget, query paused", "MB", 150, 80, False),
)


def amount(value: float | None) -> str:
    """A figure as text with three digits: 1.23 M, 456 k, 7.89."""
    if value is None or math.isnan(value):
        return "-"
    size = abs(value)
    if size >= 1e6:
        return f"{value / 1e6:.3g} M"
    if size >= 1e4:
        return f"{value / 1e3:.3g} k"
    if size >= 100 or value == int(value):
        return f"{value:,.0f}"
    return f"{value:.3g}"


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A table in Markdown with aligned columns: figures right, words left."""
    body = [[str(cell) for cell in row] for row in rows]
    widths = [max(len(row[column]) for row in [list(head), *body]) for column in range(len(head))]

    def line(cells: Sequence[str]) -> str:
        return "| " + " | ".join(_aligned(cell, width) for cell, width in zip(cells, widths, strict=True)) + " |"

    rule = "|" + "|".join("-" * (width + 2) for width in widths) + "|"
    return "\n".join([line(head), rule, *map(line, body)])


def _aligned(cell: str, width: int) -> str:
    return cell.rjust(width) if cell[:1].isdigit() or cell[:1] in "-+" else cell.ljust(width)


def goals_table(found: Mapping[str, float | None]) -> str:
    """Every goal beside its measured figure."""
    return table(
        ("goal", "wanted", "measured", "result"),
        [(goal.what, goal.bounds, amount(found.get(goal.key)), goal.says(found.get(goal.key))) for goal in GOALS],
    )
