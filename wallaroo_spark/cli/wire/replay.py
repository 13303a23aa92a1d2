"""``wallaroo-spark replay``: sends the messages of a capture again; needs no Spark."""

from __future__ import annotations

import contextlib
import dataclasses
from pathlib import Path
from typing import Annotated

import click

from wallaroo_spark.cli.common import print_result
from wallaroo_spark.cli.send.options import ConnectionOptions
from wallaroo_spark.cli.signals import run_until_sigterm
from wallaroo_spark.cli.verbs import Json, verb
from wallaroo_spark.connector import Connector
from wallaroo_spark.texts import count
from wallaroo_spark.wiretap.recording import read
from wallaroo_spark.wiretap.replay import RecordedConnector, Replay, ReplayTotals


@verb()
def replay(
    files: Annotated[tuple[Path, ...], click.Path(exists=True, dir_okay=False, path_type=Path), "FILE..."],
    *,
    to: str,
    pace: Annotated[float | None, click.FloatRange(min=0, min_open=True)] = None,
    instance: str = "",
    connection: Annotated[int | None, click.IntRange(1)] = None,
    protocol_version: str = "",
    given: ConnectionOptions,
    drain_timeout: Annotated[float, click.FloatRange(min=0, min_open=True)] = 300.0,
    as_json: Json = False,
) -> None:
    """Send the messages of a capture again. Of a rotated capture give all files, the oldest first.

    They are sent as the recorded connectors would send them: under their instance names and stream ids, in the same
    revision, with credits, and again after a lost connection. Messages that the receiver has committed are skipped. So
    after a failed batch the handler of the query can be changed and tried again without the producer. --instance sends
    all messages again. No other program may use the instance meanwhile. The capture does not contain the cookie, so it
    must be given.

    Messages are distinguished by increasing ids; a receiver with messageIds=opaque is not supported. Frames that break
    the protocol are not sent. The exit status is 0 only when everything is acknowledged.

    Options:
        --to HOST:PORT,…: Addresses of one or more workers.
        --pace FACTOR: 1: as they came; 2: twice as fast. Without it: as fast as credits allow.
        --instance NAME: Send all messages as this instance, on streams of its own, including committed messages.
        --connection NUMBER: Send only the messages of this connection.
        --protocol-version TEXT: Protocol version; else the recorded one.
        --drain-timeout SECONDS: Longest wait at the end until everything is acknowledged.
        --json: Print the numbers as one line of JSON.

    Examples:
        wallaroo-spark replay shop.capture --to worker-1:7100 --cookie env:COOKIE
        wallaroo-spark replay shop.capture --to worker-1:7100 --pace 1 --instance again-1
    """

    def connect(recorded: RecordedConnector) -> Connector:
        return Connector(
            recorded.program,
            instance=recorded.instance,
            workers=to,
            version=protocol_version or recorded.version,
            revision=recorded.revision,
            **given.settings(),
            drain_timeout=drain_timeout,
        )

    with contextlib.ExitStack() as stack:
        events = read([stack.enter_context(path.open("rb")) for path in files])
        totals = run_until_sigterm(Replay(events, connect, pace=pace, instance=instance, connection=connection).run())
    print_result(as_json, dataclasses.asdict(totals), _as_text(totals))


def _as_text(totals: ReplayTotals) -> str:
    text = f"{count(totals.sent, 'message')} of {count(totals.streams, 'stream')} sent and acknowledged"
    if totals.committed:
        text += f"; {count(totals.committed)} committed before and skipped"
    if totals.repeated:
        text += f"; {count(totals.repeated)} recorded more than once and sent once"
    if totals.unreadable:
        text += f"; {count(totals.unreadable, 'frame')} incomplete or wrong, and left out"
    return text
