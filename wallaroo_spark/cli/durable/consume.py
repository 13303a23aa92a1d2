"""``wallaroo-spark consume``: print the events of a durable stream as a member of a group."""

from __future__ import annotations

from typing import Any

import click

from wallaroo_spark.cli.durable.connecting import (
    client_settings,
    event_as_json,
    gateway_options,
    shown_data,
    start_of_text,
)
from wallaroo_spark.errors import printable


@click.command(
    epilog="Examples: wallaroo-spark consume shop/orders --start beginning --json · "
    "wallaroo-spark consume shop/orders --group billing --limit 10",
)
@click.argument("stream")
@click.option("--group", default=None, metavar="NAME", help="The group; without it, one of its own that ends with it.")
@click.option(
    "--start",
    default="latest",
    show_default=True,
    metavar="PLACE",
    help="Where a new group begins: latest, beginning, or an offset.",
)
@click.option("--ephemeral", is_flag=True, help="The group of --group ends with its last member.")
@click.option("--partition", "partitions", multiple=True, type=click.IntRange(0), metavar="N", help="Only these.")
@click.option("--max-events", default=100, type=click.IntRange(1), show_default=True, help="Most events of a delivery.")
@click.option("--limit", default=None, type=click.IntRange(1), metavar="EVENTS", help="End after so many events.")
@gateway_options
@click.option("--json", "as_json", is_flag=True, help="Print an event as a line in the JSON format of CloudEvents.")
def consume(
    stream: str, start: str, ephemeral: bool, limit: int | None, as_json: bool, max_events: int, **given: Any
) -> None:
    """Print the events of STREAM and acknowledge them, for ever; it connects again when a gateway is lost.

    Events are acknowledged after they are printed, so each is printed at least once. A line has the partition, the
    offset, the type and the payload; with --json it is an event with the extensions wallaroopartition and
    wallaroooffset. With --limit, events of a delivery beyond the limit are given to the next member.
    """
    from wallaroo_spark.client import Client

    settings = client_settings(given)
    left = limit
    with Client(**settings) as client:
        most = max_events if limit is None else min(max_events, limit)
        durable = False if ephemeral else None
        with client.consume(
            stream, start=start_of_text(start), durable=durable, max_events=most, **given
        ) as deliveries:
            for delivery in deliveries:
                with delivery:
                    # A delivery is acknowledged as a whole: one that goes beyond the limit is given back.
                    if left is not None and len(delivery.events) > left:
                        delivery.nack(reason="the limit is reached")
                        break
                    for offset, event in enumerate(delivery.events, start=delivery.first):
                        click.echo(_line(delivery.partition, offset, event, as_json))
                if left is not None:
                    left -= len(delivery.events)
                    if left <= 0:
                        break


def _line(partition: int, offset: int, event: Any, as_json: bool) -> str:
    if as_json:
        return event_as_json(event, wallaroopartition=partition, wallaroooffset=offset)
    return f"{partition}/{offset} {printable(event.type)} {shown_data(event)}".rstrip()
