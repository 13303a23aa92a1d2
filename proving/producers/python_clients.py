"""Python's Kafka clients under the contract of ``proving/producers``: ``python python_clients.py CLIENT ARGUMENTS``."""

from __future__ import annotations

import argparse
import asyncio
import functools
import ssl
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

FULL_SECONDS = 0.1
"""Seconds between two tries to send while confluent-kafka's own queue is full. A choice."""


@dataclass(frozen=True)
class Load:
    """What a program sends, and how."""

    bootstrap: str
    topic: str
    client_id: str
    first: int
    count: int
    rate: float = 0.0
    """Records a second; 0: as fast as it goes."""
    codec: str = ""
    password: str = ""
    ca: str = ""
    value_bytes: int = 0
    key: str | None = None

    def record_key(self) -> bytes | None:
        """The key of every record."""
        key = self.client_id if self.key is None else self.key
        return key.encode() or None

    def value(self, number: int) -> bytes:
        """The value of a record."""
        return b"%0*d" % (self.value_bytes, number)

    def due(self) -> Iterator[tuple[int, float]]:
        """The numbers of the records, each with the seconds to wait before it is sent."""
        begun = time.monotonic()
        for sent in range(self.count):
            wait = begun + sent / self.rate - time.monotonic() if self.rate else 0.0
            yield self.first + sent, max(0.0, wait)


Answered = Callable[[int, int], None]
"""Called with the number and the offset of a record that was answered with success."""
Failed = Callable[[int, object], None]
"""Called with the number of a record that the client gave up, and with the reason."""
Settings = dict[str, Any]
"""Settings of a client beside its defaults, under its own names."""


def with_confluent(load: Load, answered: Answered, failed: Failed, settings: Settings) -> None:
    """confluent-kafka, which is librdkafka."""
    from confluent_kafka import Producer

    own: Settings = {"bootstrap.servers": load.bootstrap, "client.id": load.client_id}
    if load.codec:
        own["compression.type"] = load.codec
    if load.password:
        own |= {"sasl.mechanism": "PLAIN", "sasl.username": load.client_id, "sasl.password": load.password}
    if load.ca:
        own["ssl.ca.location"] = load.ca
    if load.password or load.ca:
        own["security.protocol"] = _protocol(load)
    producer = Producer(own | settings)

    def delivered(number: int, error: Any, message: Any) -> None:
        if error is None:
            answered(number, message.offset())
        else:
            failed(number, error)

    key = load.record_key()
    for number, wait in load.due():
        producer.poll(wait)
        while True:
            try:
                producer.produce(load.topic, load.value(number), key, on_delivery=functools.partial(delivered, number))
                break
            except BufferError:
                producer.poll(FULL_SECONDS)
    producer.flush()


def with_kafka_python(load: Load, answered: Answered, failed: Failed, settings: Settings) -> None:
    """kafka-python."""
    from kafka import KafkaProducer
    from kafka.errors import KafkaError

    own = _python_settings(load)
    if load.ca:
        own["ssl_cafile"] = load.ca
    producer = KafkaProducer(**own | settings)
    key = load.record_key()
    for number, wait in load.due():
        time.sleep(wait)
        try:
            sent = producer.send(load.topic, load.value(number), key)
        except KafkaError as error:
            failed(number, repr(error))
            continue
        sent.add_callback(lambda told, number=number: answered(number, told.offset))
        sent.add_errback(lambda error, number=number: failed(number, repr(error)))
    producer.flush()
    producer.close()


def with_aiokafka(load: Load, answered: Answered, failed: Failed, settings: Settings) -> None:
    """aiokafka."""
    asyncio.run(_with_aiokafka(load, answered, failed, settings))


async def _with_aiokafka(load: Load, answered: Answered, failed: Failed, settings: Settings) -> None:
    from aiokafka import AIOKafkaProducer
    from aiokafka.errors import KafkaError

    own = _python_settings(load)
    if load.ca:
        own["ssl_context"] = ssl.create_default_context(cafile=load.ca)

    def done(number: int, sent: asyncio.Future[Any]) -> None:
        error = sent.exception()
        if error is None:
            answered(number, sent.result().offset)
        else:
            failed(number, repr(error))

    async with AIOKafkaProducer(**own | settings) as producer:
        key = load.record_key()
        for number, wait in load.due():
            await asyncio.sleep(wait)
            try:
                sent = await producer.send(load.topic, load.value(number), key)
            except KafkaError as error:
                failed(number, repr(error))
                continue
            sent.add_done_callback(functools.partial(done, number))


def _python_settings(load: Load) -> Settings:
    """The settings that kafka-python and aiokafka have in common."""
    own: Settings = {"bootstrap_servers": load.bootstrap, "client_id": load.client_id}
    if load.codec:
        own["compression_type"] = None if load.codec == "none" else load.codec
    if load.password:
        own |= {
            "sasl_mechanism": "PLAIN",
            "sasl_plain_username": load.client_id,
            "sasl_plain_password": load.password,
        }
    if load.password or load.ca:
        own["security_protocol"] = _protocol(load)
    return own


def _protocol(load: Load) -> str:
    return ("SASL_" if load.password else "") + ("SSL" if load.ca else "PLAINTEXT")


CLIENTS = {"confluent-kafka": with_confluent, "kafka-python": with_kafka_python, "aiokafka": with_aiokafka}
"""Each sends a load, and returns when nothing of it is under way."""


def _main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("client", choices=CLIENTS)
    for name in ("bootstrap", "topic", "client-id"):
        parser.add_argument(f"--{name}", required=True)
    for name in ("first", "count"):
        parser.add_argument(f"--{name}", type=int, required=True)
    parser.add_argument("--rate", type=float, default=0.0)
    parser.add_argument("--value-bytes", type=int, default=0)
    for name in ("codec", "password", "ca"):
        parser.add_argument(f"--{name}", default="")
    parser.add_argument("--key")
    parser.add_argument("--lines", choices=["all", "failed"], default="all")
    given = vars(parser.parse_args())
    client, lines = given.pop("client"), given.pop("lines")

    def answered(number: int, offset: int) -> None:
        if lines == "all":
            _say(f"acked {number}")

    def failed(number: int, reason: object) -> None:
        _say(f"failed {number} {' '.join(str(reason).split())}")

    CLIENTS[client](Load(**given), answered, failed, {})
    _say("end")


def _say(line: str) -> None:
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    _main()
