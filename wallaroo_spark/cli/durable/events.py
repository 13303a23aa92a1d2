"""``wallaroo-spark publish`` and ``consume``: append events to a durable stream, and print them as a member.

The options by which a verb finds the gateways of an application, and events as lines of text.
"""

from __future__ import annotations

import contextlib
import hashlib
import math
import os
import sys
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import IO, TYPE_CHECKING, Annotated, Any

import click

from wallaroo_spark.cli.common import exit_unless
from wallaroo_spark.cli.verbs import Json, Number, verb
from wallaroo_spark.errors import ConfigurationError, WallarooError, printable
from wallaroo_spark.json_text import json_line, load_json
from wallaroo_spark.texts import count

if TYPE_CHECKING:
    from wallaroo_spark.client import Client, Event, RefusedEvent


@dataclass(frozen=True)
class GatewayOptions:
    """The gateways of an application.

    Options:
        --gateway ADDRESS: Gateways: host:port, separated by commas.
        --registry URL: Redis with the gateways' addresses, in place of them.
        --application NAME: Name of the application, with --registry.
        --token TOKEN: The token; env:NAME or file:PATH hide it.
        --tls: Use TLS, with the authorities that gRPC trusts.
        --tls-ca FILE: PEM file of the authority of the gateways.
        --tls-certificate FILE: PEM file of the certificate to present.
        --tls-key FILE: PEM file with the key of --tls-certificate.
    """

    gateway: str = ""
    registry: str = ""
    application: str = ""
    token: str = ""
    tls: bool = False
    tls_ca: str = ""
    tls_certificate: str = ""
    tls_key: str = ""

    def settings(self) -> dict[str, Any]:
        """The settings of a client. Raises click.UsageError without an address."""
        found = {
            "token": self.token,
            "tls": self.tls,
            "ca": self.tls_ca,
            "certificate": self.tls_certificate,
            "key": self.tls_key,
        }
        if self.gateway:
            return {**found, "address": self.gateway}
        if self.registry and self.application:
            return {**found, "registry": self.registry, "application": self.application}
        raise click.UsageError(
            "give --gateway HOST:PORT, or --registry URL and --application NAME, or set WALLAROO_GATEWAY, or use "
            "--context"
        )

    def client(self) -> Client:
        """A client. Raises click.UsageError without an address."""
        from wallaroo_spark.client import Client

        return Client(**self.settings())


def start_of_text(text: str) -> str | int:
    """Where a group begins or goes on: an offset, or the name of a place, which the client checks."""
    return int(text) if text.isdecimal() else text


def event_as_json(event: Event, **more: Any) -> str:
    """An event in the JSON format of CloudEvents as one line, with further members."""
    from wallaroo_spark.client.events import to_structured

    return json_line({**more, **to_structured(event)})


def shown_data(event: Event) -> str:
    """The payload of an event as one line for a person."""
    value = event.value
    if value is None:
        return ""
    if isinstance(value, str):
        return printable(value)
    try:
        return repr(value)[2:-1] if isinstance(value, bytes) else json_line(value)
    except ValueError:
        # Python has read more than JSON can say, such as 1e400.
        return repr(event.data)[2:-1]


LONGEST_NAME = 60
"""Most characters of a file's name in the id of an event. A choice that keeps ids short."""
_RANDOM = (
    "those of these lines are random, so lines that are published again may be written twice; lines of a file have the "
    "same ids each time"
)


@verb()
def publish(
    stream: str,
    files: Annotated[tuple[IO[bytes], ...], click.File("rb"), "[FILE]..."] = (),
    *,
    kind: Annotated[str, "--type"] = "",
    data: str | None = None,
    id_: Annotated[str, "--id"] = "",
    new_ids: bool = False,
    cloudevents: bool = False,
    source: str = "urn:wallaroo-spark:publish",
    key: str | None = None,
    partition: Annotated[int | None, click.IntRange(0)] = None,
    durability: Annotated[str, click.Choice(["committed", "received"])] = "committed",
    delay: Annotated[float | None, Number(0)] = None,
    batch: Annotated[int, click.IntRange(1)] = 500,
    gateways: GatewayOptions,
    as_json: Json = False,
) -> None:
    """Append an event to STREAM for each line of FILE..., or of standard input; - stands for it, too.

    A line that is JSON has the content type of JSON, and text otherwise. Events are written in the order of the lines.
    Many requests are sent at once on one connection. When it is lost, events without an answer are sent again, and are
    written once. The id of an event that has none is its file, its line and a hash, so a file that is published again
    after an error writes each event once; lines of standard input have random ids. A line that is refused is named on
    standard error, the others are published, and the exit status is 1.

    Options:
        --type TYPE: Type of the events.
        --data TEXT: Payload of one event, in place of files.
        --id ID: Id of the event of --data; random otherwise.
        --new-ids: Give lines of files random ids, to publish the same lines once more on purpose.
        --cloudevents: Each line is a whole event, in the JSON format of CloudEvents.
        --source URI: Source of events that have none.
        --key KEY: Events with the same key are in one partition.
        --partition N: The partition of all events.
        --durability: Wait until the events are committed, or until a gateway has written them durably.
        --delay SECONDS: Write them so much later.
        --batch EVENTS: Events of one request.
        --json: Print a line of JSON with the place of each event.

    Examples:
        wallaroo-spark publish shop/orders --type shop.order.created --data '{"order": 17}'
        wallaroo-spark publish shop/orders --type shop.order.created orders.jsonl
    """
    from wallaroo_spark.client import Client

    if not kind and not cloudevents:
        raise click.UsageError("give --type TYPE, or --cloudevents for lines that are whole events")
    if data is not None and (files or cloudevents):
        raise click.UsageError("give --data TEXT or files, and --cloudevents with files")
    if id_ and data is None:
        raise click.UsageError("--id is the id of the event of --data")
    settings = gateways.settings()
    names: deque[str] = deque()
    published = refused = 0

    def refuse(where: str, problem: str) -> None:
        nonlocal refused
        refused += 1
        click.echo(printable(problem if problem.startswith(where) else f"{where}: {problem}"), err=True)

    def tell(one: RefusedEvent) -> None:
        # Outcomes come in the order of the events.
        refuse(names.popleft() if names else "--data", one.error.message)

    if data is not None:
        one_event = _of_data(kind, data, id_)
        events, ids = iter([one_event]), f"--id {one_event.id}"
    else:
        events = _of_files(files, kind, cloudevents, names, not new_ids, refuse)
        ids = "" if cloudevents or (files and not new_ids) else _RANDOM
    how: dict[str, Any] = {"partition": partition, "durability": durability, "key": key, "delay": delay, "batch": batch}
    with Client(**settings, source=source) as client:
        try:
            for one in client.publish_many(stream, events, on_refused=tell, **how):
                published += 1
                if names:
                    names.popleft()
                if as_json and one.place is not None:
                    place = {"partition": one.place.partition, "offset": one.place.offset}
                    click.echo(json_line({"id": one.event.id, **place}))
        except WallarooError as error:
            if "answered" not in error.fields or not ids:
                raise
            raise type(error)(f"{error.message} ({ids})", code=error.code, **error.fields) from error
    if not as_json:
        click.echo(f"Published {count(published, 'event')} to {stream}.")
    exit_unless(not refused, f"{count(refused, 'event')} refused; correct the lines above and publish them.")


def _of_data(kind: str, data: str, id_: str) -> Event:
    from wallaroo_spark.client import Event

    payload = _payload(data.encode("utf-8", "surrogateescape"))
    return Event(kind, **payload, id=id_) if id_ else Event(kind, **payload)


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
                event = from_structured(text, name, **own) if whole else Event(kind, **_payload(text), **own)
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

    with contextlib.suppress(ValueError):
        load_json(line)
        return {"data": line, "datacontenttype": JSON_TYPE}
    with contextlib.suppress(UnicodeDecodeError):
        return {"data": line.decode()}
    return {"data": line}


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
    left = limit or math.inf
    with (
        gateways.client() as client,
        client.consume(
            stream,
            group=group,
            start=start_of_text(start),
            durable=False if ephemeral else None,
            max_events=min(max_events, limit or max_events),
            partitions=partitions,
        ) as deliveries,
    ):
        for delivery in deliveries:
            with delivery:
                # A delivery is acknowledged as a whole: one that goes beyond the limit is given back.
                if len(delivery.events) > left:
                    delivery.nack(reason="the limit is reached")
                    break
                for offset, event in enumerate(delivery.events, start=delivery.first):
                    click.echo(_line(delivery.partition, offset, event, as_json))
            left -= len(delivery.events)
            if left <= 0:
                break


def _line(partition: int, offset: int, event: Any, as_json: bool) -> str:
    if as_json:
        return event_as_json(event, wallaroopartition=partition, wallaroooffset=offset)
    return f"{partition}/{offset} {printable(event.type)} {shown_data(event)}".rstrip()
