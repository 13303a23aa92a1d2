"""Stages as functions: their declaration, and the loop that runs them for their deliveries."""

from __future__ import annotations

import asyncio
import functools
import inspect
import logging
from collections.abc import Awaitable, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from wallaroo_spark.api.limits import STAGE_DELIVERIES
from wallaroo_spark.client.arguments import limited, milliseconds_of, name_of, path_of
from wallaroo_spark.client.calls import called
from wallaroo_spark.client.members import Membership, StageWork
from wallaroo_spark.client.refusals import is_cancelled_itself
from wallaroo_spark.connector.arguments import callable_of, wrong_type
from wallaroo_spark.errors import ArgumentValueError, WallarooError, one_line, shown_error
from wallaroo_spark.event_loop import BackgroundTasks

log = one_line("wallaroo_spark.client")


@dataclass(frozen=True)
class StageFunction:
    """A function that works on a stage; made by :func:`stage`. Calling it calls the function."""

    pipeline: str
    """Name of the pipeline, with its namespace."""
    name: str
    function: Callable[[StageWork], Any]
    """The function: it takes the work and returns the output. It may be a coroutine function."""
    concurrency: int = STAGE_DELIVERIES
    """The most deliveries at once."""

    def __call__(self, work: Any) -> Any:
        """Call the function."""
        return self.function(work)


class Again(Exception):
    """Raised by a stage's function to have the work delivered again, after ``delay`` seconds at the earliest."""

    delay: float | timedelta = 0
    """Seconds, or a timedelta. Also of a class made of this one that does not call its constructor."""

    def __init__(self, reason: str = "", delay: float | timedelta = 0) -> None:
        super().__init__(reason)
        self.delay = delay
        milliseconds_of(delay, "delay")


def stage(
    pipeline: str, name: str, *, concurrency: int = STAGE_DELIVERIES
) -> Callable[[Callable[[Any], Any]], StageFunction]:
    """Declare a function that works on the stage ``name`` of ``pipeline`` (``namespace/name``).

    The function takes a :class:`StageWork` and returns the output: bytes, a str, a JSON value, an :class:`Output` with
    events for streams, or None for none. An exception gives the work back, with a line in the log. Functions that are
    no coroutine functions run in threads, at most ``concurrency`` at once: give 1 for
    one that is not safe in threads. Raises :class:`ArgumentTypeError` and
    :class:`ArgumentValueError`.
    """
    path_of(pipeline, "pipeline")
    name_of(name, "stage")
    limited(concurrency, "concurrency", 1)

    def declare(function: Callable[[Any], Any]) -> StageFunction:
        return StageFunction(pipeline, name, callable_of(function, "function"), concurrency)

    return declare


def stages_of(given: Sequence[Any]) -> tuple[StageFunction, ...]:
    """One or more functions of stages. Raises :class:`ArgumentTypeError` and :class:`ArgumentValueError`."""
    for one in given:
        if not isinstance(one, StageFunction):
            raise wrong_type("a stage is a function with @stage(pipeline, name)", one, "stages")
    if not given:
        raise ArgumentValueError(
            "there is no stage to work on; give at least one function with @stage(pipeline, name)", code="stage-missing"
        )
    return tuple(given)


class StageWorker:
    """Runs the functions of some stages until it is stopped."""

    def __init__(self, stages: Sequence[StageFunction], join: Callable[[StageFunction], Membership[StageWork]]) -> None:
        self._stages = stages
        self._join = join
        self._running = BackgroundTasks()
        self._threads = ThreadPoolExecutor(sum(one.concurrency for one in stages), "wallaroo-stage")

    async def run(self, until_stopped: Callable[..., Awaitable[None]], finish_timeout: float) -> None:
        """Take deliveries ``until_stopped``; then functions that run may end, for so many seconds at most.

        Raises the error of a stage that cannot be joined.
        """
        members = [self._join(one) for one in self._stages]
        try:
            await until_stopped(*map(self._take, self._stages, members))
            await self._running.wait(finish_timeout)
        finally:
            self._running.cancel()
            await self._running.wait()
            for member in members:
                await member.close()
            self._threads.shutdown(wait=False, cancel_futures=True)

    async def _take(self, one: StageFunction, member: Membership[StageWork]) -> None:
        async for work in member:
            self._running.start(self._do(one, work))

    async def _do(self, one: StageFunction, work: StageWork) -> None:
        settle: Callable[[], Awaitable[Any]]
        try:
            output = await self._call(one, work)
            settle = functools.partial(work._acked, **work.checked(output))
        except BaseException as error:
            if isinstance(error, asyncio.CancelledError) and is_cancelled_itself():
                raise
            reason = shown_error(error)
            delay: float | timedelta = 0
            if isinstance(error, Again):
                reason, delay = reason.removeprefix(f"{Again.__name__}: "), error.delay
            log.warning("%r failed and is given back: %s", work, reason, exc_info=log.isEnabledFor(logging.DEBUG))
            settle = functools.partial(work.nack, delay, reason)
        try:
            await (work._release() if work.over else settle())
        except WallarooError as error:
            log.warning("%r: %s", work, error)

    async def _call(self, one: StageFunction, work: StageWork) -> Any:
        if inspect.iscoroutinefunction(one.function):
            return await one.function(work)
        loop = asyncio.get_running_loop()
        found = await loop.run_in_executor(self._threads, called, one.function, work)
        return await found if inspect.isawaitable(found) else found
