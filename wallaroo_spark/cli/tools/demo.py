"""The verb: prepare, run, watch, reconcile, report; its connectors, and its output.

The output is live on a terminal, otherwise a line at intervals.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import secrets
import signal
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import click
from rich.console import Console, Group
from rich.live import Live
from rich.panel import Panel
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from wallaroo_spark.cli.common import RecentRate, exit_unless
from wallaroo_spark.cli.sessions import standard_error_to
from wallaroo_spark.cli.verbs import Json, verb
from wallaroo_spark.connector import Connector, FeedProgress, FeedResult, Lines
from wallaroo_spark.errors import ConfigurationError, WallarooError
from wallaroo_spark.event_loop import BackgroundTasks, LoopThread
from wallaroo_spark.texts import count

if TYPE_CHECKING:
    from wallaroo_spark.cli.tools.demo_job import CountingSink, Reconciliation
    from wallaroo_spark.observe.receiver import ReceiverStatus
    from wallaroo_spark.receiver import Receiver

WORKERS = 2
STALLED_SECONDS = 180.0
"""Seconds without progress after which the demo fails. A choice: much longer than Spark takes to restart a worker."""
KILL_BATCHES = 8
"""The least number of batches when a worker is to be killed. A choice: enough for a moment between two commits."""
_LOOK_SECONDS = 0.2
"""Pause between two updates of the display. A choice: five a second look continuous."""
CONNECTORS = 4
_REVISIONS = ("draft-be", "draft-le", "v3", "draft-be")
_LINE_SECONDS = 5.0
_RATE_SECONDS = 3.0


@verb()
def demo(
    files: Annotated[tuple[Path, ...], click.Path(exists=True, dir_okay=False, path_type=Path)] = (),
    *,
    messages: Annotated[int, click.IntRange(1)] = 200_000,
    kill_worker: bool = False,
    quic: bool = False,
    output: Annotated[Path, click.Path(file_okay=False, path_type=Path)] = Path("demo-output"),
    as_json: Json = False,
) -> None:
    """Four connectors send orders to two workers inside Spark; every one must arrive exactly once.

    Without FILES, orders are generated, and their totals computed for each minute. With FILES, the lines of each file
    are sent as a stream. Afterwards the Parquet files are compared with the sent files byte for byte. The exit status
    is 0 only if no message was lost, repeated or changed.

    Options:
        --messages: Orders to generate.
        --kill-worker: Kill a worker's process (SIGKILL) half-way.
        --quic: Connect over QUIC in place of TCP.
        --output: Folder for the files, the Parquet and the logs of the run.
        --json: Print the five counts as one JSON object, as the last line.

    Examples:
        wallaroo-spark demo --kill-worker
        wallaroo-spark demo orders.jsonl returns.jsonl --output out
    """
    from wallaroo_spark.cli.tools import demo_job as job

    folder = output.resolve()
    job.clear(folder)
    console = Console(highlight=False)
    # Spark, Java and Python workers write to standard error.
    with standard_error_to(folder / "spark.log"):
        plan = _prepare(console, folder, files, messages, kill_worker, job.make_certificate(folder) if quic else None)
        console.print("starting Spark, an embedded Redis and two workers …")
        spark = job.make_session(folder)
        try:
            sink = job.CountingSink(folder, totals=plan.made_orders)
            _run(console, plan, spark, sink)
            result, matching = _check(console, plan, spark, sink)
        finally:
            spark.stop()
    _report(console, plan, result, matching)
    if as_json:
        click.echo(json.dumps(result.counts()))
    exit_unless(result.clean and matching)


def _prepare(
    console: Console,
    folder: Path,
    files: tuple[Path, ...],
    messages: int,
    kill_worker: bool,
    certificate: tuple[str, str] | None,
) -> DemoPlan:
    from wallaroo_spark.cli.tools.demo_job import line_ends, write_orders

    made = not files
    if made:
        columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn())
        with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as progress:
            task = progress.add_task("writing orders", total=messages)
            paths = write_orders(folder / "orders", messages, lambda orders: progress.advance(task, orders))
        console.print(f"{messages:,} orders of {len(paths)} shops are in {folder / 'orders'}", soft_wrap=True)
    else:
        paths = [path.resolve() for path in files]
        if len(set(paths)) != len(paths):
            raise ConfigurationError("a file is named twice; name each once", code="options-conflict")
    senders = plan_senders(paths, [path.stem for path in paths] if made else None)
    totals = {str(path): len(line_ends(path)) for path in paths}
    return DemoPlan(folder, senders, totals, made, kill_worker, certificate)


def _run(console: Console, plan: DemoPlan, spark: Any, sink: CountingSink) -> None:
    from wallaroo_spark.receiver import Receiver

    cookie = secrets.token_urlsafe(16)
    # Small batches when a worker is to be killed, so that it can be killed between two commits.
    limits = {"max_offsets_per_trigger": max(1, plan.expected // KILL_BATCHES)} if plan.kill_worker else {}
    secured: dict[str, Any] = {}
    if plan.certificate is not None:
        file, key = plan.certificate
        secured = {"quic": True, "tls_certificate": file, "tls_key": key, "tls_workers_ca": file}
    with Receiver(spark, "demo", workers=WORKERS, cookie=cookie, log_level="info", **limits, **secured) as receiver:
        writer = receiver.stream().writeStream.foreachBatch(sink.write)
        query = receiver.start_query(writer, checkpoint=str(plan.folder / "checkpoint"))
        ca = plan.certificate[0] if plan.certificate is not None else ""
        with sending(plan.senders, receiver.registry_url, cookie, ca) as failures, DemoView(console, plan) as view:
            _watch(plan, console, view, receiver, query, sink)
        if failures:
            raise WallarooError(f"a connector gave up: {failures[0]}", code="demo-failed")


def _watch(
    plan: DemoPlan, console: Console, view: DemoView, receiver: Receiver, query: Any, sink: CountingSink
) -> None:
    """Wait until every connector has ended; kill a worker halfway if the plan says so."""
    to_kill = plan.kill_worker
    seen, since = -1, time.monotonic()
    while not plan.finished:
        if query.exception() is not None:
            raise WallarooError(
                f"the query failed; {plan.folder / 'spark.log'} says why: {query.exception()}", code="demo-failed"
            )
        if to_kill and sink.messages >= plan.expected / 2:
            plan.notes.append(_kill_a_worker(receiver))
            to_kill = False
        view.show(receiver.status(most=0), sink.messages, sink.filled)
        if sink.messages != seen:
            seen, since = sink.messages, time.monotonic()
        elif time.monotonic() - since > STALLED_SECONDS:
            raise WallarooError(
                f"there was no progress for {STALLED_SECONDS:g} seconds; see the logs in {plan.folder}",
                code="demo-failed",
            )
        time.sleep(_LOOK_SECONDS)
    if to_kill:
        plan.notes.append("all messages were committed before a worker could be killed; send more messages")
    view.show(receiver.status(most=0), sink.messages, sink.filled, last=True)
    if not console.is_terminal:
        for note in plan.notes:
            console.print(note)


def _kill_a_worker(receiver: Receiver) -> str:
    """Kill the process of the worker with most sessions; return a sentence about it."""
    serving = [slot for slot in receiver.status().slots if slot.answers]
    victim = max(serving, key=lambda slot: slot.sessions)
    assert victim.pid is not None
    os.kill(victim.pid, signal.SIGKILL)
    return f"killed worker {victim.slot} (process {victim.pid}) with {victim.sessions} sessions"


def _check(console: Console, plan: DemoPlan, spark: Any, sink: CountingSink) -> tuple[Reconciliation, bool]:
    """Compare the rows in the Parquet files with the lines of the sent files, and the totals of both."""
    from wallaroo_spark.cli.tools import demo_job as job

    console.print("reading files and Parquet again to reconcile them …")
    acknowledged = {file: sender.acknowledged.get(file, -1) for sender in plan.senders for file in sender.files}
    result = job.reconcile(sink.rows, acknowledged)
    totals = sink.finish(spark, plan.folder / "totals")
    if totals is None:
        return result, True
    expected = job.expected_totals(spark, list(plan.totals)).collect()
    rows = totals.collect()
    _show_totals(console, rows)
    return result, rows == expected


def _show_totals(console: Console, rows: list[Any], most: int = 6) -> None:
    table = Table("minute", "shop", "orders", "items", "turnover", title="per-minute totals", title_justify="left")
    for row in rows[:most]:
        amounts = f"{row['orders']:,}", f"{row['items']:,}", f"{row['cents'] / 100:,.2f}"
        table.add_row(f"{row['minute']:%H:%M}", row["shop"], *amounts)
    if len(rows) > most:
        table.add_row("…", f"{len(rows) - most} more", "", "", "")
    console.print(table)


def _report(console: Console, plan: DemoPlan, result: Reconciliation, matching: bool) -> None:
    table = Table(*result.counts(), title="reconciliation", title_justify="left")
    table.add_row(*(f"{number:,}" for number in result.counts().values()))
    console.print(table)
    verdict = "totals match the files" if plan.made_orders else "every line is the same byte for byte"
    if result.clean and matching:
        console.print(f"[green]Nothing lost, nothing repeated; {verdict}.[/green]")
    else:
        detail = f"{result.altered} altered, {result.disordered} out of order"
        console.print(f"[red]NOT clean: {detail}; totals {'match' if matching else 'differ'}.[/red]")
    kept = ["rows (Parquet)", *(["totals (Parquet)", "orders"] if plan.made_orders else []), "spark.log"]
    console.print(f"In {plan.folder}: {', '.join(kept)}", soft_wrap=True)


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

    async def send(self, registry: str, cookie: str, ca: str) -> None:
        """Send the lines of all files, each file as a stream, and wait until all are acknowledged.

        Over QUIC ``ca`` is the authority of the workers' certificate; empty over TCP.
        """
        made = Connector(
            "demo",
            instance=self.instance,
            revision=self.revision,
            registry=registry,
            cookie=cookie,
            quic=bool(ca),
            ca=ca,
        )
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
def sending(senders: Sequence[Sender], registry: str, cookie: str, ca: str = "") -> Iterator[list[BaseException]]:
    """Run the connectors in a thread until the end of the block; yields the errors of those that have given up."""
    failures: list[BaseException] = []
    tasks = BackgroundTasks(lambda error: failures.append(error) if error else None)

    def start() -> None:
        for sender in senders:
            tasks.start(sender.send(registry, cookie, ca))

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
    certificate: tuple[str, str] | None = None
    """The files of the workers' certificate and its key, over QUIC; None over TCP."""
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
            line = f"sent {sent:,} of {self._plan.expected:,}, {done}"
            note = f"{rate:,} messages/s" if batches else "Spark's first batch takes longest"
            # At the end the rate would be that of the last batches.
            self._console.print(line if last else f"{line} ({note})", highlight=False)

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
