"""``wallaroo-spark capture``: a proxy that records a connector's frames, and can disturb the connection."""

from __future__ import annotations

import json
import logging
import queue
import signal
import threading
from pathlib import Path
from types import FrameType
from typing import Any

import click

from wallaroo_spark.cli.common import INTERRUPTED, listen_address
from wallaroo_spark.errors import WallarooError, one_line
from wallaroo_spark.texts import count, size
from wallaroo_spark.transport import client_context, format_address, parse_address, server_context
from wallaroo_spark.wiretap.faults import STUTTER_BYTES, Faults
from wallaroo_spark.wiretap.proxy import End, Proxy, Trouble
from wallaroo_spark.wiretap.recording import Recorder

log = one_line(logging.getLogger("wallaroo_spark.wiretap"))

TROUBLES = {"slow": Trouble.SLOW, "drip": Trouble.DRIP, "stall": Trouble.STALL, "swallow": Trouble.SWALLOW}


@click.command(
    epilog="""\b
Examples:
  wallaroo-spark capture --listen 127.0.0.1:7199 --to worker-1:7100 shop.capture
  wallaroo-spark capture --to worker-1:7100 --cut 100000 --stutter 0.5 --seed 7 shop.capture
  wallaroo-spark capture --to worker-1:7100 --delay 0.2 --no-file""",
)
@click.argument("file", required=False, type=click.Path(dir_okay=False, path_type=Path))
@click.option(
    "--listen", default="127.0.0.1:0", show_default=True, metavar="HOST:PORT",
    help="Address for the connector; port 0 takes any free port.",
)  # fmt: skip
@click.option("--to", required=True, metavar="HOST:PORT", help="Address of the worker.")
@click.option("--no-file", is_flag=True, help="Record nothing; only disturb the connections.")
@click.option("--keep-cookies", is_flag=True, help="Record the cookie in HELLO, too, in place of asterisks.")
@click.option(
    "--max-bytes", type=click.IntRange(4096), metavar="BYTES",
    help="Rename a file of this size to FILE.1 and begin a new one. Without it the file grows without a limit.",
)  # fmt: skip
@click.option("--keep", default=4, show_default=True, type=click.IntRange(0), help="Old files to keep.")
@click.option("--delay", default=0.0, type=click.FloatRange(0, 60), metavar="SECONDS", help="Pass all bytes on later.")
@click.option(
    "--stutter", default=0.0, type=click.FloatRange(0, 3600), metavar="SECONDS",
    help="Pause at random offsets in each direction, for this many seconds on average.",
)  # fmt: skip
@click.option(
    "--stutter-bytes", default=STUTTER_BYTES, show_default=True, type=click.IntRange(1), metavar="BYTES",
    help="Bytes between two pauses, on average.",
)  # fmt: skip
@click.option(
    "--cut", default=0, type=click.IntRange(0), metavar="BYTES",
    help="Cut each connection after this many bytes of one direction, on average; half of the cuts are resets.",
)  # fmt: skip
@click.option(
    "--split", default=0, type=click.IntRange(0), metavar="BYTES", help="Pass bytes on in pieces of 1 to BYTES bytes."
)
@click.option("--trouble", type=click.Choice(list(TROUBLES)), help="Apply this treatment to all bytes; see below.")
@click.option("--seed", default=0, show_default=True, help="The same seed causes the same faults at the same bytes.")
@click.option("--tls-certificate", default="", metavar="FILE", help="PEM file of a certificate; accept TLS with it.")
@click.option("--tls-key", default="", metavar="FILE", help="PEM file of its key; empty: in the certificate's file.")
@click.option("--to-tls", is_flag=True, help="Speak TLS to the worker; verify it as this system does.")
@click.option("--to-tls-ca", default="", metavar="FILE", help="PEM file of the authority of the worker's certificate.")
@click.option("--to-tls-certificate", default="", metavar="FILE", help="PEM file of a certificate to show the worker.")
@click.option("--to-tls-key", default="", metavar="FILE", help="PEM file of the key of --to-tls-certificate.")
@click.option("--json", "as_json", is_flag=True, help="Print the address and the final counts as lines of JSON.")
def capture(file: Path | None, listen: str, to: str, no_file: bool, as_json: bool, **settings: Any) -> None:
    """Run a proxy between a connector and a worker, and record the bytes that pass to FILE, with time and direction.

    The bytes are not changed; wallaroo-spark decode prints their frames, and wallaroo-spark replay sends them again.
    The file contains all messages of the connector, so protect it as you protect the messages. The cookie in HELLO is
    masked; bytes that are not a HELLO of any revision are recorded unchanged.

    Give the connector the address of this proxy as its only worker. A connector that looks up workers in the registry
    does not use the proxy, unless the receiver's option advertise names it. A connector that a worker redirects to
    another worker leaves the proxy, too. TLS is recorded only when the proxy has a certificate to accept it with.

    Faults are for tests of a connector: --delay, --stutter, --cut and --split take effect at bytes that follow from
    --seed. --trouble is slow (400 kB/s), drip (one byte at a time), stall (nothing from the worker) or swallow (nothing
    arrives, and no connection ends). The faults are recorded in FILE, too.
    """
    if (file is None) == (not no_file):
        raise click.UsageError("give a FILE to record to, or --no-file")
    events: queue.SimpleQueue[int | WallarooError] = queue.SimpleQueue()
    faults = Faults(**{name: settings[name] for name in ("delay", "stutter", "stutter_bytes", "cut", "split", "seed")})
    proxy_of = _Contexts(settings)
    target, at = parse_address(to), listen_address(listen)
    recorder = None
    if file is not None:
        recorder = Recorder(
            file,
            format_address(*target),
            keep_cookies=settings["keep_cookies"],
            max_bytes=settings["max_bytes"],
            keep=settings["keep"],
            failed=events.put,
        )
    ended: int | WallarooError | None = None
    proxy = Proxy(target, at, tls=proxy_of.server, target_tls=proxy_of.client, faults=faults, watcher=recorder)
    try:
        with proxy:
            if settings["trouble"]:
                proxy.become(TROUBLES[settings["trouble"]])
            place = "nothing" if file is None else str(file)
            if as_json:
                shown = {"listening": proxy.address, "to": to, "file": None if file is None else str(file)}
                click.echo(json.dumps(shown))
            else:
                click.echo(f"Listening on {proxy.address}, passing on to {to}, recording {place}")
            ended = _wait(events)
    finally:
        if recorder is not None:
            recorder.close()
    if isinstance(ended, WallarooError):
        raise ended
    _say_total(proxy, recorder, as_json)
    if ended == signal.SIGINT:
        raise click.exceptions.Exit(INTERRUPTED)


class _Contexts:
    """The TLS contexts of both sides."""

    def __init__(self, settings: dict[str, Any]) -> None:
        certificate, key = settings["tls_certificate"], settings["tls_key"]
        if key and not certificate:
            raise click.UsageError("--tls-key needs --tls-certificate")
        self.server = server_context(certificate, key) if certificate else None
        own = {name: settings[f"to_tls_{name}"] for name in ("ca", "certificate", "key")}
        self.client = client_context(**own) if settings["to_tls"] or any(own.values()) else None


def _wait(events: queue.SimpleQueue[int | WallarooError]) -> int | WallarooError:
    """Wait for SIGINT, SIGTERM or a failure that ends the capture."""

    def note(number: int, _: FrameType | None) -> None:
        events.put(number)

    if threading.current_thread() is threading.main_thread():
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, note)
    while True:
        event = events.get()
        if isinstance(event, WallarooError) and event.fields.get("reason") == "tls":
            # Only this connection is refused; others may be recorded.
            log.error("%s", event.message)
            continue
        return event


def _say_total(proxy: Proxy, recorder: Recorder | None, as_json: bool) -> None:
    if as_json:
        sent = None if recorder is None else {str(end): recorder.sent[end] for end in End}
        click.echo(json.dumps({"connections": proxy.connections, "recorded_bytes": sent}))
        return
    text = count(proxy.connections, "connection")
    if recorder is not None:
        text += (
            f", {size(recorder.sent[End.CONNECTOR])} of the connector and {size(recorder.sent[End.WORKER])} of "
            f"the worker are in {recorder.path}"
        )
    click.echo(text)
