"""``wallaroo-spark status``: a receiver at a glance, with the topics of its registry and the sinks of a checkpoint."""

from __future__ import annotations

import dataclasses
import json
import time
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

import click
from click.core import ParameterSource

from wallaroo_spark.cli.common import console, debugging
from wallaroo_spark.cli.schema import AppOptions
from wallaroo_spark.cli.status import sources
from wallaroo_spark.cli.status.sources import ReceiverOptions
from wallaroo_spark.cli.verbs import Json, verb
from wallaroo_spark.errors import RegistryError

if TYPE_CHECKING:
    from rich.console import Console, Group

    from wallaroo_spark.observe.application import ApplicationStatus
    from wallaroo_spark.observe.collect import RegistryCollector
    from wallaroo_spark.observe.receiver import ReceiverStatus, TopicStatus
    from wallaroo_spark.observe.record import History

T = TypeVar("T")
WAITING = (
    "Workers accept no connector before the receiver has started a query: receiver.start_query(rows.writeStream…, "
    "checkpoint=…) starts one, and .start() of Spark alone does not."
)
SINKS = {
    "new": "nothing was decided yet",
    "finished": "batch {batch} is committed and finished",
    "committed": "batch {batch} is decided to commit and not finished; the query finishes it, now or at its next start",
    "aborted": "batch {batch} was aborted; the query runs it again",
}
"""The text for a sink in each state."""


@verb()
def status(
    *,
    place: ReceiverOptions,
    checkpoint: str = "",
    app: str = "",
    application: str = "",
    watch: bool = False,
    every: Annotated[float, click.FloatRange(min=0.1)] = 2.0,
    as_json: Json = False,
) -> None:
    """Show a receiver at a glance: the reason why it waits, its query and batch, rate and lag, each slot and connector,
    and the deaths of workers with their causes.

    With --registry it also shows the topics, and without --receiver only the topics: the address of each partition,
    its newest epoch and the number of its subscribers. With --checkpoint it also shows the transactional sinks of a
    query: for each the newest batch that was decided, and whether it is finished. The exit status is 0 when
    everything works, and 1 when something does not, the query is missing, or the receiver does not run.

    With --app, or with --registry and --application, it shows an application of durable streams: its query, gateways,
    streams with the lag of their groups, and pipelines with the deliveries of each stage that wait and run. The driver
    writes these figures every five seconds to the folder, and every second to the registry.

    Options:
        --checkpoint PATH: A query's checkpoint, to show its transactional sinks.
        --app FOLDER: The folder of an application of durable streams.
        --application NAME: Name of the application, with --registry.
        --watch: Show it again every --every seconds, until Ctrl-C.
        --every: Seconds between two looks.
        --json: Print one line of JSON instead of a table.

    Examples:
        wallaroo-spark status --registry redis://127.0.0.1:6379 --receiver orders
        wallaroo-spark status --context test --watch
        wallaroo-spark status --json | jq .cause.code
        wallaroo-spark status --app ./shop
    """
    from wallaroo_spark.observe.faces.terminal import application_view
    from wallaroo_spark.observe.published import to_json
    from wallaroo_spark.observe.record import History

    registry, receiver = place.registry, place.receiver
    if _wants_application(app, application, receiver):
        if application and not registry:
            raise click.UsageError("give --registry URL with --application NAME, or --app FOLDER")
        healthy = True
        for shown in _looks(lambda: application_status(AppOptions(app), registry, application), watch, every):
            if as_json:
                click.echo(json.dumps(to_json(shown)))
            else:
                _cleared(watch).print(application_view(shown), soft_wrap=False)
            healthy = shown.cause.healthy
    elif (receiver and not registry) or not (registry or checkpoint):
        raise click.UsageError("give --registry URL, with --receiver NAME for its slots, or --checkpoint PATH, or all")
    elif not receiver:
        healthy = _others(registry, checkpoint, as_json)
    else:
        history = History()
        with place.collector() as collector:
            for found in _looks(lambda: look(collector, registry, checkpoint), watch, every):
                history.add(found)
                if as_json:
                    click.echo(json.dumps(as_json_values(found)))
                else:
                    _show(found, history, clear=watch)
                healthy = found.healthy and _served(found.topics)
    if not healthy:
        raise click.exceptions.Exit(1)


def _looks(look: Callable[[], T], watch: bool, every: float) -> Iterator[T]:
    """What ``look`` returns: once, or with ``watch`` every so many seconds."""
    yield look()
    while watch:
        time.sleep(every)
        yield look()


def _cleared(watch: bool) -> Console:
    """The console; with ``watch`` a terminal is cleared."""
    found = console()
    if watch and found.is_terminal:
        found.clear()
    return found


def _wants_application(app: str, application: str, receiver: str) -> bool:
    """Whether an application is asked for; an option of the command line comes before defaults of the environment."""
    source = click.get_current_context().get_parameter_source
    given = {name for name in ("app", "application", "receiver") if source(name) is ParameterSource.COMMANDLINE}
    return bool(app or application) and ("receiver" not in given or len(given) > 1) and (bool(given) or not receiver)


def application_status(app: AppOptions, registry: str, application: str) -> ApplicationStatus:
    """The newest snapshot: from the registry when ``application`` is given, else from the folder ``app``."""
    from wallaroo_spark.observe.published import in_folder, in_registry

    return in_registry(registry, application, sources.ATTEMPTS) if application else in_folder(app.existing())


def look(
    collector: RegistryCollector, registry: str = "", checkpoint: str = "", *, story: bool = False
) -> ReceiverStatus:
    """One snapshot, with the topics of the registry and the sinks of the checkpoint where these are given.

    With ``story`` or the flag ``--debug`` it has the last events of each worker.
    """
    from wallaroo_spark.observe.collect import Question
    from wallaroo_spark.observe.surroundings import may_not_list

    found = collector.status(Question(story=story or debugging()))
    if registry and not found.registry_error:
        try:
            found = dataclasses.replace(found, topics=sources.topics_in(registry))
        except RegistryError as error:
            if reason := may_not_list(error):
                found = dataclasses.replace(found, unread=(reason,))
            else:
                found = dataclasses.replace(found, registry_error=error.message)
    return dataclasses.replace(found, sinks=sources.sinks_in(checkpoint)) if checkpoint else found


def as_json_values(found: ReceiverStatus) -> dict[str, Any]:
    """The JSON of a snapshot, with the receiver's name under the name of its option, too."""
    from wallaroo_spark.observe.faces.as_json import to_json

    return {**to_json(found), "receiver": found.name}


def _served(topics: Iterable[TopicStatus]) -> bool:
    return all(partition.state == "serving" for topic in topics for partition in topic.partitions)


def _others(registry: str, checkpoint: str, as_json: bool) -> bool:
    """Show topics and sinks without a receiver; whether all are served."""
    from wallaroo_spark.observe.faces.as_json import record_to_json

    topics = sources.topics_in(registry) if registry else ()
    sinks = sources.sinks_in(checkpoint) if checkpoint else ()
    if as_json:
        answer: dict[str, Any] = {"topics": [record_to_json(topic) for topic in topics]} if registry else {}
        click.echo(json.dumps(answer | ({"sinks": [record_to_json(sink) for sink in sinks]} if checkpoint else {})))
    else:
        _show_others(topics, sinks, registry, checkpoint)
    return _served(topics)


def _show_others(topics: Any, sinks: Any, registry: str, checkpoint: str) -> None:
    from wallaroo_spark.observe.faces.terminal import topics_table

    if topics:
        console().print(topics_table(topics))
    elif registry:
        click.echo("No topic runs in this registry.")
    for sink in sinks:
        click.echo(f"Sink {sink.sink!r}: {SINKS[sink.state].format(batch=sink.batch)}")
    if checkpoint and not sinks:
        click.echo(f"No transactional sink has a log in {checkpoint}.")


def _show(found: ReceiverStatus, history: History, *, clear: bool) -> None:
    if found.registry_error and not found.slots and not clear:
        # Nothing else is known, so the sentence is the error.
        raise RegistryError(found.registry_error, code="registry-away")
    terminal = _cleared(clear)
    if not found.running and not found.registry_error:
        click.echo(nothing_runs(found.name))
    else:
        terminal.print(receiver_view(found, history), soft_wrap=False)
    if found.topics or found.sinks:
        _show_others(found.topics, found.sinks, "", "")
    for reason in found.unread:
        click.echo(f"{reason}.")


def nothing_runs(receiver: str) -> str:
    """The sentence for a receiver that does not run."""
    return (
        f"Receiver {receiver!r} does not run: no driver and no worker holds a lease in this registry. "
        "Start it with wallaroo-spark receive, or check the name and the registry; wallaroo-spark list shows all."
    )


def receiver_view(found: ReceiverStatus, history: History | None = None) -> Group:
    """The status for a person: the cause, the query, slots, connectors, deaths and refusals."""
    from rich.console import Group
    from rich.text import Text

    from wallaroo_spark.observe.faces import terminal

    rates = history.rates() if history is not None else None
    parts: list[Any] = [*terminal.header(found, rates), terminal.slots_view(found, rates)]
    if found.instances:
        parts += [Text(), terminal.instances_view(found, rates)]
    parts += terminal.notes(found)
    for slot in found.slots:
        if slot.story:
            parts.append(Text(f"slot {slot.slot}, its last events:"))
            parts += [Text(f"  {line}") for line in slot.story]
    if found.query.state == "none":
        parts.append(Text(WAITING))
    return Group(*parts)
