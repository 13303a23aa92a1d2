"""Rows of a receiver's stream, made from the messages of a producer, without a worker or a socket."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator
from datetime import datetime
from itertools import count, repeat
from typing import TYPE_CHECKING, TypeVar

import pyarrow as pa

from wallaroo_spark.columnar import ROW_SCHEMA, CommonColumns, RowsOf, decode_run, to_rows
from wallaroo_spark.connector import stream_id_of
from wallaroo_spark.connector.arguments import event_time_of
from wallaroo_spark.errors import ConfigurationError
from wallaroo_spark.protocol import DRAFT_BE, FrameBuffer, Message, MessageRun, encode_single

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType

LONGEST_FRAME = 1 << 30
"""Limit in bytes of a frame. Larger than any test needs, because a test has no untrusted peer."""

T = TypeVar("T")


def rows_schema() -> StructType:
    """The schema of a receiver's stream, for ``createDataFrame`` and for comparing schemas."""
    from pyspark.sql.pandas.types import from_arrow_schema

    return from_arrow_schema(ROW_SCHEMA)


def rows(
    spark: SparkSession,
    payloads: Iterable[bytes | str],
    ids: Iterable[int] | None = None,
    event_times: Iterable[int | datetime | None] | None = None,
    keys: Iterable[bytes | None] | None = None,
    *,
    instance: str = "shop-1",
    stream: str = "orders",
    stream_id: int | None = None,
    received_at: datetime | None = None,
) -> DataFrame:
    """A DataFrame with the rows that these messages become, in order. The arguments are those of ``send_many``.

    Text is encoded as UTF-8. ``ids`` count from 1 unless given. Event times are nanoseconds since 1970 UTC or aware
    datetimes. ``stream_id`` defaults to the id that a connector derives from instance and stream, ``received_at`` to
    the current time. The messages are encoded and decoded by the code of connectors and workers.

    Raises :class:`ConfigurationError` when the numbers of ids, event times or keys differ from the number of payloads.
    """
    given = [payload.encode() if isinstance(payload, str) else payload for payload in payloads]
    columns = zip(
        given,
        _one_for_each(given, "ids", ids) or count(1),
        _one_for_each(given, "event times", event_times) or repeat(None),
        _one_for_each(given, "keys", keys) or repeat(None),
        strict=False,
    )
    number = stream_id_of(instance, stream) if stream_id is None else stream_id
    frames = b"".join(
        encode_single(DRAFT_BE, number, message_id, payload, 0, event_time_of(event_time), key).data
        for payload, message_id, event_time, key in columns
    )
    moment = time.time_ns() if received_at is None else event_time_of(received_at)
    assert moment is not None
    batches = list(_decoded(frames, RowsOf(instance, stream, number, moment // 1000, 0)))
    return spark.createDataFrame(pa.Table.from_batches(batches, schema=ROW_SCHEMA))


def _one_for_each(payloads: list[bytes], name: str, values: Iterable[T] | None) -> list[T] | None:
    if values is None:
        return None
    found = list(values)
    if len(found) != len(payloads):
        raise ConfigurationError(
            f"rows: there are {len(payloads)} payloads and {len(found)} {name}; give one for each",
            code="columns-uneven",
        )
    return found


def _decoded(frames: bytes, of: RowsOf) -> Iterator[pa.RecordBatch]:
    """The rows of MESSAGE frames of one stream, decoded as by a worker."""
    buffer = FrameBuffer(LONGEST_FRAME)
    buffer.feed(frames)
    while (run := buffer.next(DRAFT_BE, DRAFT_BE.by_frame[Message].tag)) is not None:
        assert isinstance(run, MessageRun)
        decoded = decode_run(run, event_time_unit="ns")
        if decoded.error is not None:
            raise decoded.error
        yield to_rows(decoded.columns(), CommonColumns.of([of._replace(rows=decoded.count)]), include_boundaries=True)
