"""The output of ``receive``: a live table on a terminal, otherwise a line at intervals."""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Callable
from typing import Any, Self

import click
from rich.console import Console, Group
from rich.live import Live
from rich.logging import RichHandler
from rich.text import Text

from wallaroo_spark.cli.common import count, set_up_logging, size
from wallaroo_spark.cli.receive.config import ReceiveConfig
from wallaroo_spark.cli.receive.running import QuerySnapshot
from wallaroo_spark.cli.tables import faults, slot_note, slots_table

RATE_SECONDS = 5.0
"""Seconds over which the displayed rate is averaged. A choice: a few batches."""
IDLE_FACTOR = 6
"""A line that equals the last one is printed only every so many intervals. A choice: once a minute by default."""


class PlainView:
    """Prints a line at the start, every ``every`` seconds, and at the end."""

    def __init__(self, every: float, echo: Callable[[str], None] = click.echo) -> None:
        self._every = every
        self._echo = echo
        self._last = time.monotonic()
        self._last_line = ""

    def __enter__(self) -> Self:
        set_up_logging()
        return self

    def __exit__(self, *_: object) -> None:
        """Do nothing."""

    def starting(self, config: ReceiveConfig) -> None:
        """Print that Spark and the workers are starting."""
        self._echo(f"Starting Spark and {count(config.options.workers, 'worker')} of receiver {config.receiver!r} …")

    def listening(self, config: ReceiveConfig, addresses: list[str], registry: str, page: str) -> None:
        """Print the workers' addresses and the sink."""
        self._echo(listening(config, addresses))
        if page:
            self._echo(f"Status page: {page}")
        if registry:
            self._echo(f"Registry: {registry}")

    def show(self, snapshot: QuerySnapshot) -> None:
        """Print a line if the last one is old enough."""
        line = in_one_line(snapshot)
        pause = self._every * (IDLE_FACTOR if line == self._last_line else 1)
        if time.monotonic() - self._last >= pause:
            self._last, self._last_line = time.monotonic(), line
            self._echo(f"{time.strftime('%H:%M:%S')} {line}")

    def stopping(self, why: str) -> None:
        """Print that the query is being stopped."""
        self._echo(f"Stopping ({why}) …")

    def ended(self, snapshot: QuerySnapshot) -> None:
        """Print the final counts."""
        self._echo(ended(snapshot))


class JsonView:
    """Prints a line of JSON at the start, every ``every`` seconds, and at the end. Each line has its ``event``."""

    def __init__(self, every: float, echo: Callable[[str], None] = click.echo) -> None:
        self._every = every
        self._echo = echo
        self._last = time.monotonic()

    def __enter__(self) -> Self:
        set_up_logging()
        return self

    def __exit__(self, *_: object) -> None:
        """Do nothing."""

    def starting(self, config: ReceiveConfig) -> None:
        """Print that Spark and the workers are starting."""
        self._print("starting", receiver=config.receiver, workers=config.options.workers)

    def listening(self, config: ReceiveConfig, addresses: list[str], registry: str, page: str) -> None:
        """Print the workers' addresses and the sink."""
        sink = {"format": config.sink.format, "path": config.sink.path}
        shown = {"registry": registry} if registry else {}
        self._print("listening", receiver=config.receiver, addresses=addresses, sink=sink, page=page, **shown)

    def show(self, snapshot: QuerySnapshot) -> None:
        """Print a line if the last one is old enough."""
        if time.monotonic() - self._last < self._every:
            return
        self._last = time.monotonic()
        slots = snapshot.status["workers"]
        workers = [slot["worker"] for slot in slots if "worker" in slot]
        self._print(
            "progress",
            committed_batch=snapshot.status["query"]["committed_batch"],
            rows=snapshot.rows,
            batches=snapshot.batches,
            seconds=round(snapshot.seconds, 1),
            workers=len(workers),
            slots=len(slots),
            sessions=sum(worker["sessions"] for worker in workers),
            buffered_bytes=sum(worker["buffered_bytes"] for worker in workers),
            faults=sum(map(faults, workers)),
        )

    def stopping(self, why: str) -> None:
        """Print that the query is being stopped."""
        self._print("stopping", reason=why)

    def ended(self, snapshot: QuerySnapshot) -> None:
        """Print the final counts."""
        self._print("ended", rows=snapshot.rows, batches=snapshot.batches, seconds=round(snapshot.seconds, 1))

    def _print(self, event: str, **values: Any) -> None:
        self._echo(json.dumps({"event": event, **values}))


class LiveView:
    """Shows a table at the bottom of the terminal. ``spark_log`` is the path of Spark's log, which it prints."""

    def __init__(self, console: Console, spark_log: str) -> None:
        self._console = console
        self._spark_log = spark_log
        self._live = Live(console=console, auto_refresh=False, transient=True)
        self._rate = _Rate()

    def __enter__(self) -> Self:
        set_up_logging(RichHandler(console=self._console, show_path=False, log_time_format="%H:%M:%S"))
        return self

    def __exit__(self, *_: object) -> None:
        self._live.stop()
        logging.getLogger("wallaroo_spark").handlers.clear()

    def starting(self, config: ReceiveConfig) -> None:
        """Show that Spark and the workers are starting, until the first snapshot."""
        workers = count(config.options.workers, "worker")
        self._live.start()
        self._update(Text(f"Starting Spark and {workers} of receiver {config.receiver!r} …"))

    def listening(self, config: ReceiveConfig, addresses: list[str], registry: str, page: str) -> None:
        """Print the workers' addresses and the sink above the table, where they stay."""
        self._print(listening(config, addresses))
        if page:
            self._print(f"Status page: {page}")
        if registry:
            self._print(f"Registry: {registry}")
        if self._spark_log:
            self._print(f"Spark's own messages are in {self._spark_log}.")

    def show(self, snapshot: QuerySnapshot) -> None:
        """Update the table."""
        self._rate.add(snapshot)
        head = Text(f"{_progress(snapshot)} · {count(round(self._rate.value))} rows/s", style="bold")
        notes = [Text(note, style="yellow") for note in map(slot_note, snapshot.status["workers"]) if note]
        self._update(Group(Text(), head, slots_table(snapshot.status["workers"]), *notes))

    def stopping(self, why: str) -> None:
        """Show that the query is being stopped."""
        self._update(Text(f"Stopping ({why}) …"))

    def ended(self, snapshot: QuerySnapshot) -> None:
        """Remove the table and print the final counts."""
        self._live.stop()
        self._print(ended(snapshot))

    def _print(self, line: str) -> None:
        self._console.print(line, markup=False, highlight=False, soft_wrap=True)

    def _update(self, shown: Any) -> None:
        self._live.update(shown, refresh=True)


class _Rate:
    """Rows a second over the last few seconds."""

    def __init__(self) -> None:
        self.value = 0.0
        self._seen: list[tuple[float, int]] = []

    def add(self, snapshot: QuerySnapshot) -> None:
        """Add a snapshot."""
        self._seen.append((snapshot.seconds, snapshot.rows))
        while len(self._seen) > 2 and self._seen[-1][0] - self._seen[0][0] > RATE_SECONDS:
            self._seen.pop(0)
        (first, before), (last, now) = self._seen[0], self._seen[-1]
        self.value = (now - before) / (last - first) if last > first else 0.0


def listening(config: ReceiveConfig, addresses: list[str]) -> str:
    """Return the sentence that is printed when connectors may connect."""
    where = f" at {config.sink.path}" if config.sink.path else ""
    end = "it ends when all is read" if config.trigger.get("availableNow") else "Ctrl-C stops it"
    workers = ", ".join(addresses)
    return f"Receiver {config.receiver!r} listens on {workers}; rows go to {config.sink.format}{where}; {end}."


def in_one_line(snapshot: QuerySnapshot) -> str:
    """Return a snapshot as one line: committed batch and rows, workers, sessions, buffered bytes and faults."""
    slots = snapshot.status["workers"]
    workers = [slot["worker"] for slot in slots if "worker" in slot]
    buffered = sum(worker["buffered_bytes"] for worker in workers)
    parts = [
        _progress(snapshot),
        f"{len(workers)} of {count(len(slots), 'worker')}",
        count(sum(worker["sessions"] for worker in workers), "session"),
        f"{size(buffered)} buffered",
        count(sum(map(faults, workers)), "fault"),
    ]
    return " · ".join(parts)


def ended(snapshot: QuerySnapshot) -> str:
    """Return the last sentence of a run that ended in good order."""
    rows, batches = count(snapshot.rows, "row"), count(snapshot.batches, "batch", "batches")
    return f"Ended in good order after {snapshot.seconds:.0f} s: {rows} in {batches}; the checkpoint holds the place."


def _progress(snapshot: QuerySnapshot) -> str:
    batch = snapshot.status["query"]["committed_batch"]
    where = "no batch committed" if batch is None or batch < 0 else f"batch {batch} committed"
    return f"{where} · {count(snapshot.rows, 'row')}"
