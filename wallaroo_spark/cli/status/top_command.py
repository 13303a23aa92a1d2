"""``wallaroo-spark top``: a receiver live, by slot, instance and stream."""

from __future__ import annotations

import contextlib
import json
import time
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Annotated, Any

import click

from wallaroo_spark.cli.common import console
from wallaroo_spark.cli.status.sources import ReceiverOptions
from wallaroo_spark.cli.verbs import Json, verb
from wallaroo_spark.errors import RegistryError

if TYPE_CHECKING:
    from rich.console import Group

    from wallaroo_spark.observe.rates import History
    from wallaroo_spark.observe.receiver import ReceiverStatus


@verb()
def top(
    *,
    place: ReceiverOptions,
    every: Annotated[float, click.FloatRange(min=0.1)] = 1.0,
    window: Annotated[float, click.FloatRange(min=0.1)] = 5.0,
    rows: Annotated[int, click.IntRange(1, 1000)] = 10,
    once: bool = False,
    as_json: Json = False,
) -> None:
    """Show a receiver live until Ctrl-C: rates, credits, held rows, references, ages, deaths and submissions of each
    slot, connector instance and stream, and the reason why each waits, as one sentence.

    Without a terminal each frame is printed below the one before. The exit status is 0 when everything works in the
    last frame, and 1 when something does not.

    Options:
        --every: Seconds between two frames.
        --window: Seconds of a rate.
        --rows: The most rows of a table.
        --once: Print one frame, with the rates over --every seconds, and end.
        --json: Print each frame as one line of JSON, with its rates.

    Examples:
        wallaroo-spark top --registry redis://127.0.0.1:6379 --receiver orders
        wallaroo-spark top --context test --once | less
    """
    from wallaroo_spark.observe.collect import Question
    from wallaroo_spark.observe.rates import History

    history = History()
    with place.collector() as collector:

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
            with _frames(history, window, rows, as_json) as show, contextlib.suppress(KeyboardInterrupt):
                while True:
                    show(found)
                    time.sleep(every)
                    found = look()
    if not found.healthy:
        raise click.exceptions.Exit(1)


@contextlib.contextmanager
def _frames(history: History, window: float, rows: int, as_json: bool) -> Iterator[Callable[[ReceiverStatus], None]]:
    """A function that shows a frame: over the whole terminal, or below the one before."""
    from rich.live import Live

    terminal = console()
    if as_json or not terminal.is_terminal:
        yield lambda found: _print(found, history, window, rows, as_json)
        return
    with Live(console=terminal, screen=True, auto_refresh=False) as live:
        yield lambda found: live.update(frame(found, history, window, rows), refresh=True)


def _print(found: ReceiverStatus, history: History, window: float, rows: int, as_json: bool) -> None:
    if as_json:
        from wallaroo_spark.observe.faces.as_json import record_to_json, to_json

        total = record_to_json(history.rates(window).total)
        click.echo(json.dumps({**to_json(found), "rates": total}))
    else:
        console().print(frame(found, history, window, rows))


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
