"""``wallaroo-spark list``: all receivers and topics of a registry."""

from __future__ import annotations

import json
from typing import Any

import click

from wallaroo_spark.cli.common import console
from wallaroo_spark.cli.status import sources
from wallaroo_spark.cli.status.sources import RegistryOptions
from wallaroo_spark.cli.verbs import Json, verb


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
