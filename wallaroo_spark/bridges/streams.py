"""What all bridges have in common: reading from the committed reference, coming back after errors, acknowledging.

A bridge reads what another program keeps, and sends it as streams of a connector. A stream's reference is the source's
own position where it has one, so the position to continue at is the one that the receiver has committed.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import logging
import random
import re
import time
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import TypeVar

from wallaroo_spark.connector import Backoff, Connector, FeedProgress, FeedResult, Record, Source
from wallaroo_spark.connector.record import AsyncGroupedRecords, MessageColumns, grouped
from wallaroo_spark.errors import LocalProtocolError, TransportError, one_line
from wallaroo_spark.event_loop import end_tasks

_log = one_line("wallaroo_spark.bridges")

T = TypeVar("T")


class BridgedStream(ABC):
    """One stream of a bridge: a source for :func:`feed` that has positions, and keeps records until they are committed.

    A class of a medium writes :meth:`records`, and :meth:`acknowledge` if the medium is to know what is committed.
    """

    replayable = True
    passing: tuple[type[Exception], ...] = (OSError,)
    """Errors of the medium behind which it is opened again, at the last record that was sent."""

    def __init__(self, name: str) -> None:
        self.name = name
        """The name of the stream."""
        self.retry = Backoff()
        """The delays before the medium is opened again, and when to give up."""
        self.began: int | None = None
        """The reference in front of the first reading of which nothing was committed before, where the stream sets it:
        while nothing of it is committed, it is read again from there, because the medium may have another beginning and
        another end then."""

    @abstractmethod
    def records(self, after: int | None) -> AsyncGenerator[Sequence[Record], None]:
        """The records behind the reference ``after`` (None: from the beginning), as groups in their order; it waits
        for more where the medium has an end that grows. An empty group says that the medium answers.

        Raises one of :attr:`passing` while the medium is away, and :class:`ReplayError` when it no longer has them.
        """

    async def acknowledge(self, reference: int) -> None:  # noqa: B027 -- most media need not be told
        """Everything up to ``reference`` is committed; the medium may forget it. May be called for it again."""

    def read(self, after: int | None) -> AsyncIterator[Record]:
        """The records behind ``after``, over all errors that pass. Raises :class:`TransportError` after too many."""
        return AsyncGroupedRecords(self._groups(after))

    async def _groups(self, after: int | None) -> AsyncGenerator[MessageColumns, None]:
        away = Away(self.name, self.retry)
        while True:
            try:
                async with contextlib.aclosing(self.records(self.began if after is None else after)) as groups:
                    async for group in groups:
                        away.over()
                        for columns in grouped(iter(group)):
                            yield columns
                            after = columns.ids[-1] if columns.ids else after
                return
            except self.passing as error:
                await away.pause(error)


def _said(error: Exception) -> str:
    """An error of a medium, with the page for those of TLS."""
    text = str(error).strip() or type(error).__name__
    tls = isinstance(error, FileNotFoundError) or re.search(r"certificate|\bssl\b|\btls\b|no such file", text, re.I)
    return f"{text} (docs/bridges.md#tls has the settings of TLS)" if tls else text


class Away:
    """A medium that does not answer: the pauses between attempts, and the log of its beginning and its end."""

    def __init__(self, name: str, retry: Backoff) -> None:
        self._name = name
        self._retry = retry
        self._failures = 0
        self._since = 0.0

    async def pause(self, error: Exception) -> None:
        """Wait before the next attempt. Raises :class:`TransportError` after too many."""
        now = time.monotonic()
        if not self._failures:
            self._since = now
            _log.warning("source %r does not answer; it is tried again: %s", self._name, _said(error))
        self._failures += 1
        if self._retry.exhausted(self._failures, now - self._since):
            raise TransportError(
                f"source {self._name!r} has not answered for {now - self._since:.0f} seconds, in {self._failures} "
                f"attempts: {_said(error)}; start it, check its address and credentials, or allow more time "
                "(--give-up-after)",
                code="source-away",
                source=self._name,
            ) from error
        await asyncio.sleep(self._retry.delay(self._failures, random.random()))

    def over(self) -> None:
        """It answers."""
        if self._failures:
            _log.warning("source %r answers again, after %d attempts", self._name, self._failures)
            self._failures = 0


async def until_reached(
    name: str, retry: Backoff, passing: type[Exception] | tuple[type[Exception], ...], ask: Callable[[], Awaitable[T]]
) -> T:
    """The answer of a medium, over all errors that pass. Raises :class:`TransportError` after too many."""
    away = Away(name, retry)
    while True:
        try:
            found = await ask()
        except passing as error:
            await away.pause(error)
        else:
            away.over()
            return found


def nanoseconds(count: int, unit: int) -> int | None:
    """An event time of a medium, ``count`` units of so many nanoseconds since 1970.

    None for a time before 1677 or behind 2262, which 64 bits do not hold: a producer has taken another unit.
    """
    found = count * unit
    return found if -(1 << 63) <= found < 1 << 63 else None


def silent(client: str) -> logging.Logger:
    """The logger of a client, and those below it, say nothing: what happens to it is said once, by the bridge."""
    logger = logging.getLogger(client)
    logger.setLevel(logging.CRITICAL + 1)
    return logger


@dataclass(frozen=True, slots=True)
class QueuedMessage:
    """A message of a medium that keeps it until it is acknowledged, and has no positions."""

    payload: bytes
    """The message's content."""
    acknowledge: Callable[[], object]
    """Tells the medium that the message is committed. It does not wait."""
    event_time: int | None = None
    """Nanoseconds since 1970 for the default ``eventTimeUnit``; None for none."""
    key: bytes | None = None
    """Its key; None for none."""


class QueuedStream(BridgedStream):
    """A stream of a medium without positions, which delivers again what is not acknowledged when its client comes back.

    Messages are numbered by the clock, so that those of an earlier process are never taken for others. The medium
    bounds how many are delivered and not acknowledged, and so the memory for them.
    """

    delivers_again = False
    """Whether each new connection is certain to deliver again what is not acknowledged. Then messages of a former one
    that were not sent yet are dropped, so that connections that end one after the other fill no memory."""

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self._kept: deque[tuple[Record, QueuedMessage]] = deque()
        self._arrived = asyncio.Event()
        self._receiving: asyncio.Task[None] | None = None
        self._last = 0

    @abstractmethod
    def deliveries(self) -> AsyncGenerator[Sequence[QueuedMessage], None]:
        """The messages that the medium delivers over one connection. Raises one of :attr:`passing` when it is lost;
        an acknowledgement of its messages has no effect then."""

    async def acknowledge(self, reference: int) -> None:
        """Acknowledge the messages up to ``reference``. Raises :class:`LocalProtocolError` when it is no number of this
        process, whose messages the worker may have dropped as replays of another's."""
        if reference > self._last and self._kept:
            raise LocalProtocolError(
                f"stream {self.name!r}: reference {reference} is committed, and this bridge has numbered its messages "
                f"up to {self._last}; so another bridge sends this stream under the same --instance, or this machine's "
                f"clock is behind that of the former one; {len(self._kept)} messages are not acknowledged, and the "
                "source keeps them; run one bridge, set the clock, and start it again",
                code="instance-shared",
                stream=self.name,
                reference=reference,
                last=self._last,
            )
        # Those to come need greater numbers: the worker takes none up to this one.
        self._last = max(self._last, reference)
        while self._kept and (self._kept[0][0].id or 0) <= reference:
            self._kept.popleft()[1].acknowledge()

    async def records(self, after: int | None) -> AsyncGenerator[Sequence[Record], None]:
        """The messages that are kept, and those that arrive. A reading that is repeated keeps the connection."""
        self._last = max(self._last, after or 0)
        sent = -1 if after is None else after
        if self._receiving is None:
            while self.delivers_again and self._kept and (self._kept[-1][0].id or 0) > sent:
                self._kept.pop()
            self._receiving = asyncio.create_task(self._receive())
        while True:
            self._arrived.clear()
            fresh = [record for record, _ in self._kept if (record.id or 0) > sent]
            if fresh:
                sent = fresh[-1].id or 0
                yield fresh
            elif self._receiving.done():
                ended, self._receiving = self._receiving, None
                ended.result()
                return
            else:
                await self._arrived.wait()

    async def close(self) -> None:
        """Leave the medium."""
        if self._receiving is not None:
            await end_tasks(self._receiving)
            self._receiving = None

    async def _receive(self) -> None:
        try:
            async with contextlib.aclosing(self.deliveries()) as groups:
                async for group in groups:
                    for one in group:
                        self._last = max(self._last + 1, time.time_ns())
                        record = Record(self._last, one.payload, one.event_time, one.key)
                        self._kept.append((record, one))
                    self._arrived.set()
        finally:
            self._arrived.set()


@dataclass(eq=False)
class _Acknowledging:
    """Tells a stream what is committed, one call after the other, with the newest reference."""

    stream: BridgedStream
    _committed: int | None = None
    _told: int | None = None
    _failed: bool = False
    _changed: asyncio.Event = dataclasses.field(default_factory=asyncio.Event)

    def note(self, reference: int | None) -> None:
        """The committed reference is this one."""
        if reference is not None and reference != self._committed:
            self._committed = reference
            self._changed.set()

    async def run(self) -> None:
        """Tell it until cancelled. An error that passes is followed by another attempt with the newest reference."""
        while True:
            await self._changed.wait()
            self._changed.clear()
            failures = 0
            while not await self.tell():
                failures += 1
                await asyncio.sleep(self.stream.retry.delay(failures, random.random()))

    async def tell(self) -> bool:
        """Tell the reference, unless the stream was told. Returns False behind an error that passes."""
        reference = self._committed
        if reference is None or reference == self._told:
            return True
        try:
            await self.stream.acknowledge(reference)
        except self.stream.passing as error:
            if not self._failed:
                _log.warning(
                    "source %r was not told of reference %d; it is tried again: %s", self.stream.name, reference, error
                )
            self._failed = True
            return False
        if self._failed:
            _log.warning("source %r was told of reference %d", self.stream.name, reference)
        self._told, self._failed = reference, False
        return True


async def feed(
    connector: Connector,
    source: Source,
    *,
    progress: Callable[[FeedProgress], None] | None = None,
    drain_timeout: float | None = None,
) -> FeedResult:
    """Feed a source as :meth:`Connector.feed` does, and acknowledge to a :class:`BridgedStream` what is committed."""
    if not isinstance(source, BridgedStream):
        return await connector.feed(source, progress=progress, drain_timeout=drain_timeout)
    acknowledging = _Acknowledging(source)

    def progressed(one: FeedProgress) -> None:
        acknowledging.note(one.acknowledged)
        if progress is not None:
            progress(one)

    feeding = asyncio.create_task(connector.feed(source, progress=progressed, drain_timeout=drain_timeout))
    telling = asyncio.create_task(acknowledging.run())
    try:
        await asyncio.wait({feeding, telling}, return_when=asyncio.FIRST_COMPLETED)
        if telling.done():
            telling.result()
        return await feeding
    finally:
        await end_tasks(feeding, telling)
        await acknowledging.tell()
        if isinstance(source, QueuedStream):
            await source.close()
