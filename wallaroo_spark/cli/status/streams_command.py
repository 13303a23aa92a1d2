"""``wallaroo-spark streams``: the streams of a receiver, with references, lag and age."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import click

from wallaroo_spark.cli.status import sources
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


@click.command(
    epilog="Examples: wallaroo-spark streams --context test · wallaroo-spark streams --instance shop-1 --sort held · "
    "wallaroo-spark streams --json | jq '.streams[] | {name, lag_rows}'",
)
@sources.registry_options
@sources.receiver_option
@click.option("--instance", default="", metavar="NAME", help="Only the streams of this connector instance.")
@click.option("--stream", default="", metavar="NAME", help="Only the streams of this name, or with this id.")
@click.option(
    "--sort", default="age", show_default=True, type=click.Choice(list(ORDERS)), help="The order of the streams."
)
@click.option(
    "--limit",
    default=50,
    show_default=True,
    type=click.IntRange(1, 1000),
    help="Maximum number of streams of each worker.",
)
@click.option("--json", "as_json", is_flag=True, help="Print one line of JSON instead of a table.")
def streams(
    registry: str,
    receiver: str,
    tls: bool,
    tls_ca: str,
    instance: str,
    stream: str,
    sort: str,
    limit: int,
    as_json: bool,
) -> None:
    """Show the streams that wait longest for an acknowledgement, and the streams with the most held rows.

    For each: its state, the references of the last received, planned and committed row, held rows and those that no
    batch has asked for yet, and the age of the oldest unacknowledged row. --instance and --stream find every stream.
    The exit status is 0 when all workers have answered, and 1 otherwise.
    """
    from wallaroo_spark.observe.collect import Question

    sources.need(registry, receiver)
    with sources.collector(registry, receiver, tls, tls_ca) as collector:
        found = collector.status(Question(limit, instance, stream))
    if found.registry_error and not found.slots:
        raise RegistryError(found.registry_error, code="registry-away")
    chosen = sorted(found.streams, key=ORDERS[sort])
    if as_json:
        from wallaroo_spark.observe.faces.as_json import record_to_json

        total = found.totals.streams
        shown = {"receiver": receiver, "total": total, "streams": [record_to_json(one) for one in chosen]}
        click.echo(json.dumps(shown))
    else:
        from wallaroo_spark.observe.faces.terminal import streams_view

        console = sources.console()
        console.print(streams_view(chosen))
        if found.totals.streams > len(chosen) and not (instance or stream):
            console.print(f"{len(chosen):,} of {found.totals.streams:,} streams; --instance and --stream find others")
        for slot in found.slots:
            if not slot.answers:
                console.print(slot.cause.sentence, markup=False)
    if not all(slot.answers for slot in found.slots) or not found.slots:
        raise click.exceptions.Exit(1)
