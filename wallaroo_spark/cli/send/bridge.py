"""``wallaroo-spark bridge SOURCE``: sends what another program keeps to a receiver; needs no Spark."""

from __future__ import annotations

import importlib
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from typing import Annotated, Any

import click

from wallaroo_spark.bridges import BRIDGES, Bridge
from wallaroo_spark.cli.send.command import run
from wallaroo_spark.cli.send.inputs import SendInput, TargetOptions
from wallaroo_spark.cli.send.view import make_view
from wallaroo_spark.cli.verbs import Number, verb
from wallaroo_spark.connector import Backoff
from wallaroo_spark.extras import needed_by

DRAIN_SECONDS = 300.0
"""Longest time without an acknowledgement behind the end of a source that ends. As that of ``send``."""


@dataclass(frozen=True, kw_only=True)
class BridgeOptions(TargetOptions):
    """The receiver, and what is shown.

    Options:
        --instance: Name under which the receiver knows the streams; without it, a name made of the source and its
            place, which is the same on every host. Use it in one program at a time.
        --every: Seconds between lines where there is no terminal.
        --json: End with one line of JSON on standard output.
    """

    instance: str = ""
    every: Annotated[float, Number(min=0.1)] = 5.0
    """Seconds between two lines."""
    as_json: Annotated[bool, "--json"] = False


@click.group()
def bridge() -> None:
    """Send what another program keeps to a receiver.

    It is acknowledged to the source when Spark has committed it. A bridge that has ended, or was killed, goes on at
    the reference that the receiver has committed; docs/bridges.md says what each source promises. Files are sent by
    wallaroo-spark send --follow.

    Ctrl-C closes the session in order; a second one ends at once.
    """


def _declare(kind: str, table: type[Bridge]) -> None:
    def command(*, source: Any, given: BridgeOptions) -> None:
        given.check_receiver()
        with needed_by(f"wallaroo-spark bridge {kind}", *filter(None, [table.extra])):
            connector = given.connector(given.instance or source.instance(kind))
            run(connector, [], make_view([], given.every, given.as_json), DRAIN_SECONDS, _inputs(source, given))

    command.__doc__ = table.__doc__
    command.__annotations__["source"] = table
    verb(bridge, kind)(command)


async def _inputs(source: Bridge, given: BridgeOptions) -> AsyncIterator[Sequence[SendInput]]:
    source.retry = Backoff(give_up_after=given.give_up_after)
    async for found in source.streams():
        for stream in found:
            stream.retry = source.retry
        yield [SendInput(stream, None) for stream in found]


for _kind, _home in BRIDGES.items():
    _module, _, _name = _home.rpartition(".")
    _declare(_kind, getattr(importlib.import_module(_module), _name))
