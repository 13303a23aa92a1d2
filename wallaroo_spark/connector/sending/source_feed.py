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
from wallaroo_spark.protocol import Flags

_REPORT_EVERY = 256
"""Messages between two calls of the progress callback. A choice that keeps its cost small."""

_CLOSABLE = (Generator, GroupedRecords)


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


class SourceFeed:
    """One source that is fed into one stream."""

    def __init__(
        self,
        state: ConnectorState,
        stream: StreamSender,
        source: Source,
        progress: Callable[[FeedProgress], None] | None,
        *,
        end: bool,
        drain_timeout: float | None,
    ) -> None:
        self._state = state
        self._stream = stream
        self._source = source
        self._progress = progress
        self._end = end
        self._drain_timeout = drain_timeout
        self._messages = 0
        self._bytes = 0
        self._counted: int | None = None
        self._recount = False
        self._read = 0

    async def run(self) -> FeedResult:
        """Run until everything is acknowledged. Raises the source's errors and the error that ends the connector."""
        messages = self._stream.messages
        while True:
            reference = self._stream.reference
            if isinstance(messages, SourcePosition):
                await self._state.until(lambda: messages.resend_pending or self._stream.failure is not None)
                if self._stream.failure is not None:
                    raise self._stream.failure
                reference = messages.take_rewind()
                self._recount = self._counted is not None and self._counted != reference
                # Senders that wait for the end of this rewind may have their turn now.
                self._state.queue.wake_next()
            if await self._sent_all(reference):
                return FeedResult(self._messages, self._bytes, messages.reference)

    async def _sent_all(self, reference: int | None) -> bool:
        """Send the source. Returns whether all of it was acknowledged before a rewind was requested."""
        sending = asyncio.create_task(self._send_source(reference))
        watch = asyncio.create_task(self._watch())
        try:
            await asyncio.wait({sending, watch}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in (sending, watch):
                task.cancel()
            await asyncio.wait({sending, watch})
            # Also when the feed is cancelled: what was sent since the last report would never be counted.
            self._report()
        for task in (watch, sending):
            if not task.cancelled() and (error := task.exception()) is not None:
                raise error
        return not sending.cancelled()

    async def _send_source(self, reference: int | None) -> None:
        records = self._source.read(reference)
        self._read = 0
        if isinstance(records, AsyncIterator):
            try:
                await self._send_asynchronous(records)
            finally:
                if isinstance(records, AsyncGenerator | AsyncGroupedRecords):
                    await records.aclose()
        else:
            with contextlib.closing(records) if isinstance(records, _CLOSABLE) else contextlib.nullcontext():
                await self._send_plain(records)
        self._report()
        if self._end:
            await self._stream.end()
        await self._flushed()

    async def _flushed(self) -> None:
        """Wait until everything is acknowledged. Raises :class:`TransportError` after too long without an ACK."""
        messages = self._stream.messages
        acknowledged = messages.reference
        while True:
            try:
                async with asyncio.timeout(self._drain_timeout):
                    await self._stream.flushed()
                return
            except TimeoutError:
                before, acknowledged = acknowledged, messages.reference
                if before == acknowledged:
                    raise TransportError(
                        f"stream {self._stream.name!r} was sent to its end and nothing of it was acknowledged for "
                        f"{self._drain_timeout:g} seconds ({messages.describe()}); acknowledgements come when "
                        "Spark commits a batch, so check that the query runs, or allow more time",
                        code="acknowledgement-late",
                        stream=self._stream.name,
                        seconds=self._drain_timeout,
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
        batch = SendBatch(group, self._read, f"source {self._source.name!r}")
        self._read += len(group.payloads)
        await self._stream.send_batch(batch, Flags.NONE, self._sent)

    async def _send(self, record: Record) -> None:
        payload = bytes_of(record.payload)
        sent = await self._stream.send_one(payload, record.id, Flags.NONE, record.event_time, key_of(record.key))
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
        if self._state.increasing:
            self._recount = ids[-1] < self._counted
            return bisect_right(ids, self._counted)
        self._recount = self._counted not in ids
        return len(ids) if self._recount else ids.index(self._counted) + 1

    async def _watch(self) -> None:
        """Report acknowledgements; return when the source must be read again."""
        messages = self._stream.messages
        seen = messages.reference
        while not (isinstance(messages, SourcePosition) and messages.resend_pending):
            await self._state.changed.wait()
            self._state.check()
            if messages.reference != seen:
                seen = messages.reference
                self._report()

    def _report(self) -> None:
        if self._progress is not None:
            name, reference = self._stream.name, self._stream.messages.reference
            self._progress(FeedProgress(name, self._messages, self._bytes, self._counted, reference))
