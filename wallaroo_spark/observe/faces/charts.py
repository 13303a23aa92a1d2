"""Curves, columns and bars as SVG inside HTML figures, drawn without a library. Pure.

The pictures stretch with the page, so every text is HTML beside the picture and not a part of it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from html import escape

from wallaroo_spark.texts import clock

Write = Callable[[float], str]

WIDTH, HEIGHT = 1000.0, 100.0
LOWEST, HIGHEST = 98.0, 4.0
"""The vertical positions of zero and of the greatest value."""


@dataclass(frozen=True)
class Curve:
    """One curve of a picture."""

    name: str
    """Its name in the legend."""
    colour: int
    """Its colour, 0 to 6: the classes ``k0`` to ``k6`` of the style sheet."""
    values: Sequence[float | None]
    """A value for each time; None where there is a gap."""


def curves(title: str, times: Sequence[float], drawn: Sequence[Curve], write: Write) -> str:
    """A figure with curves over time."""
    known = [value for curve in drawn for value in curve.values if value is not None]
    if len(times) < 2 or not known:
        return figure(title, "", "There are too few figures for a picture.")
    top = max(known) or 1.0
    span = (times[-1] - times[0]) or 1.0

    def path(values: Sequence[float | None]) -> str:
        steps, pen = [], "M"
        for time, value in zip(times, values, strict=True):
            if value is None:
                pen = "M"
                continue
            x, y = (time - times[0]) / span * WIDTH, LOWEST - value / top * (LOWEST - HIGHEST)
            steps.append(f"{pen}{x:.1f} {y:.1f}")
            pen = "L"
        return "".join(steps)

    lines = "".join(f'<path class="line l{curve.colour}" d="{path(curve.values)}"/>' for curve in drawn)
    summary = "; ".join(
        f"{curve.name}: highest {write(max((v for v in curve.values if v is not None), default=0.0))}"
        for curve in drawn
    )
    legend = _legend([(curve.name, curve.colour, "") for curve in drawn]) if len(drawn) > 1 else ""
    return figure(
        title,
        _svg(lines, f"{title}. {summary}"),
        f"highest {write(top)}",
        f"{clock(times[0])} to {clock(times[-1])}",
        legend,
    )


def stacked_columns(
    title: str, columns: Sequence[tuple[str, Sequence[float]]], names: Sequence[str], write: Write
) -> str:
    """A figure with a column for each (label, parts); the parts of all columns have the same names and colours."""
    if not columns:
        return figure(title, "", "There are none.")
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
    return figure(title, _svg("".join(drawn), label), f"highest {write(top)}", ends, _legend(used))


def bars(title: str, counts: Mapping[str, int], note: str) -> str:
    """A figure with a horizontal bar for each name, and its share of all."""
    total = sum(counts.values())
    if not total:
        return figure(title, "", "There are none.")
    top = max(counts.values())
    rows = "".join(
        f'<tr role="row"><th role="rowheader" scope="row">{escape(name)}</th>'
        f'<td role="cell" class="n">{count:,}</td><td role="cell" class="n">{100 * count / total:.1f} %</td>'
        f'<td role="cell" class="bar"><svg viewBox="0 0 100 10" preserveAspectRatio="none" aria-hidden="true">'
        f'<rect class="k3" width="{100 * count / top:.2f}" height="10"/></svg></td></tr>'
        for name, count in counts.items()
    )
    table = (
        f'<table role="table" class="bars" aria-label="{escape(title)}"><tbody role="rowgroup">{rows}</tbody></table>'
    )
    return f"<figure><figcaption>{escape(title)}</figcaption>{table}<p class='note'>{escape(note)}</p></figure>"


def figure(title: str, svg: str, top: str, ends: str = "", legend: str = "") -> str:
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


def _legend(entries: Sequence[tuple[str, int, str]]) -> str:
    items = "".join(
        f'<li><svg viewBox="0 0 10 10" aria-hidden="true"><rect class="k{colour}" width="10" height="10"/></svg>'
        f"{escape(name)}{f' <b>{escape(value)}</b>' if value else ''}</li>"
        for name, colour, value in entries
    )
    return f'<ul class="legend">{items}</ul>'
