"""``wallaroo-spark publish``: append events to a durable stream."""

from __future__ import annotations

import hashlib
import os
import sys
from collections import deque
from collections.abc import Callable, Iterator
from typing import IO, TYPE_CHECKING, Any

import click

from wallaroo_spark.cli.durable.connecting import client_settings, gateway_options
from wallaroo_spark.errors import ConfigurationError, printable
from wallaroo_spark.texts import count

if TYPE_CHECKING:
    from wallaroo_spark.client import Event, RefusedEvent

LONGEST_NAME = 60
"""Most characters of a file's name in the id of an event. A choice that keeps ids short."""


@click.command(
    epilog="Examples: wallaroo-spark publish shop/orders --type shop.order.created --data '{\"order\": 17}' · "
    "wallaroo-spark publish shop/orders --type shop.order.created orders.jsonl",
)
@click.argument("stream")
@click.argument("files", nargs=-1, type=click.File("rb"), metavar="[FILE]...")
@click.option("--type", "kind", default="", metavar="TYPE", help="Type of the events.")
@click.option("--data", default=None, metavar="TEXT", help="Payload of one event, in place of files.")
@click.option("--id", "id_", default="", metavar="ID", help="Id of the event of --data; random otherwise.")
@click.option(
    "--new-ids",
    is_flag=True,
    help="Give lines of files random ids, to publish the same lines once more on purpose.",
)
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
def publish(
    stream: str, files: tuple[IO[bytes], ...], data: str | None, batch: int, as_json: bool, **given: Any
) -> None:
    """Append an event to STREAM for each line of FILE..., or of standard input; - stands for it, too.

    A line that is JSON has the content type of JSON, and text otherwise. Events are written in the order of the lines.
    Many requests are sent at once on one connection. When it is lost, events without an answer are sent again, and are
    written once. The id of an event is its file, its line and a hash, so a file that is published again after an error
    writes each event once; lines of standard input have random ids. A line that is refused is named on standard error,
    the others are published, and the exit status is 1.
    """
    from wallaroo_spark.client import Client
    from wallaroo_spark.json_text import json_line

    kind, id_, whole = given.pop("kind"), given.pop("id_"), given.pop("cloudevents")
    numbered = not given.pop("new_ids")
    if not kind and not whole:
        raise click.UsageError("give --type TYPE, or --cloudevents for lines that are whole events")
    if data is not None and (files or whole):
        raise click.UsageError("give --data TEXT or files, and --cloudevents with files")
    if id_ and data is None:
        raise click.UsageError("--id is the id of the event of --data")
    settings = client_settings(given)
    names: deque[str] = deque()
    published = refused = 0

    def refuse(where: str, problem: str) -> None:
        nonlocal refused
        refused += 1
        click.echo(printable(problem if problem.startswith(where) else f"{where}: {problem}"), err=True)

    def tell(one: RefusedEvent) -> None:
        # Outcomes come in the order of the events.
        refuse(names.popleft() if names else "--data", one.error.message)

    events = _of_data(kind, data, id_) if data is not None else _of_files(files, kind, whole, names, numbered, refuse)

    with Client(**settings, source=given.pop("source")) as client:
        for one in client.publish_many(stream, events, batch=batch, on_refused=tell, **given):
            published += 1
            if names:
                names.popleft()
            if as_json and one.place is not None:
                place = {"partition": one.place.partition, "offset": one.place.offset}
                click.echo(json_line({"id": one.event.id, **place}))
    if not as_json:
        click.echo(f"Published {count(published, 'event')} to {stream}.")
    if refused:
        click.echo(f"{count(refused, 'event')} refused; correct the lines above and publish them.", err=True)
        raise click.exceptions.Exit(1)


def _of_data(kind: str, data: str, id_: str) -> Iterator[Event]:
    from wallaroo_spark.client import Event

    payload = _payload(data.encode("utf-8", "surrogateescape"))
    yield Event(kind, **payload, id=id_) if id_ else Event(kind, **payload)


def _of_files(
    files: tuple[IO[bytes], ...],
    kind: str,
    whole: bool,
    names: deque[str],
    numbered: bool,
    refuse: Callable[[str, str], None],
) -> Iterator[Event]:
    """The events of the lines; the file and the line of each is added to ``names``, or given to ``refuse``.

    With ``numbered`` they are in the id, too.
    """
    from wallaroo_spark.client import Event
    from wallaroo_spark.client.events import from_structured

    for file in files or (sys.stdin.buffer,):
        for number, line in enumerate(file, start=1):
            text = line.rstrip(b"\r\n")
            if not text:
                continue
            path = str(getattr(file, "name", "standard input"))
            name = f"{path}, line {number}"
            own: dict[str, Any] = {"id": _id(path, number, text)} if numbered and os.path.isfile(path) else {}
            try:
                event = from_structured(text, name) if whole else Event(kind, **_payload(text), **own)
            except ConfigurationError as error:
                refuse(name, error.message)
                continue
            names.append(name)
            yield event


def _id(path: str, number: int, line: bytes) -> str:
    """The id of a line. By its hash a line that was corrected is another event, and so is one of another file."""
    content = hashlib.blake2b(os.fsencode(os.path.abspath(path)) + b"\0" + line, digest_size=8).hexdigest()
    return f"{os.path.basename(path)[-LONGEST_NAME:]}:{number}:{content}"


def _payload(line: bytes) -> dict[str, Any]:
    """A line as it stands, with its content type."""
    from wallaroo_spark.client.events import JSON_TYPE
    from wallaroo_spark.json_text import load_json

    try:
        load_json(line)
        return {"data": line, "datacontenttype": JSON_TYPE}
    except ValueError:
        pass
    try:
        return {"data": line.decode()}
    except UnicodeDecodeError:
        return {"data": line}
