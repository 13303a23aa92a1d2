"""The output of ``receive``: a live table on a terminal, otherwise a line at intervals."""

from __future__ import annotations

import contextlib
import functools
import json
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, Self

import click
from rich.console import Console, Group
from rich.live import Live
from rich.text import Text

from wallaroo_spark.cli.common import RecentRate, logs_above
from wallaroo_spark.cli.receive.config import ReceiveConfig
from wallaroo_spark.observe.faces.terminal import BRIEF, slots_view
from wallaroo_spark.observe.receiver import DoorStatus, ReceiverStatus, SlotStatus
from wallaroo_spark.texts import count, size

RATE_SECONDS = 5.0
"""Seconds over which the displayed rate is averaged. A choice: a few batches."""
IDLE_FACTOR = 6
"""A line that equals the last one is printed only every so many intervals. A choice: once a minute by default."""


@dataclass(frozen=True)
class QuerySnapshot:
    """The state of a receiver and its query at one moment, for display."""

    status: ReceiverStatus
    """The newest snapshot."""
    rows: int
    """Rows that the query has read."""
    batches: int
    """Batches that the query has committed."""
    seconds: float
    """Seconds since the query started."""


class PlainView(contextlib.ExitStack):
    """Shows a person a receiver and its query: a line at the start, every ``every`` seconds, and at the end.

    With ``as_json`` each change is a line of JSON, which has its ``event``.
    """

    def __init__(self, every: float, as_json: bool = False, echo: Callable[[str], None] = click.echo) -> None:
        super().__init__()
        self._every = every
        self._as_json = as_json
        self._echo = echo
        self._last = time.monotonic()
        self._last_line = ""

    def starting(self, config: ReceiveConfig) -> None:
        """Spark and the workers are being started."""
        workers = config.options.workers
        text = f"Starting Spark and {count(workers, 'worker')} of receiver {config.receiver!r} …"
        self._event("starting", text, receiver=config.receiver, workers=workers)

    def serving(self, config: ReceiveConfig) -> None:
        """The workers serve, and the query is being started: only then do they accept connectors."""
        workers = config.options.workers
        text = f"{count(workers, 'worker')} of receiver {config.receiver!r} started; now its query …"
        self._event("serving", text, receiver=config.receiver, workers=workers)

    def listening(
        self,
        config: ReceiveConfig,
        addresses: list[str],
        registry: str,
        page: str,
        ui: str,
        doors: Iterable[DoorStatus] = (),
    ) -> None:
        """Connectors may connect, and clients of the doors.

        ``registry`` is a URL to show, which may contain a password, ``page`` the URL of the status page, and ``ui``
        that of Spark's UI; empty: there is none to show.
        """
        by_door: dict[str, list[str]] = {}
        for one in doors:
            by_door.setdefault(one.door, []).append(one.address)
        shown = {f"Door {name}": ", ".join(places) for name, places in by_door.items()}
        shown |= {"Status page": page, "Spark's UI": ui, "Registry": registry}
        urls = [f"{name}: {url}" for name, url in shown.items() if url]
        values = {name: url for name, url in {"registry": registry, "ui": ui, "doors": by_door}.items() if url}
        sink = {"format": config.sink.format, "path": config.sink.path}
        text = "\n".join([listening(config, addresses), *urls])
        self._event("listening", text, receiver=config.receiver, addresses=addresses, sink=sink, page=page, **values)

    def show(self, snapshot: QuerySnapshot) -> None:
        """A new state, about once a second; it is printed if the last line is old enough."""
        line = in_one_line(snapshot)
        repeats = line == self._last_line and not self._as_json
        pause = self._every * (IDLE_FACTOR if repeats else 1)
        if time.monotonic() - self._last < pause:
            return
        self._last, self._last_line = time.monotonic(), line
        slots, totals = snapshot.status.slots, snapshot.status.totals
        self._event(
            "progress",
            f"{time.strftime('%H:%M:%S')} {line}",
            committed_batch=snapshot.status.query.committed_batch,
            rows=snapshot.rows,
            batches=snapshot.batches,
            seconds=round(snapshot.seconds, 1),
            workers=sum(slot.answers for slot in slots),
            slots=len(slots),
            sessions=totals.sessions,
            buffered_bytes=totals.bytes,
            faults=totals.faults,
        )

    def stopping(self, why: str) -> None:
        """The query is being stopped."""
        self._event("stopping", f"Stopping ({why}) …", reason=why)

    def ended(self, snapshot: QuerySnapshot) -> None:
        """The query and the workers have ended without an error."""
        seconds = round(snapshot.seconds, 1)
        self._event("ended", ended(snapshot), rows=snapshot.rows, batches=snapshot.batches, seconds=seconds)

    def _event(self, event: str, text: str, **values: Any) -> None:
        """Print a change as lines of text; ``values`` are for programs."""
        for line in [json.dumps({"event": event, **values})] if self._as_json else text.splitlines():
            self._echo(line)


class LiveView(PlainView):
    """Shows a table at the bottom of the terminal. ``spark_log`` is the path of Spark's log, which it prints."""

    def __init__(self, console: Console, spark_log: str) -> None:
        echo = functools.partial(console.print, markup=False, highlight=False, soft_wrap=True)
        super().__init__(0.0, echo=echo)
        self._console = console
        self._spark_log = spark_log
        self._live = Live(console=console, auto_refresh=False, transient=True)
        self._rate = RecentRate(RATE_SECONDS)

    def __enter__(self) -> Self:
        self.enter_context(logs_above(self._console))
        self.enter_context(self._live)
        return self

    def show(self, snapshot: QuerySnapshot) -> None:
        """Update the table."""
        rate = self._rate.add(snapshot.seconds, snapshot.rows)
        head = Text(f"{_progress(snapshot)} · {count(round(rate))} rows/s", style="bold")
        notes = [Text(note, style="yellow") for note in map(_slot_note, snapshot.status.slots) if note]
        self._update(Group(Text(), head, slots_view(snapshot.status, columns=BRIEF), *notes))

    def _event(self, event: str, text: str, **values: Any) -> None:
        """Show the start and the stop in the table's place; print the rest above it, where it stays."""
        if event in ("starting", "stopping"):
            self._update(Text(text))
            return
        if event == "ended":
            self._live.stop()
        super()._event(event, text, **values)
        if event == "listening" and self._spark_log:
            self._echo(f"Spark's own messages are in {self._spark_log}.")

    def _update(self, shown: Any) -> None:
        self._live.update(shown, refresh=True)


def listening(config: ReceiveConfig, addresses: list[str]) -> str:
    """Return the sentence that is printed when connectors may connect."""
    where = f" at {config.sink.path}" if config.sink.path else ""
    end = "it ends when all is read" if config.trigger.get("availableNow") else "Ctrl-C stops it"
    workers = ", ".join(addresses)
    return f"Receiver {config.receiver!r} listens on {workers}; rows go to {config.sink.format}{where}; {end}."


def in_one_line(snapshot: QuerySnapshot) -> str:
    """Return a snapshot as one line: committed batch and rows, workers, sessions, buffered bytes and faults."""
    slots, totals = snapshot.status.slots, snapshot.status.totals
    parts = [
        _progress(snapshot),
        f"{sum(slot.answers for slot in slots)} of {count(len(slots), 'worker')}",
        count(totals.sessions, "session"),
        f"{size(totals.bytes)} buffered",
        count(totals.faults, "fault"),
    ]
    return " · ".join(parts)


def ended(snapshot: QuerySnapshot) -> str:
    """Return the last sentence of a run that ended in good order."""
    rows, batches = count(snapshot.rows, "row"), count(snapshot.batches, "batch", "batches")
    return f"Ended in good order after {snapshot.seconds:.0f} s: {rows} in {batches}; the checkpoint holds the place."


def _slot_note(slot: SlotStatus) -> str:
    """A sentence about the last error of a slot's job; empty when there was none."""
    if not slot.last_error:
        return ""
    return f"slot {slot.slot}: submitted {slot.submissions or 0} times; last error: {slot.last_error}"


def _progress(snapshot: QuerySnapshot) -> str:
    batch = snapshot.status.query.committed_batch
    where = "no batch committed" if batch is None or batch < 0 else f"batch {batch} committed"
    return f"{where} · {count(snapshot.rows, 'row')} since the start"
