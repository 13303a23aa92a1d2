"""The output of ``receive``: a table that is kept up to date on a terminal, a line now and then elsewhere."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from types import TracebackType
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
"""The rate shown is that of about so long."""
IDLE_FACTOR = 6
"""A line that is equal to the last one is printed this many times less often."""


class PlainView:
    """Lines on standard output: what has started, a line every ``every`` seconds, and what has ended."""

    def __init__(self, every: float, echo: Callable[[str], None] = click.echo) -> None:
        self._every = every
        self._echo = echo
        self._last = time.monotonic()
        self._said = ""

    def __enter__(self) -> Self:
        set_up_logging()
        return self

    def __exit__(self, *_: object) -> None:
        """Nothing to put back."""

    def starting(self, config: ReceiveConfig) -> None:
        """Say what takes so long."""
        self._echo(f"Starting Spark and {count(config.options.workers, 'worker')} of receiver {config.receiver!r} …")

    def listening(self, config: ReceiveConfig, addresses: list[str], registry: str) -> None:
        """Say where connectors find the workers, and where the rows go."""
        self._echo(listening(config, addresses))
        if registry:
            self._echo(f"Registry: {registry}")

    def show(self, snapshot: QuerySnapshot) -> None:
        """A line, when it is time for one."""
        line = in_one_line(snapshot)
        pause = self._every * (IDLE_FACTOR if line == self._said else 1)
        if time.monotonic() - self._last >= pause:
            self._last, self._said = time.monotonic(), line
            self._echo(f"{time.strftime('%H:%M:%S')} {line}")

    def stopping(self, why: str) -> None:
        """Say that it was understood."""
        self._echo(f"Stopping ({why}) …")

    def ended(self, snapshot: QuerySnapshot) -> None:
        """Say what came of it."""
        self._echo(ended(snapshot))


class LiveView:
    """A table at the foot of the terminal; ``spark_log`` is where Spark's own messages go."""

    def __init__(self, console: Console, spark_log: str) -> None:
        self._console = console
        self._spark_log = spark_log
        self._live = Live(console=console, auto_refresh=False, transient=True)
        self._rate = _Rate()

    def __enter__(self) -> Self:
        set_up_logging(RichHandler(console=self._console, show_path=False, log_time_format="%H:%M:%S"))
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._live.stop()
        logging.getLogger("wallaroo_spark").handlers.clear()

    def starting(self, config: ReceiveConfig) -> None:
        """Show what the start waits for, until there is progress to show."""
        workers = count(config.options.workers, "worker")
        self._live.start()
        self._update(Text(f"Starting Spark and {workers} of receiver {config.receiver!r} …"))

    def listening(self, config: ReceiveConfig, addresses: list[str], registry: str) -> None:
        """Say where connectors find the workers, and where the rows go; this stays on the screen."""
        self._print(listening(config, addresses))
        if registry:
            self._print(f"Registry: {registry}")
        if self._spark_log:
            self._print(f"Spark's own messages are in {self._spark_log}.")

    def show(self, snapshot: QuerySnapshot) -> None:
        """Bring the table up to date."""
        self._rate.add(snapshot)
        head = Text(f"{_progress(snapshot)} · {count(round(self._rate.value))} rows/s", style="bold")
        notes = [Text(note, style="yellow") for note in map(slot_note, snapshot.status["workers"]) if note]
        self._update(Group(Text(), head, slots_table(snapshot.status["workers"]), *notes))

    def stopping(self, why: str) -> None:
        """Say that it was understood."""
        self._update(Text(f"Stopping ({why}) …"))

    def ended(self, snapshot: QuerySnapshot) -> None:
        """Say what came of it."""
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
        """Take another count in."""
        self._seen.append((snapshot.seconds, snapshot.rows))
        while len(self._seen) > 2 and self._seen[-1][0] - self._seen[0][0] > RATE_SECONDS:
            self._seen.pop(0)
        (first, before), (last, now) = self._seen[0], self._seen[-1]
        self.value = (now - before) / (last - first) if last > first else 0.0


def listening(config: ReceiveConfig, addresses: list[str]) -> str:
    """The sentence for the moment from which connectors may come."""
    where = f" at {config.sink.path}" if config.sink.path else ""
    end = "it ends when all is read" if config.trigger.get("availableNow") else "Ctrl-C stops it"
    workers = ", ".join(addresses)
    return f"Receiver {config.receiver!r} listens on {workers}; rows go to {config.sink.format}{where}; {end}."


def in_one_line(snapshot: QuerySnapshot) -> str:
    """A snapshot for a log: how far the query is, who is connected, how full the buffers are, what went wrong."""
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
    """The last sentence of a run that ended in good order."""
    rows, batches = count(snapshot.rows, "row"), count(snapshot.batches, "batch", "batches")
    return f"Ended in good order after {snapshot.seconds:.0f} s: {rows} in {batches}; the checkpoint holds the place."


def _progress(snapshot: QuerySnapshot) -> str:
    batch = snapshot.status["query"]["committed_batch"]
    where = "no batch committed" if batch is None or batch < 0 else f"batch {batch} committed"
    return f"{where} · {count(snapshot.rows, 'row')}"
