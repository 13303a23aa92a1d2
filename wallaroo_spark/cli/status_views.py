"""Reads and shows receivers, applications, topics and sinks, for ``status``, ``list``, ``streams`` and ``top``."""

from __future__ import annotations

import contextlib
import dataclasses
import json
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import click
from rich.console import Console, Group
from rich.live import Live
from rich.text import Text

from wallaroo_spark.cli.common import ATTEMPTS, RegistryOptions, console, debugging, print_result
from wallaroo_spark.cli.durable.schema import AppOptions
from wallaroo_spark.errors import RegistryError
from wallaroo_spark.observe.application import ApplicationStatus
from wallaroo_spark.observe.collect import Question, RegistryCollector
from wallaroo_spark.observe.faces import terminal
from wallaroo_spark.observe.faces.records import record_to_json, to_json
from wallaroo_spark.observe.receiver import ReceiverStatus, StreamStatus, TopicStatus
from wallaroo_spark.observe.record import History, Rates
from wallaroo_spark.observe.surroundings import may_not_list, sinks_in, topics_in
from wallaroo_spark.registry.client import receiver_names

WAITING = (
    "Workers accept no connector before a query reads the receiver: start one with .option('checkpointLocation', …)"
    ".start(), or with receiver.start_query(rows.writeStream…, checkpoint=…)."
)
SINKS = {
    "new": "nothing was decided yet",
    "finished": "batch {batch} is committed and finished",
    "committed": "batch {batch} is decided to commit and not finished; the query finishes it, now or at its next start",
    "aborted": "batch {batch} was aborted; the query runs it again",
}
"""The text for a sink in each state."""


def application_status(app: AppOptions, registry: str, application: str) -> ApplicationStatus:
    """The newest snapshot: from the registry when ``application`` is given, else from the folder ``app``."""
    # Not above: a receiver is shown without the extra of applications.
    from wallaroo_spark.observe import published

    if application:
        return published.in_registry(registry, application, ATTEMPTS)
    return published.in_folder(app.existing())


def show_application(found: ApplicationStatus, watch: bool, as_json: bool) -> None:
    """Print an application; with ``watch`` in place of the one before."""
    from wallaroo_spark.observe import published

    if as_json:
        click.echo(json.dumps(published.to_json(found)))
    else:
        _cleared(watch).print(terminal.application_view(found), soft_wrap=False)


def _cleared(watch: bool) -> Console:
    """The console; with ``watch`` a terminal is cleared."""
    found = console()
    if watch and found.is_terminal:
        found.clear()
    return found


def look(
    collector: RegistryCollector, registry: str = "", checkpoint: str = "", *, story: bool = False
) -> ReceiverStatus:
    """One snapshot, with the topics of the registry and the sinks of the checkpoint where these are given.

    With ``story`` or the flag ``--debug`` it has the last events of each worker.
    """
    found = collector.status(Question(story=story or debugging()))
    if registry and not found.registry_error:
        try:
            found = dataclasses.replace(found, topics=topics_in(registry, ATTEMPTS))
        except RegistryError as error:
            if reason := may_not_list(error):
                found = dataclasses.replace(found, unread=(reason,))
            else:
                found = dataclasses.replace(found, registry_error=error.message)
    return dataclasses.replace(found, sinks=sinks_in(checkpoint)) if checkpoint else found


def as_json_values(found: ReceiverStatus) -> dict[str, Any]:
    """The JSON of a snapshot, with the receiver's name under the name of its option, too."""
    return {**to_json(found), "receiver": found.name}


def served(topics: Iterable[TopicStatus]) -> bool:
    """Whether all partitions of topics are served."""
    return all(partition.state == "serving" for topic in topics for partition in topic.partitions)


def show_others(registry: str, checkpoint: str, as_json: bool) -> bool:
    """Show topics and sinks without a receiver; whether all are served."""
    topics = topics_in(registry, ATTEMPTS) if registry else ()
    sinks = sinks_in(checkpoint) if checkpoint else ()
    if as_json:
        asked = {"topics": (registry, topics), "sinks": (checkpoint, sinks)}
        answer = {name: list(map(record_to_json, found)) for name, (place, found) in asked.items() if place}
        click.echo(json.dumps(answer))
    else:
        _print_others(topics, sinks, registry, checkpoint)
    return served(topics)


def _print_others(topics: Any, sinks: Any, registry: str, checkpoint: str) -> None:
    if topics:
        console().print(terminal.topics_table(topics))
    elif registry:
        click.echo("No topic runs in this registry.")
    for sink in sinks:
        click.echo(f"Sink {sink.sink!r}: {SINKS[sink.state].format(batch=sink.batch)}")
    if checkpoint and not sinks:
        from pyarrow import fs

        from wallaroo_spark.storage.locations import open_location

        filesystem, root, _ = open_location(checkpoint)
        lacks = filesystem.get_file_info(root).type == fs.FileType.NotFound
        click.echo(f"No transactional sink has a log in {checkpoint}{', which does not exist' if lacks else ''}.")


def show_receiver(found: ReceiverStatus, history: History, watch: bool, as_json: bool) -> None:
    """Print a receiver; with ``watch`` in place of the one before."""
    if as_json:
        click.echo(json.dumps(as_json_values(found)))
        return
    if found.registry_error and not found.slots and not watch:
        # Nothing else is known, so the sentence is the error.
        raise RegistryError(found.registry_error, code="registry-away")
    shown = _cleared(watch)
    if not found.running and not found.registry_error:
        click.echo(
            f"Receiver {found.name!r} does not run: no driver and no worker holds a lease in this registry. "
            "Start it with wallaroo-spark receive, or check the name and the registry; wallaroo-spark list shows all."
        )
    else:
        shown.print(receiver_view(found, history), soft_wrap=False)
    if found.topics or found.sinks:
        _print_others(found.topics, found.sinks, "", "")
    for reason in found.unread:
        click.echo(f"{reason}.")


def receiver_view(found: ReceiverStatus, history: History) -> Group:
    """The status for a person: the cause, the query, slots, connectors, deaths and refusals."""
    rates = history.rates()
    parts = [*terminal.header(found, rates), *_tables(found, rates), *terminal.notes(found)]
    for slot in found.slots:
        if slot.story:
            parts.append(Text(f"slot {slot.slot}, its last events:"))
            parts += [Text(f"  {line}") for line in slot.story]
    if found.query.state == "none":
        parts.append(Text(WAITING))
    return Group(*parts)


def _tables(found: ReceiverStatus, rates: Rates, columns: Iterable[str] = terminal.USUAL, most: int = 20) -> list[Any]:
    """The tables of slots, doors and instances, with an empty line between two of them."""
    parts: list[Any] = [terminal.slots_view(found, rates, columns=columns)]
    if found.doors:
        parts += [Text(), terminal.doors_view(found)]
    if found.instances:
        parts += [Text(), terminal.instances_view(found, rates, most=most)]
    return parts


def show_list(place: RegistryOptions, as_json: bool) -> None:
    """Print the receivers of a registry, and its topics."""
    found = []
    for name in receiver_names(place.registry, ATTEMPTS):
        with place.collector_of(name) as collector:
            found.append(collector.status(Question(most=20)))
    topics = topics_in(place.registry, ATTEMPTS)
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
    if found:
        console().print(terminal.receivers_view(found))
    else:
        click.echo("No receiver is known in this registry.")
    if topics:
        console().print(terminal.topics_table(topics))


def known(collector: RegistryCollector, most: int, instance: str = "", stream: str = "") -> ReceiverStatus:
    """The status of a receiver, with ``most`` streams of a worker at the most, or those of an instance or a name.

    Raises :class:`RegistryError` when the registry does not answer.
    """
    found = collector.status(Question(most, instance, stream))
    if found.registry_error and not found.slots:
        raise RegistryError(found.registry_error, code="registry-away")
    return found


def show_streams(found: ReceiverStatus, order: Callable[[StreamStatus], Any], as_json: bool, *, chosen: bool) -> None:
    """Print streams in an order; ``chosen``: they are those of an instance or of a name."""
    streams, total = sorted(found.streams, key=order), found.totals.streams
    if as_json:
        shown = [record_to_json(one) for one in streams]
        click.echo(json.dumps({"receiver": found.name, "total": total, "streams": shown}))
        return
    console().print(terminal.streams_view(streams))
    if total > len(streams) and not chosen:
        click.echo(f"{len(streams):,} of {total:,} streams; --instance and --stream find others")
    for slot in found.slots:
        if not slot.answers:
            click.echo(slot.cause.sentence)


@contextlib.contextmanager
def frames(history: History, window: float, rows: int, as_json: bool) -> Iterator[Callable[[ReceiverStatus], None]]:
    """A function that shows a frame: over the whole terminal, or below the one before."""
    shown = console()
    if as_json or not shown.is_terminal:
        yield lambda found: show_frame(found, history, window, rows, as_json)
        return
    with Live(console=shown, screen=True, auto_refresh=False) as live:
        yield lambda found: live.update(_frame(found, history, window, rows), refresh=True)


def show_frame(found: ReceiverStatus, history: History, window: float, rows: int, as_json: bool) -> None:
    """Print one frame."""
    values = {**to_json(found), "rates": record_to_json(history.rates(window).total)}
    print_result(as_json, values, _frame(found, history, window, rows))


def _frame(found: ReceiverStatus, history: History, window: float, rows: int) -> Group:
    """One frame: the cause and the query, then slots, instances and streams."""
    rates = history.rates(window)
    tables = _tables(found, rates, (*terminal.USUAL, "waits for"), rows)
    parts = [*terminal.header(found, rates), Text(), *tables]
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
