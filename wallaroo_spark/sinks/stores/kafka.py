"""The sink ``kafka``: each batch is produced to a topic in one transaction, together with a mark of its number.

A Kafka transaction ends with its producer, so the driver could not commit a transaction of a task that has ended.
Therefore tasks stage their rows beside the checkpoint, and commit produces all rows of the batch, and a mark with its
number, in one transaction of the driver. Consumers with ``isolation.level=read_committed`` see whole batches only.

The mark is the last record in the sink's own compacted topic. It is read when a session starts, after
``init_transactions``. From then on no other producer can commit a transaction under this name. So the mark that is read
is final, and only this session writes newer marks.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc
from confluent_kafka import Consumer, KafkaError, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, ConfigResource, NewTopic, ResourceType
from tenacity import Retrying, retry_if_exception, stop_after_attempt

from wallaroo_spark.errors import SinkError, one_line
from wallaroo_spark.options import resolve_secret
from wallaroo_spark.settings import function_takes_settings, takes_settings
from wallaroo_spark.sinks.interface import Prepared, Transaction
from wallaroo_spark.sinks.settings import KafkaSettings
from wallaroo_spark.sinks.stores.staged_rows import StagedSink, as_bytes, check_newer, checked_columns
from wallaroo_spark.sinks.writer import BatchWriter, transactional
from wallaroo_spark.steps import SinkStep, passed

log = one_line("wallaroo_spark.sinks")

_TAIL = 1_000
"""Number of offsets at the end of the marks' topic that are read first. A choice: the mark is nearly always there."""
_TRIES = 5
"""Most attempts of a call that fails with a retriable error. A choice."""
_POLL_EVERY = 1_000
"""Number of records between two polls, which serve the producer's callbacks. A choice."""


def _is_retriable(error: BaseException) -> bool:
    return isinstance(error, KafkaException) and error.args[0].retriable()


_retry = Retrying(stop=stop_after_attempt(_TRIES), retry=retry_if_exception(_is_retriable), reraise=True)
_USUAL_BYTES = 1_000_000
"""Bytes of the largest record of a topic whose limit cannot be read; a little less than Kafka's default."""
_OVERHEAD = 512
"""Bytes of a record batch with one record beyond the record's key, value and headers. An estimate, rounded up."""


class KafkaRecord(NamedTuple):
    """A record to produce."""

    key: bytes | None
    """The key; None: no key."""
    value: bytes | None
    """The value; None: a tombstone."""
    headers: list[tuple[str, bytes | None]] | None
    """The headers, as (key, value); None: no headers."""
    partition: int
    """The partition; -1: the partitioner chooses one by the key."""


@dataclass(frozen=True)
class Mark:
    """The last committed batch of a sink."""

    identity: str
    """The identity of the sink; it differs for each checkpoint."""
    batch: int
    """The number of the batch."""


@dataclass(frozen=True)
class KafkaTopic:
    """A topic of a Kafka cluster."""

    settings: Mapping[str, Any]
    """Settings of librdkafka for all clients, such as ``bootstrap.servers``."""
    topic: str
    timeout: float
    """The longest wait for an answer, in seconds."""

    def partitions(self) -> int:
        """The number of the topic's partitions. Raises :class:`SinkError` when there is no such topic."""
        topics = AdminClient(dict(self.settings)).list_topics(self.topic, timeout=self.timeout).topics
        found = topics.get(self.topic)
        if found is None or found.error is not None or not found.partitions:
            why = found.error if found is not None and found.error is not None else "it does not exist"
            raise SinkError(
                f"topic {self.topic}: {why}; create it, or give another topic", code="sink-target", topic=self.topic
            )
        return len(found.partitions)

    def longest(self) -> int:
        """Bytes of the largest record that the topic takes; Kafka's default where this user may not read that."""
        resource = ConfigResource(ResourceType.TOPIC, self.topic)
        # The client must live until the request has ended.
        admin = AdminClient(dict(self.settings))
        asked = admin.describe_configs([resource], request_timeout=self.timeout)
        try:
            return int(asked[resource].result(self.timeout)["max.message.bytes"].value) - _OVERHEAD
        except (KafkaException, KeyError, TypeError, ValueError) as error:
            log.info(
                "topic %s: its max.message.bytes cannot be read, Kafka's default is assumed: %s", self.topic, error
            )
            return _USUAL_BYTES - _OVERHEAD


class BatchProducer:
    """Owns the transactional id ``wallaroo-<name>``. The brokers then refuse the transactions of its previous owner.

    The constructor and the methods raise :class:`SinkError` and KafkaException; after an error the object is unusable.
    """

    def __init__(self, place: KafkaTopic, name: str, marks: str, transaction_seconds: float) -> None:
        self._place, self._name, self._marks = place, name, marks
        _make_topic(place, marks)
        self._producer = Producer(
            {
                **place.settings,
                "transactional.id": f"wallaroo-{name}",
                "transaction.timeout.ms": int(transaction_seconds * 1000),
                "message.max.bytes": place.longest() + _OVERHEAD,
                # Each key goes to the partition that Spark's own sink, and every Java producer, would choose.
                "partitioner": "murmur2_random",
                "linger.ms": 20,
                "compression.type": "lz4",
            }
        )
        _retry(self._producer.init_transactions, place.timeout)
        self.mark = read_mark(place, marks, name)

    def append(self, mark: Mark, records: Iterable[KafkaRecord]) -> None:
        """Produce records and the mark in one transaction."""
        self._producer.begin_transaction()
        try:
            for number, record in enumerate(records):
                self._produce(record)
                if number % _POLL_EVERY == 0:
                    self._producer.poll(0)
            self._producer.flush(self._place.timeout)
            passed(SinkStep.HALF_COMMITTED)
            self._producer.produce(self._marks, key=self._name, value=json.dumps(asdict(mark)))
            _retry(self._producer.commit_transaction, self._place.timeout)
        except BaseException:
            self._give_up()
            raise
        self.mark = mark

    def _produce(self, record: KafkaRecord) -> None:
        more: dict[str, Any] = {"headers": record.headers} if record.headers else {}
        deadline = time.monotonic() + self._place.timeout
        while True:
            try:
                self._producer.produce(
                    self._place.topic, key=record.key, value=record.value, partition=record.partition, **more
                )
                return
            except BufferError:
                # The queue to the brokers is full. The poll is the pause before the next attempt.
                if time.monotonic() > deadline:
                    raise SinkError(
                        f"topic {self._place.topic}: the brokers accepted no record for {self._place.timeout} s; check "
                        "the brokers",
                        code="sink-unreachable",
                    ) from None
                self._producer.poll(0.1)

    def _give_up(self) -> None:
        try:
            self._producer.abort_transaction(self._place.timeout)
        except KafkaException as error:
            log.info("sink %s: the transaction is not aborted; the next session aborts it: %s", self._name, error)


def read_mark(place: KafkaTopic, marks: str, name: str) -> Mark | None:
    """The last committed mark under a sink's name; None if there is none. Raises SinkError for slow brokers."""
    consumer = Consumer(
        {
            **place.settings,
            "group.id": f"wallaroo-{name}",
            "enable.auto.commit": False,
            "isolation.level": "read_committed",
            "enable.partition.eof": True,
            "auto.offset.reset": "earliest",
            # The end of the topic is reported after an empty fetch, which should return soon.
            "fetch.wait.max.ms": 10,
        }
    )
    try:
        low, high = consumer.get_watermark_offsets(TopicPartition(marks, 0), place.timeout)
        tail = max(low, high - _TAIL)
        mark = _last(consumer, place, marks, name, tail)
        return mark if mark is not None or tail == low else _last(consumer, place, marks, name, low)
    finally:
        consumer.close()


def _last(consumer: Consumer, place: KafkaTopic, marks: str, name: str, start: int) -> Mark | None:
    consumer.assign([TopicPartition(marks, 0, start)])
    deadline = time.monotonic() + place.timeout
    mark: Mark | None = None
    while time.monotonic() < deadline:
        message = consumer.poll(1.0)
        if message is None:
            continue
        error = message.error()
        if error is None:
            key, value = message.key(), message.value()
            if key == name.encode() and value is not None:
                mark = Mark(**json.loads(value))
                deadline = time.monotonic() + place.timeout
        elif error.code() == KafkaError._PARTITION_EOF:
            return mark
        elif not error.retriable():
            raise KafkaException(error)
    raise SinkError(
        f"topic {marks}: its end was not reached within {place.timeout} s; check the brokers",
        code="sink-unreachable",
        topic=marks,
    )


def _make_topic(place: KafkaTopic, marks: str) -> None:
    """Create the topic of marks unless it exists, and wait until the brokers know it."""
    admin = AdminClient(dict(place.settings))
    deadline = time.monotonic() + place.timeout
    asked = False
    while True:
        found = admin.list_topics(marks, timeout=place.timeout).topics.get(marks)
        if found is not None and found.error is None and 0 in found.partitions and found.partitions[0].leader >= 0:
            return
        if not asked and (found is None or found.error is not None):
            new = NewTopic(marks, num_partitions=1, replication_factor=-1, config={"cleanup.policy": "compact"})
            try:
                admin.create_topics([new], request_timeout=place.timeout)[marks].result(place.timeout)
            except KafkaException as error:
                if error.args[0].code() != KafkaError.TOPIC_ALREADY_EXISTS:
                    raise SinkError(
                        f"topic {marks}, which records the last batch, cannot be created: {error.args[0].str()}; "
                        "create it with one partition and cleanup.policy=compact",
                        code="sink-write-failed",
                        topic=marks,
                    ) from error
            asked = True
        elif time.monotonic() > deadline:
            raise SinkError(
                f"topic {marks} has no leader after {place.timeout} s; check the brokers",
                code="sink-unreachable",
                topic=marks,
            )
        else:
            time.sleep(0.05)


COLUMNS = ("key", "value", "headers", "partition")
_HEADERS = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))


@function_takes_settings(KafkaSettings)
def kafka(settings: KafkaSettings) -> BatchWriter:
    """A ``foreachBatch`` writer to a Kafka topic, as :class:`KafkaSink`."""
    return transactional(KafkaSink(**vars(settings)), checkpoint=settings.checkpoint)


class KafkaSink(StagedSink):
    """Produces each row to a topic. The columns are those of Spark's Kafka sink: ``value`` (string or binary; null is a
    tombstone), and optionally ``key`` (string or binary), ``headers`` (an array of structs of ``key`` and ``value``)
    and ``partition`` (int; for null the key decides).

    The sink's name is part of the transactional id ``wallaroo-<name>``, which excludes an older driver of the same
    query, and of the compacted topic ``wallaroo-commits-<name>``, which is created if it is missing. Raises
    :class:`ConfigurationError` for settings that cannot work; methods raise :class:`SinkError`.
    """

    @takes_settings(KafkaSettings)
    def __init__(self, settings: KafkaSettings) -> None:
        super().__init__(settings.name, settings.checkpoint)
        self._bootstrap, self._options = settings.bootstrap, dict(settings.options or {})
        self._topic, self._timeout = settings.topic, settings.timeout
        self._transaction_timeout = settings.transaction_timeout
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

    @contextmanager
    def pre_commit(self, batch: int, prepared: Sequence[Prepared]) -> Iterator[None]:
        """Refuse a batch that the topic has already, which a commit would pass over."""
        if any(one.rows for one in prepared):
            with self._explained("tell the newest batch"):
                mark = self._session.mark if self._session else self._read_mark()
            check_newer(f"sink {self.name}: topic {self._topic}", self._newest(mark), batch)
        yield

    def commit(self, batch: int, prepared: Sequence[Prepared]) -> None:
        """Produce the batch in one transaction, unless its mark is in the marks' topic."""
        if any(one.rows for one in prepared):
            mark = Mark(self._stage.identity(), batch)
            try:
                with self._explained(f"take batch {batch}"):
                    session = self._session = self._session or self._begin()
                    if self._newest(session.mark) < batch:
                        session.append(mark, self._records(prepared))
            except BaseException:
                self._session = None
                raise
        self._stage.clear(batch)

    def _begin(self) -> BatchProducer:
        return BatchProducer(self._place(), self.name, self._marks, self._transaction_timeout)

    @property
    def _marks(self) -> str:
        return f"wallaroo-commits-{self.name}"

    def _read_mark(self) -> Mark | None:
        """The mark, without a session, which would end that of another driver."""
        place = self._place()
        _make_topic(place, self._marks)
        return read_mark(place, self._marks, self.name)

    def _newest(self, mark: Mark | None) -> int:
        """The batch of a mark of this checkpoint; -1 without one."""
        return mark.batch if mark is not None and mark.identity == self._stage.identity() else -1

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
        try:
            size = (pc.max(sizes).as_py() or 0) + _longest_headers(headers)
        except UnicodeDecodeError as error:
            raise SinkError(
                f"sink {self.name}: the key of a header is not UTF-8: {error.object[:60]!r}; leave such headers out",
                code="sink-columns",
            ) from error
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
