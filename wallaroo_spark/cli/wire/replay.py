"""``wallaroo-spark replay``: sends the messages of a capture again; needs no Spark."""

from __future__ import annotations

import contextlib
import dataclasses
import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from wallaroo_spark.cli.defaults import connection_settings, setting_flag, tls_options
from wallaroo_spark.cli.signals import run_until_sigterm
from wallaroo_spark.connector import Backoff
from wallaroo_spark.connector.settings import ConnectorSettings
from wallaroo_spark.texts import count

if TYPE_CHECKING:
    from wallaroo_spark.connector import Connector
    from wallaroo_spark.wiretap.replay import RecordedConnector, ReplayTotals


@click.command(
    epilog="""\b
Examples:
  wallaroo-spark replay shop.capture --to worker-1:7100 --cookie env:COOKIE
  wallaroo-spark replay shop.capture --to worker-1:7100 --pace 1 --instance again-1""",
)
@click.argument(
    "files", nargs=-1, required=True, metavar="FILE...", type=click.Path(exists=True, dir_okay=False, path_type=Path)
)
@click.option("--to", required=True, metavar="HOST:PORT,…", help="Addresses of one or more workers.")
@setting_flag(ConnectorSettings, "cookie", metavar="COOKIE")
@click.option(
    "--pace", type=click.FloatRange(min=0, min_open=True), metavar="FACTOR",
    help="1: as they came; 2: twice as fast. Without it: as fast as credits allow.",
)  # fmt: skip
@click.option(
    "--instance", default="", metavar="NAME",
    help="Send all messages as this instance, on streams of its own, including committed messages.",
)  # fmt: skip
@click.option(
    "--connection", type=click.IntRange(1), metavar="NUMBER", help="Send only the messages of this connection."
)
@click.option("--protocol-version", default="", metavar="TEXT", help="Protocol version; else the recorded one.")
@tls_options
@setting_flag(Backoff, "give_up_after", metavar="SECONDS")
@click.option(
    "--drain-timeout", default=300.0, show_default=True, metavar="SECONDS", type=click.FloatRange(min=0, min_open=True),
    help="Longest wait at the end until everything is acknowledged.",
)  # fmt: skip
@click.option("--json", "as_json", is_flag=True, help="Print the numbers as one line of JSON.")
def replay(files: Sequence[Path], as_json: bool, **settings: Any) -> None:
    """Send the messages of a capture again. Of a rotated capture give all files, the oldest first.

    They are sent as the recorded connectors would send them: under their instance names and stream ids, in the same
    revision, with credits, and again after a lost connection. Messages that the receiver has committed are skipped. So
    after a failed batch the handler of the query can be changed and tried again without the producer. --instance sends
    all messages again. No other program may use the instance meanwhile. The capture does not contain the cookie, so it
    must be given.

    Messages are distinguished by increasing ids; a receiver with messageIds=opaque is not supported. Frames that break
    the protocol are not sent. The exit status is 0 only when everything is acknowledged.
    """
    from wallaroo_spark.wiretap.recording import read
    from wallaroo_spark.wiretap.replay import Replay

    with contextlib.ExitStack() as stack:
        events = read([stack.enter_context(path.open("rb")) for path in files])
        one = Replay(
            events,
            lambda recorded: _connector(recorded, settings),
            pace=settings["pace"],
            instance=settings["instance"],
            connection=settings["connection"],
        )
        totals = run_until_sigterm(one.run())
    click.echo(json.dumps(dataclasses.asdict(totals)) if as_json else _as_text(totals))


def _connector(recorded: RecordedConnector, settings: dict[str, Any]) -> Connector:
    from wallaroo_spark.connector import Connector

    return Connector(
        recorded.program,
        instance=recorded.instance,
        workers=settings["to"],
        cookie=settings["cookie"],
        version=settings["protocol_version"] or recorded.version,
        revision=recorded.revision,
        **connection_settings(settings),
        drain_timeout=settings["drain_timeout"],
    )


def _as_text(totals: ReplayTotals) -> str:
    text = f"{count(totals.sent, 'message')} of {count(totals.streams, 'stream')} sent and acknowledged"
    if totals.committed:
        text += f"; {count(totals.committed)} committed before and skipped"
    if totals.repeated:
        text += f"; {count(totals.repeated)} recorded more than once and sent once"
    if totals.unreadable:
        text += f"; {count(totals.unreadable, 'frame')} incomplete or wrong, and left out"
    return text
