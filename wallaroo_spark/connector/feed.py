"""Feeding a source: read it, send it, and read it again from the committed reference when the session changes."""

from __future__ import annotations

import asyncio
import contextlib
from bisect import bisect_right
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Generator, Iterator, Sequence
from dataclasses import dataclass

from wallaroo_spark.connector.batches import AsyncBatches, Batch, Batches, Record, batches_of
from wallaroo_spark.connector.hub import Hub
from wallaroo_spark.connector.outbox import Trail
from wallaroo_spark.connector.pieces import Piece
from wallaroo_spark.connector.sources import Source
from wallaroo_spark.connector.stream import Stream
from wallaroo_spark.errors import TransportError

_REPORT_EVERY = 256
_CLOSABLE = (Generator, Batches)


@dataclass(frozen=True)
class Progress:
    """How far a feed is. ``messages`` and ``bytes`` count each record once, however often it was sent.

    ``sent`` is the id of the last record sent, ``acknowledged`` the last committed reference; None means nothing yet.
    """

    name: str
    messages: int
    bytes: int
    sent: int | None
    acknowledged: int | None


@dataclass(frozen=True)
class FeedResult:
    """What a feed has sent, each record counted once, and the reference that is committed at its end."""

    messages: int
    bytes: int
    acknowledged: int | None


class Feed:
    """One source being pumped into one stream."""

    def __init__(
        self,
        hub: Hub,
        stream: Stream,
        source: Source,
        progress: Callable[[Progress], None] | None,
        *,
        end: bool,
        drain_timeout: float | None,
    ) -> None:
        self._hub = hub
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
        """Until everything is acknowledged. Raises what the source raises and what ends the connector."""
        trail = self._stream.ledger
        while True:
            reference = self._stream.reference
            if isinstance(trail, Trail):
                await self._hub.until(lambda: trail.behind or self._stream.failure is not None)
                if self._stream.failure is not None:
                    raise self._stream.failure
                reference = trail.take_rewind()
                self._recount = self._counted is not None and self._counted != reference
                # Writers that wait behind this stream's rewind may have their turn now.
                self._hub.turnstile.turn()
            if await self._pumped(reference):
                self._report()
                return FeedResult(self._messages, self._bytes, self._stream.acknowledged)

    async def _pumped(self, reference: int | None) -> bool:
        """Whether the source came to its end, and all of it is acknowledged, before a rewind was asked for."""
        pump = asyncio.create_task(self._pump(reference))
        watch = asyncio.create_task(self._watch())
        try:
            await asyncio.wait({pump, watch}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in (pump, watch):
                task.cancel()
            await asyncio.wait({pump, watch})
        for task in (watch, pump):
            if not task.cancelled() and (error := task.exception()) is not None:
                raise error
        return not pump.cancelled()

    async def _pump(self, reference: int | None) -> None:
        records = self._source.read(reference)
        self._read = 0
        if isinstance(records, AsyncIterator):
            try:
                await self._send_awaited(records)
            finally:
                if isinstance(records, AsyncGenerator | AsyncBatches):
                    await records.aclose()
        else:
            with contextlib.closing(records) if isinstance(records, _CLOSABLE) else contextlib.nullcontext():
                await self._send_there(records)
        self._report()
        if self._end:
            await self._stream.end()
        await self._flushed()

    async def _flushed(self) -> None:
        """Until everything is acknowledged. Raises :class:`TransportError` when nothing more is, for too long."""
        acknowledged = self._stream.acknowledged
        while True:
            try:
                async with asyncio.timeout(self._drain_timeout):
                    await self._stream.flushed()
                return
            except TimeoutError:
                before, acknowledged = acknowledged, self._stream.acknowledged
                if before == acknowledged:
                    raise TransportError(
                        f"stream {self._stream.name!r} was sent to its end and nothing of it was acknowledged for "
                        f"{self._drain_timeout:g} seconds ({self._stream.ledger.state()}); acknowledgements come when "
                        "Spark commits a batch, so check that the query runs, or allow more time",
                        stream=self._stream.name,
                        seconds=self._drain_timeout,
                    ) from None

    async def _send_awaited(self, records: AsyncIterator[Record]) -> None:
        if isinstance(records, AsyncBatches):
            async for batch in records.batches:
                await self._send_batch(batch)
        else:
            async for record in records:
                await self._send(record)

    async def _send_there(self, records: Iterator[Record]) -> None:
        for batch in records.batches if isinstance(records, Batches) else batches_of(records):
            await self._send_batch(batch)
            # Reading may take its time, and what was sent is to be on its way.
            await asyncio.sleep(0)

    async def _send_batch(self, batch: Batch) -> None:
        piece = Piece(batch, self._read, f"source {self._source.name!r}")
        self._read += len(batch.payloads)
        await self._stream.send_piece(piece, sent=self._sent)

    async def _send(self, record: Record) -> None:
        sent = await self._stream.send(record.payload, id=record.id, event_time=record.event_time, key=record.key)
        self._read += 1
        self._sent((sent,), (record.payload,))

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
        """How many of the records that were read after a rewind were counted before it."""
        assert self._counted is not None
        if self._hub.increasing:
            self._recount = ids[-1] < self._counted
            return bisect_right(ids, self._counted)
        self._recount = self._counted not in ids
        return len(ids) if self._recount else ids.index(self._counted) + 1

    async def _watch(self) -> None:
        """Report acknowledgements; return when the source has to be read again."""
        ledger = self._stream.ledger
        seen = ledger.reference
        while not (isinstance(ledger, Trail) and ledger.behind):
            await self._hub.changed.wait()
            self._hub.check()
            if ledger.reference != seen:
                seen = ledger.reference
                self._report()

    def _report(self) -> None:
        if self._progress is not None:
            ledger = self._stream.ledger
            name, sent = self._stream.name, self._counted
            self._progress(Progress(name, self._messages, self._bytes, sent, ledger.reference))
