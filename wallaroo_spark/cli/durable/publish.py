"""``wallaroo-spark publish``: append events to a durable stream."""

from __future__ import annotations

import json
import sys
from collections import deque
from collections.abc import Iterator
from typing import IO, TYPE_CHECKING, Any

import click

from wallaroo_spark.cli.common import count, debug_option, set_up_logging
from wallaroo_spark.cli.durable.connecting import client_settings, gateway_options

if TYPE_CHECKING:
    from wallaroo_spark.client import Event, RefusedEvent


@click.command(
    short_help="Append events to a durable stream.",
    epilog="Examples: wallaroo-spark publish shop/orders --type shop.order.created --data '{\"order\": 17}' · "
    "wallaroo-spark publish shop/orders --type shop.order.created orders.jsonl",
)
@click.argument("stream")
@click.argument("files", nargs=-1, type=click.File("rb"), metavar="[FILE]...")
@click.option("--type", "kind", default="", metavar="TYPE", help="Type of the events.")
@click.option("--data", default=None, metavar="TEXT", help="Payload of one event, in place of files.")
@click.option("--id", "id_", default="", metavar="ID", help="Id of the event of --data; random otherwise.")
@click.option("--cloudevents", is_flag=True, help="Each line is a whole event, in the JSON format of CloudEvents.")
@click.option(
    "--source",
    default="urn:wallaroo-spark:publish",
    show_default=True,
    metavar="URI",
    help="Source of events that have none.",
)
@click.option("--key", default=None, metavar="KEY", help="Events with the same key are in one partition.")
@click.option("--partition", default=None, type=click.IntRange(0), metavar="N", help="The partition of all events.")
@click.option(
    "--durability",
    default="committed",
    type=click.Choice(["committed", "received"]),
    show_default=True,
    help="Wait until the events are committed, or until a gateway has written them durably.",
)
@click.option("--delay", default=None, type=click.FloatRange(0), metavar="SECONDS", help="Write them so much later.")
@click.option(
    "--batch", default=500, type=click.IntRange(1), show_default=True, metavar="EVENTS", help="Events of one request."
)
@gateway_options
@click.option("--json", "as_json", is_flag=True, help="Print a line of JSON with the place of each event.")
@debug_option
def publish(
    stream: str, files: tuple[IO[bytes], ...], data: str | None, batch: int, as_json: bool, **given: Any
) -> None:
    """Append an event to STREAM for each line of FILE..., or of standard input; - stands for it, too.

    A line that is JSON has the content type of JSON, and text otherwise. Events are written in the order of the lines.
    Many requests are sent at once on one connection. When it is lost, events without an answer are sent again, and are
    written once. A line that is refused is named on standard error, the others are published, and the exit status is 1.
    """
    from wallaroo_spark.client import Client

    set_up_logging()
    kind, id_, whole = given.pop("kind"), given.pop("id_"), given.pop("cloudevents")
    if not kind and not whole:
        raise click.UsageError("give --type TYPE, or --cloudevents for lines that are whole events")
    if data is not None and (files or whole):
        raise click.UsageError("give --data TEXT or files, and --cloudevents with files")
    if id_ and data is None:
        raise click.UsageError("--id is the id of the event of --data")
    settings = client_settings(given)
    names: deque[str] = deque()
    events = _of_data(kind, data, id_) if data is not None else _of_files(files, kind, whole, names)
    published = refused = 0

    def tell(one: RefusedEvent) -> None:
        nonlocal refused
        refused += 1
        # Outcomes come in the order of the events.
        where = names.popleft() if names else "--data"
        click.echo(f"{where}: {one.error.message}", err=True)

    with Client(**settings, source=given.pop("source")) as client:
        for one in client.publish_many(stream, events, batch=batch, on_refused=tell, **given):
            published += 1
            if names:
                names.popleft()
            if as_json and one.place is not None:
                place = {"partition": one.place.partition, "offset": one.place.offset}
                click.echo(json.dumps({"id": one.event.id, **place}))
    if not as_json:
        click.echo(f"Published {count(published, 'event')} to {stream}.")
    if refused:
        click.echo(f"{count(refused, 'event')} refused; correct the lines above and publish them.", err=True)
        raise click.exceptions.Exit(1)


def _of_data(kind: str, data: str, id_: str) -> Iterator[Event]:
    from wallaroo_spark.client import Event

    value = _value(data.encode())
    yield Event(kind, value, id=id_) if id_ else Event(kind, value)


def _of_files(files: tuple[IO[bytes], ...], kind: str, whole: bool, names: deque[str]) -> Iterator[Event]:
    """The events of the lines; the file and the line of each is added to ``names``."""
    from wallaroo_spark.client import Event
    from wallaroo_spark.client.events.structured import from_structured

    for file in files or (sys.stdin.buffer,):
        for number, line in enumerate(file, start=1):
            text = line.rstrip(b"\r\n")
            if not text:
                continue
            name = f"{getattr(file, 'name', 'standard input')}, line {number}"
            event = from_structured(text, name) if whole else Event(kind, _value(text))
            names.append(name)
            yield event


def _value(line: bytes) -> Any:
    try:
        return json.loads(line)
    except ValueError:
        pass
    try:
        return line.decode()
    except UnicodeDecodeError:
        return line
