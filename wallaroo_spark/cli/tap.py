"""``wallaroo-spark tap``: shows live messages of a stream without consuming them. It needs no Spark."""

from __future__ import annotations

import base64
import itertools
import json
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import click

from wallaroo_spark.cli.common import debug_option, set_up_logging
from wallaroo_spark.errors import RegistryError, printable

if TYPE_CHECKING:
    from wallaroo_spark.inner.tap import TappedMessage

ATTEMPTS = 2
"""Attempts to reach the registry: few, because a person waits for the answer."""


@click.command(
    short_help="Show live messages of a stream without consuming them.",
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
@debug_option
def tap(stream: str, registry: str, receiver: str, as_json: bool, payload: str, **settings: Any) -> None:
    """Show messages of STREAM (a name, an id, or * for all streams) as workers receive them.

    Nothing changes for the query, the connector and the acknowledgements: the messages are copies of rows that a worker
    holds until they are committed. The output is a sample: of a fast stream it has the newest messages, and messages
    that are committed between two requests are missing.

    Access to the registry is not enough to read messages. The tap token, which the driver has (receiver.tap_token),
    permits samples and the status and nothing else. The inner ports of the workers must be reachable from here. The
    exit status is 1 when no message arrived.
    """
    set_up_logging()
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
            found = json.loads(value)
        except ValueError:
            return f"(no JSON) {_text(value)}"
        if isinstance(found, dict):
            return " ".join(f"{printable(str(key))}={json.dumps(part)}" for key, part in found.items())
        return json.dumps(found)
    return _text(value)


def _text(value: bytes) -> str:
    return printable(value.decode("utf-8", "backslashreplace"))
