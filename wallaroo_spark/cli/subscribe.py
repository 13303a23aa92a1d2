"""``wallaroo-spark subscribe``: prints the rows of a topic as they are published. It needs no Spark."""

from __future__ import annotations

import asyncio
import json
import signal
import threading
from typing import TYPE_CHECKING, Any

import click

from wallaroo_spark.cli.common import TERMINATED, count, debug_option, set_up_logging

if TYPE_CHECKING:
    from wallaroo_spark.pubsub import Epoch, Frontier, Subscription

WIDE = 200
"""Columns of a table that is not printed on a terminal. A choice: wide enough for most rows."""


@click.command(
    short_help="Print the rows of a topic as they are published.",
    epilog="Examples: wallaroo-spark subscribe totals --registry redis://127.0.0.1:6379 --cookie env:COOKIE · "
    "wallaroo-spark subscribe totals --context test --json | jq .row",
)
@click.argument("topic")
@click.option("--registry", required=True, metavar="URL", help="The topic's Redis; also env:NAME or file:PATH.")
@click.option("--cookie", default="", metavar="COOKIE", help="The topic's cookie; env:NAME or file:PATH hide it.")
@click.option("--json", "as_json", is_flag=True, help="Print a line of JSON for each row.")
@click.option("--limit", type=click.IntRange(min=1), metavar="ROWS", help="End after this number of rows.")
@click.option(
    "--wait",
    default=0.0,
    metavar="SECONDS",
    show_default=True,
    help="Seconds to wait for a topic that does not run yet.",
)
@click.option("--all", "everything", is_flag=True, help="Print rows as they arrive, also of incomplete epochs.")
@click.option("--frontier", is_flag=True, help="Print each change of the frontier, too.")
@click.option("--reopen", is_flag=True, help="Wait for a topic that has ended to be started again.")
@click.option(
    "--lost-after", default=60.0, metavar="SECONDS", show_default=True, help="Longest time without a publisher."
)
@click.option("--name", default="", help="Name of this subscriber in the publishers' logs.")
@click.option("--tls", is_flag=True, help="Use TLS, with the authorities that this system trusts.")
@click.option("--tls-ca", default="", metavar="FILE", help="PEM file of the authority of the publishers' certificates.")
@click.option("--tls-certificate", default="", metavar="FILE", help="PEM file of the certificate to present.")
@click.option("--tls-key", default="", metavar="FILE", help="PEM file with the key of --tls-certificate.")
@debug_option
def subscribe(topic: str, as_json: bool, limit: int | None, frontier: bool, everything: bool, **settings: Any) -> None:
    """Print the rows of TOPIC from the next epoch on; an epoch is printed when it is complete and its batch committed.

    With --json a line is {"epoch": …, "partition": …, "row": {…}}, or {"frontier": […]}; the epoch is the batch, or
    [batch, column]. The command ends with the topic, after --limit rows, or when it is interrupted.
    """
    from wallaroo_spark import pubsub

    set_up_logging()
    subscription = pubsub.subscribe(topic, atomic=not everything, **settings)
    printer = _Json(frontier) if as_json else _Tables(frontier)
    try:
        asyncio.run(_print(subscription, printer, limit))
    except asyncio.CancelledError:
        raise click.exceptions.Exit(TERMINATED) from None


async def _print(subscription: Subscription, printer: _Json | _Tables, limit: int | None) -> None:
    """Print rows until the topic ends or the limit is reached; SIGTERM cancels it."""
    from wallaroo_spark.pubsub import Epoch

    this = asyncio.current_task()
    assert this is not None
    if threading.current_thread() is threading.main_thread():
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, this.cancel)
    left = limit
    async with subscription:
        async for item in subscription:
            if not isinstance(item, Epoch):
                printer.frontier(item)
                continue
            rows = item.batch.slice(0, left)
            printer.epoch(Epoch(item.epoch, item.partition, rows))
            left = None if left is None else left - rows.num_rows
            if left == 0:
                break
    printer.end()


class _Json:
    """Prints a line of JSON for each row."""

    def __init__(self, with_frontier: bool) -> None:
        self._with_frontier = with_frontier

    def epoch(self, item: Epoch) -> None:
        """Some rows of an epoch."""
        from wallaroo_spark.pubsub.subscribing.topic_source import row_as_json

        head = json.dumps({"epoch": item.epoch, "partition": item.partition})[:-1]
        lines = [f'{head}, "row": {row_as_json(row).decode()}}}' for row in item.batch.to_pylist()]
        if lines:
            click.echo("\n".join(lines))

    def frontier(self, item: Frontier) -> None:
        """The frontier has moved."""
        if self._with_frontier:
            click.echo(json.dumps({"frontier": item.frontier}))

    def end(self) -> None:
        """Do nothing: every row is printed already."""


class _Tables:
    """Prints a table for each epoch."""

    def __init__(self, with_frontier: bool) -> None:
        from rich.console import Console

        self._with_frontier = with_frontier
        self._console = Console(highlight=False)
        if not self._console.is_terminal:
            self._console = Console(highlight=False, width=WIDE)
        self._rows: list[dict[str, Any]] = []
        self._columns: list[str] = []
        self._epoch: Any = None

    def epoch(self, item: Epoch) -> None:
        """Collect rows of an epoch; they are printed together when the epoch ends."""
        if self._rows and item.epoch != self._epoch:
            self.end()
        self._epoch, self._columns = item.epoch, item.batch.schema.names
        self._rows += item.batch.to_pylist()

    def frontier(self, item: Frontier) -> None:
        """Print the collected epoch, which is complete because the frontier has passed it."""
        self.end()
        if self._with_frontier:
            click.echo(f"frontier {', '.join(map(str, item.frontier)) or 'passed everything'}")

    def end(self) -> None:
        """Print the collected rows."""
        from rich.table import Table
        from rich.text import Text

        if not self._rows:
            return
        self._console.print(f"epoch {self._epoch}, {count(len(self._rows), 'row')}", soft_wrap=True)
        table = Table(box=None)
        for column in self._columns:
            table.add_column(Text(column))
        for row in self._rows:
            table.add_row(*(Text(str(row[column])) for column in self._columns))
        self._console.print(table)
        self._rows = []
