"""Figures: what is shown of a receiver or an application, each declared once, as the field of a record.

:func:`figure` makes the field, and the docstring behind the field says what the figure means. The metrics, their page,
the tables of terminal and pages and the texts for people are made from :func:`figures`; JSON and the DataFrame
of streams have every field of a record. A new figure is one field and its source.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from wallaroo_spark.settings import docstring_of
from wallaroo_spark.texts import count, duration, size


class FigureKind(StrEnum):
    """The kinds of figures, by Prometheus' names."""

    COUNTER = "counter"
    GAUGE = "gauge"
    HISTOGRAM = "histogram"


@dataclass(frozen=True)
class Figure:
    """One row: everything that the faces know about a figure."""

    record: type[Any]
    name: str
    """The name of the record's field."""
    unit: str
    """Its unit in UCUM, as OpenTelemetry writes it: ``s``, ``By``, ``1``, or the thing that is counted in braces."""
    metric: str = ""
    """Its name for Prometheus; empty: it is no metric. A counter's ends in ``_total``."""
    otel: str = ""
    """Its name by OpenTelemetry's conventions, where that does not follow from ``metric``."""
    heading: str = ""
    """The heading of its column on a terminal and, with a capital letter, on the page; empty: see the next two."""
    terminal: str = ""
    """The heading on a terminal alone; empty without ``heading``: it has no column there."""
    page: str = ""
    """The heading on the page alone; empty without ``heading``: it has no column there."""
    flipped: bool = False
    """Whether the metric is 1 while the figure is false or empty, as that of an error is, and 0 while it is not."""
    absent: bool = False
    """Whether the metric has no value while the figure is None; otherwise it is 0 then."""
    adds: bool = False
    """Whether it counts what a batch has done, so that the batches are added up; otherwise it is the newest state."""
    always: bool = False
    """Whether the metric has a value also while its part does not answer, or takes no members."""

    @property
    def help(self) -> str:
        """One or more sentences on its meaning."""
        return docstring_of(self.record, self.name)


def kind_of(metric: str) -> FigureKind:
    """The kind of a metric that is no histogram, by its name."""
    return FigureKind.COUNTER if metric.endswith("_total") else FigureKind.GAUGE


def figure(default: Any, unit: str, metric: str = "", **shown: Any) -> Any:
    """A field of a record that is a figure; ``shown`` are further fields of :class:`Figure`."""
    if heading := shown.get("heading"):
        shown = {"terminal": heading, "page": heading.capitalize(), **shown}
    return dataclasses.field(default=default, metadata={"unit": unit, "metric": metric, **shown})


def figures(record: type[Any]) -> Iterator[Figure]:
    """The figures of a record, in the order of its fields."""
    for entry in dataclasses.fields(record):
        if "unit" in entry.metadata:
            yield Figure(record, entry.name, **entry.metadata)


def columns(record: type[Any]) -> list[dict[str, str]]:
    """The columns of a table on a page, as JSON-ready values: ``name``, ``label`` and ``unit``."""
    return [{"name": one.name, "label": one.page, "unit": one.unit} for one in figures(record) if one.page]


def text_of(figure: Figure, record: Any) -> str:
    """The figure of a record as a text for a person; empty when it is not known."""
    value = getattr(record, figure.name)
    if value is None or figure.unit not in ("s", "By"):
        return "" if value is None else count(value)
    return duration(value) if figure.unit == "s" else size(value)
