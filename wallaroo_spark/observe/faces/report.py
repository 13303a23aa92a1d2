"""The report of a run: one self-contained HTML file, which opens without a network and holds no script. Pure.

Source: ``docs/status-page.md#run-report``.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Mapping, Sequence
from html import escape
from importlib import resources

from wallaroo_spark.observe.faces import charts
from wallaroo_spark.observe.faces.charts import Curve
from wallaroo_spark.observe.figures import figures, text_of
from wallaroo_spark.observe.receiver import ReceiverStatus, SlotStatus
from wallaroo_spark.observe.record import Batch, Point, RunEvent, RunRecord
from wallaroo_spark.texts import count, day_and_clock, duration, rate, size

STEPS = {
    "latestOffset": "asking the workers",
    "getBatch": "preparing the read",
    "queryPlanning": "Spark's planning",
    "walCommit": "writing the offsets",
    "addBatch": "reading, query and sink",
    "commitOffsets": "writing the commit",
}
"""Spark's names of the steps of a batch, in their order, with names for a person."""
REST = "everything else"
MOST_SLOTS = 200
_WIDE = ("Text", "Host", "Last error")
"""Columns of texts that may be long."""

_POLICY = "default-src 'none'; style-src 'unsafe-inline'; base-uri 'none'; form-action 'none'"
_STYLE = """
figure { margin: 0 0 1.4rem; }
figcaption { font-weight: 600; }
.chart svg[role=img] { height: 9rem; }
.chart svg line { stroke: var(--line); vector-effect: non-scaling-stroke; }
.chart .legend svg { height: 0.8rem; background: none; border: none; }
.chart .legend { margin: 0.2rem 0 0; }
path.line { fill: none; stroke-width: 1.6; vector-effect: non-scaling-stroke; }
.l0 { stroke: var(--p0); } .l1 { stroke: var(--p1); } .l2 { stroke: var(--p2); } .l3 { stroke: var(--p3); }
.l4 { stroke: var(--p4); } .l5 { stroke: var(--p5); } .l6 { stroke: var(--p6); }
td.w { width: auto; } td.bar { width: 55%; } td.bar svg { display: block; width: 100%; height: 0.9rem; }
dl { display: grid; grid-template-columns: max-content 1fr; gap: 0.1rem 1.2rem; margin: 0.5rem 0; }
dt { color: var(--quiet); } dd { margin: 0; overflow-wrap: anywhere; unicode-bidi: isolate; }
@media (max-width: 44rem) {
  .bars th { display: block; padding: 0.14rem 0.7rem; border: none; }
  td.bar { display: block; }
}
@media (min-width: 44.1rem) { section td:not(.w) { white-space: nowrap; } }
@media print { body { max-width: none; } figure, tr { break-inside: avoid; } }
"""


def report_html(record: RunRecord, *, options: Mapping[str, str], versions: Mapping[str, str]) -> str:
    """The report as text. ``options`` must not contain secrets; ``versions`` are those of programs, by name."""
    last = record.last
    if last is None or record.started is None:
        return _document("Run report", "<main><h1>Run report</h1><p>There is no snapshot of the receiver.</p></main>")
    points = list(record.whole)
    parts = [
        f"<header><h1>{escape(last.name)}</h1><p>run report, {day_and_clock(record.started)}</p></header><main>",
        _cause(last),
        _summary(record, last, points),
        _section("Figures over time", *_over_time(points)),
        _section("Batches", _batches(record)),
        _section("Acknowledgements", _ages(record)),
        _section("Errors, deaths and changes", _events(record)),
        _section("Slots at the end", _slots(last)),
        _section(
            "Options",
            "<p class='note'>Options that differ from their defaults; secrets are left out.</p>",
            _list(options),
        ),
        _section("Versions", _list(versions)),
        "</main>",
    ]
    return _document(f"Run report of {last.name}", "".join(parts))


def _document(title: str, body: str) -> str:
    style = (resources.files("wallaroo_spark.observe.faces") / "static" / "page.css").read_text(encoding="utf-8")
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        f'<meta http-equiv="Content-Security-Policy" content="{_POLICY}">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        '<meta name="color-scheme" content="light dark"><meta name="referrer" content="no-referrer">'
        f"<title>{escape(title)}</title><style>{style}{_STYLE}</style></head><body>{body}</body></html>\n"
    )


def _section(title: str, *content: str) -> str:
    return f"<section><h2>{escape(title)}</h2>{''.join(content)}</section>"


def _cause(last: ReceiverStatus) -> str:
    style = "good" if last.cause.healthy else "bad"
    cure = f"<p>{escape(last.cause.cure)}</p>" if last.cause.cure else ""
    return f"<div class='cause {style}'><p>At the end: {escape(last.cause.sentence)}</p>{cure}</div>"


def _summary(record: RunRecord, last: ReceiverStatus, points: Sequence[Point]) -> str:
    length = last.time - (record.started or last.time)
    ages = [point.ack_age for point in points if point.ack_age is not None]
    return _section(
        "The run",
        _list(
            {
                "from": day_and_clock(record.started or last.time),
                "to": f"{day_and_clock(last.time)}, {duration(length)}",
                "driver": last.driver or "–",
                "checkpoint": last.query.checkpoint or "–",
                "received": f"{count(record.rows_in)} rows, {rate(record.rows_in / length if length else 0)} (mean)",
                "committed": f"{count(record.rows_out)} rows",
                "batches": count(record.batch_count),
                "longest wait for an ACK": duration(max(ages)) if ages else "–",
                "deaths of workers": count(record.death_count),
                "most connectors": count(record.most_sessions),
                "events": count(record.event_count),
            }
        ),
    )


_CURVES: tuple[tuple[str, charts.Write, tuple[tuple[str, int, str], ...]], ...] = (
    ("Rows a second", rate, (("received", 3, "rows_in"), ("committed", 4, "rows_out"))),
    ("Age of the oldest row without ACK", duration, (("age", 1, "ack_age"),)),
    ("Held rows: received, not committed", count, (("rows", 2, "rows"),)),
    ("Memory of the buffers", size, (("bytes", 6, "bytes"),)),
    ("Connectors and serving slots", count, (("connected connectors", 3, "sessions"), ("serving slots", 4, "serving"))),
)
"""The pictures over time: the title, the text of a value, and each curve with its colour and the figure of a point."""


def _over_time(points: Sequence[Point]) -> Iterable[str]:
    times = [point.time for point in points]
    for title, write, curves in _CURVES:
        drawn = [Curve(name, colour, [getattr(point, figure) for point in points]) for name, colour, figure in curves]
        yield charts.curves(title, times, drawn, write)


def phases(batch: Batch) -> list[float]:
    """Seconds of each of STEPS, and of everything else."""
    known = [batch.durations.get(name, 0) / 1000 for name in STEPS]
    return [*known, max(0.0, batch.milliseconds / 1000 - sum(known))]


def _batches(record: RunRecord) -> str:
    batches = list(record.all_batches)
    shown = charts.stacked_columns(
        "Duration of a batch, by step",
        [(f"batch {batch.batch}, {count(batch.rows)} rows", phases(batch)) for batch in batches],
        [*STEPS.values(), REST],
        duration,
    )
    thinned = f" Each column is the longest of {record.all_batches.stride}." if record.all_batches.stride > 1 else ""
    seen = "The figures beside the names are means. Of several batches between two snapshots only the last is known."
    return shown + f"<p class='note'>{seen}{thinned}</p>"


def _ages(record: RunRecord) -> str:
    names = {f"up to {duration(bound)}" if bound else "longer": rows for bound, rows in record.ack_ages()}
    return charts.bars(
        "Time from the arrival of a row to its acknowledgement",
        names,
        "Rows by that time, as the workers have counted them since the first snapshot.",
    )


def _events(record: RunRecord) -> str:
    events = record.events()
    if not events:
        return "<p class='note'>Nothing has happened.</p>"
    left_out = record.event_count - len(events)
    note = (
        f"<p class='note'>{count(left_out)} events between the first and the last are left out.</p>" if left_out else ""
    )

    def row(event: RunEvent) -> Sequence[str]:
        return day_and_clock(event.time), event.kind, event.where, event.text

    return note + _table("Events", ("Time", "Kind", "Where", "Text"), [(row(event), event.bad) for event in events])


def _slots(last: ReceiverStatus) -> str:
    columns: dict[str, Callable[[SlotStatus], str]] = {
        "Slot": lambda slot: str(slot.slot),
        "State": lambda slot: slot.state,
        "Host": lambda slot: slot.host or "–",
        "Received": lambda slot: count(slot.rows_in),
        "Held": lambda slot: count(slot.rows),
        **{one.page: functools.partial(text_of, one) for one in figures(SlotStatus) if one.page},
        "Deaths": lambda slot: str(slot.died),
        "Last error": lambda slot: slot.last_error or "–",
    }
    shown = last.slots[:MOST_SLOTS]
    rows = [([cell(slot) for cell in columns.values()], not slot.cause.healthy) for slot in shown]
    left_out = len(last.slots) - len(shown)
    note = f"<p class='note'>{count(left_out)} more slots are left out.</p>" if left_out else ""
    return note + _table("Slots", [*columns], rows)


def _table(name: str, heads: Sequence[str], rows: Sequence[tuple[Sequence[str], bool]]) -> str:
    head = "".join(f"<th role='columnheader' scope='col'>{escape(text)}</th>" for text in heads)
    body = "".join(
        f"<tr role='row' class='{'bad' if bad else ''}'>"
        + "".join(
            f"<td role='cell' class='{'w' if label in _WIDE else ''}' data-label='{escape(label)}'>"
            f"<span>{escape(text)}</span></td>"
            for label, text in zip(heads, cells, strict=True)
        )
        + "</tr>"
        for cells, bad in rows
    )
    return (
        f"<table role='table' aria-label='{escape(name)}'><thead role='rowgroup'><tr role='row'>{head}</tr></thead>"
        f"<tbody role='rowgroup'>{body}</tbody></table>"
    )


def _list(values: Mapping[str, str]) -> str:
    if not values:
        return "<p class='note'>None.</p>"
    return (
        "<dl>" + "".join(f"<dt>{escape(name)}</dt><dd>{escape(value)}</dd>" for name, value in values.items()) + "</dl>"
    )
