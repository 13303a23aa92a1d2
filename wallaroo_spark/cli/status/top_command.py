"""``wallaroo-spark top``: a receiver live, by slot, instance and stream."""

from __future__ import annotations

import json
import time
from typing import TYPE_CHECKING, Any

import click

from wallaroo_spark.cli.status import sources
from wallaroo_spark.errors import RegistryError

if TYPE_CHECKING:
    from rich.console import Group

    from wallaroo_spark.observe.rates import History
    from wallaroo_spark.observe.receiver import ReceiverStatus


@click.command(
    epilog="Examples: wallaroo-spark top --registry redis://127.0.0.1:6379 --receiver orders · "
    "wallaroo-spark top --context test --once | less",
)
@sources.registry_options
@sources.receiver_option
@click.option(
    "--every", default=1.0, show_default=True, type=click.FloatRange(min=0.1), help="Seconds between two frames."
)
@click.option("--window", default=5.0, show_default=True, type=click.FloatRange(min=0.1), help="Seconds of a rate.")
@click.option("--rows", default=10, show_default=True, type=click.IntRange(1, 1000), help="The most rows of a table.")
@click.option("--once", is_flag=True, help="Print one frame, with the rates over --every seconds, and end.")
@click.option("--json", "as_json", is_flag=True, help="Print each frame as one line of JSON, with its rates.")
def top(
    registry: str,
    receiver: str,
    tls: bool,
    tls_ca: str,
    every: float,
    window: float,
    rows: int,
    once: bool,
    as_json: bool,
) -> None:
    """Show a receiver live until Ctrl-C: rates, credits, held rows, references, ages, deaths and submissions of each
    slot, connector instance and stream, and the reason why each waits, as one sentence.

    Without a terminal each frame is printed below the one before. The exit status is 0 when everything works in the
    last frame, and 1 when something does not.
    """
    from wallaroo_spark.observe.rates import History

    sources.need(registry, receiver)
    history = History()
    with sources.collector(registry, receiver, tls, tls_ca) as collector:
        from wallaroo_spark.observe.collect import Question

        def look() -> ReceiverStatus:
            found = collector.status(Question(max(rows, 20)))
            if found.registry_error and not found.slots:
                raise RegistryError(found.registry_error, code="registry-away")
            history.add(found)
            return found

        found = look()
        if once:
            time.sleep(every)
            found = look()
            _print(found, history, window, rows, as_json)
        else:
            found = _live(look, history, found, every, window, rows, as_json)
    if not found.healthy:
        raise click.exceptions.Exit(1)


def _live(
    look: Any, history: History, found: ReceiverStatus, every: float, window: float, rows: int, as_json: bool
) -> ReceiverStatus:
    """Show frames until Ctrl-C; returns the last snapshot."""
    console = sources.console()
    if as_json or not console.is_terminal:
        try:
            while True:
                _print(found, history, window, rows, as_json)
                time.sleep(every)
                found = look()
        except KeyboardInterrupt:
            return found
    from rich.live import Live

    with Live(frame(found, history, window, rows), console=console, screen=True, auto_refresh=False) as live:
        try:
            while True:
                live.update(frame(found, history, window, rows), refresh=True)
                time.sleep(every)
                found = look()
        except KeyboardInterrupt:
            return found


def _print(found: ReceiverStatus, history: History, window: float, rows: int, as_json: bool) -> None:
    if as_json:
        from wallaroo_spark.observe.faces.as_json import record_to_json, to_json

        total = record_to_json(history.rates(window).total)
        click.echo(json.dumps({**to_json(found), "rates": total}))
    else:
        sources.console().print(frame(found, history, window, rows))


def frame(found: ReceiverStatus, history: History, window: float, rows: int) -> Group:
    """One frame: the cause and the query, then slots, instances and streams."""
    from rich.console import Group
    from rich.text import Text

    from wallaroo_spark.observe.faces import terminal

    rates = history.rates(window)
    parts: list[Any] = [
        *terminal.header(found, rates),
        Text(),
        terminal.slots_view(found, rates, columns=(*terminal.USUAL, "waits for")),
    ]
    if found.instances:
        parts += [Text(), terminal.instances_view(found, rates, most=rows)]
    if found.streams:
        parts += [Text(), terminal.streams_view(found.streams[:rows], rates)]
    totals = found.totals
    hidden = [
        f"{total - shown:,} more {name}"
        for name, total, shown in (
            ("instances", totals.instances, min(rows, len(found.instances))),
            ("streams", totals.streams, min(rows, len(found.streams))),
        )
        if total > shown
    ]
    if hidden:
        parts.append(Text(" and ".join(hidden), style="dim"))
    return Group(*parts, *terminal.notes(found))
