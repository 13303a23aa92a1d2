"""``wallaroo-spark list``: all receivers and topics of a registry."""

from __future__ import annotations

import json
from typing import Any

import click

from wallaroo_spark.cli.status import sources


@click.command(
    "list",
    epilog="Examples: wallaroo-spark list --registry redis://127.0.0.1:6379 · "
    "wallaroo-spark list --context test --json",
)
@sources.registry_options
@click.option("--json", "as_json", is_flag=True, help="Print one line of JSON instead of a table.")
def list_receivers(registry: str, tls: bool, tls_ca: str, as_json: bool) -> None:
    """List the receivers of a registry, with their slots and the reason why each waits, and the topics.

    A receiver that has ended stays in the list until its registry is emptied. The exit status is 0.
    """
    from wallaroo_spark.observe.collect import Question
    from wallaroo_spark.observe.faces.as_json import record_to_json
    from wallaroo_spark.registry.client import receiver_names

    if not registry:
        raise click.UsageError("give --registry URL, or set WALLAROO_REGISTRY, or use --context")
    found = []
    for name in receiver_names(registry, sources.ATTEMPTS):
        with sources.collector(registry, name, tls, tls_ca) as collector:
            found.append(collector.status(Question(most=20)))
    topics = sources.topics_in(registry)
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
        from wallaroo_spark.observe.faces.terminal import receivers_view

        console.print(receivers_view(found))
    else:
        click.echo("No receiver is known in this registry.")
    if topics:
        from wallaroo_spark.observe.faces.terminal import topics_table

        console.print(topics_table(topics))
