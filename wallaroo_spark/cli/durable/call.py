"""``wallaroo-spark call``: call an endpoint and print the answer."""

from __future__ import annotations

import sys
from typing import Any

import click

from wallaroo_spark.cli.common import debug_option, set_up_logging
from wallaroo_spark.cli.durable.commands import value_of
from wallaroo_spark.cli.durable.connecting import client_settings, event_as_json, gateway_options, shown_data


@click.command(
    short_help="Call an endpoint and print the answer.",
    epilog="Example: wallaroo-spark call shop/price --data '{\"order\": 17}'",
)
@click.argument("endpoint")
@click.option("--type", "kind", default="call", show_default=True, metavar="TYPE", help="Type of the event.")
@click.option("--data", default="", metavar="TEXT", help="Payload of the event; - reads it from standard input.")
@click.option("--timeout", default=60.0, show_default=True, metavar="SECONDS", help="Longest wait for the answer.")
@gateway_options
@click.option("--json", "as_json", is_flag=True, help="Print the events in the JSON format of CloudEvents.")
@debug_option
def call(endpoint: str, kind: str, data: str, timeout: float, as_json: bool, **given: Any) -> None:
    """Call ENDPOINT with one event, and print the events of its answer; it fails at once when nothing serves it."""
    from wallaroo_spark.client import Client, Event

    set_up_logging()
    settings = client_settings(given)
    payload = sys.stdin.buffer.read() if data == "-" else data.encode()
    with Client(**settings) as client:
        for answer in client.call_stream(endpoint, Event(kind, value_of(payload)), timeout=timeout):
            click.echo(event_as_json(answer) if as_json else shown_data(answer))
