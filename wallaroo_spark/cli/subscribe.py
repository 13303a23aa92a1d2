"""``wallaroo-spark subscribe``: prints the rows of a topic as they are published. It needs no Spark.

``wallaroo-spark tap``: shows live messages of a stream without consuming them. It needs no Spark.
"""

from __future__ import annotations

import base64
import functools
import itertools
import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any

import click

from wallaroo_spark import pubsub
from wallaroo_spark.cli.common import (
    ATTEMPTS,
    Columns,
    RegistryOptions,
    console,
    exit_unless,
    print_result,
    printable_bytes,
    table_of,
)
from wallaroo_spark.cli.signals import run_until_sigterm
from wallaroo_spark.cli.verbs import Json, Number, verb
from wallaroo_spark.errors import RegistryError, printable
from wallaroo_spark.json_text import load_json
from wallaroo_spark.options import resolve_secret
from wallaroo_spark.texts import count

if TYPE_CHECKING:
    from wallaroo_spark.inner.tap import TappedMessage


@dataclass(frozen=True, kw_only=True)
class SubscriptionOptions:
    """The settings of a subscription.

    Options:
        --registry URL: The topic's Redis; also env:NAME or file:PATH.
        --cookie COOKIE: The topic's cookie; env:NAME or file:PATH hide it.
        --wait SECONDS: Seconds to wait for a topic that does not run yet.
        --reopen: Wait for a topic that has ended to be started again.
        --lost-after SECONDS: Longest time without a publisher.
        --name: Name of this subscriber in the publishers' logs.
        --tls: Use TLS, with the authorities that this system trusts.
        --tls-ca FILE: PEM file of the authority of the publishers' certificates.
        --tls-certificate FILE: PEM file of the certificate to present.
        --tls-key FILE: PEM file with the key of --tls-certificate.
    """

    registry: str
    cookie: str = ""
    wait: float = 0.0
    """Seconds."""
    reopen: bool = False
    lost_after: float = 60.0
    """Seconds."""
    name: str = ""
    tls: bool = False
    tls_ca: str = ""
    tls_certificate: str = ""
    tls_key: str = ""


@verb()
def subscribe(
    topic: str,
    *,
    settings: SubscriptionOptions,
    limit: Annotated[int | None, click.IntRange(min=1)] = None,
    everything: Annotated[bool, "--all"] = False,
    frontier: bool = False,
    as_json: Json = False,
) -> None:
    """Print the rows of TOPIC from the next epoch on; an epoch is printed when it is complete and its batch committed.

    With --json a line is {"epoch": …, "partition": …, "row": {…}}, or {"frontier": […]}; the epoch is the batch, or
    [batch, column]. The command ends with the topic, after --limit rows, or when it is interrupted.

    Options:
        --limit ROWS: End after this number of rows.
        --all: Print rows as they arrive, also of incomplete epochs.
        --frontier: Print each change of the frontier, too.
        --json: Print a line of JSON for each row.

    Examples:
        wallaroo-spark subscribe totals --registry redis://127.0.0.1:6379 --cookie env:COOKIE
        wallaroo-spark --context test subscribe totals --json | jq .row
    """
    subscription = pubsub.subscribe(topic, atomic=not everything, **vars(settings))
    run_until_sigterm(_print(subscription, _Printer(frontier, as_json), limit))


async def _print(subscription: pubsub.Subscription, printer: _Printer, limit: int | None) -> None:
    """Print rows until the topic ends or the limit is reached."""
    left = limit
    async with subscription:
        async for item in subscription:
            if not isinstance(item, pubsub.Epoch):
                printer.frontier(item)
                continue
            rows = item.batch.slice(0, left)
            printer.epoch(pubsub.Epoch(item.epoch, item.partition, rows))
            left = None if left is None else left - rows.num_rows
            if left == 0:
                break
    printer.end()


class _Printer:
    """Prints a table for each epoch, or a line of JSON for each row."""

    def __init__(self, with_frontier: bool, as_json: bool) -> None:
        self._with_frontier = with_frontier
        self._as_json = as_json
        self._rows: list[dict[str, Any]] = []
        self._columns: Columns[dict[str, Any]] = {}
        self._epoch: Any = None

    def epoch(self, item: pubsub.Epoch) -> None:
        """Print rows of an epoch as JSON, or collect them; a table of them is printed when the epoch ends."""
        from wallaroo_spark.columnar.python_values import python_rows
        from wallaroo_spark.pubsub.subscribing.topic_source import row_as_json

        if self._as_json:
            head = json.dumps({"epoch": item.epoch, "partition": item.partition})[:-1]
            lines = [f'{head}, "row": {row_as_json(row).decode()}}}' for row in python_rows(item.batch)]
            if lines:
                click.echo("\n".join(lines))
            return
        if item.epoch != self._epoch:
            self.end()
        self._epoch = item.epoch
        self._columns = {name: functools.partial(_cell, name) for name in item.batch.schema.names}
        self._rows += python_rows(item.batch)

    def frontier(self, item: pubsub.Frontier) -> None:
        """Print the collected epoch, which is complete because the frontier has passed it."""
        self.end()
        if self._with_frontier:
            moved = f"frontier {', '.join(map(str, item.frontier)) or 'passed everything'}"
            print_result(self._as_json, {"frontier": item.frontier}, moved)

    def end(self) -> None:
        """Print the collected rows."""
        if self._rows:
            click.echo(f"epoch {self._epoch}, {count(len(self._rows), 'row')}")
            console().print(table_of(self._columns, self._rows))
            self._rows = []


def _cell(column: str, row: dict[str, Any]) -> str:
    return str(row[column])


@verb()
def tap(
    stream: str,
    *,
    registry: str,
    receiver: str,
    token: str,
    instance: str = "",
    count: Annotated[int | None, click.IntRange(min=1)] = None,
    follow: bool = False,
    wait: Annotated[float, Number(min=0.1)] = 10.0,
    rate: Annotated[float, Number(0.1, 1000)] = 20.0,
    most: Annotated[int, "--bytes", click.IntRange(0, 65536)] = 200,
    payload: Annotated[str, click.Choice(["text", "hex", "json"])] = "text",
    tls: bool = False,
    tls_ca: str = "",
    as_json: Json = False,
) -> None:
    """Show messages of STREAM (a name, an id, or * for all streams) as workers receive them.

    Nothing changes for the query, the connector and the acknowledgements: the messages are copies of rows that a worker
    holds until they are committed. The output is a sample: of a fast stream it has the newest messages, and messages
    that are committed between two requests are missing.

    Access to the registry is not enough to read messages. The tap token, which the driver has (receiver.tap_token),
    permits samples and the status and nothing else. The inner ports of the workers must be reachable from here. The
    exit status is 1 when no message arrived.

    Options:
        --registry URL: The receiver's Redis; also env:NAME or file:PATH.
        --receiver NAME: The receiver's name.
        --token TOKEN: The receiver's tap token, or its option token; also env:NAME or file:PATH.
        --instance NAME: Only messages of this connector instance.
        --count N: End after N messages. [default: 10]
        --follow: Go on until interrupted, or until --count.
        --wait SECONDS: Without --follow: end after this time at the latest.
        --rate MESSAGES: Most messages a second of each worker.
        --bytes: Bytes of a payload to show.
        --payload: How to show payloads; json shows the fields of an object one by one.
        --tls: The workers use TLS; verify them with this system's authorities.
        --tls-ca FILE: PEM file of the authority of the workers' certificates.
        --json: Print a line of JSON for each message.

    Examples:
        wallaroo-spark tap orders --registry redis://… --receiver shop --token file:tap.token
        wallaroo-spark tap '*' --registry redis://… --receiver shop --token env:TAP --follow --json
    """
    from wallaroo_spark.inner import tap as tapping
    from wallaroo_spark.registry import Registry

    trust = RegistryOptions(registry, tls, tls_ca).trust
    limit = count or (None if follow else 10)
    shown = 0
    with Registry(registry, receiver, attempts=ATTEMPTS) as found:

        def workers() -> dict[int, str]:
            return {slot: lease.flight for slot, lease in found.leases().items() if lease.flight}

        if not workers():
            raise RegistryError(
                f"receiver {receiver!r} has no worker in this registry; start it, or check the name and the registry",
                code="not-running",
            )
        messages = tapping.tap(
            workers,
            resolve_secret(token),
            stream,
            instance=instance,
            rate=rate,
            cut=most,
            trust=trust,
            seconds=None if follow else wait,
        )
        for one in itertools.islice(messages, limit):
            click.echo(_as_json(one) if as_json else _as_text(one, payload))
            shown += 1
    exit_unless(shown > 0, f"No message of stream {stream!r} came within {wait:g} seconds.")


def _as_json(one: TappedMessage) -> str:
    values: dict[str, Any] = {
        **vars(one),
        "event_time": one.event_time.isoformat() if one.event_time else None,
        "received_at": one.received_at.isoformat(),
    }
    for name in ("key", "value"):
        data: bytes | None = values.pop(name)
        try:
            values[name] = None if data is None else data.decode()
        except UnicodeDecodeError:
            values[f"{name}_base64"] = base64.b64encode(data or b"").decode()
    return json.dumps(values)


def _as_text(one: TappedMessage, payload: str) -> str:
    head = f"{one.received_at:%H:%M:%S.%f} {one.instance}/{one.stream} {one.message_id}"
    key = "" if one.key is None else f" key={printable_bytes(one.key)}"
    if one.value is None:
        return f"{printable(head)}{key} BOUNDARY"
    more = f" … ({one.size} bytes)" if one.size > len(one.value) else ""
    return f"{printable(head)}{key} {_shown(one.value, payload)}{more}"


def _shown(value: bytes, payload: str) -> str:
    if payload == "hex":
        return value.hex(" ")
    if payload == "json":
        try:
            found = load_json(value)
        except ValueError:
            return f"(no JSON) {printable_bytes(value)}"
        if isinstance(found, dict):
            return " ".join(f"{printable(str(key))}={json.dumps(part)}" for key, part in found.items())
        return json.dumps(found)
    return printable_bytes(value)
