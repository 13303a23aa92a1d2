"""``wallaroo-spark list``, ``streams`` and ``top``: the receivers of a registry, and one of them in detail."""

from __future__ import annotations

import contextlib
import json
import time
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Annotated, Any

import click

from wallaroo_spark.cli.common import console
from wallaroo_spark.cli.status import sources
from wallaroo_spark.cli.status.sources import ReceiverOptions, RegistryOptions
from wallaroo_spark.cli.verbs import Json, verb
from wallaroo_spark.errors import RegistryError

if TYPE_CHECKING:
    from rich.console import Group

    from wallaroo_spark.observe.collect import Question, RegistryCollector
    from wallaroo_spark.observe.receiver import ReceiverStatus, StreamStatus
    from wallaroo_spark.observe.record import History

ORDERS: dict[str, Callable[[StreamStatus], Any]] = {
    "age": lambda one: -(one.ack_age or -1.0),
    "held": lambda one: -one.rows,
    "lag": lambda one: -one.lag_rows,
    "bytes": lambda one: -one.bytes,
    "name": lambda one: (one.instance, one.title),
}
"""The orders of the streams, by their names in --sort."""


@verb(name="list")
def list_receivers(*, place: RegistryOptions, as_json: Json = False) -> None:
    """List the receivers of a registry, with their slots and the reason why each waits, and the topics.

    A receiver that has ended stays in the list until its registry is emptied. The exit status is 0.

    Options:
        --json: Print one line of JSON instead of a table.

    Examples:
        wallaroo-spark list --registry redis://127.0.0.1:6379
        wallaroo-spark list --context test --json
    """
    from wallaroo_spark.observe.collect import Question
    from wallaroo_spark.observe.faces.as_json import record_to_json
    from wallaroo_spark.observe.faces.terminal import receivers_view, topics_table
    from wallaroo_spark.registry.client import receiver_names

    if not place.registry:
        raise click.UsageError("give --registry URL, or set WALLAROO_REGISTRY, or use --context")
    found = []
    for name in receiver_names(place.registry, sources.ATTEMPTS):
        with place.collector_of(name) as collector:
            found.append(collector.status(Question(most=20)))
    topics = sources.topics_in(place.registry)
    if as_json:
        rows: list[dict[str, Any]] = [
            {
                "receiver": one.name,
                "running": one.running,
                "driver": one.driver,
                "query": one.query.state,
                "totals": record_to_json(one.totals),
                "cause": record_to_json(one.cause),
            }
            for one in found
        ]
        click.echo(json.dumps({"receivers": rows, "topics": [record_to_json(topic) for topic in topics]}))
        return
    terminal = console()
    if found:
        terminal.print(receivers_view(found))
    else:
        click.echo("No receiver is known in this registry.")
    if topics:
        terminal.print(topics_table(topics))


@verb()
def streams(
    *,
    place: ReceiverOptions,
    instance: str = "",
    stream: str = "",
    sort: Annotated[str, click.Choice(list(ORDERS))] = "age",
    limit: Annotated[int, click.IntRange(1, 1000)] = 50,
    as_json: Json = False,
) -> None:
    """Show the streams that wait longest for an acknowledgement, and the streams with the most held rows.

    For each: its state, the references of the last received, planned and committed row, held rows and those that no
    batch has asked for yet, and the age of the oldest unacknowledged row. --instance and --stream find every stream.
    The exit status is 0 when all workers have answered, and 1 otherwise.

    Options:
        --instance NAME: Only the streams of this connector instance.
        --stream NAME: Only the streams of this name, or with this id.
        --sort: The order of the streams.
        --limit: Maximum number of streams of each worker.
        --json: Print one line of JSON instead of a table.

    Examples:
        wallaroo-spark streams --context test
        wallaroo-spark streams --instance shop-1 --sort held
        wallaroo-spark streams --json | jq '.streams[] | {name, lag_rows}'
    """
    from wallaroo_spark.observe.collect import Question

    with place.collector() as collector:
        found = _known(collector, Question(limit, instance, stream))
    chosen = sorted(found.streams, key=ORDERS[sort])
    if as_json:
        from wallaroo_spark.observe.faces.as_json import record_to_json

        total = found.totals.streams
        shown = {"receiver": place.receiver, "total": total, "streams": [record_to_json(one) for one in chosen]}
        click.echo(json.dumps(shown))
    else:
        from wallaroo_spark.observe.faces.terminal import streams_view

        terminal = console()
        terminal.print(streams_view(chosen))
        if found.totals.streams > len(chosen) and not (instance or stream):
            terminal.print(f"{len(chosen):,} of {found.totals.streams:,} streams; --instance and --stream find others")
        for slot in found.slots:
            if not slot.answers:
                terminal.print(slot.cause.sentence, markup=False)
    if not all(slot.answers for slot in found.slots) or not found.slots:
        raise click.exceptions.Exit(1)


def _known(collector: RegistryCollector, question: Question) -> ReceiverStatus:
    """The status of a receiver. Raises :class:`RegistryError` when the registry does not answer."""
    found = collector.status(question)
    if found.registry_error and not found.slots:
        raise RegistryError(found.registry_error, code="registry-away")
    return found


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
    from wallaroo_spark.observe.record import History

    history = History()
    with place.collector() as collector:

        def look() -> ReceiverStatus:
            found = _known(collector, Question(max(rows, 20)))
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
