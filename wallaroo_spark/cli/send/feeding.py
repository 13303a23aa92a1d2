"""Feeds any number of sources at the same time, those that appear meanwhile too, and ends in order on a signal."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Sequence
from typing import Any

import click

from wallaroo_spark.bridges import feed
from wallaroo_spark.cli.send.inputs import SendInput
from wallaroo_spark.cli.send.view import SendView
from wallaroo_spark.cli.signals import on_signals, status_of
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
