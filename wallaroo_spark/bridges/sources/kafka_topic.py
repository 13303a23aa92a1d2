"""The records of a Kafka topic: each partition is a stream, and an offset its reference."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncGenerator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from wallaroo_spark.bridges.bridge import LogBridge, LogStream, Promise, SourceLog, position_of
from wallaroo_spark.bridges.streams import BridgedStream, nanoseconds, until_reached
from wallaroo_spark.connector import Record
from wallaroo_spark.errors import ConfigurationError
from wallaroo_spark.options import resolve_secret
from wallaroo_spark.settings import Kind, row, setting

if TYPE_CHECKING:
    from confluent_kafka import Consumer, KafkaError, Message, TopicPartition
    from confluent_kafka.admin import AdminClient, TopicDescription

GROUP_RECORDS = 2048
"""Most records that are taken together."""
POLL_SECONDS = 0.05
"""Seconds between two looks for new records; librdkafka has fetched them before."""
PARTITIONS_SECONDS = 2.0
"""Seconds between two looks for new partitions."""
ANSWER_SECONDS = 5.0
"""Longest wait for an answer."""
GROUP = "wallaroo-bridge"
"""The group that a consumer must name, where none is told what is committed."""
_ALL_DOWN = -187
_LASTING = (_ALL_DOWN, -169)
"""Codes of errors that librdkafka would wait for: all brokers are down, and wrong credentials."""
_QUEUE = {"queued.min.messages": "10000", "queued.max.messages.kbytes": "4096"}
"""What a partition's consumer has fetched in advance."""


@dataclass(eq=False, kw_only=True)
class KafkaBridge(LogBridge):
    """Send the records of a Kafka TOPIC that the brokers at BOOTSTRAP (host:port,…) have.

    Each partition is a stream, TOPIC/0 and so on, those that are added later too. Key and timestamp are the key and the
    event time of the message; headers are left out. A record without a value has an empty one. Only records of
    committed transactions are sent. The offset is message_id >> 16.

    Examples:
        wallaroo-spark bridge kafka broker:9092 orders --workers host-a:7100
    """

    promise = Promise("the offset", "the group's offset, with `--group`", "once")
    extra = "kafka"

    bootstrap: str = field(kw_only=False, metadata=row(Kind.TEXT))
    """Brokers."""
    topic: str = field(kw_only=False, metadata=row(Kind.NAME))
    """The topic."""
    group: str = setting("", Kind.TEXT)
    """A consumer group whose offsets are set to what is committed, for who watches its lag; empty: none."""
    client_config: str = setting("", Kind.TEXT)
    """File of settings of librdkafka, such as security.protocol=SASL_SSL, one a line; a value may be env:NAME or
    file:PATH."""

    @property
    def place(self) -> str:
        """The topic."""
        return self.topic

    async def streams(self) -> AsyncGenerator[Sequence[BridgedStream], None]:
        """A stream for each partition, as they appear."""
        from confluent_kafka import KafkaException

        known = 0
        while True:
            found = await until_reached(self.topic, self.retry, KafkaException, self.described)
            more = range(known, len(found.partitions))
            if more:
                # Of a partition that has just been added, nothing was there before.
                begin = self.begin if not known else "earliest"
                yield [PartitionStream(self, partition, begin) for partition in more]
                known = more.stop
            await asyncio.sleep(PARTITIONS_SECONDS)

    async def described(self) -> TopicDescription:
        """What the brokers say of the topic."""
        from confluent_kafka import KafkaException, TopicCollection

        answer = self._admin.describe_topics(TopicCollection([self.topic]), request_timeout=ANSWER_SECONDS)
        try:
            return await asyncio.wrap_future(answer[self.topic])
        except KafkaException as error:
            # It says no more than that the time is over. The cause, such as a certificate, is an event of the client.
            self._admin.poll(0)
            if causes := [one for one in self._events if one.code() != _ALL_DOWN]:
                self._events.clear()
                raise KafkaException(causes[-1]) from error
            raise

    async def commit(self, place: TopicPartition) -> None:
        """Set the group's offset, if there is a group. It has no members, so no consumer is needed for it."""
        from confluent_kafka import ConsumerGroupTopicPartitions, KafkaException

        if self.group:
            offsets = [ConsumerGroupTopicPartitions(self.group, [place])]
            answer = self._admin.alter_consumer_group_offsets(offsets, request_timeout=ANSWER_SECONDS)
            for one in (await asyncio.wrap_future(answer[self.group])).topic_partitions:
                if one.error is not None:
                    raise KafkaException(one.error)

    def consumer(self, **more: Any) -> Consumer:
        """A consumer that is assigned nothing yet."""
        from confluent_kafka import Consumer

        fixed = {
            "group.id": self.group or GROUP,
            "enable.auto.commit": False,
            "enable.auto.offset.store": False,
            "auto.offset.reset": "error",
            "isolation.level": "read_committed",
        }
        made: Consumer = self._made(Consumer, {**_QUEUE, **self._config, **fixed, **more})
        return made

    @cached_property
    def _admin(self) -> AdminClient:
        from confluent_kafka.admin import AdminClient

        made: AdminClient = self._made(AdminClient, {**self._config, "error_cb": self._events.append})
        return made

    @cached_property
    def _events(self) -> deque[KafkaError]:
        return deque(maxlen=16)

    @cached_property
    def _config(self) -> dict[str, Any]:
        found: dict[str, Any] = {"bootstrap.servers": self.bootstrap, "log_level": 0, "client.id": "wallaroo-bridge"}
        if self.client_config:
            try:
                text = Path(self.client_config).read_text(encoding="utf-8")
            except (OSError, UnicodeDecodeError) as error:
                raise ConfigurationError(
                    f"the file of librdkafka's settings, {self.client_config}, cannot be read: {error}; check the path",
                    code="source-setup",
                ) from error
            for line in filter(None, map(str.strip, text.splitlines())):
                if not line.startswith("#"):
                    name, _, value = line.partition("=")
                    found[name.strip()] = resolve_secret(value.strip())
        return found

    def _made(self, kind: Any, config: dict[str, Any]) -> Any:
        from confluent_kafka import KafkaException

        try:
            return kind(config)
        except KafkaException as error:
            raise ConfigurationError(
                f"librdkafka does not take the settings of {self.client_config or 'the bridge'}: {error}; its names "
                "differ from those of Java's clients, sasl.username and sasl.password for example",
                code="source-setup",
            ) from error


class PartitionStream(LogStream):
    """The records of a partition."""

    def __init__(self, settings: KafkaBridge, partition: int, begin: str) -> None:
        from confluent_kafka import KafkaException

        super().__init__(f"{settings.topic}/{partition}")
        self.passing = (OSError, KafkaException)
        self._settings = settings
        self._partition = partition
        self._begin = begin

    async def acknowledge(self, reference: int) -> None:
        """Set the group's offset."""
        await self._settings.commit(self._place(position_of(reference) + 1))

    async def records(self, after: int | None) -> AsyncGenerator[Sequence[Record], None]:
        """The records behind an offset."""
        from confluent_kafka import KafkaException

        failed: list[KafkaError] = []
        consumer = self._settings.consumer(error_cb=failed.append)
        try:
            log = await self._log(consumer)
            consumer.assign([self._place(self.start(log, after, begin=self._begin, lost=self._settings.lost))])
            yield []
            while True:
                found = consumer.consume(GROUP_RECORDS, 0)
                errors = [error for one in found if (error := one.error())]
                errors += [one for one in failed if one.code() in _LASTING or one.fatal()]
                if found and not errors:
                    # Behind the reading: what was read then belongs to this topic, and to no later one of its name.
                    if _identity(await self._settings.described()) != log.identity:
                        raise log.made_again(after)
                    yield [_record(log, one) for one in found]
                elif errors:
                    # Also that the offset is not there any more: then the next reading says what is missing.
                    raise KafkaException(errors[0])
                else:
                    failed.clear()
                    await asyncio.sleep(POLL_SECONDS)
        finally:
            await asyncio.to_thread(consumer.close)

    def _place(self, offset: int) -> TopicPartition:
        from confluent_kafka import TopicPartition

        return TopicPartition(self._settings.topic, self._partition, offset)

    async def _log(self, consumer: Consumer) -> SourceLog:
        described = await self._settings.described()
        first, end = await asyncio.to_thread(consumer.get_watermark_offsets, self._place(0), ANSWER_SECONDS)
        title = f"partition {self._partition} of the Kafka topic {self._settings.topic!r}"
        return SourceLog(title, _identity(described), first, end)


def _identity(topic: TopicDescription) -> bytes:
    """The topic's id. Brokers older than 2.8 have none: its bits are zeros, A in its text."""
    found = str(topic.topic_id)
    return found.encode() if found.strip("A") else b""


def _record(log: SourceLog, message: Message) -> Record:
    kind, millis = message.timestamp()
    return Record(
        log.reference(message.offset() or 0),
        message.value() or b"",
        nanoseconds(millis, 1_000_000) if kind else None,
        message.key(),
    )
