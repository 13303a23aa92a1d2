"""``wallaroo-spark sink``: a connector sink that writes files; needs no Spark."""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import signal
import sys
from typing import Any

import click

from wallaroo_spark.cli.common import INTERRUPTED, debugging
from wallaroo_spark.errors import one_line

log = one_line(logging.getLogger("wallaroo_spark.sinks"))

CLOSE_SECONDS = 5.0
"""How long the sessions may take to finish their writes at the end. A choice that bounds the program's end."""


@click.command(
    epilog="Examples: wallaroo-spark sink --to out · "
    "wallaroo-spark sink --to out --host 0.0.0.0 --cookie env:COOKIE --json",
)
@click.option("--to", required=True, metavar="DIR", help="Directory of the outputs, one a worker: NAME-PARTITION.out.")
@click.option("--host", default="127.0.0.1", show_default=True, help="Address to bind; empty for every interface.")
@click.option("--port", default=7200, show_default=True, type=click.IntRange(0, 65535), help="0 takes any free port.")
@click.option(
    "--cookie", default="", metavar="COOKIE", help="Cookie that workers must present; also env:NAME, file:PATH."
)
@click.option("--protocol-version", default="0.0.1", show_default=True, help="The version that HELLO must say.")
@click.option("--tls-certificate", default="", metavar="FILE", help="PEM file of the certificate; turns TLS on.")
@click.option("--tls-key", default="", metavar="FILE", help="PEM file of its key; empty: in the certificate's file.")
@click.option("--tls-ca", default="", metavar="FILE", help="PEM file of the authority that certifies workers.")
@click.option("--max-frame-bytes", default=4 << 20, show_default=True, type=click.IntRange(1024), help="Longest row.")
@click.option("--max-sessions", default=1024, show_default=True, type=click.IntRange(1), help="Most sessions at once.")
@click.option("--json", "as_json", is_flag=True, help="Print the address as one line of JSON.")
def sink(to: str, host: str, port: int, as_json: bool, **settings: Any) -> None:
    """Receive the rows that sinks.connector(…) sends, and append each batch to files exactly once.

    Readers of DIR/*.out see committed rows only. Prepared rows and the log of transactions are in DIR/.wallaroo; they
    survive a crash of this program and of its machine, and the next start continues from them. The program votes abort
    for rows that it cannot write, and logs the reason. The first line on standard output is its address.
    """
    if (settings["tls_key"] or settings["tls_ca"]) and not settings["tls_certificate"]:
        raise click.UsageError("--tls-key and --tls-ca need --tls-certificate")
    if not debugging():
        logging.getLogger("wallaroo_spark.sinks").setLevel(logging.INFO)
    if asyncio.run(_serve(to, host, port, as_json, settings)) == signal.SIGINT:
        raise click.exceptions.Exit(INTERRUPTED)


async def _serve(to: str, host: str, port: int, as_json: bool, settings: dict[str, Any]) -> int:
    """Serve until SIGINT or SIGTERM arrives; return its number."""
    from wallaroo_spark.options import resolve_secret
    from wallaroo_spark.sinks.server.output_directory import OutputDirectory
    from wallaroo_spark.sinks.server.sink_server import SinkServer, SinkServerSettings
    from wallaroo_spark.transport import format_address, open_access_warning, serve, server_context

    certificate = settings["tls_certificate"]
    tls = server_context(certificate, settings["tls_key"], settings["tls_ca"]) if certificate else None
    accepted = SinkServerSettings(
        version=settings["protocol_version"],
        cookie=resolve_secret(settings["cookie"]),
        max_frame_bytes=settings["max_frame_bytes"],
        max_sessions=settings["max_sessions"],
    )
    if warning := open_access_warning("these sinks", host, accepted.cookie, settings["tls_ca"]):
        log.warning("%s", warning)
    with contextlib.closing(OutputDirectory(to)) as store:
        listener = await serve(SinkServer(store, accepted), host, port, tls=tls)
        address = format_address(*listener.address)
        click.echo(
            json.dumps({"listening": address, "to": to}) if as_json else f"Listening on {address}, writing to {to}"
        )
        sys.stdout.flush()
        number = await _signal()
        await listener.close(CLOSE_SECONDS)
    return number


async def _signal() -> int:
    """Wait for the first SIGINT or SIGTERM; return its number."""
    loop = asyncio.get_running_loop()
    received: asyncio.Future[int] = loop.create_future()

    def note(number: int) -> None:
        if not received.done():
            received.set_result(number)

    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, note, number)
    return await received
