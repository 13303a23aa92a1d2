"""``wallaroo-spark subscribe``: prints the rows of a topic as they are published. It needs no Spark.

``wallaroo-spark tap``: shows live messages of a stream without consuming them. It needs no Spark.
"""

from __future__ import annotations

import base64
import itertools
import json
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import click

from wallaroo_spark.cli.signals import run_until_sigterm
from wallaroo_spark.errors import RegistryError, printable
from wallaroo_spark.json_text import load_json
from wallaroo_spark.texts import count

if TYPE_CHECKING:
    from wallaroo_spark.pubsub import Epoch, Frontier, Subscription

WIDE = 200
"""Columns of a table that is not printed on a terminal. A choice: wide enough for most rows."""


@click.command(
    epilog="Examples: wallaroo-spark subscribe totals --registry redis://127.0.0.1:6379 --cookie env:COOKIE · "
    "wallaroo-spark subscribe totals --context test --json | jq .row",
)
@click.argument("topic")
@click.option("--registry", required=True, metavar="URL", help="The topic's Redis; also env:NAME or file:PATH.")
@click.option("--cookie", default="", metavar="COOKIE", help="The topic's cookie; env:NAME or file:PATH hide it.")
@click.option("--json", "as_json", is_flag=True, help="Print a line of JSON for each row.")
@click.option("--limit", type=click.IntRange(min=1), metavar="ROWS", help="End after this number of rows.")
@click.option(
    "--wait",
    default=0.0,
    metavar="SECONDS",
    show_default=True,
    help="Seconds to wait for a topic that does not run yet.",
)
@click.option("--all", "everything", is_flag=True, help="Print rows as they arrive, also of incomplete epochs.")
@click.option("--frontier", is_flag=True, help="Print each change of the frontier, too.")
@click.option("--reopen", is_flag=True, help="Wait for a topic that has ended to be started again.")
@click.option(
    "--lost-after", default=60.0, metavar="SECONDS", show_default=True, help="Longest time without a publisher."
)
@click.option("--name", default="", help="Name of this subscriber in the publishers' logs.")
@click.option("--tls", is_flag=True, help="Use TLS, with the authorities that this system trusts.")
@click.option("--tls-ca", default="", metavar="FILE", help="PEM file of the authority of the publishers' certificates.")
@click.option("--tls-certificate", default="", metavar="FILE", help="PEM file of the certificate to present.")
@click.option("--tls-key", default="", metavar="FILE", help="PEM file with the key of --tls-certificate.")
def subscribe(topic: str, as_json: bool, limit: int | None, frontier: bool, everything: bool, **settings: Any) -> None:
    """Print the rows of TOPIC from the next epoch on; an epoch is printed when it is complete and its batch committed.

    With --json a line is {"epoch": …, "partition": …, "row": {…}}, or {"frontier": […]}; the epoch is the batch, or
    [batch, column]. The command ends with the topic, after --limit rows, or when it is interrupted.
    """
    from wallaroo_spark import pubsub

    subscription = pubsub.subscribe(topic, atomic=not everything, **settings)
    printer = _Json(frontier) if as_json else _Tables(frontier)
    run_until_sigterm(_print(subscription, printer, limit))


async def _print(subscription: Subscription, printer: _Json | _Tables, limit: int | None) -> None:
    """Print rows until the topic ends or the limit is reached."""
    from wallaroo_spark.pubsub import Epoch

    left = limit
    async with subscription:
        async for item in subscription:
            if not isinstance(item, Epoch):
                printer.frontier(item)
                continue
            rows = item.batch.slice(0, left)
            printer.epoch(Epoch(item.epoch, item.partition, rows))
            left = None if left is None else left - rows.num_rows
            if left == 0:
                break
    printer.end()


class _Json:
    """Prints a line of JSON for each row."""

    def __init__(self, with_frontier: bool) -> None:
        self._with_frontier = with_frontier

    def epoch(self, item: Epoch) -> None:
        """Some rows of an epoch."""
        from wallaroo_spark.columnar.python_values import python_rows
        from wallaroo_spark.pubsub.subscribing.topic_source import row_as_json

        head = json.dumps({"epoch": item.epoch, "partition": item.partition})[:-1]
        lines = [f'{head}, "row": {row_as_json(row).decode()}}}' for row in python_rows(item.batch)]
        if lines:
            click.echo("\n".join(lines))

    def frontier(self, item: Frontier) -> None:
        """The frontier has moved."""
        if self._with_frontier:
            click.echo(json.dumps({"frontier": item.frontier}))

    def end(self) -> None:
        """Do nothing: every row is printed already."""


class _Tables:
    """Prints a table for each epoch."""

    def __init__(self, with_frontier: bool) -> None:
        from rich.console import Console

        self._with_frontier = with_frontier
        self._console = Console(highlight=False)
        if not self._console.is_terminal:
            self._console = Console(highlight=False, width=WIDE)
        self._rows: list[dict[str, Any]] = []
        self._columns: list[str] = []
        self._epoch: Any = None

    def epoch(self, item: Epoch) -> None:
        """Collect rows of an epoch; they are printed together when the epoch ends."""
        from wallaroo_spark.columnar.python_values import python_rows

        if self._rows and item.epoch != self._epoch:
            self.end()
        self._epoch, self._columns = item.epoch, item.batch.schema.names
        self._rows += python_rows(item.batch)

    def frontier(self, item: Frontier) -> None:
        """Print the collected epoch, which is complete because the frontier has passed it."""
        self.end()
        if self._with_frontier:
            click.echo(f"frontier {', '.join(map(str, item.frontier)) or 'passed everything'}")

    def end(self) -> None:
        """Print the collected rows."""
        from rich.table import Table
        from rich.text import Text

        if not self._rows:
            return
        self._console.print(f"epoch {self._epoch}, {count(len(self._rows), 'row')}", soft_wrap=True)
        table = Table(box=None)
        for column in self._columns:
            table.add_column(Text(column))
        for row in self._rows:
            table.add_row(*(Text(str(row[column])) for column in self._columns))
        self._console.print(table)
        self._rows = []


if TYPE_CHECKING:
    from wallaroo_spark.inner.tap import TappedMessage

ATTEMPTS = 2
"""Attempts to reach the registry: few, because a person waits for the answer."""


@click.command(
    epilog="""\b
Examples:
  wallaroo-spark tap orders --registry redis://… --receiver shop --token file:tap.token
  wallaroo-spark tap '*' --registry redis://… --receiver shop --token env:TAP --follow --json""",
)
@click.argument("stream")
@click.option("--registry", required=True, metavar="URL", help="The receiver's Redis; also env:NAME or file:PATH.")
@click.option("--receiver", required=True, metavar="NAME", help="The receiver's name.")
@click.option(
    "--token", required=True, metavar="TOKEN",
    help="The receiver's tap token, or its option token; also env:NAME or file:PATH.",
)  # fmt: skip
@click.option("--instance", default="", metavar="NAME", help="Only messages of this connector instance.")
@click.option("--count", type=click.IntRange(min=1), metavar="N", help="End after N messages.  [default: 10]")
@click.option("--follow", is_flag=True, help="Go on until interrupted, or until --count.")
@click.option(
    "--wait", default=10.0, show_default=True, type=click.FloatRange(min=0.1), metavar="SECONDS",
    help="Without --follow: end after this time at the latest.",
)  # fmt: skip
@click.option(
    "--rate", default=20.0, show_default=True, type=click.FloatRange(0.1, 1000), metavar="MESSAGES",
    help="Most messages a second of each worker.",
)  # fmt: skip
@click.option(
    "--bytes", "most", default=200, show_default=True, type=click.IntRange(0, 65536), help="Bytes of a payload to show."
)
@click.option(
    "--payload", type=click.Choice(["text", "hex", "json"]), default="text", show_default=True,
    help="How to show payloads; json shows the fields of an object one by one.",
)  # fmt: skip
@click.option("--tls", is_flag=True, help="The workers use TLS; verify them with this system's authorities.")
@click.option("--tls-ca", default="", metavar="FILE", help="PEM file of the authority of the workers' certificates.")
@click.option("--json", "as_json", is_flag=True, help="Print a line of JSON for each message.")
def tap(stream: str, registry: str, receiver: str, as_json: bool, payload: str, **settings: Any) -> None:
    """Show messages of STREAM (a name, an id, or * for all streams) as workers receive them.

    Nothing changes for the query, the connector and the acknowledgements: the messages are copies of rows that a worker
    holds until they are committed. The output is a sample: of a fast stream it has the newest messages, and messages
    that are committed between two requests are missing.

    Access to the registry is not enough to read messages. The tap token, which the driver has (receiver.tap_token),
    permits samples and the status and nothing else. The inner ports of the workers must be reachable from here. The
    exit status is 1 when no message arrived.
    """
    limit = settings["count"] or (None if settings["follow"] else 10)
    shown = 0
    for one in itertools.islice(_messages(stream, registry, receiver, settings), limit):
        click.echo(_as_json(one) if as_json else _as_text(one, payload))
        shown += 1
    if not shown:
        click.echo(f"No message of stream {stream!r} came within {settings['wait']:g} seconds.", err=True)
        raise click.exceptions.Exit(1)


def _messages(stream: str, registry: str, receiver: str, settings: dict[str, Any]) -> Iterator[TappedMessage]:
    from wallaroo_spark.inner import tap as tapping
    from wallaroo_spark.inner.client import Trust
    from wallaroo_spark.options import resolve_secret
    from wallaroo_spark.registry import Registry
    from wallaroo_spark.transport import read_authority

    tls_ca = settings["tls_ca"]
    trust = Trust(read_authority(tls_ca) if tls_ca else b"") if settings["tls"] or tls_ca else None
    with Registry(registry, receiver, attempts=ATTEMPTS) as found:

        def workers() -> dict[int, str]:
            return {slot: lease.flight for slot, lease in found.leases().items() if lease.flight}

        if not workers():
            raise RegistryError(
                f"receiver {receiver!r} has no worker in this registry; start it, or check the name and the registry",
                code="not-running",
            )
        yield from tapping.tap(
            workers,
            resolve_secret(settings["token"]),
            stream,
            instance=settings["instance"],
            rate=settings["rate"],
            cut=settings["most"],
            trust=trust,
            seconds=None if settings["follow"] else settings["wait"],
        )


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
    key = "" if one.key is None else f" key={_text(one.key)}"
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
            return f"(no JSON) {_text(value)}"
        if isinstance(found, dict):
            return " ".join(f"{printable(str(key))}={json.dumps(part)}" for key, part in found.items())
        return json.dumps(found)
    return _text(value)


def _text(value: bytes) -> str:
    return printable(value.decode("utf-8", "backslashreplace"))
