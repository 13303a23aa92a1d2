"""The tables of ``status``, ``streams`` and ``top``, from the model of a receiver's status."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from rich.table import Table
from rich.text import Text

from wallaroo_spark.cli.common import count, size
from wallaroo_spark.references import Reference
from wallaroo_spark.status import (
    Cause,
    InstanceStatus,
    Rate,
    Rates,
    ReceiverStatus,
    SlotStatus,
    StreamStatus,
)
from wallaroo_spark.status.cause import seconds_text

_STYLES = {
    "serving": "green",
    "streaming": "green",
    "waiting": "yellow",
    "starting": "yellow",
    "stopping": "yellow",
    "resending": "yellow",
    "gone": "yellow",
    "left": "yellow",
    "frozen": "red",
    "lost": "red",
    "unreachable": "red",
    "vacant": "red",
}
_NO_RATE = Rate()


def header(status: ReceiverStatus, rates: Rates | None = None) -> list[Text]:
    """The lines above the tables: the receiver, its cause, and its query."""
    driver = status.driver or ("not known" if status.registry_error else "none")
    lines = [Text(f"Receiver {status.name!r}, driver {driver}"), cause_line(status.cause)]
    if status.cause.cure:
        lines.append(Text(f"  way out: {status.cause.cure}", style="dim"))
    if status.running:
        lines.append(Text(query_line(status, rates)))
    return lines


def cause_line(cause: Cause) -> Text:
    """The sentence of a cause with its code; red when something is wrong."""
    style = "green" if cause.code == "flowing" else ("" if cause.healthy else "bold red")
    return Text(f"{cause.sentence} [{cause.code}]", style=style)


def query_line(status: ReceiverStatus, rates: Rates | None = None) -> str:
    """The query, the batch, the rates and the lag in one line."""
    query, totals = status.query, status.totals
    parts = [f"query {query.state}"]
    if query.trigger:
        parts[0] += f" ({query.trigger})"
    if query.committed_batch is not None:
        parts.append(f"batch {query.committed_batch} committed")
    if query.batch is not None and query.since is not None:
        parts.append(f"batch {query.batch} {query.phase} for {seconds_text(max(0.0, status.time - query.since))}")
    if rates is not None and rates.seconds:
        parts.append(f"{rates.total.rows_in:,.0f} rows/s in, {rates.total.rows_out:,.0f} out")
    elif query.processed_rate:
        parts.append(f"last batch: {query.input_rate:,.0f} rows/s in, processed at {query.processed_rate:,.0f}/s")
    parts.append(f"{totals.rows:,} rows held")
    if totals.lag_rows is not None:
        parts.append(f"lag {totals.lag_rows:,} rows")
    if totals.ack_age is not None:
        parts.append(f"oldest unacknowledged row {seconds_text(totals.ack_age)}")
    return " · ".join(parts)


def _table(*columns: str, right: Iterable[str] = ()) -> Table:
    table = Table(box=None, pad_edge=False, header_style="bold", show_edge=False, padding=(0, 1))
    numbers = set(right)
    for name in columns:
        folds = name in ("address", "where", "stream", "waits for")
        table.add_column(
            name,
            justify="right" if name in numbers else "left",
            no_wrap=not folds,
            overflow="fold",
            min_width=10 if folds else None,
        )
    return table


def slots_view(status: ReceiverStatus, rates: Rates | None = None, *, sentences: bool = False) -> Table:
    """One row for each slot."""
    numbers = ("sessions", "streams", "rows/s", "credits", "held", "ack age", "buffered", "faults", "died", "subm.")
    more = ["waits for"] if sentences else []
    table = _table("slot", "state", "address", "where", *numbers, "pressure", *more, right=numbers)
    for slot in status.slots:
        table.add_row(*_slot(slot, rates), *([_short(slot.cause)] if sentences else []))
    return table


def _slot(slot: SlotStatus, rates: Rates | None) -> list[Any]:
    where = "/".join(part for part in (slot.host, slot.executor) if part)
    known = [str(slot.slot), _state(slot.state), slot.address, where]
    jobs = [str(slot.died), "" if slot.submissions is None else str(slot.submissions)]
    if not slot.answers:
        return [*known, *[""] * 8, *jobs, ""]
    faults = sum(number for name, number in slot.counts.items() if name.startswith("fault:"))
    return [
        *known,
        count(slot.sessions),
        count(slot.streams),
        _rate(rates.slots.get(slot.slot) if rates else None),
        count(slot.credits),
        count(slot.rows),
        _age(slot.ack_age),
        _fill(slot.memory_used, slot.memory_budget),
        count(faults),
        *jobs,
        slot.pressure,
    ]


def instances_view(status: ReceiverStatus, rates: Rates | None = None, *, most: int = 20) -> Table:
    """One row for each connector instance."""
    numbers = ("rows/s", "credits", "held", "ack age", "streams", "silent for")
    table = _table("instance", "slot", "state", "session", *numbers, "waits for", right=numbers)
    for one in status.instances[:most]:
        table.add_row(*_instance(status, one, rates))
    return table


def _instance(status: ReceiverStatus, one: InstanceStatus, rates: Rates | None) -> list[Any]:
    session = seconds_text(max(0.0, status.time - one.since)) if one.since is not None else ""
    return [
        one.name,
        str(one.slot),
        _state("paused" if one.paused else one.state),
        f"{session} {one.revision}".strip(),
        _rate(rates.instances.get((one.slot, one.name)) if rates else None),
        count(one.credits),
        count(one.rows),
        _age(one.ack_age),
        count(one.streams),
        _age(one.last_frame_age),
        _short(one.cause),
    ]


def streams_view(
    status: ReceiverStatus, streams: Iterable[StreamStatus], rates: Rates | None = None, *, sentences: bool = True
) -> Table:
    """One row for each of these streams."""
    numbers = ("rows/s", "held", "lag", "ack age")
    more = ["waits for"] if sentences else []
    table = _table("instance", "stream", "state", *numbers, "received", "planned", "committed", *more, right=numbers)
    for one in streams:
        table.add_row(
            one.instance,
            one.title,
            _state(one.state),
            _rate(rates.streams.get((one.slot, one.scope, one.stream_id)) if rates else None),
            count(one.rows),
            count(one.lag_rows),
            _age(one.ack_age),
            *map(_reference, (one.received, one.planned, one.committed)),
            *([_short(one.cause)] if sentences else []),
        )
    return table


def notes(status: ReceiverStatus) -> list[Text]:
    """Deaths with their causes, refused connections, and warnings."""
    found = [Text(f"Warning: {warning}", style="yellow") for warning in status.warnings]
    for slot in status.slots:
        for death in slot.deaths[-2:]:
            ago = seconds_text(max(0.0, status.time - death.at))
            why = death.error or "it ended without an error"
            found.append(Text(f"slot {slot.slot}: submission {death.submission} died {ago} ago: {why}", style="yellow"))
        if slot.error:
            found.append(Text(f"slot {slot.slot}: {slot.error}; its inner port must be reachable from here"))
        for refusal in slot.refusals[-2:]:
            ago = seconds_text(max(0.0, status.time - refusal.at))
            who = " ".join(part for part in (refusal.instance, refusal.peer) if part)
            found.append(Text(f"slot {slot.slot}: {who} was refused {ago} ago ({refusal.kind}): {refusal.reason}"))
    return found


def _state(state: str) -> Text:
    return Text(state, style=_STYLES.get(state, ""))


def _short(cause: Cause) -> Text:
    """A sentence without its subject, which stands in the same row."""
    text = cause.sentence.partition(": ")[2] or cause.sentence
    return Text(text, style="" if cause.healthy else "red")


def _rate(rate: Rate | None) -> str:
    return "" if rate is None else f"{(rate or _NO_RATE).rows_in:,.0f}"


def _age(seconds: float | None) -> str:
    return "" if seconds is None else seconds_text(seconds)


def _reference(reference: Reference | None) -> str:
    return "" if reference is None else str(reference)


def _fill(used: int, budget: int) -> str:
    percent = 100 * used / budget if budget else 0.0
    return f"{'<1' if 0 < percent < 1 else f'{percent:.0f}'}% of {size(budget)}"


def receivers_view(receivers: Iterable[ReceiverStatus]) -> Table:
    """One row for each receiver."""
    numbers = ("slots", "sessions", "streams", "held", "ack age", "died")
    table = _table("receiver", "query", *numbers, "driver", "waits for", right=numbers)
    for one in receivers:
        totals = one.totals
        table.add_row(
            one.name,
            one.query.state if one.running else "",
            f"{totals.serving}/{totals.slots}" if one.running else "",
            count(totals.sessions),
            count(totals.streams),
            count(totals.rows),
            _age(totals.ack_age),
            count(totals.died),
            one.driver or "",
            _short(one.cause),
        )
    return table
