"""What sources hand out: records one by one, and, where there are many at once, batches of them as columns."""

from __future__ import annotations

import time
from collections.abc import AsyncGenerator, AsyncIterator, Generator, Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import repeat
from types import NoneType
from typing import Any, cast

from wallaroo_spark.errors import LocalProtocolError

GROUP_MESSAGES = 512
"""Records that are collected from an iterator of single ones."""

GROUP_BYTES = 64 * 1024
"""Bytes after which no more are."""

GROUP_SECONDS = 0.001
"""How long records that were read may wait for those behind them."""

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


@dataclass(frozen=True, slots=True)
class Record:
    """One message to be: its point of reference, its bytes, and what else a message can carry.

    ``id`` None lets the stream number it, which only a source that is not replayable may do. ``event_time`` is an
    integer in the receiver's unit, or an aware datetime.
    """

    id: int | None
    payload: bytes
    event_time: int | datetime | None = None
    key: bytes | None = None


Item = Record | tuple[int, bytes]


@dataclass(frozen=True, slots=True)
class Batch:
    """Messages that are there together, as columns of equal length; a column left out has nothing in it."""

    payloads: Sequence[bytes]
    ids: Sequence[int] | None = None
    event_times: Sequence[int | None] | None = None
    keys: Sequence[bytes | None] | None = None

    def part(self, start: int, stop: int) -> Batch:
        """The messages from one place up to another."""
        columns = (self.ids, self.event_times, self.keys)
        parts: Iterator[Any] = (None if column is None else column[start:stop] for column in columns)
        return Batch(self.payloads[start:stop], *parts)

    def records(self) -> Iterator[Record]:
        """The same one by one."""
        none: Iterable[None] = repeat(None)
        columns = (self.ids or none, self.payloads, self.event_times or none, self.keys or none)
        return map(Record, *columns)


class Batches(Iterator[Record]):
    """An iterator of records that can also be read batch by batch, which costs a fraction; it is read one way only."""

    def __init__(self, batches: Generator[Batch, None, None]) -> None:
        self.batches = batches
        self._records = (record for batch in batches for record in batch.records())

    def __next__(self) -> Record:
        return next(self._records)

    def close(self) -> None:
        """Give back what reading holds."""
        self._records.close()
        self.batches.close()


class AsyncBatches(AsyncIterator[Record]):
    """The same for what is waited for."""

    def __init__(self, batches: AsyncGenerator[Batch, None]) -> None:
        self.batches = batches
        self._records = self._one_by_one()

    async def __anext__(self) -> Record:
        return await anext(self._records)

    async def aclose(self) -> None:
        """Give back what reading holds."""
        await self._records.aclose()
        await self.batches.aclose()

    async def _one_by_one(self) -> AsyncGenerator[Record, None]:
        async for batch in self.batches:
            for record in batch.records():
                yield record


def batches_of(items: Iterator[Item]) -> Generator[Batch, None, None]:
    """Records, or (reference, payload), as batches; an iterator that takes its time gives small ones.

    What is not as it should be, and what the iterator raises, is raised behind the batch of what came before.
    """
    for group in _groups(items):
        batch = _pairs(group) or _columns(group)
        if batch is not None:
            yield batch
        else:
            yield from map(_single, group)


def bytes_of(payload: Any, what: str = "payload") -> bytes:
    """A payload as bytes. Raises :class:`LocalProtocolError` for what is none."""
    if isinstance(payload, bytes | bytearray | memoryview):
        return bytes(payload)
    raise LocalProtocolError(f"a {what} is bytes, and this one is {type(payload).__name__}; encode it first")


def key_of(key: Any) -> bytes | None:
    """A key as bytes, or None. Raises :class:`LocalProtocolError` for what is neither."""
    return key if key is None or type(key) is bytes else bytes_of(key, "key")


def event_time_of(moment: Any) -> int | None:
    """An event time as an integer, nanoseconds for a datetime. Raises :class:`LocalProtocolError` for a naive one."""
    if not isinstance(moment, datetime):
        return cast("int | None", moment)
    if moment.tzinfo is None:
        raise LocalProtocolError(
            f"event time {moment.isoformat()} has no time zone; give an aware datetime, for example with tzinfo=UTC"
        )
    since = moment - _EPOCH
    return (since.days * 86_400 + since.seconds) * 1_000_000_000 + since.microseconds * 1_000


def _groups(items: Iterator[Item]) -> Iterator[list[Item]]:
    error: Exception | None = None
    more, now = True, time.monotonic
    while more:
        group: list[Item] = []
        size, until, more = 0, now() + GROUP_SECONDS, False
        try:
            for item in items:
                group.append(item)
                size += len(item[1] if type(item) is tuple else item.payload)  # type: ignore[union-attr]
                if size > GROUP_BYTES or len(group) >= GROUP_MESSAGES or now() > until:
                    more = True
                    break
        except Exception as raised:
            error = raised
        if group:
            yield group
    if error is not None:
        raise error


def _pairs(group: Sequence[Item]) -> Batch | None:
    if set(map(type, group)) != {tuple} or set(map(len, cast("list[tuple[Any, ...]]", group))) != {2}:
        return None
    ids, payloads = zip(*cast("list[tuple[int, bytes]]", group), strict=True)
    return Batch(payloads, ids) if set(map(type, ids)) == {int} and set(map(type, payloads)) == {bytes} else None


def _columns(group: Sequence[Item]) -> Batch | None:
    """None when only some have an id, or when something about one of them is not plain."""
    if set(map(type, group)) != {Record}:
        return None
    records = cast("Sequence[Record]", group)
    payloads = [record.payload for record in records]
    ids = [record.id for record in records]
    times = [record.event_time for record in records]
    keys = [record.key for record in records]
    if not (
        set(map(type, payloads)) == {bytes}
        and set(map(type, ids)) in ({int}, {NoneType})
        and set(map(type, times)) <= {int, NoneType}
        and set(map(type, keys)) <= {bytes, NoneType}
    ):
        return None
    columns = (column if column.count(None) < len(records) else None for column in (ids, times, keys))
    return Batch(payloads, *cast("tuple[Any, Any, Any]", tuple(columns)))


def _single(item: Item) -> Batch:
    record = item if isinstance(item, Record) else Record(*item)
    payload, time, key = bytes_of(record.payload), event_time_of(record.event_time), key_of(record.key)
    return Batch([payload], None if record.id is None else [record.id], [time], [key])
