"""The output of the demo while it runs: a live display on a terminal, otherwise a line at intervals."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import Any

from rich.console import Console, Group
from rich.live import Live
from rich.panel import Panel
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from wallaroo_spark.cli.demo.senders import Sender

_LINE_SECONDS = 5.0
_RATE_SECONDS = 3.0


@dataclass
class Scene:
    """The state of the demo at one moment."""

    senders: list[Sender]
    """The connectors with their progress."""
    totals: dict[str, int]
    """The number of messages in each file, by path."""
    status: dict[str, Any]
    """The receiver's status."""
    committed: int
    """Messages that Spark has committed."""
    batches: int
    """Committed batches with messages."""
    notes: list[str]
    """Sentences about events such as a killed worker."""

    @property
    def expected(self) -> int:
        """Messages in all."""
        return sum(self.totals.values())


@dataclass
class DemoView:
    """Shows each scene."""

    console: Console
    _live: Live | None = None
    _last_line: float = 0.0
    _rates: list[tuple[float, int]] = field(default_factory=list)

    def __enter__(self) -> DemoView:
        if self.console.is_terminal:
            self._live = Live(console=self.console, refresh_per_second=8, transient=False)
            self._live.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._live is not None:
            self._live.stop()

    def show(self, scene: Scene, *, last: bool = False) -> None:
        """Draw this moment."""
        now = time.monotonic()
        self._rates = [(at, n) for at, n in self._rates if now - at < _RATE_SECONDS] + [(now, scene.committed)]
        if self._live is not None:
            self._live.update(self._picture(scene))
        elif last or now - self._last_line > _LINE_SECONDS:
            self._last_line = now
            sent = sum(sender.sent for sender in scene.senders)
            self.console.print(
                f"sent {sent:,} of {scene.expected:,}, committed {_in_batches(scene)}, {self._rate():,} messages/s",
                highlight=False,
            )

    def _rate(self) -> int:
        (begin, before), (end, after) = self._rates[0], self._rates[-1]
        return round((after - before) / (end - begin)) if end > begin else 0

    def _picture(self, scene: Scene) -> Group:
        connectors = Table.grid(padding=(0, 2))
        for sender in scene.senders:
            total = sum(scene.totals[file] for file in sender.files)
            state = "acknowledged" if sender.finished else ("sending" if sender.sent < total else "waits for a commit")
            bar = ProgressBar(total=max(total, 1), completed=sender.sent, width=28)
            connectors.add_row(sender.instance, sender.revision, bar, f"{sender.sent:>9,} of {total:,}", state)
        workers = Table.grid(padding=(0, 2))
        for slot in scene.status["workers"]:
            worker = slot.get("worker", {})
            used = worker.get("buffered_bytes", 0) / 2**20
            held = f"{used:7.1f} MiB buffered" if worker else ""
            again = slot["submissions"] - 1
            color = {"serving": "green", "starting": "yellow", "waiting": "yellow"}.get(slot["state"], "red")
            workers.add_row(
                f"worker {slot['slot']}",
                Text(slot["state"], style=color),
                f"{worker.get('sessions', 0)} sessions",
                held,
                f"restarted {again}×" if again else "",
            )
        batches = Table.grid(padding=(0, 2))
        bar = ProgressBar(total=max(scene.expected, 1), completed=scene.committed, width=28)
        batches.add_row(bar, f"{scene.expected:,} messages in all, committed {_in_batches(scene)}")
        batches.add_row("", f"{self._rate():>9,} messages/s")
        return Group(
            Panel(connectors, title="connectors", title_align="left"),
            Panel(workers, title="workers, inside Spark", title_align="left"),
            Panel(batches, title="committed by the query", title_align="left"),
            *(Text(note, style="bold yellow") for note in scene.notes),
        )


def _in_batches(scene: Scene) -> str:
    return f"{scene.committed:,} in {scene.batches} {'batch' if scene.batches == 1 else 'batches'}"
