"""The report of a run: one self-contained HTML file, which opens without a network and holds no script. Pure.

Source: ``docs/status-page.md#run-report``.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Mapping, Sequence
from html import escape

from wallaroo_spark.observe.faces.page import static_text
from wallaroo_spark.observe.figures import figures, text_of
from wallaroo_spark.observe.receiver import ReceiverStatus, SlotStatus
from wallaroo_spark.observe.record import Batch, Point, RunEvent, RunRecord
from wallaroo_spark.texts import clock, count, day_and_clock, duration, rate, size

Write = Callable[[float], str]

WIDTH, HEIGHT = 1000.0, 100.0
LOWEST, HIGHEST = 98.0, 4.0
"""The vertical positions of zero and of the greatest value."""

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
        _section("Figures over time", *(_curves(points, *picture) for picture in _PICTURES)),
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
    style = static_text("page.css") + "\n" + static_text("report.css")
    return static_text("report.html", title=escape(title), style=style, body=body)


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


Curves = tuple[tuple[str, int, str], ...]
"""Each curve of a picture: its name, its colour (the classes ``k0`` to ``k6`` of the style sheet), and the figure of a
point."""
_PICTURES: tuple[tuple[str, Write, Curves], ...] = (
    ("Rows a second", rate, (("received", 3, "rows_in"), ("committed", 4, "rows_out"))),
    ("Age of the oldest row without ACK", duration, (("age", 1, "ack_age"),)),
    ("Held rows: received, not committed", count, (("rows", 2, "rows"),)),
    ("Memory of the buffers", size, (("bytes", 6, "bytes"),)),
    ("Connectors and serving slots", count, (("connected connectors", 3, "sessions"), ("serving slots", 4, "serving"))),
)
"""The pictures over time: the title, the text of a value, and the curves."""


def phases(batch: Batch) -> list[float]:
    """Seconds of each of STEPS, and of everything else."""
    known = [batch.durations.get(name, 0) / 1000 for name in STEPS]
    return [*known, max(0.0, batch.milliseconds / 1000 - sum(known))]


def _batches(record: RunRecord) -> str:
    batches = list(record.all_batches)
    shown = _stacked_columns(
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
    return _bars(
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


def _curves(points: Sequence[Point], title: str, write: Write, curves: Curves) -> str:
    """A figure with curves over time. There is a gap where a value is None."""
    drawn = [(name, colour, [getattr(point, figure) for point in points]) for name, colour, figure in curves]
    known = [value for *_, values in drawn for value in values if value is not None]
    if len(points) < 2 or not known:
        return _figure(title, "", "There are too few figures for a picture.")
    begin, end, top = points[0].time, points[-1].time, max(known) or 1.0
    span = (end - begin) or 1.0

    def path(values: Iterable[float | None]) -> str:
        steps, pen = [], "M"
        for point, value in zip(points, values, strict=True):
            if value is None:
                pen = "M"
                continue
            x, y = (point.time - begin) / span * WIDTH, LOWEST - value / top * (LOWEST - HIGHEST)
            steps.append(f"{pen}{x:.1f} {y:.1f}")
            pen = "L"
        return "".join(steps)

    lines = "".join(f'<path class="line l{colour}" d="{path(values)}"/>' for _, colour, values in drawn)
    highest = ((name, max((one for one in values if one is not None), default=0.0)) for name, _, values in drawn)
    summary = "; ".join(f"{name}: highest {write(value)}" for name, value in highest)
    legend = _legend((name, colour, "") for name, colour, _ in drawn) if len(drawn) > 1 else ""
    ends = f"{clock(begin)} to {clock(end)}"
    return _figure(title, _svg(lines, f"{title}. {summary}"), f"highest {write(top)}", ends, legend)


def _stacked_columns(
    title: str, columns: Sequence[tuple[str, Sequence[float]]], names: Sequence[str], write: Write
) -> str:
    """A figure with a column for each (label, parts); the parts of all columns have the same names and colours."""
    if not columns:
        return _figure(title, "", "There are none.")
    top = max(sum(parts) for _, parts in columns) or 1.0
    width = WIDTH / max(len(columns), 20)
    drawn = []
    for place, (label, parts) in enumerate(columns):
        bottom = LOWEST
        rects = []
        for colour, part in enumerate(parts):
            height = part / top * (LOWEST - HIGHEST)
            bottom -= height
            if height:
                rects.append(
                    f'<rect class="k{colour}" x="{place * width:.2f}" y="{bottom:.2f}" width="{width * 0.86:.2f}" '
                    f'height="{height:.2f}"/>'
                )
        drawn.append(f"<g><title>{escape(f'{label}: {write(sum(parts))}')}</title>{''.join(rects)}</g>")
    used = [
        (name, colour, write(sum(parts[colour] for _, parts in columns) / len(columns)))
        for colour, name in enumerate(names)
        if any(parts[colour] for _, parts in columns)
    ]
    label = f"{title}. {len(columns)} columns; the highest is {write(top)}"
    ends = f"{columns[0][0]} to {columns[-1][0]}"
    return _figure(title, _svg("".join(drawn), label), f"highest {write(top)}", ends, _legend(used))


def _bars(title: str, counts: Mapping[str, int], note: str) -> str:
    """A figure with a horizontal bar for each name, and its share of all."""
    total = sum(counts.values())
    if not total:
        return _figure(title, "", "There are none.")
    top = max(counts.values())
    lines = "".join(
        f'<tr role="row"><th role="rowheader" scope="row">{escape(name)}</th>'
        f'<td role="cell" class="n">{rows:,}</td><td role="cell" class="n">{100 * rows / total:.1f} %</td>'
        f'<td role="cell" class="bar"><svg viewBox="0 0 100 10" preserveAspectRatio="none" aria-hidden="true">'
        f'<rect class="k3" width="{100 * rows / top:.2f}" height="10"/></svg></td></tr>'
        for name, rows in counts.items()
    )
    table = (
        f'<table role="table" class="bars" aria-label="{escape(title)}"><tbody role="rowgroup">{lines}</tbody></table>'
    )
    return f"<figure><figcaption>{escape(title)}</figcaption>{table}<p class='note'>{escape(note)}</p></figure>"


def _figure(title: str, svg: str, top: str, ends: str = "", legend: str = "") -> str:
    """A figure with its title, the greatest value above the picture and the ends of the time below it."""
    below = f'<p class="note">{escape(ends)}</p>' if ends else ""
    return (
        f'<figure class="chart"><figcaption>{escape(title)}</figcaption><p class="note">{escape(top)}</p>'
        f"{svg}{below}{legend}</figure>"
    )


def _svg(content: str, label: str) -> str:
    return (
        f'<svg role="img" aria-label="{escape(label)}" viewBox="0 0 {WIDTH:.0f} {HEIGHT:.0f}" '
        f'preserveAspectRatio="none"><line x1="0" y1="{LOWEST}" x2="{WIDTH}" y2="{LOWEST}"/>{content}</svg>'
    )


def _legend(entries: Iterable[tuple[str, int, str]]) -> str:
    items = "".join(
        f'<li><svg viewBox="0 0 10 10" aria-hidden="true"><rect class="k{colour}" width="10" height="10"/></svg>'
        f"{escape(name)}{f' <b>{escape(value)}</b>' if value else ''}</li>"
        for name, colour, value in entries
    )
    return f'<ul class="legend">{items}</ul>'
