"""``wallaroo-spark send``: sends the records of files, topics or standard input to a receiver; needs no Spark.

Ctrl-C and SIGTERM end it in order. Files that appear while it follows a pattern are sent, too.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Sequence
from typing import Annotated

import click

from wallaroo_spark.cli.send.feeding import run
from wallaroo_spark.cli.send.inputs import (
    InputName,
    SendInput,
    SendOptions,
    as_pattern,
    expand,
    files_of,
    is_pattern,
    open_input,
)
from wallaroo_spark.cli.send.view import make_view
from wallaroo_spark.cli.verbs import Json, verb

NEW_FILES_SECONDS = 1.0
"""Seconds between two looks for new files of a pattern. A choice: listing a folder costs little."""


@verb()
def send(
    names: Annotated[tuple[str, ...], InputName(), "FILE...|FOLDER|PATTERN|topic:NAME|-"],
    *,
    given: SendOptions,
    drain_timeout: Annotated[float, click.FloatRange(min=0, min_open=True)] = 300.0,
    every: float = 5.0,
    as_json: Json = False,
) -> None:
    """Send the lines of each FILE as a stream of its own, the rows of a topic, or the lines of standard input (-).

    A line is sent byte for byte without its newline. Messages that were acknowledged in an earlier run are not sent
    again: a file, or a topic that still retains the following batches, continues after them. Standard input cannot be
    read again, so its lines are delivered at most once. The exit status is 0 only when everything is acknowledged,
    which is when Spark has committed it.

    With --follow a file stays one stream across rotations, by renaming or by copying and truncating, also when this
    command is stopped or killed meanwhile, as long as the rotated files are beside it, plain or compressed with gzip,
    bzip2 or xz. New files of a PATTERN (quote it) are sent as they appear, and a deleted one ends its stream. A FOLDER
    stands for the files in it.

    Ctrl-C closes the session and says how much of each input is acknowledged, which is where the next run continues. A
    second Ctrl-C ends at once.

    Options:
        --drain-timeout SECONDS: Longest time without an acknowledgement once everything is sent.
        --every: Seconds between lines where there is no terminal.
        --json: End with one line of JSON on standard output.

    Examples:
        wallaroo-spark send orders.jsonl --workers host-a:7100,host-b:7101 --cookie env:COOKIE
        wallaroo-spark send /var/log/app.log --follow --stream app --workers host-a:7100
        wallaroo-spark send '/var/log/*.log' --follow --registry redis://… --receiver logs
    """
    names = tuple(map(as_pattern, names))
    files = expand(names, given)
    patterns = [name for name in names if is_pattern(name)]
    inputs = [open_input(file, given) for file in files]
    new = NewFiles(patterns, files, given) if given.follow and patterns else None
    run(
        given.connector(given.name),
        inputs,
        make_view(inputs, every, as_json),
        drain_timeout,
        new.appear() if new else None,
    )


class NewFiles:
    """Finds files of the patterns that were not there before."""

    def __init__(self, patterns: Sequence[str], known: Sequence[str], given: SendOptions) -> None:
        self._patterns = patterns
        self._given = given
        self._seen = {name: _identity(name) for name in known}

    async def appear(self) -> AsyncIterator[list[SendInput]]:
        """The inputs of files that have appeared, again and again."""
        while True:
            yield self._found()
            await asyncio.sleep(NEW_FILES_SECONDS)

    def _found(self) -> list[SendInput]:
        there = [name for pattern in self._patterns for name in files_of(pattern)]
        for name in self._seen.keys() - set(there):
            # A file of this name that comes back is a new one.
            if not os.path.exists(name):
                self._seen[name] = None
        identities = set(self._seen.values()) - {None}
        found = []
        for name in there:
            identity = _identity(name)
            # A file that was renamed is still followed under its old name.
            if name not in self._seen and identity is not None and identity not in identities:
                self._seen[name] = identity
                found.append(open_input(name, self._given, new=True))
        return found


def _identity(name: str) -> tuple[int, int] | None:
    try:
        found = os.stat(name)
    except OSError:
        return None
    return found.st_dev, found.st_ino
