"""The demo's connectors with their progress, and its output: live on a terminal, otherwise a line at intervals."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Console, Group
from rich.live import Live
from rich.panel import Panel
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from wallaroo_spark.cli.common import RecentRate
from wallaroo_spark.connector import Connector, FeedProgress, FeedResult, Lines
from wallaroo_spark.event_loop import BackgroundTasks, LoopThread
from wallaroo_spark.texts import count

if TYPE_CHECKING:
    from wallaroo_spark.observe.receiver import ReceiverStatus

CONNECTORS = 4
_REVISIONS = ("draft-be", "draft-le", "v3", "draft-be")
_LINE_SECONDS = 5.0
_RATE_SECONDS = 3.0


@dataclass
class Sender:
    """One connector and its progress."""

    instance: str
    """The connector's instance name."""
    revision: str
    """The revision of the protocol that it speaks."""
    files: list[str]
    """The paths of its files, which are also the names of its streams."""
    messages: dict[str, int] = field(default_factory=dict)
    """Messages sent, by file."""
    acknowledged: dict[str, int] = field(default_factory=dict)
    """The last acknowledged reference (a byte offset), by file."""
    finished: bool = False
    """Whether everything is sent and acknowledged, or it has given up."""

    @property
    def sent(self) -> int:
        """Messages sent so far, each counted once."""
        return sum(self.messages.values())

    async def send(self, registry: str, cookie: str) -> None:
        """Send the lines of all files, each file as a stream, and wait until all are acknowledged."""
        made = Connector("demo", instance=self.instance, revision=self.revision, registry=registry, cookie=cookie)
        try:
            async with made as connector, asyncio.TaskGroup() as feeding:
                for file in self.files:
                    feeding.create_task(self._feed(connector, file))
        finally:
            self.finished = True

    async def _feed(self, connector: Connector, file: str) -> None:
        def take(counts: FeedProgress | FeedResult) -> None:
            self.messages[file] = counts.messages
            if counts.acknowledged is not None:
                self.acknowledged[file] = counts.acknowledged

        take(await connector.feed(Lines(file), name=file, progress=take))


def plan_senders(files: Sequence[Path], names: Sequence[str] | None = None) -> list[Sender]:
    """Distribute the files over four connectors. ``names`` are their instance names, if there are any."""
    groups = [[str(path) for path in files[number::CONNECTORS]] for number in range(CONNECTORS)]
    return [
        Sender(names[number] if names else f"connector-{number + 1}", _REVISIONS[number], group)
        for number, group in enumerate(groups)
        if group
    ]


@contextlib.contextmanager
def sending(senders: Sequence[Sender], registry: str, cookie: str) -> Iterator[list[BaseException]]:
    """Run the connectors in a thread until the end of the block; yields the errors of those that have given up."""
    failures: list[BaseException] = []
    tasks = BackgroundTasks(lambda error: failures.append(error) if error else None)

    def start() -> None:
        for sender in senders:
            tasks.start(sender.send(registry, cookie))

    thread = LoopThread("demo-connectors")
    try:
        thread.read(start)
        yield failures
    finally:
        thread.stop()


@dataclass
class DemoPlan:
    """The settings of one run of the demo."""

    folder: Path
    """The folder of all files of the run."""
    senders: list[Sender]
    """The connectors."""
    totals: dict[str, int]
    """The number of messages in each file, by path."""
    made_orders: bool
    """Whether the demo generated the files, so that totals can be computed."""
    kill_worker: bool
    """Whether a worker is killed halfway."""
    notes: list[str] = field(default_factory=list)
    """Sentences about events such as a killed worker."""

    @property
    def expected(self) -> int:
        """Messages in all."""
        return sum(self.totals.values())

    @property
    def finished(self) -> bool:
        """Whether all connectors have ended."""
        return all(sender.finished for sender in self.senders)


class DemoView(contextlib.ExitStack):
    """Shows how far the run is."""

    def __init__(self, console: Console, plan: DemoPlan) -> None:
        super().__init__()
        self._console = console
        self._plan = plan
        self._live = self.enter_context(Live(console=console, refresh_per_second=8)) if console.is_terminal else None
        self._last_line = 0.0
        self._rate = RecentRate(_RATE_SECONDS)

    def show(self, status: ReceiverStatus, committed: int, batches: int, *, last: bool = False) -> None:
        """Draw this moment: the newest snapshot, the committed messages, and the batches with messages."""
        now = time.monotonic()
        rate = round(self._rate.add(now, committed))
        done = f"committed {committed:,} in {count(batches, 'batch', 'batches')}"
        if self._live is not None:
            self._live.update(self._picture(status, committed, done, rate))
        elif last or now - self._last_line > _LINE_SECONDS:
            self._last_line = now
            sent = sum(sender.sent for sender in self._plan.senders)
            line = f"sent {sent:,} of {self._plan.expected:,}, {done}, {rate:,} messages/s"
            self._console.print(line, highlight=False)

    def _picture(self, status: ReceiverStatus, committed: int, done: str, rate: int) -> Group:
        from wallaroo_spark.observe.faces.terminal import slots_view

        plan = self._plan
        connectors = Table.grid(padding=(0, 2))
        for sender in plan.senders:
            total = sum(plan.totals[file] for file in sender.files)
            state = "acknowledged" if sender.finished else ("sending" if sender.sent < total else "waits for a commit")
            bar = ProgressBar(total=max(total, 1), completed=sender.sent, width=28)
            connectors.add_row(sender.instance, sender.revision, bar, f"{sender.sent:>9,} of {total:,}", state)
        workers = slots_view(status, columns=("slot", "state", "sessions#", "buffered#", "subm.#"))
        batches = Table.grid(padding=(0, 2))
        bar = ProgressBar(total=max(plan.expected, 1), completed=committed, width=28)
        batches.add_row(bar, f"{plan.expected:,} messages in all, {done}")
        batches.add_row("", f"{rate:>9,} messages/s")
        return Group(
            Panel(connectors, title="connectors", title_align="left"),
            Panel(workers, title="workers, inside Spark", title_align="left"),
            Panel(batches, title="committed by the query", title_align="left"),
            *(Text(note, style="bold yellow") for note in plan.notes),
        )
