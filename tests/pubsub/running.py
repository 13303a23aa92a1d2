"""Publishers in threads of the test's process, on a checkpoint that the test writes, and subscribers by hand."""

from __future__ import annotations

import dataclasses
import itertools
import socket
import ssl
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, Self

import pyarrow as pa

from tests.checkpoint.conftest import Checkpoint
from tests.waiting import SECONDS, eventually
from wallaroo_spark.pubsub.messages import VERSION, Data, Decoder, Message, SubscriberHello, encode, unpack_rows
from wallaroo_spark.pubsub.publishing.publisher import (
    ENDED,
    PartitionTenancy,
    PublisherService,
    PublisherSetup,
    TopicSettings,
)
from wallaroo_spark.pubsub.publishing.topic_log import TopicLog, TopicManifest
from wallaroo_spark.pubsub.topic_catalog import TopicCatalog, TopicRecord, leases_of
from wallaroo_spark.runtime.service import ServiceThread
from wallaroo_spark.transport import parse_address

COOKIE = "biscuit"
TOPIC = "totals"
_submissions = itertools.count(1)


class Client:
    """A subscriber by hand: it says hello and takes messages as they come."""

    def __init__(self, address: str, *, tls: ssl.SSLContext | None = None, receive_bytes: int = 0) -> None:
        host, port = parse_address(address)
        self._socket = socket.socket()
        if receive_bytes:
            self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_bytes)
        self._socket.settimeout(SECONDS)
        self._socket.connect((host, port))
        if tls is not None:
            self._socket = tls.wrap_socket(self._socket, server_hostname=host)
        self._decoder = Decoder()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._socket.close()

    def fileno(self) -> int:
        """The socket, to be polled."""
        return self._socket.fileno()

    def send(self, data: bytes) -> None:
        self._socket.sendall(data)

    def hello(self, partition: int = 0, **fields: Any) -> None:
        """Say hello, with other fields than fit."""
        given = SubscriberHello(VERSION, COOKIE, TOPIC, partition, "by hand")
        self.send(encode(dataclasses.replace(given, **fields)))

    def take(self) -> Message | None:
        """The next message; None when the publisher has closed."""
        while (message := self._decoder.next()) is None:
            data = self._socket.recv(1 << 16)
            if not data:
                return None
            self._decoder.feed(data)
        return message

    def take_all(self) -> list[Message]:
        """All that come until the publisher closes."""
        return list(iter(self.take, None))


def rows_of(message: Message | None) -> tuple[Any, list[dict[str, Any]]]:
    """The time and the rows of a data message."""
    assert isinstance(message, Data), message
    return message.time, unpack_rows(message.payload).to_pylist()


class Stage:
    """A checkpoint, its topic_log, and publishers of its topic."""

    def __init__(self, folder: Path, registry: str) -> None:
        self.checkpoint = Checkpoint(folder / "checkpoint")
        self.topic_log = TopicLog(str(self.checkpoint.folder), TOPIC)
        self.registry = registry
        self.lasting = ExitStack()
        self.leases = self.lasting.enter_context(leases_of(registry, TOPIC, 60))
        self.services: list[PublisherService] = []
        self.topics = self.lasting.enter_context(TopicCatalog(registry, lease_seconds=60))

    def announce(self, partitions: int = 1) -> None:
        """Publish the description of the topic, as its driver does."""
        self.topics.announce(TopicRecord(TOPIC, partitions, "history", False, b"", "the test"))

    def publish(self, batch: int, *partitions: list[int], column: str | None = None) -> None:
        """Stage the rows of a batch, a list of numbers for each partition of its DataFrame."""
        rows = [pa.record_batch({"n": pa.array(numbers, pa.int64())}) for numbers in partitions]
        files = [self.topic_log.stage(batch, number, 0, [part], column) for number, part in enumerate(rows)]
        manifest = TopicManifest(batch, tuple(file for file in files if file is not None))
        self.topic_log.seal(manifest)

    def commit(self, batch: int) -> None:
        self.checkpoint.commit(batch)

    def setup(self, partition: int = 0, **fields: Any) -> PublisherSetup:
        """The setup of a publisher; ``fields`` are settings of the topic."""
        given: dict[str, Any] = {"partitions": 1, "registry": self.registry, "cookie": COOKIE}
        given |= {"max_subscriber_bytes": 1 << 20, "max_subscribers": 100, "host": "127.0.0.1", "lease_seconds": 60}
        folder = str(self.checkpoint.folder)
        settings = TopicSettings(None, TOPIC, checkpoint=folder, **{**given, "handshake_timeout": 30, **fields})
        return PublisherSetup(settings, "history", folder, partition, next(_submissions))

    def thread(self, setup: PublisherSetup) -> ServiceThread:
        """A publisher that is not started yet."""
        tenancy = PartitionTenancy(
            self.leases, self.topics, TOPIC, setup.partition, setup.submission, f"holder-{setup.submission}"
        )
        self.services.append(PublisherService(setup, tenancy))
        return ServiceThread(self.services[-1], "publisher")

    def address(self, setup: PublisherSetup) -> str:
        """Where a publisher listens, once it does."""
        eventually(lambda: self._address(setup))
        return self._address(setup)

    def _address(self, setup: PublisherSetup) -> str:
        lease = self.leases.leases().get(setup.partition)
        return lease.connect if lease is not None and lease.submission == setup.submission else ""

    @contextmanager
    def publisher(self, partition: int = 0, **fields: Any) -> Iterator[str]:
        """A publisher that serves; its address."""
        setup = self.setup(partition, **fields)
        with self.thread(setup):
            yield self.address(setup)


@contextmanager
def new_stage(folder: Path, registry: str) -> Iterator[Stage]:
    """A stage in a registry that an earlier test may have used: no publisher is known, and the topic has not ended."""
    made = Stage(folder, registry)
    made.leases.forget_slots_from(0)
    made.leases.publish_fleet({ENDED: ""})
    with made.lasting:
        yield made
