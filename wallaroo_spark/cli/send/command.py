"""``wallaroo-spark send``: sends the records of files, topics or standard input to a receiver; needs no Spark.

Any number of sources are fed at the same time. Files that appear while it follows a pattern are sent, too. Ctrl-C and
SIGTERM end it in order.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Sequence
from typing import Annotated, Any

import click

from wallaroo_spark.bridges import feed
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
from wallaroo_spark.cli.send.view import SendView, make_view
from wallaroo_spark.cli.signals import on_signals, status_of
from wallaroo_spark.cli.verbs import Json, Number, verb
from wallaroo_spark.connector import Connector
from wallaroo_spark.errors import WallarooError

Arrivals = AsyncIterator[Sequence[SendInput]]
"""Inputs that appear, as they appear. It ends when none can appear any more."""


def run(
    connector: Connector,
    inputs: Sequence[SendInput],
    view: SendView,
    drain_timeout: float,
    arrivals: Arrivals | None = None,
) -> None:
    """Feed all inputs until they end or a signal comes, and show them in the view. Raises the errors of the inputs."""
    interrupts = Interrupts()
    with view, on_signals(interrupts.note):
        try:
            asyncio.run(_feed_all(connector, inputs, view, drain_timeout, interrupts, arrivals))
        except asyncio.CancelledError:
            raise click.exceptions.Exit(status_of(interrupts.received)) from None


class Interrupts:
    """SIGINT and SIGTERM: the first one cancels the sending, the second one ends the process at once."""

    def __init__(self) -> None:
        self.received: int | None = None
        """The number of the first signal; None before."""
        self.task: asyncio.Task[None] | None = None
        """The task that the first signal cancels."""

    def note(self, number: int) -> None:
        """A signal has come."""
        if self.received is not None:
            # Nothing here outlives the process: acknowledgements are the receiver's, and positions are durable.
            os.write(2, b"Ended at once.\n")
            os._exit(status_of(number))
        self.received = number
        if self.task is None:
            raise KeyboardInterrupt
        self.task.get_loop().call_soon_threadsafe(self.task.cancel)


async def _feed_all(
    connector: Connector,
    inputs: Sequence[SendInput],
    view: SendView,
    drain_timeout: float,
    interrupts: Interrupts,
    arrivals: Arrivals | None,
) -> None:
    """Feed all inputs at the same time. If one fails, the others are still sent to their end; then its error is raised.

    The inputs of ``arrivals`` are fed, too, until one input fails. A signal cancels it, so that the connection
    is closed in order.
    """
    interrupts.task = asyncio.current_task()

    async def following() -> Sequence[SendInput] | None:
        return None if arrivals is None else await anext(arrivals, None)

    async with connector:
        watching = asyncio.create_task(view.watch(connector))
        feeding: set[asyncio.Task[Any]] = {
            asyncio.create_task(_feed(connector, one, view, drain_timeout)) for one in inputs
        }
        arriving: set[asyncio.Task[Any]] = {asyncio.create_task(following())} if arrivals else set()
        errors: list[BaseException] = []
        try:
            while (feeding or arriving) and not (errors and arrivals):
                ended, _ = await asyncio.wait(feeding | arriving, return_when=asyncio.FIRST_COMPLETED)
                errors += [error for task in ended if (error := task.exception()) is not None]
                feeding -= ended
                if ended & arriving and not errors:
                    found = arriving.pop().result()
                    for one in found or ():
                        view.add(one)
                        feeding.add(asyncio.create_task(_feed(connector, one, view, drain_timeout)))
                    if found is not None:
                        arriving.add(asyncio.create_task(following()))
        finally:
            tasks = (watching, *feeding, *arriving)
            for task in tasks:
                task.cancel()
            await asyncio.wait(tasks)
    if errors:
        raise _joined(errors)


async def _feed(connector: Connector, one: SendInput, view: SendView, drain_timeout: float) -> None:
    name = one.source.name
    try:
        result = await feed(connector, one.source, progress=view.progressed, drain_timeout=drain_timeout)
    except Exception:
        view.failed(name)
        raise
    view.finished(name, result)


def _joined(errors: Sequence[BaseException]) -> BaseException:
    """One error for all inputs. An error that has ended the connector is the same for each input."""
    different = {str(error): error for error in errors}
    ours = [error for error in different.values() if isinstance(error, WallarooError)]
    if len(different) == 1 or len(ours) < len(different):
        return errors[0]
    *others, last = ours
    return WallarooError("; ".join([*map(str, others), last.message]), code=last.code)


NEW_FILES_SECONDS = 1.0
"""Seconds between two looks for new files of a pattern. A choice: listing a folder costs little."""


@verb()
def send(
    names: Annotated[tuple[str, ...], InputName(), "FILE...|FOLDER|PATTERN|topic:NAME|-"],
    *,
    given: SendOptions,
    drain_timeout: Annotated[float, Number(min=0, min_open=True)] = 300.0,
    every: Annotated[float, Number(min=0.1)] = 5.0,
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
