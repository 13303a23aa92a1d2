"""``wallaroo-spark sink``: a connector sink that writes files; needs no Spark."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import ssl
import sys
from typing import Annotated

import click

from wallaroo_spark.cli.common import debugging, print_result
from wallaroo_spark.cli.signals import exit_after_interrupt, on_signals
from wallaroo_spark.cli.verbs import Json, verb
from wallaroo_spark.errors import one_line
from wallaroo_spark.options import resolve_secret
from wallaroo_spark.sinks.server.output_directory import OutputDirectory
from wallaroo_spark.sinks.server.sink_server import SinkServer, SinkServerSettings
from wallaroo_spark.transport import format_address, open_access_warning, serve, server_context

log = one_line(logging.getLogger("wallaroo_spark.sinks"))

CLOSE_SECONDS = 5.0
"""How long the sessions may take to finish their writes at the end. A choice that bounds the program's end."""


@verb()
def sink(
    *,
    to: str,
    host: str = "127.0.0.1",
    port: Annotated[int, click.IntRange(0, 65535)] = 7200,
    cookie: str = "",
    protocol_version: str = "0.0.1",
    tls_certificate: str = "",
    tls_key: str = "",
    tls_ca: str = "",
    max_frame_bytes: Annotated[int, click.IntRange(1024)] = 4 << 20,
    max_sessions: Annotated[int, click.IntRange(1)] = 1024,
    as_json: Json = False,
) -> None:
    """Receive the rows that sinks.connector(…) sends, and append each batch to files exactly once.

    Readers of DIR/*.out see committed rows only. Prepared rows and the log of transactions are in DIR/.wallaroo; they
    survive a crash of this program and of its machine, and the next start continues from them. The program votes abort
    for rows that it cannot write, and logs the reason. The first line on standard output is its address.

    Options:
        --to DIR: Directory of the outputs, one a worker: NAME-PARTITION.out.
        --host: Address to bind; empty for every interface.
        --port: 0 takes any free port.
        --cookie COOKIE: Cookie that workers must present; also env:NAME, file:PATH.
        --protocol-version: The version that HELLO must say.
        --tls-certificate FILE: PEM file of the certificate; turns TLS on.
        --tls-key FILE: PEM file of its key; empty: in the certificate's file.
        --tls-ca FILE: PEM file of the authority that certifies workers.
        --max-frame-bytes: Longest row.
        --max-sessions: Most sessions at once.
        --json: Print the address as one line of JSON.

    Examples:
        wallaroo-spark sink --to out
        wallaroo-spark sink --to out --host 0.0.0.0 --cookie env:COOKIE --json
    """
    if (tls_key or tls_ca) and not tls_certificate:
        raise click.UsageError("--tls-key and --tls-ca need --tls-certificate")
    if not debugging():
        logging.getLogger("wallaroo_spark.sinks").setLevel(logging.INFO)
    tls = server_context(tls_certificate, tls_key, tls_ca) if tls_certificate else None
    accepted = SinkServerSettings(
        version=protocol_version,
        cookie=resolve_secret(cookie),
        max_frame_bytes=max_frame_bytes,
        max_sessions=max_sessions,
    )
    if warning := open_access_warning("these sinks", host, accepted.cookie, tls_ca):
        log.warning("%s", warning)
    exit_after_interrupt(asyncio.run(_serve(to, host, port, tls, accepted, as_json)))


async def _serve(
    to: str, host: str, port: int, tls: ssl.SSLContext | None, accepted: SinkServerSettings, as_json: bool
) -> int:
    """Serve until SIGINT or SIGTERM arrives; return its number."""
    with contextlib.closing(OutputDirectory(to)) as store:
        listener = await serve(SinkServer(store, accepted), host, port, tls=tls)
        address = format_address(*listener.address)
        print_result(as_json, {"listening": address, "to": to}, f"Listening on {address}, writing to {to}")
        sys.stdout.flush()
        received: asyncio.Queue[int] = asyncio.Queue()
        loop = asyncio.get_running_loop()
        with on_signals(lambda number: loop.call_soon_threadsafe(received.put_nowait, number)):
            number = await received.get()
        await listener.close(CLOSE_SECONDS)
    return number
