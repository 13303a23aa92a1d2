"""The sink ``kafka``: each batch is produced to a topic in one transaction.

A Kafka transaction ends with its producer, so the driver could not commit a transaction of a task that has ended.
Therefore tasks stage their rows beside the checkpoint, and commit produces all rows of the batch, and a mark with its
number, in one transaction of the driver. Consumers with ``isolation.level=read_committed`` see whole batches only.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from confluent_kafka import KafkaException

from wallaroo_spark.errors import SinkError
from wallaroo_spark.options import resolve_secret
from wallaroo_spark.settings import function_takes_settings, takes_settings
from wallaroo_spark.sinks.interface import Prepared, Transaction
from wallaroo_spark.sinks.settings import KafkaSettings
from wallaroo_spark.sinks.stores.byte_columns import as_bytes, checked_columns
from wallaroo_spark.sinks.stores.kafka_producer import BatchProducer, KafkaRecord, KafkaTopic, Mark, log
from wallaroo_spark.sinks.stores.staged_rows import StagedRows
from wallaroo_spark.sinks.writer import BatchWriter, transactional

COLUMNS = ("key", "value", "headers", "partition")
_HEADERS = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))


@function_takes_settings(KafkaSettings)
def kafka(settings: KafkaSettings) -> BatchWriter:
    """A ``foreachBatch`` writer to a Kafka topic, as :class:`KafkaSink`."""
    return transactional(KafkaSink(**vars(settings)), checkpoint=settings.checkpoint)


class KafkaSink:
    """Produces each row to a topic. The columns are those of Spark's Kafka sink: ``value`` (string or binary; null is a
    tombstone), and optionally ``key`` (string or binary), ``headers`` (an array of structs of ``key`` and ``value``)
    and ``partition`` (int; for null the key decides).

    The sink's name is part of the transactional id ``wallaroo-<name>``, which excludes an older driver of the same
    query, and of the compacted topic ``wallaroo-commits-<name>``, which is created if it is missing. Raises
    :class:`ConfigurationError` for settings that cannot work; methods raise :class:`SinkError`.
    """

    @takes_settings(KafkaSettings)
    def __init__(self, settings: KafkaSettings) -> None:
        self.name = settings.name
        self._bootstrap, self._options = settings.bootstrap, dict(settings.options or {})
        self._topic, self._timeout = settings.topic, settings.timeout
        self._transaction_timeout = settings.transaction_timeout
        self._stage = StagedRows(settings.checkpoint, settings.name)
        self.in_tasks = (settings.checkpoint,)
        self._session: BatchProducer | None = None

    def __repr__(self) -> str:
        return f"KafkaSink({self._bootstrap!r}, topic={self._topic!r}, name={self.name!r})"

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_session": None}

    def prepare(self, transaction: Transaction, rows: Iterator[pa.RecordBatch]) -> Prepared:
        """Stage the rows beside the checkpoint, after checking that the topic accepts them."""
        with self._explained(f"tell the partitions of topic {self._topic}"):
            place = self._place()
            partitions, longest = place.partitions(), place.longest()
        return self._stage.write(transaction, (self._encode(piece, partitions, longest) for piece in rows))

    def commit(self, batch: int, prepared: Sequence[Prepared]) -> None:
        """Produce the batch in one transaction, unless its mark is in the marks' topic."""
        if any(one.rows for one in prepared):
            mark = Mark(self._stage.identity(), batch)
            try:
                with self._explained(f"take batch {batch}"):
                    self._append(mark, prepared)
            except BaseException:
                self._session = None
                raise
        self._stage.clear(batch)

    def abort(self, transactions: Sequence[Transaction]) -> None:
        """Delete the staged rows."""
        self._stage.drop(transactions)

    def recover(self) -> Sequence[Transaction]:
        """The transactions whose rows are staged."""
        return self._stage.found()

    def _append(self, mark: Mark, prepared: Sequence[Prepared]) -> None:
        if self._session is None:
            marks = f"wallaroo-commits-{self.name}"
            self._session = BatchProducer(self._place(), self.name, marks, self._transaction_timeout)
        known = self._session.mark
        if known is None or known.identity != mark.identity or known.batch < mark.batch:
            self._session.append(mark, self._records(prepared))

    def _records(self, prepared: Sequence[Prepared]) -> Iterator[KafkaRecord]:
        for piece in self._stage.read(prepared):
            for key, value, headers, partition in zip(*(column.to_pylist() for column in piece.columns), strict=True):
                pairs = None if headers is None else [(header["key"], header["value"]) for header in headers]
                yield KafkaRecord(key, value, pairs, -1 if partition is None else partition)

    def _encode(self, rows: pa.RecordBatch, partitions: int, longest: int) -> pa.RecordBatch:
        """The rows with all four columns, in the types in which they are produced."""
        where = f"sink {self.name}"
        checked_columns(rows.schema.names, COLUMNS, ["value"], where)
        given = dict(zip(rows.schema.names, rows.columns, strict=True))
        nothing = pa.nulls(rows.num_rows)
        key, value = (as_bytes(given.get(name, nothing), name, where) for name in ("key", "value"))
        try:
            headers = given.get("headers", nothing).cast(_HEADERS)
            partition = given.get("partition", nothing).cast(pa.int32())
        except pa.ArrowException as error:
            raise SinkError(
                f"{where}: column headers or partition has a wrong type: {error}; headers must be an array of structs "
                "of key (string) and value (binary), and partition an int",
                code="sink-columns",
            ) from error
        self._check(key, value, headers, partition, partitions, longest)
        return pa.record_batch([key, value, headers, partition], names=list(COLUMNS))

    def _check(
        self, key: pa.Array, value: pa.Array, headers: pa.Array, partition: pa.Array, partitions: int, longest: int
    ) -> None:
        """Refuse records that the brokers would refuse after the decision."""
        out = pc.or_(pc.less(partition, 0), pc.greater_equal(partition, partitions))
        if pc.any(out).as_py():
            found = partition.filter(out)[0].as_py()
            raise SinkError(
                f"sink {self.name}: a row is for partition {found}, and topic {self._topic} has {partitions} from 0",
                code="sink-columns",
                partition=found,
            )
        sizes = pc.add(pc.fill_null(pc.binary_length(key), 0), pc.fill_null(pc.binary_length(value), 0))
        size = (pc.max(sizes).as_py() or 0) + _longest_headers(headers)
        if size > longest:
            raise SinkError(
                f"sink {self.name}: a record has up to {size} bytes, and topic {self._topic} takes {longest}; raise "
                "its max.message.bytes, or make records shorter",
                code="row-too-long",
                size=size,
                limit=longest,
            )
        if headers.flatten().field("key").null_count:
            raise SinkError(f"sink {self.name}: a header has no key; leave such headers out", code="sink-columns")

    def _place(self) -> KafkaTopic:
        options = {key: resolve_secret(value) for key, value in self._options.items()}
        settings = {"log_level": 3, **options, "bootstrap.servers": self._bootstrap, "logger": log}
        return KafkaTopic(settings, self._topic, self._timeout)

    @contextmanager
    def _explained(self, action: str) -> Iterator[None]:
        try:
            yield
        except KafkaException as error:
            reason = error.args[0]
            raise SinkError(
                f"sink {self.name}: Kafka at {self._bootstrap} could not {action}: {reason.str()} ({reason.name()}); "
                "check the brokers, the rights of this user, and that no other query has a sink of this name",
                code="sink-write-failed",
                topic=self._topic,
                kafka_error=reason.name(),
            ) from error


def _longest_headers(headers: pa.Array) -> int:
    """Most bytes that the headers of one row can take."""
    if headers.null_count == len(headers):
        return 0
    lengths = (
        sum(len(one["key"] or "") * 4 + len(one["value"] or b"") + 8 for one in row or ())
        for row in headers.to_pylist()
    )
    return max(lengths, default=0)
