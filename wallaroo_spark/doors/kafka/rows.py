"""Rows of a worker's buffer, of which some are record batches, as rows of records; in Spark's reading tasks.

Source: ``docs/doors/kafka.md``; ``docs/architecture.md#rows``.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from wallaroo_spark.columnar.schema import CORRUPT, HEADERS, ROW_SCHEMA
from wallaroo_spark.doors.kafka import PREFIX
from wallaroo_spark.doors.kafka.records import RecordColumns, Unreadable, numbered, read_batches
from wallaroo_spark.errors import one_line

log = one_line(logging.getLogger("wallaroo_spark.source"))

_TIME = ROW_SCHEMA.field("event_time").type
_EARLIEST, _LATEST = -62_135_596_800_000, 253_402_300_799_999
"""The range of Spark's timestamps, in milliseconds since 1970 UTC."""


def expand(
    rows: pa.RecordBatch, *, headers: bool, corrupt: bool, unreadable: Callable[[str, str], None] = lambda *_: None
) -> Iterator[pa.RecordBatch]:
    """The rows with every record batch replaced by its records. Rows of a stream keep their order.

    ``headers`` adds the column of that name, which is null for other rows. A batch that cannot be read is logged, and
    ``unreadable`` is called with its instance and the reason; with ``corrupt``, which adds the column ``error_bytes``,
    it is a row with its bytes there and a null value.
    """
    packed = pc.starts_with(rows["instance"], PREFIX)
    if not pc.any(packed).as_py():
        yield _with(rows, headers, corrupt)
        return
    # A boundary of such an instance is no batch.
    batches = pc.and_(packed, rows["value"].is_valid())
    if rows.num_rows > (number := pc.sum(batches).as_py() or 0):
        yield _with(rows.filter(pc.invert(batches)), headers, corrupt)
    if not number:
        return
    rows = rows.filter(batches)
    for indexes, found in read_batches(rows["value"].to_pylist(), headers=headers):
        chosen = rows.take(pa.array(indexes))
        if isinstance(found, Unreadable):
            row = chosen.to_pylist()[0]
            topic, partition = topic_of(row["stream"])
            log.warning(
                "a record batch of kafka client %s for topic %s, partition %d is left out: %s",
                client_of(row["instance"]),
                topic,
                partition,
                found,
            )
            unreadable(row["instance"], f"topic {topic}, partition {partition}: {found}")
            if corrupt:
                yield _corrupt(chosen, headers)
        else:
            yield _records(chosen, found, headers, corrupt)


def _records(rows: pa.RecordBatch, found: RecordColumns, headers: bool, corrupt: bool) -> pa.RecordBatch:
    counts = found.counts
    of_row = np.repeat(np.arange(len(counts)), counts)
    names = [topic_of(name) for name in rows["stream"].to_pylist()]
    partitions = np.array([partition for _, partition in names], np.int64)
    ids = np.repeat(rows["message_id"].to_numpy() - counts + 1, counts) + numbered(counts)
    columns = {
        "instance": _each([client_of(name) for name in rows["instance"].to_pylist()], of_row),
        "stream": _each([topic for topic, _ in names], of_row),
        "stream_id": pa.array(partitions[of_row]),
        "message_id": pa.array(ids),
        "event_time": _times(found.times),
        "key": found.key,
        "value": found.value,
        "flags": pa.array(np.zeros(len(of_row), np.int16)),
        "received_at": rows["received_at"].take(pa.array(of_row)),
    }
    arrays, schema = [columns[name] for name in ROW_SCHEMA.names], ROW_SCHEMA
    if headers:
        arrays, schema = [*arrays, found.headers], schema.append(HEADERS)
    if corrupt:
        arrays, schema = [*arrays, pa.nulls(len(of_row), CORRUPT.type)], schema.append(CORRUPT)
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


def _corrupt(rows: pa.RecordBatch, headers: bool) -> pa.RecordBatch:
    topic, partition = topic_of(rows["stream"][0].as_py())
    columns = {name: rows[name] for name in ROW_SCHEMA.names} | {
        "instance": pa.array([client_of(rows["instance"][0].as_py())]),
        "stream": pa.array([topic]),
        "stream_id": pa.array([partition], pa.int64()),
        "value": pa.nulls(1, pa.binary()),
    }
    arrays, schema = [columns[name] for name in ROW_SCHEMA.names], ROW_SCHEMA
    if headers:
        arrays, schema = [*arrays, pa.nulls(1, HEADERS.type)], schema.append(HEADERS)
    return pa.RecordBatch.from_arrays([*arrays, rows["value"]], schema=schema.append(CORRUPT))


def _with(rows: pa.RecordBatch, headers: bool, corrupt: bool) -> pa.RecordBatch:
    """Rows that are no records, with null in the columns that only records have."""
    more = [field for field, wanted in ((HEADERS, headers), (CORRUPT, corrupt)) if wanted]
    if not more:
        return rows
    nulls = [pa.nulls(rows.num_rows, field.type) for field in more]
    return pa.RecordBatch.from_arrays([*rows.columns, *nulls], schema=pa.schema([*rows.schema, *more]))


def client_of(instance: str) -> str:
    """The instance without the slot, which the session of a client has at its end."""
    return instance.rpartition("/")[0]


def topic_of(stream: str) -> tuple[str, int]:
    """The topic and the partition of a stream's name; the name is empty where no worker has told it."""
    topic, _, rest = stream.partition("/")
    partition, _, _ = rest.partition("/")
    return topic, int(partition or -1)


def _each(texts: Sequence[str], of_row: NDArray[np.int64]) -> pa.Array:
    if len(set(texts)) == 1:
        return pa.repeat(pa.scalar(texts[0], pa.string()), len(of_row))
    return pa.array(texts, pa.string()).take(pa.array(of_row))


def _times(times: NDArray[np.int64]) -> pa.Array:
    """Times in milliseconds as timestamps; null for -1, which is no time, and outside of Spark's range."""
    known = (times != -1) & (times >= _EARLIEST) & (times <= _LATEST)
    return pa.array(np.where(known, times, 0) * 1000, type=_TIME, mask=None if known.all() else ~known)
