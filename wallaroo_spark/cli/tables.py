"""The table of a receiver's slots, which ``receive`` and ``status`` show."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from rich.table import Table

from wallaroo_spark.cli.common import count, size

_FAULT = "fault:"
_STYLES = {
    "serving": "green",
    "waiting": "yellow",
    "starting": "yellow",
    "down": "red",
    "vacant": "red",
    "unreachable": "red",
}


def slots_table(slots: Iterable[Mapping[str, Any]]) -> Table:
    """Return a table with a row for each slot, from ``workers`` of :meth:`Receiver.status`."""
    table = Table(box=None, pad_edge=False, header_style="bold", show_edge=False, padding=(0, 1))
    table.add_column("slot", no_wrap=True)
    table.add_column("state", no_wrap=True)
    table.add_column("address", overflow="fold", min_width=12)
    for name in ("sessions", "streams", "messages", "buffered", "pressure", "faults"):
        table.add_column(name, justify="right", no_wrap=True)
    for slot in slots:
        table.add_row(*_row(slot))
    return table


def faults(worker: Mapping[str, Any]) -> int:
    """Return how often connectors have violated the protocol on a worker."""
    counts = worker.get("counts", {})
    return sum(number for name, number in counts.items() if name.startswith(_FAULT))


def slot_note(slot: Mapping[str, Any]) -> str:
    """Return a sentence about the last error of a slot's job; empty when there was none."""
    if slot.get("last_error"):
        return f"slot {slot['slot']}: submitted {slot.get('submissions', 0)} times; last error: {slot['last_error']}"
    return ""


def _fill(used: int, budget: int) -> str:
    percent = 100 * used / budget
    return f"{'<1' if 0 < percent < 1 else f'{percent:.0f}'}% of {size(budget)}"


def _row(slot: Mapping[str, Any]) -> list[str]:
    state = str(slot["state"])
    shown = f"[{_STYLES.get(state, '')}]{state}[/]" if state in _STYLES else state
    worker = slot.get("worker")
    if not worker:
        return [str(slot["slot"]), shown, str(slot.get("connect", "")), *[""] * 6]
    return [
        str(slot["slot"]),
        shown,
        str(worker["connect"]),
        count(worker["sessions"]),
        count(worker["streams"]),
        count(worker["counts"].get("messages", 0)),
        _fill(worker["buffered_bytes"], worker["budget_bytes"]),
        str(worker["pressure"]),
        count(faults(worker)),
    ]
