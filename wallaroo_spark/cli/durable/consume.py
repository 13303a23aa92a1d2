"""``wallaroo-spark consume``: print the events of a durable stream as a member of a group."""

from __future__ import annotations

from typing import Annotated, Any

import click

from wallaroo_spark.cli.durable.connecting import GatewayOptions, event_as_json, shown_data, start_of_text
from wallaroo_spark.cli.verbs import Json, verb
from wallaroo_spark.errors import printable


@verb()
def consume(
    stream: str,
    *,
    group: str | None = None,
    start: str = "latest",
    ephemeral: bool = False,
    partitions: Annotated[tuple[int, ...], "--partition", click.IntRange(0)] = (),
    max_events: Annotated[int, click.IntRange(1)] = 100,
    limit: Annotated[int | None, click.IntRange(1)] = None,
    gateways: GatewayOptions,
    as_json: Json = False,
) -> None:
    """Print the events of STREAM and acknowledge them, for ever; it connects again when a gateway is lost.

    Events are acknowledged after they are printed, so each is printed at least once. A line has the partition, the
    offset, the type and the payload; with --json it is an event with the extensions wallaroopartition and
    wallaroooffset. With --limit, events of a delivery beyond the limit are given to the next member.

    Options:
        --group NAME: The group; without it, one of its own that ends with it.
        --start PLACE: Where a new group begins: latest, beginning, or an offset.
        --ephemeral: The group of --group ends with its last member.
        --partition N: Only these.
        --max-events: Most events of a delivery.
        --limit EVENTS: End after so many events.
        --json: Print an event as a line in the JSON format of CloudEvents.

    Examples:
        wallaroo-spark consume shop/orders --start beginning --json
        wallaroo-spark consume shop/orders --group billing --limit 10
    """
    left = limit
    with (
        gateways.client() as client,
        client.consume(
            stream,
            group=group,
            start=start_of_text(start),
            durable=False if ephemeral else None,
            max_events=max_events if limit is None else min(max_events, limit),
            partitions=partitions,
        ) as deliveries,
    ):
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
