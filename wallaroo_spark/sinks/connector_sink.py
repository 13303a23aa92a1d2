"""The sink ``connector``: sends rows to programs that speak v3 with the roles reversed, and vote.

Each partition is a worker ``<name>-<partition>`` of the sink, and its rows are appended to an output of that worker.
With several addresses, partition p is sent to address p modulo their number. A sink lists a prepared transaction only
to the worker that has prepared it. So the driver connects as that worker to list and decide transactions, and a task
aborts transactions of earlier tasks before it sends. The length of an output comes from the decision log, not from the
sink. Source: ``docs/protocol.md#sinks``.
"""

from __future__ import annotations

import asyncio
import itertools
import re
import uuid
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, TypeVar

import pyarrow as pa
import pyarrow.compute as pc
from tenacity import AsyncRetrying, retry_if_exception_type, stop_after_delay, wait_exponential, wait_random

from wallaroo_spark.errors import LocalProtocolError, SinkError, TransportError
from wallaroo_spark.event_loop import LoopThread
from wallaroo_spark.settings import function_takes_settings, takes_settings
from wallaroo_spark.sinks.interface import Memory, Prepared, Transaction
from wallaroo_spark.sinks.settings import ConnectorSinkSettings
from wallaroo_spark.sinks.sink_client import SinkClient, shown
from wallaroo_spark.sinks.stores.staged_rows import as_bytes
from wallaroo_spark.sinks.writer import BatchWriter, transactional
from wallaroo_spark.steps import SinkStep, passed
from wallaroo_spark.transport import parse_addresses

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

COLUMN = "value"
AT_ONCE = 16
"""The most connections of the driver at the same time. A choice that bounds its sockets."""
ROWS_AT_ONCE = 1000
"""Rows that are converted to Python objects at once. A choice that bounds the memory of a task."""
_RETRY_FIRST, _RETRY_MOST = 0.05, 2.0
"""The first and the longest pause between attempts to reach a sink, in seconds. A choice: they bound the load."""

Result = TypeVar("Result")
Address = tuple[str, int]


@function_takes_settings(ConnectorSinkSettings)
def connector(settings: ConnectorSinkSettings) -> BatchWriter:
    """A ``foreachBatch`` writer to one or more connector sinks: programs that receive rows over protocol v3.

    Raises :class:`ConfigurationError` for settings that cannot work.
    """
    shape = _as_json if settings.encode == "json" else None
    return transactional(ConnectorSink(**vars(settings)), checkpoint=settings.checkpoint, shape=shape)


def _as_json(df: DataFrame) -> DataFrame:
    from pyspark.sql import functions as f

    return df.select(f.to_json(f.struct("*")).alias(COLUMN))


class ConnectorSink:
    """The :class:`~wallaroo_spark.sinks.interface.Sink` behind :func:`connector`; it is ``Remembering`` too.

    Partition p greets as worker ``<name>-<p>``, and goes to address number p modulo their number.
    """

    @takes_settings(ConnectorSinkSettings)
    def __init__(self, settings: ConnectorSinkSettings) -> None:
        self.name = settings.name
        self.settings = settings
        self.addresses = tuple(parse_addresses(settings.address))
        # The driver sets these before the sink is sent to the tasks.
        self.ends: dict[str, dict[str, int]] = {}
        """The committed length of each output in bytes, by partition (decimal text) and address."""
        self.try_number = 0
        """The number of the batch's running try."""
        self.alone = True
        """Whether Spark runs each task only once at a time (no speculation)."""

    def __repr__(self) -> str:
        return f"ConnectorSink({self.settings.address!r}, name={self.name!r})"

    def remember(self, memory: Memory | None) -> None:
        """Set the committed lengths of the outputs."""
        ends = {} if memory is None else memory["ends"]
        self.ends = {partition: dict(lengths) for partition, lengths in ends.items()}

    def after(self, prepared: Sequence[Prepared]) -> Memory:
        """Return the committed lengths after these transactions are committed."""
        here = {shown(address) for address in self.addresses}
        gone = {str(one.transaction.partition) for one in prepared if one.detail}
        # An address that is not in ``addresses`` any more was renamed, so its output is the one at the new address.
        kept = {
            partition: {at: end for at, end in ends.items() if at in here or partition not in gone}
            for partition, ends in self.ends.items()
        }
        for one in prepared:
            if one.detail:
                kept.setdefault(str(one.transaction.partition), {})[one.detail["address"]] = one.detail["end"]
        return {"ends": kept}

    def begin(self, batch: int, try_number: int, *, alone: bool) -> None:
        """Add the try's number to the ids of transactions, by which a task or driver can abort those of older tries."""
        self.try_number, self.alone = try_number, alone

    def prepare(self, transaction: Transaction, rows: Iterator[pa.RecordBatch]) -> Prepared:
        """Send the partition's rows to its sink and return the vote; a partition without rows does not connect."""
        lots = (lot for piece in rows for lot in self._encoded(piece))
        first = next(lots, None)
        if first is None:
            return Prepared(transaction, 0)
        try:
            return _run(self._prepare(transaction, first, lots))
        except LocalProtocolError as error:
            raise SinkError(f"a row cannot be sent: {error.message}", code=error.code) from error

    def commit(self, batch: int, prepared: Sequence[Prepared]) -> None:
        """Send the decision to each partition's sink, and check that its output has the rows."""
        _run(self._each(self._commit, [one for one in prepared if one.detail]))

    def abort(self, transactions: Sequence[Transaction]) -> None:
        """Send the decision to abort to the sink of each transaction, as the worker that has prepared it."""
        unwanted: dict[int, set[str]] = {}
        for one in transactions:
            unwanted.setdefault(one.partition, set()).add(one.id)
        _run(self._each(self._abort, list(unwanted.items())))

    def recover(self) -> Sequence[Transaction]:
        """Return the prepared transactions of every worker whose output is in the log.

        The tasks of other workers find and abort the transactions that earlier tasks have left there.
        """
        answers = _run(self._each(self._uncommitted, [int(partition) for partition in self.ends]))
        found = (Transaction.parse(name) for names in answers for name in names)
        return [one for one in found if one is not None and one.sink == self.name]

    def worker(self, partition: int) -> str:
        """Return the worker name of a partition."""
        return f"{self.name}-{partition}"

    def address(self, partition: int) -> Address:
        """Return the address of a partition's sink."""
        return self.addresses[partition % len(self.addresses)]

    def _encoded(self, piece: pa.RecordBatch) -> Iterator[list[bytes]]:
        """The rows of a piece as bytes, some at a time."""
        if COLUMN not in piece.schema.names:
            raise SinkError(
                f"sink {self.name}: column {COLUMN} is missing, and the rows have {', '.join(piece.schema.names)}; "
                f'name the column to send {COLUMN}, or use encode="json"',
                code="sink-columns",
            )
        column = as_bytes(piece.column(COLUMN), COLUMN, f"sink {self.name}")
        if column.null_count:
            raise SinkError(
                f"sink {self.name}: column {COLUMN} has nulls, which have no bytes; filter them out first",
                code="sink-columns",
            )
        if self.settings.delimiter:
            column = pc.binary_join_element_wise(column, b"", self.settings.delimiter)
        for at in range(0, len(column), ROWS_AT_ONCE):
            yield column.slice(at, ROWS_AT_ONCE).to_pylist()

    async def _prepare(self, transaction: Transaction, first: list[bytes], lots: Iterable[list[bytes]]) -> Prepared:
        # The number of the try is in the id, so that a later try knows which transactions are older.
        transaction = replace(transaction, attempt=_attempt(self.try_number, transaction.attempt))
        address, worker = self.address(transaction.partition), self.worker(transaction.partition)
        start = self._start(transaction.partition)
        async with await self._reached(lambda: SinkClient.open(address, worker, self.settings, start or 0)) as client:
            await self._clear(client, transaction)
            if start is None:
                if client.prepared:
                    # The sink may have counted the rows that were aborted just now.
                    await client.notify()
                start = client.reference
            client.begin(start)
            try:
                count = 0
                for lot in itertools.chain([first], lots):
                    await client.send(lot)
                    count += len(lot)
                commit, sent = await client.vote(transaction.id)
                if not commit:
                    client.decide(transaction.id, False)
                    await client.uncommitted()
                    raise SinkError(
                        f"sink {shown(address)} votes to abort; its log says why",
                        code="sink-batch-aborted",
                        peer=shown(address),
                    )
            except (SinkError, TransportError) as error:
                raise _explained(error, worker, start, client.reference) from error
        where = {"address": shown(address), "worker": worker, "start": sent.start, "end": sent.end}
        return Prepared(transaction, count, where)

    def _start(self, partition: int) -> int | None:
        """Return the committed length of the partition's output; None when only the sink knows it."""
        ends = self.ends.get(str(partition), {})
        here = {shown(address) for address in self.addresses}
        address = shown(self.address(partition))
        if address in ends:
            return ends[address]
        renamed = [end for at, end in ends.items() if at not in here]
        if renamed:
            return max(renamed)
        return 0 if self.settings.start == "log" else None

    async def _clear(self, client: SinkClient, transaction: Transaction) -> None:
        """Abort the transactions of earlier attempts, because many sinks hold only one transaction of a worker."""
        if not client.prepared:
            return
        for name in client.prepared:
            other = Transaction.parse(name)
            if other is None or other.sink != self.name:
                raise client.refused(
                    f"it has {name[:200]!r} prepared, a transaction that is not of this sink; use another name="
                )
            if _age(other) > _age(transaction):
                raise client.refused(f"it has {name} prepared, of a later try; run one query per checkpoint")
            if _age(other) == _age(transaction) and not self.alone:
                raise TransportError(
                    f"{name} is prepared by another run of this task, which may be the one that counts: Spark runs "
                    "slow tasks twice here (spark.speculation)",
                    code="sink-partition-twice",
                )
        await client.abort(client.prepared)

    async def _commit(self, one: Prepared) -> None:
        known = {shown(address): address for address in self.addresses}
        address = known.get(one.detail["address"]) or self.address(one.transaction.partition)
        worker, start, name = one.detail["worker"], one.detail["start"], one.transaction.id

        async def tell(client: SinkClient) -> None:
            if name not in client.prepared:
                await self._see_committed(client, one)
                return
            client.decide(name, True)
            if name in await client.uncommitted():
                raise client.refused(f"it does not commit {name}")

        await self._connected(address, worker, start, tell)
        passed(SinkStep.HALF_COMMITTED)

    async def _see_committed(self, client: SinkClient, one: Prepared) -> None:
        """Check that a transaction that the sink no longer lists was committed, and not lost.

        A sink that was restarted may report that its output is empty. Then it is asked to vote on an empty transaction
        at the end of the lost one: it votes to commit only if its output ends there.
        """
        end = one.detail["end"]
        if client.reference >= end:
            return
        if client.reference == 0:
            await self._clear(client, one.transaction)
            client.begin(end)
            question = replace(one.transaction, attempt=_attempt(_age(one.transaction)[1], uuid.uuid4().hex))
            is_there, _ = await client.vote(question.id)
            client.decide(question.id, False)
            await client.uncommitted()
            if is_there:
                return
        raise client.refused(
            f"it was told to commit {one.transaction.id}, up to {end} of {one.detail['worker']}, and has only "
            f"{client.reference}: it no longer knows the transaction; restore the sink's data"
        )

    async def _abort(self, unwanted: tuple[int, set[str]]) -> None:
        partition, names = unwanted
        await self._as_worker(partition, lambda client: client.abort(names.intersection(client.prepared)))

    async def _uncommitted(self, partition: int) -> tuple[str, ...]:
        async def listed(client: SinkClient) -> tuple[str, ...]:
            return client.prepared

        return await self._as_worker(partition, listed)

    async def _as_worker(self, partition: int, act: Callable[[SinkClient], Awaitable[Result]]) -> Result:
        return await self._connected(self.address(partition), self.worker(partition), self._start(partition) or 0, act)

    async def _connected(
        self, address: Address, worker: str, start: int, act: Callable[[SinkClient], Awaitable[Result]]
    ) -> Result:
        async def acted() -> Result:
            async with await SinkClient.open(address, worker, self.settings, start) as client:
                return await act(client)

        return await self._reached(acted)

    async def _reached(self, act: Callable[[], Awaitable[Result]]) -> Result:
        """Return the result of ``act``, which is repeated while the sink cannot be reached.

        Raises :class:`SinkError` after ``give_up_after`` seconds.
        """
        try:
            async for attempt in AsyncRetrying(
                retry=retry_if_exception_type(TransportError),
                stop=stop_after_delay(self.settings.give_up_after),
                wait=wait_exponential(_RETRY_FIRST, _RETRY_MOST) + wait_random(0, _RETRY_FIRST),
                reraise=True,
            ):
                with attempt:
                    result = await act()
        except TransportError as error:
            raise SinkError(
                f"sink {self.name} could not be reached for {self.settings.give_up_after:g} s: {error.message}",
                code="sink-unreachable",
                **error.fields,
            ) from error
        return result

    async def _each(self, act: Callable[[Any], Awaitable[Result]], things: Sequence[Any]) -> list[Result]:
        """Run ``act`` on each thing, up to :data:`AT_ONCE` at a time; raise the first error when all have ended."""
        limit = asyncio.Semaphore(AT_ONCE)

        async def one(thing: Any) -> Result:
            async with limit:
                return await act(thing)

        results = await asyncio.gather(*(one(thing) for thing in things), return_exceptions=True)
        for result in results:
            if isinstance(result, BaseException):
                raise result
        return [result for result in results if not isinstance(result, BaseException)]


_TRY = re.compile(r"(0|[1-9][0-9]*)x")


def _attempt(try_number: int, text: str) -> str:
    return f"{try_number}x{text}"[:32]


def _age(transaction: Transaction) -> tuple[int, int]:
    """Return the batch and the try of a transaction; the try is 0 in an id that this writer has not made."""
    try_number = _TRY.match(transaction.attempt)
    return transaction.batch, int(try_number[1]) if try_number else 0


def _explained(
    error: SinkError | TransportError, worker: str, start: int, reference: int
) -> SinkError | TransportError:
    """Return the error, with the lengths that the log and the sink report if they differ."""
    if reference in (0, start):
        return error
    return type(error)(
        f"{error.message}; this checkpoint's log has {start} bytes of {worker} as committed, and the sink says "
        f"{reference}: where another query or an older checkpoint has written as {worker}, use another name=, or "
        'start="sink" to continue behind the rows that the sink has',
        code=error.code,
        **error.fields,
    )


def _run(work: Coroutine[Any, Any, Result]) -> Result:
    """Run a coroutine to its end. A thread of its own does it, as the caller's may run an event loop: in a notebook."""
    thread = LoopThread("wallaroo-sink")
    try:
        return thread.call(lambda: work)
    finally:
        thread.stop()
