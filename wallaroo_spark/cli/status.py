"""``wallaroo-spark status``, ``list``, ``streams`` and ``top``: receivers at a glance and in detail, with their topics.

:mod:`.status_views` reads and shows what they are asked for.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

import click
from click.core import ParameterSource

from wallaroo_spark.cli.common import ReceiverOptions, RegistryOptions, exit_unless
from wallaroo_spark.cli.durable.schema import AppOptions
from wallaroo_spark.cli.verbs import Json, Number, verb

if TYPE_CHECKING:
    from wallaroo_spark.observe.receiver import ReceiverStatus, StreamStatus


T = TypeVar("T")
ORDERS: dict[str, Callable[[StreamStatus], Any]] = {
    "age": lambda one: -(one.ack_age or -1.0),
    "held": lambda one: -one.rows,
    "lag": lambda one: -one.lag_rows,
    "bytes": lambda one: -one.bytes,
    "name": lambda one: (one.instance, one.title),
}
"""The orders of the streams, by their names in --sort."""


@verb()
def status(
    *,
    place: ReceiverOptions,
    checkpoint: str = "",
    app: str = "",
    application: str = "",
    watch: bool = False,
    every: Annotated[float, Number(min=0.1)] = 2.0,
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
        wallaroo-spark --context test status --watch
        wallaroo-spark status --json | jq .cause.code
        wallaroo-spark status --app ./shop
    """
    from wallaroo_spark.cli import status_views as views
    from wallaroo_spark.observe.record import History

    registry, receiver = place.registry, place.receiver
    if _wants_application(app, application, receiver):
        if application and not registry:
            raise click.UsageError("give --registry URL with --application NAME, or --app FOLDER")
        healthy = True
        for shown in _looks(lambda: views.application_status(AppOptions(app), registry, application), watch, every):
            views.show_application(shown, watch, as_json)
            healthy = shown.cause.healthy
    elif (receiver and not registry) or not (registry or checkpoint):
        raise click.UsageError("give --registry URL, with --receiver NAME for its slots, or --checkpoint PATH, or all")
    elif not receiver:
        healthy = views.show_others(registry, checkpoint, as_json)
    else:
        history = History()
        with place.collector() as collector:
            for found in _looks(lambda: views.look(collector, registry, checkpoint), watch, every):
                history.add(found)
                views.show_receiver(found, history, watch, as_json)
                healthy = found.healthy and views.served(found.topics)
    exit_unless(healthy)


def _looks(look: Callable[[], T], watch: bool, every: float) -> Iterator[T]:
    """What ``look`` returns: once, or with ``watch`` every so many seconds."""
    yield look()
    while watch:
        time.sleep(every)
        yield look()


def _wants_application(app: str, application: str, receiver: str) -> bool:
    """Whether an application is asked for; an option of the command line comes before defaults of the environment."""
    source = click.get_current_context().get_parameter_source
    given = {name for name in ("app", "application", "receiver") if source(name) is ParameterSource.COMMANDLINE}
    return bool(app or application) and ("receiver" not in given or len(given) > 1) and (bool(given) or not receiver)


@verb(name="list")
def list_receivers(*, place: RegistryOptions, as_json: Json = False) -> None:
    """List the receivers of a registry, with their slots and the reason why each waits, and the topics.

    A receiver that has ended stays in the list until its registry is emptied. The exit status is 0.

    Options:
        --json: Print one line of JSON instead of a table.

    Examples:
        wallaroo-spark list --registry redis://127.0.0.1:6379
        wallaroo-spark --context test list --json
    """
    from wallaroo_spark.cli import status_views as views

    if not place.registry:
        raise click.UsageError("give --registry URL, or set WALLAROO_REGISTRY, or use --context")
    views.show_list(place, as_json)


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
        wallaroo-spark --context test streams
        wallaroo-spark streams --instance shop-1 --sort held
        wallaroo-spark streams --json | jq '.streams[] | {name, lag_rows}'
    """
    from wallaroo_spark.cli import status_views as views

    with place.collector() as collector:
        found = views.known(collector, limit, instance, stream)
    views.show_streams(found, ORDERS[sort], as_json, chosen=bool(instance or stream))
    exit_unless(bool(found.slots) and all(slot.answers for slot in found.slots))


@verb()
def top(
    *,
    place: ReceiverOptions,
    every: Annotated[float, Number(min=0.1)] = 1.0,
    window: Annotated[float, Number(min=0.1)] = 5.0,
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
        wallaroo-spark --context test top --once | less
    """
    from wallaroo_spark.cli import status_views as views
    from wallaroo_spark.observe.record import History

    history = History()
    with place.collector() as collector:

        def look() -> ReceiverStatus:
            found = views.known(collector, max(rows, 20))
            history.add(found)
            return found

        looks = _looks(look, True, every)
        found = next(looks)
        if once:
            found = next(looks)
            views.show_frame(found, history, window, rows, as_json)
        else:
            with views.frames(history, window, rows, as_json) as show, contextlib.suppress(KeyboardInterrupt):
                show(found)
                for found in looks:
                    show(found)
    exit_unless(found.healthy)
