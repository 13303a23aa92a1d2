"""``wallaroo-spark list``: all receivers and topics of a registry."""

from __future__ import annotations

import json
from typing import Any

import click

from wallaroo_spark.cli.common import debug_option, set_up_logging
from wallaroo_spark.cli.status import sources


@click.command(
    "list",
    short_help="List all receivers and topics of a registry.",
    epilog="Examples: wallaroo-spark list --registry redis://127.0.0.1:6379 · "
    "wallaroo-spark list --context test --json",
)
@sources.registry_options
@click.option("--json", "as_json", is_flag=True, help="Print one line of JSON instead of a table.")
@debug_option
def list_receivers(registry: str, tls: bool, tls_ca: str, as_json: bool) -> None:
    """List the receivers of a registry, with their slots and the reason why each waits, and the topics.

    A receiver that has ended stays in the list until its registry is emptied. The exit status is 0.
    """
    from wallaroo_spark.cli.status.topics_view import topics_in, topics_table
    from wallaroo_spark.registry.fleet_record import receiver_names
    from wallaroo_spark.status.collect import Question
    from wallaroo_spark.status.schema import record_to_json

    if not registry:
        raise click.UsageError("give --registry URL, or set WALLAROO_REGISTRY, or use --context")
    set_up_logging()
    found = []
    for name in receiver_names(registry, sources.ATTEMPTS):
        with sources.collector(registry, name, tls, tls_ca) as collector:
            found.append(collector.status(Question(most=20)))
    topics = topics_in(registry)
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
    console = sources.console()
    if found:
        from wallaroo_spark.cli.status.live_tables import receivers_view

        console.print(receivers_view(found))
    else:
        click.echo("No receiver is known in this registry.")
    if topics:
        console.print(topics_table(topics))
