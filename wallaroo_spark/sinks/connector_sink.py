"""Rows to connector sinks: programs that speak v3 with the roles reversed, and vote.

Each partition is a worker of its own, ``<name>-<partition>``, whose rows are appended to an output of its own at the
sink; with several addresses, partition p goes to address p modulo their number. The driver asks as ``<name>`` for what
is prepared, and decides as the worker. Source: ``protocol.md``, Sinks (v3, roles reversed).
"""

from __future__ import annotations

import asyncio
import re
import threading
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, fields
from typing import TYPE_CHECKING, Any, TypeVar

import pyarrow as pa
import pyarrow.compute as pc
from tenacity import AsyncRetrying, retry_if_exception_type, stop_after_delay, wait_exponential, wait_random

from wallaroo_spark.errors import ConfigurationError, LocalProtocolError, SinkError, TransportError
from wallaroo_spark.protocol.sink_messages import CONTROL_STREAM, DATA_STREAM
from wallaroo_spark.sinks.client import Reach, SinkClient, shown
from wallaroo_spark.sinks.columns import as_bytes
from wallaroo_spark.sinks.interface import Prepared, Transaction, checked_name
from wallaroo_spark.sinks.writer import BatchWriter, transactional
from wallaroo_spark.steps import SinkStep, passed
from wallaroo_spark.transport import parse_addresses

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

ENCODINGS = ("value", "json")
COLUMN = "value"
AT_ONCE = 16
"""Connections that the driver has at a time."""
ROWS_AT_ONCE = 1000
_RETRY_FIRST, _RETRY_MOST = 0.05, 2.0

Result = TypeVar("Result")
Address = tuple[str, int]


def connector(
    address: str,
    *,
    checkpoint: str,
    name: str,
    encode: str = "value",
    delimiter: bytes = b"\n",
    give_up_after: float = 30.0,
    **reach: Any,
) -> BatchWriter:
    """A ``foreachBatch`` writer to one or more connector sinks, at ``host:port`` or a comma-separated list of these.

    ``name`` is what the sink knows this query by: it must be no other query's there, and does not end in a dash and a
    number. With ``encode="value"`` the column ``value``, a string or binary, is a row's bytes; with ``"json"`` all
    columns are, as Spark's ``to_json`` writes them. ``delimiter`` ends each row. A sink that cannot be reached is tried
    for ``give_up_after`` seconds. ``reach`` is as in :class:`~wallaroo_spark.sinks.client.Reach`: ``cookie`` (or
    ``env:NAME``, ``file:PATH``), ``version``, ``tls``, ``ca``, ``certificate``, ``key``, ``connect_timeout``,
    ``answer_timeout``, ``max_frame_bytes``. Raises :class:`ConfigurationError` for what cannot be.
    """
    if encode not in ENCODINGS:
        raise ConfigurationError(f"encode is {encode!r}; it is one of {', '.join(ENCODINGS)}", encode=encode)
    known = [one.name for one in fields(Reach)]
    for setting in reach:
        if setting not in known:
            raise ConfigurationError(f"sinks.connector has no {setting}; it has {', '.join(known)}", setting=setting)
    sink = ConnectorSink(name, tuple(parse_addresses(address)), delimiter, give_up_after, Reach(**reach))
    return transactional(sink, checkpoint=checkpoint, shape=_as_json if encode == "json" else None)


def _as_json(df: DataFrame) -> DataFrame:
    from pyspark.sql import functions as f

    return df.select(f.to_json(f.struct("*")).alias(COLUMN))


@dataclass(frozen=True)
class ConnectorSink:
    """The :class:`~wallaroo_spark.sinks.interface.Sink` behind :func:`connector`."""

    name: str
    addresses: tuple[Address, ...]
    delimiter: bytes = b"\n"
    give_up_after: float = 30.0
    reach: Reach = field(default_factory=Reach)

    def __post_init__(self) -> None:
        checked_name(self.name)
        if re.search(r"-\d+$", self.name):
            raise ConfigurationError(
                f"a connector sink is named {self.name!r}, as a partition of another would be; let it not end in a "
                "dash and a number",
                name=self.name,
            )

    def prepare(self, transaction: Transaction, rows: Iterator[pa.RecordBatch]) -> Prepared:
        """Send the partition's rows and have them voted on; a partition without rows asks nobody."""
        lots = (lot for piece in rows for lot in self._encoded(piece))
        first = next(lots, None)
        if first is None:
            return Prepared(transaction, 0)
        try:
            return _run(self._prepare(transaction, first, lots))
        except LocalProtocolError as error:
            raise SinkError(f"a row cannot be sent: {error.message}") from error

    def commit(self, batch: int, prepared: Sequence[Prepared]) -> None:
        """Tell each partition's sink, and see that its output has the rows."""
        _run(self._each(self._commit, [one for one in prepared if one.detail]))

    def abort(self, transactions: Sequence[Transaction]) -> None:
        """Tell every sink that has one of them."""
        unwanted = {one.id for one in transactions}
        _run(self._each(lambda address: self._abort(address, unwanted), self.addresses))

    def recover(self) -> Sequence[Transaction]:
        """Ask every sink."""
        answers = _run(self._each(self._uncommitted, self.addresses))
        found = (Transaction.parse(name) for names in answers for name in names)
        return [one for one in found if one is not None and one.sink == self.name]

    def worker(self, partition: int) -> str:
        """What a partition is called at its sink."""
        return f"{self.name}-{partition}"

    def address(self, partition: int) -> Address:
        """The sink of a partition."""
        return self.addresses[partition % len(self.addresses)]

    def _encoded(self, piece: pa.RecordBatch) -> Iterator[list[bytes]]:
        """The rows of a piece as bytes, some at a time."""
        if COLUMN not in piece.schema.names:
            raise SinkError(
                f"sink {self.name}: column {COLUMN} is missing, and the rows have {', '.join(piece.schema.names)}; "
                f'name the column to send {COLUMN}, or use encode="json"',
            )
        column = as_bytes(piece.column(COLUMN), COLUMN, f"sink {self.name}")
        if column.null_count:
            raise SinkError(f"sink {self.name}: column {COLUMN} has nulls, which have no bytes; filter them out first")
        if self.delimiter:
            column = pc.binary_join_element_wise(column, b"", self.delimiter)
        for at in range(0, len(column), ROWS_AT_ONCE):
            yield column.slice(at, ROWS_AT_ONCE).to_pylist()

    async def _prepare(self, transaction: Transaction, first: list[bytes], lots: Iterable[list[bytes]]) -> Prepared:
        address, worker = self.address(transaction.partition), self.worker(transaction.partition)
        async with await self._reached(lambda: SinkClient.open(address, worker, self.reach)) as client:
            for stream_id in (CONTROL_STREAM, DATA_STREAM):
                await client.notify(stream_id)
            await client.send(first)
            count = len(first)
            for lot in lots:
                await client.send(lot)
                count += len(lot)
            commit, sent = await client.vote(transaction.id)
        if not commit:
            raise SinkError(f"sink {shown(address)} votes to abort; its log says why", peer=shown(address))
        where = {"address": shown(address), "worker": worker, "start": sent.start, "end": sent.end}
        return Prepared(transaction, count, where)

    async def _commit(self, one: Prepared) -> None:
        known = {shown(address): address for address in self.addresses}
        address = known.get(one.detail["address"]) or self.address(one.transaction.partition)

        async def tell() -> int:
            async with await SinkClient.open(address, one.detail["worker"], self.reach) as client:
                await client.notify(CONTROL_STREAM)
                client.decide(one.transaction.id, True)
                return await client.notify(DATA_STREAM)

        committed = await self._reached(tell)
        if committed < one.detail["end"]:
            raise SinkError(
                f"sink {shown(address)} was told to commit {one.transaction.id}, up to {one.detail['end']} of "
                f"{one.detail['worker']}, and has {committed}: it does not know the transaction any more; restore what "
                "it had",
                peer=shown(address),
                transaction=one.transaction.id,
            )
        passed(SinkStep.HALF_COMMITTED)

    async def _abort(self, address: Address, unwanted: set[str]) -> None:
        async def tell() -> None:
            async with await SinkClient.open(address, self.name, self.reach) as client:
                await client.notify(CONTROL_STREAM)
                for name in unwanted.intersection(await client.uncommitted()):
                    client.decide(name, False)
                left = unwanted.intersection(await client.uncommitted())
                if left:
                    raise SinkError(
                        f"sink {shown(address)} does not abort {', '.join(sorted(left)[:3])}", left=len(left)
                    )

        await self._reached(tell)

    async def _uncommitted(self, address: Address) -> tuple[str, ...]:
        async def ask() -> tuple[str, ...]:
            async with await SinkClient.open(address, self.name, self.reach) as client:
                await client.notify(CONTROL_STREAM)
                return await client.uncommitted()

        return await self._reached(ask)

    async def _reached(self, act: Callable[[], Awaitable[Result]]) -> Result:
        """What ``act`` gives, tried again while the sink cannot be reached. Raises :class:`SinkError` at the end."""
        try:
            async for attempt in AsyncRetrying(
                retry=retry_if_exception_type(TransportError),
                stop=stop_after_delay(self.give_up_after),
                wait=wait_exponential(_RETRY_FIRST, _RETRY_MOST) + wait_random(0, _RETRY_FIRST),
                reraise=True,
            ):
                with attempt:
                    result = await act()
        except TransportError as error:
            raise SinkError(
                f"sink {self.name} could not be reached for {self.give_up_after:g} s: {error.message}", **error.fields
            ) from error
        return result

    async def _each(self, act: Callable[[Any], Awaitable[Result]], things: Sequence[Any]) -> list[Result]:
        """``act`` on each, some at once; the first error when all are through."""
        limit = asyncio.Semaphore(AT_ONCE)

        async def one(thing: Any) -> Result:
            async with limit:
                return await act(thing)

        results = await asyncio.gather(*(one(thing) for thing in things), return_exceptions=True)
        for result in results:
            if isinstance(result, BaseException):
                raise result
        return [result for result in results if not isinstance(result, BaseException)]


def _run(work: Coroutine[Any, Any, Result]) -> Result:
    """Run a coroutine to its end, also where an event loop runs already, as in a notebook."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return asyncio.run(work)
    results: list[Result] = []
    failures: list[BaseException] = []

    def there() -> None:
        try:
            results.append(asyncio.run(work))
        except BaseException as error:
            failures.append(error)

    thread = threading.Thread(target=there, name="wallaroo-sink")
    thread.start()
    thread.join()
    if failures:
        raise failures[0]
    return results[0]
