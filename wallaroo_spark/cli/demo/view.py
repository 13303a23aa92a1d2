"""A connector process of the demo: it sends the lines of its files and reports its progress on standard output.

It is started as ``python -m wallaroo_spark.cli.demo.view INSTANCE REVISION FILE…``. The registry's URL and the
cookie come from environment variables.

The demo's connector processes, and the progress that each of them reports.

The output of the demo while it runs: a live display on a terminal, otherwise a line at intervals.
"""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from rich.console import Console, Group
from rich.live import Live
from rich.panel import Panel
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from wallaroo_spark.connector import Connector, FeedProgress, FeedResult, Lines
from wallaroo_spark.observe.receiver import ReceiverStatus

REGISTRY_VARIABLE = "WALLAROO_DEMO_REGISTRY"
COOKIE_VARIABLE = "WALLAROO_DEMO_COOKIE"


def tell(progress: FeedProgress) -> None:
    """Print the progress as one line of JSON, for the demo's view."""
    line = {"file": progress.name, "messages": progress.messages, "acknowledged": progress.acknowledged}
    print(json.dumps(line), flush=True)


async def send(instance: str, revision: str, files: list[str]) -> None:
    """Send the lines of all files, each file as a stream, and wait until all are acknowledged."""

    async def feed(connector: Connector, file: str) -> FeedResult:
        return await connector.feed(Lines(file), name=file, progress=tell)

    async with Connector(
        "demo",
        instance=instance,
        revision=revision,
        registry=f"env:{REGISTRY_VARIABLE}",
        cookie=f"env:{COOKIE_VARIABLE}",
    ) as connector:
        results = await asyncio.gather(*(feed(connector, file) for file in files))
        for file, result in zip(files, results, strict=True):
            last = {"file": file, "messages": result.messages, "acknowledged": result.acknowledged, "done": True}
            print(json.dumps(last), flush=True)


if __name__ == "__main__":
    assert REGISTRY_VARIABLE in os.environ
    asyncio.run(send(sys.argv[1], sys.argv[2], sys.argv[3:]))


CONNECTORS = 4
_REVISIONS = ("draft-be", "draft-le", "v3", "draft-be")
_STOP_SECONDS = 5.0


@dataclass
class Sender:
    """One connector process and its progress."""

    instance: str
    """The connector's instance name."""
    revision: str
    """The revision of the protocol that it speaks."""
    files: list[str]
    """The paths of its files, which are also the names of its streams."""
    process: subprocess.Popen[str] | None = None
    """The process; None before it is started."""
    messages: dict[str, int] = field(default_factory=dict)
    """Messages sent, by file."""
    acknowledged: dict[str, int] = field(default_factory=dict)
    """The last acknowledged reference (a byte offset), by file."""
    finished: bool = False
    """Whether the process has ended."""

    @property
    def sent(self) -> int:
        """Messages sent so far, each counted once."""
        return sum(self.messages.values())

    def take(self, line: str) -> None:
        """Record a line of progress from the connector."""
        report = json.loads(line)
        self.messages[report["file"]] = report["messages"]
        if report["acknowledged"] is not None:
            self.acknowledged[report["file"]] = report["acknowledged"]


def plan_senders(files: Sequence[Path], names: Sequence[str] | None = None) -> list[Sender]:
    """Distribute the files over four connectors. ``names`` are their instance names, if there are any."""
    groups = [[str(path) for path in files[number::CONNECTORS]] for number in range(CONNECTORS)]
    return [
        Sender(names[number] if names else f"connector-{number + 1}", _REVISIONS[number], group)
        for number, group in enumerate(groups)
        if group
    ]


class Senders:
    """The running connectors; a context manager that leaves none behind."""

    def __init__(self, senders: list[Sender], registry: str, cookie: str, log: Path) -> None:
        self.senders = senders
        self._environment = {**os.environ, REGISTRY_VARIABLE: registry, COOKIE_VARIABLE: cookie}
        self._log_path = log

    def __enter__(self) -> Senders:
        with self._log_path.open("a") as log:
            for sender in self.senders:
                command = [sys.executable, "-m", connector_module(), sender.instance, sender.revision, *sender.files]
                sender.process = subprocess.Popen(
                    command, stdout=subprocess.PIPE, stderr=log, text=True, env=self._environment
                )
                threading.Thread(target=self._listen, args=(sender,), daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        for sender in self.senders:
            if sender.process is not None and sender.process.poll() is None:
                sender.process.terminate()
        for sender in self.senders:
            if sender.process is not None:
                try:
                    sender.process.wait(_STOP_SECONDS)
                except subprocess.TimeoutExpired:
                    sender.process.kill()

    def _listen(self, sender: Sender) -> None:
        assert sender.process is not None
        assert sender.process.stdout is not None
        for line in sender.process.stdout:
            sender.take(line)
        sender.process.wait()
        sender.finished = True

    @property
    def finished(self) -> bool:
        """Whether all have ended."""
        return all(sender.finished for sender in self.senders)

    def failed(self) -> list[str]:
        """The instances whose process ended with an error."""
        return [s.instance for s in self.senders if s.finished and s.process is not None and s.process.returncode]


def connector_module() -> str:
    """The module that a connector process runs."""
    return "wallaroo_spark.cli.demo.view"


_LINE_SECONDS = 5.0
_RATE_SECONDS = 3.0


@dataclass
class Scene:
    """The state of the demo at one moment."""

    senders: list[Sender]
    """The connectors with their progress."""
    totals: dict[str, int]
    """The number of messages in each file, by path."""
    status: ReceiverStatus
    """The newest snapshot."""
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
        for slot in scene.status.slots:
            held = f"{slot.memory_used / 2**20:7.1f} MiB buffered" if slot.answers else ""
            again = (slot.submissions or 0) - 1
            color = {"serving": "green", "starting": "yellow", "waiting": "yellow"}.get(slot.state, "red")
            workers.add_row(
                f"worker {slot.slot}",
                Text(slot.state, style=color),
                f"{slot.sessions} sessions",
                held,
                f"restarted {again}×" if again > 0 else "",
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
