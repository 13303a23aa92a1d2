"""Calculations on a run's figures: medians, percentiles, tables."""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Iterable, Sequence
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
