"""Feeds a source into a stream, and reads the source again from the committed reference after a session was lost."""

from __future__ import annotations

import asyncio
import contextlib
from bisect import bisect_right
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Generator, Iterator, Sequence
from dataclasses import dataclass

from wallaroo_spark.connector.arguments import bytes_of, key_of
from wallaroo_spark.connector.record import AsyncGroupedRecords, GroupedRecords, MessageColumns, Record, grouped
from wallaroo_spark.connector.sending.connector_state import ConnectorState
from wallaroo_spark.connector.sending.send_batches import SendBatch
from wallaroo_spark.connector.sending.stream_sender import StreamSender
from wallaroo_spark.connector.sending.unacknowledged import SourcePosition
from wallaroo_spark.connector.sources import Source
from wallaroo_spark.errors import TransportError
from wallaroo_spark.event_loop import end_tasks
from wallaroo_spark.protocol import Flags

_REPORT_EVERY = 256
"""Messages between two calls of the progress callback. A choice that keeps its cost small."""

_CLOSABLE = (Generator, GroupedRecords)
_ACLOSABLE = (AsyncGenerator, AsyncGroupedRecords)


@dataclass(frozen=True)
class FeedProgress:
    """The progress of a feed."""

    name: str
    """Name of the stream."""
    messages: int
    """Number of records sent. Resent ones count once."""
    bytes: int
    """Bytes of their payloads."""
    sent: int | None
    """Id of the last record sent; None before the first."""
    acknowledged: int | None
    """The last committed reference; None when there is none."""


@dataclass(frozen=True)
class FeedResult:
    """The totals of a finished feed."""

    messages: int
    """Number of records sent. Resent ones count once."""
    bytes: int
    """Bytes of their payloads."""
    acknowledged: int | None
    """The committed reference at the end of the feed."""


@dataclass(eq=False)
class SourceFeed:
    """One source that is fed into one stream."""

    state: ConnectorState
    stream: StreamSender
    source: Source
    progress: Callable[[FeedProgress], None] | None
    end: bool
    """Whether the stream is ended behind the source."""
    drain_timeout: float | None
    """Seconds, as of :meth:`Connector.feed`."""
    _messages: int = 0
    _bytes: int = 0
    _counted: int | None = None
    _recount: bool = False
    _read: int = 0

    async def run(self) -> FeedResult:
        """Run until everything is acknowledged. Raises the source's errors and the error that ends the connector."""
        messages = self.stream.messages
        while True:
            reference = self.stream.reference
            if isinstance(messages, SourcePosition):
                await self.stream.until(lambda: messages.resend_pending)
                reference = messages.take_rewind()
                self._recount = self._counted is not None and self._counted != reference
                # Senders that wait for the end of this rewind may have their turn now.
                self.state.queue.wake_next()
            if await self._sent_all(reference):
                return FeedResult(self._messages, self._bytes, messages.reference)

    async def _sent_all(self, reference: int | None) -> bool:
        """Send the source. Returns whether all of it was acknowledged before a rewind was requested."""
        sending = asyncio.create_task(self._send_source(reference))
        watch = asyncio.create_task(self._watch())
        try:
            await asyncio.wait({sending, watch}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            await end_tasks(sending, watch)
            # Also when the feed is cancelled: what was sent since the last report would never be counted.
            self._report()
        for task in (watch, sending):
            if not task.cancelled() and (error := task.exception()) is not None:
                raise error
        return not sending.cancelled()

    async def _send_source(self, reference: int | None) -> None:
        records = self.source.read(reference)
        self._read = 0
        if isinstance(records, AsyncIterator):
            async with contextlib.aclosing(records) if isinstance(records, _ACLOSABLE) else contextlib.nullcontext():
                await self._send_asynchronous(records)
        else:
            with contextlib.closing(records) if isinstance(records, _CLOSABLE) else contextlib.nullcontext():
                await self._send_plain(records)
        self._report()
        if self.end:
            await self.stream.end()
        await self._flushed()

    async def _flushed(self) -> None:
        """Wait until everything is acknowledged. Raises :class:`TransportError` after too long without an ACK."""
        messages = self.stream.messages
        acknowledged = messages.reference
        while True:
            try:
                async with asyncio.timeout(self.drain_timeout):
                    await self.stream.flushed()
                return
            except TimeoutError:
                before, acknowledged = acknowledged, messages.reference
                if before == acknowledged:
                    raise TransportError(
                        f"stream {self.stream.name!r} was sent to its end and nothing of it was acknowledged for "
                        f"{self.drain_timeout:g} seconds ({messages.describe()}); acknowledgements come when "
                        "Spark commits a batch, so check that the query runs, or allow more time",
                        code="acknowledgement-late",
                        stream=self.stream.name,
                        seconds=self.drain_timeout,
                    ) from None

    async def _send_asynchronous(self, records: AsyncIterator[Record]) -> None:
        if isinstance(records, AsyncGroupedRecords):
            async for group in records.groups:
                await self._send_group(group)
        else:
            async for record in records:
                await self._send(record)

    async def _send_plain(self, records: Iterator[Record]) -> None:
        for group in records.groups if isinstance(records, GroupedRecords) else grouped(records):
            await self._send_group(group)
            # Reading may block for a while; let the connection write what was sent.
            await asyncio.sleep(0)

    async def _send_group(self, group: MessageColumns) -> None:
        batch = SendBatch(group, self._read, f"source {self.source.name!r}")
        self._read += len(group.payloads)
        await self.stream.send_batch(batch, Flags.NONE, self._sent)

    async def _send(self, record: Record) -> None:
        payload = bytes_of(record.payload)
        sent = await self.stream.send_one(payload, record.id, Flags.NONE, record.event_time, key_of(record.key))
        self._read += 1
        self._sent((sent,), (payload,))

    def _sent(self, ids: Sequence[int], payloads: Sequence[bytes]) -> None:
        new = payloads[self._counted_before(ids) :] if self._recount else payloads
        if not new:
            return
        self._counted = ids[-1]
        reports = self._messages // _REPORT_EVERY
        self._messages += len(new)
        self._bytes += sum(map(len, new))
        if self._messages // _REPORT_EVERY > reports:
            self._report()

    def _counted_before(self, ids: Sequence[int]) -> int:
        """Number of these records that were counted before the rewind after which they are read again."""
        assert self._counted is not None
        if self.state.increasing:
            self._recount = ids[-1] < self._counted
            return bisect_right(ids, self._counted)
        self._recount = self._counted not in ids
        return len(ids) if self._recount else ids.index(self._counted) + 1

    async def _watch(self) -> None:
        """Report acknowledgements; return when the source must be read again."""
        messages = self.stream.messages
        seen = messages.reference
        while not (isinstance(messages, SourcePosition) and messages.resend_pending):
            await self.state.changed.wait()
            self.state.check()
            if messages.reference != seen:
                seen = messages.reference
                self._report()

    def _report(self) -> None:
        if self.progress is not None:
            name, reference = self.stream.name, self.stream.messages.reference
            self.progress(FeedProgress(name, self._messages, self._bytes, self._counted, reference))
