"""A record that a program passes for sending, and records in groups, as columns.

Sending a group at once costs a fraction of sending its records one by one (``docs/performance.md``, One Python
connector). So iterators of records are read group by group.
"""

from __future__ import annotations

import time
from collections.abc import AsyncGenerator, AsyncIterator, Generator, Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from itertools import repeat
from types import NoneType
from typing import Any, cast

from wallaroo_spark.connector.arguments import bytes_of, event_time_of, id_of, key_of, shown
from wallaroo_spark.errors import ArgumentTypeError


@dataclass(frozen=True, slots=True)
class Record:
    """One message to send."""

    id: int | None
    """Its point of reference. None: the stream numbers it, which is allowed only for sources that are not replayable.
    """
    payload: bytes
    """Payload of the message."""
    event_time: int | datetime | None = None
    """An integer in the receiver's unit (``eventTimeUnit``), or an aware datetime; None for none."""
    key: bytes | None = None
    """Key; None for none."""


RecordOrPair = Record | tuple[int, bytes]
"""A record, or its id and payload."""


def as_record(given: RecordOrPair) -> Record:
    """The record of a pair, or the record itself. Raises :class:`ArgumentTypeError` for anything else."""
    if isinstance(given, Record):
        return given
    if isinstance(given, tuple | list) and len(given) == 2:
        return Record(*given)
    raise ArgumentTypeError(
        f"a source returns Record(id, payload) or (id, payload), and this is {type(given).__name__}: {shown(given)}; "
        "a key and an event time need a Record",
        code="argument-type",
    )


GROUP_MESSAGES = 512
"""Most records that are collected from an iterator of single records before they are sent together.

Measured on a feed of 100-byte records (draft-be), processor time a message: 32 records 2.2 µs, 128, 512 and 2048 1.1.
"""

GROUP_BYTES = 64 * 1024
"""Payload bytes after which a group is complete.

A choice: equal to ``COLLECTED_BYTES`` of a connection, because more bytes would wait there.
"""

GROUP_SECONDS = 0.001
"""Seconds after which a group is complete, so that a slow iterator does not delay its records.

A choice: it bounds the added delay to 1 ms.
"""


@dataclass(frozen=True, slots=True)
class MessageColumns:
    """Messages as columns of equal length. A column that is None has no value for any of the messages."""

    payloads: Sequence[bytes]
    ids: Sequence[int] | None = None
    """Id of each message; None: the stream numbers them."""
    event_times: Sequence[int | None] | None = None
    """Event time of each message in the receiver's unit; None for none."""
    keys: Sequence[bytes | None] | None = None
    """Key of each message; None for none."""

    def part(self, start: int, stop: int) -> MessageColumns:
        """The messages from index ``start`` to ``stop``, exclusive."""
        columns = (self.ids, self.event_times, self.keys)
        parts: Iterator[Any] = (None if column is None else column[start:stop] for column in columns)
        return MessageColumns(self.payloads[start:stop], *parts)

    def records(self) -> Iterator[Record]:
        """The messages as single records."""
        none: Iterable[None] = repeat(None)
        columns = (self.ids or none, self.payloads, self.event_times or none, self.keys or none)
        return map(Record, *columns)


class GroupedRecords(Iterator[Record]):
    """An iterator of records that also offers ``groups``. Use only one of the two."""

    def __init__(self, groups: Generator[MessageColumns, None, None]) -> None:
        self.groups = groups
        self._records = (record for group in groups for record in group.records())

    def __next__(self) -> Record:
        return next(self._records)

    def close(self) -> None:
        """Close the generators, and with them their open files."""
        self._records.close()
        self.groups.close()


class AsyncGroupedRecords(AsyncIterator[Record]):
    """The asynchronous form of :class:`GroupedRecords`."""

    def __init__(self, groups: AsyncGenerator[MessageColumns, None]) -> None:
        self.groups = groups
        self._records = (record async for group in groups for record in group.records())

    async def __anext__(self) -> Record:
        return await anext(self._records)

    async def aclose(self) -> None:
        """Close the generators, and with them their open files."""
        await self._records.aclose()
        await self.groups.aclose()


def grouped(given: Iterator[RecordOrPair]) -> Generator[MessageColumns, None, None]:
    """Group the records of an iterator. A slow iterator gives small groups.

    An error of a record or of the iterator is raised after the group of the records before it.
    """
    for group in _groups(given):
        columns = _columns_of_pairs(group) or _columns_of_records(group)
        if columns is not None:
            yield columns
        else:
            yield from map(_single, group)


def _groups(given: Iterator[RecordOrPair]) -> Iterator[list[RecordOrPair]]:
    error: Exception | None = None
    more, now = True, time.monotonic
    while more:
        group: list[RecordOrPair] = []
        size, until, more = 0, now() + GROUP_SECONDS, False
        try:
            for one in given:
                group.append(one)
                payload = one[1] if type(one) is tuple else one.payload  # type: ignore[union-attr]  # narrowed by type()
                size += len(payload)
                if size > GROUP_BYTES or len(group) >= GROUP_MESSAGES or now() > until:
                    more = True
                    break
        except Exception as raised:
            error = raised
        if group:
            yield group
    if error is not None:
        raise error


def _columns_of_pairs(group: Sequence[RecordOrPair]) -> MessageColumns | None:
    """The columns of (int, bytes) pairs; None when an item is not such a pair."""
    if set(map(type, group)) != {tuple} or set(map(len, cast("list[tuple[Any, ...]]", group))) != {2}:
        return None
    ids, payloads = zip(*cast("list[tuple[int, bytes]]", group), strict=True)
    if set(map(type, ids)) == {int} and set(map(type, payloads)) == {bytes}:
        return MessageColumns(payloads, ids)
    return None


def _columns_of_records(group: Sequence[RecordOrPair]) -> MessageColumns | None:
    """None when a value needs conversion, or when only some of the records have an id."""
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
    return MessageColumns(payloads, *cast("tuple[Any, Any, Any]", tuple(columns)))


def _single(given: RecordOrPair) -> MessageColumns:
    record = as_record(given)
    payload, time, key = bytes_of(record.payload), event_time_of(record.event_time), key_of(record.key)
    return MessageColumns([payload], None if record.id is None else [id_of(record.id)], [time], [key])
