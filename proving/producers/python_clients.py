"""Python's Kafka clients as programs with the contract of this folder."""

from __future__ import annotations

import argparse
import asyncio
import functools
import json
import signal
import ssl
import sys
import time
from collections.abc import Callable
from typing import Any

from proving.producers.load import Load, load_of

FULL_SECONDS = 0.1
"""Seconds between two tries to send while confluent-kafka's own queue is full. A choice."""

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
    parser.add_argument("--value-bytes", type=int, default=0)
    for name in ("codec", "ca"):
        parser.add_argument(f"--{name}", default="")
    parser.add_argument("--key")
    parser.add_argument("--settings", type=json.loads, default={})
    parser.add_argument("--lines", choices=["all", "failed"], default="all")
    load, given = load_of(parser), parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: load.over.set())

    def answered(number: int, offset: int) -> None:
        if given.lines == "all":
            _say(f"acked {number}")

    def failed(number: int, reason: object) -> None:
        _say(f"failed {number} {' '.join(str(reason).split())}")

    CLIENTS[given.client](load, answered, failed, given.settings)
    _say("end")


def _say(line: str) -> None:
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    _main()
