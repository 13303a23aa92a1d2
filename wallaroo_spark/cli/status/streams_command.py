"""``wallaroo-spark streams``: the streams of a receiver, with references, lag and age."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import TYPE_CHECKING, Annotated, Any

import click

from wallaroo_spark.cli.common import console
from wallaroo_spark.cli.status.sources import ReceiverOptions
from wallaroo_spark.cli.verbs import Json, verb
from wallaroo_spark.errors import RegistryError

if TYPE_CHECKING:
    from wallaroo_spark.observe.receiver import StreamStatus

ORDERS: dict[str, Callable[[StreamStatus], Any]] = {
    "age": lambda one: -(one.ack_age or -1.0),
    "held": lambda one: -one.rows,
    "lag": lambda one: -one.lag_rows,
    "bytes": lambda one: -one.bytes,
    "name": lambda one: (one.instance, one.title),
}
"""The orders of the streams, by their names in --sort."""


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
        found = collector.status(Question(limit, instance, stream))
    if found.registry_error and not found.slots:
        raise RegistryError(found.registry_error, code="registry-away")
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
