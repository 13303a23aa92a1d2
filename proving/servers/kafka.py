"""A Kafka broker for one test run. Its jars come from Maven; the Ivy among Spark's jars fetches them.

``python -m proving.servers.kafka`` fetches them in advance.
"""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path

from confluent_kafka import Consumer, KafkaException, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic
from tenacity import retry, retry_if_exception_type, stop_after_delay, wait_fixed

from proving.servers.guard import START_SECONDS, Guarded, GuardedServer
from proving.servers.packages.maven import fetched, java
from wallaroo_spark.registry.embedded import lasting_port

VERSION = "4.1.0"
FETCH_SECONDS = 240

# A small heap and a quick compiler, because the broker lives for seconds.
JAVA = ["-Xmx256m", "-Xms64m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-Dlog4j2.level=WARN"]

# One node that is broker and controller, with the smallest internal topics.
SETTINGS = """\
process.roles=broker,controller
node.id=1
controller.quorum.voters=1@127.0.0.1:{controller}
listeners=PLAINTEXT://127.0.0.1:{port},CONTROLLER://127.0.0.1:{controller}{also}
advertised.listeners=PLAINTEXT://127.0.0.1:{port}{also}
controller.listener.names=CONTROLLER
listener.security.protocol.map=PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT,SASL_SSL:SASL_SSL
log.dirs={directory}/data
num.partitions=1
auto.create.topics.enable=false
offsets.topic.num.partitions=1
offsets.topic.replication.factor=1
transaction.state.log.num.partitions=1
transaction.state.log.replication.factor=1
transaction.state.log.min.isr=1
share.coordinator.state.topic.num.partitions=1
share.coordinator.state.topic.replication.factor=1
share.coordinator.state.topic.min.isr=1
group.initial.rebalance.delay.ms=0
num.network.threads=2
num.io.threads=2
log.cleaner.enable=false
"""


# Clients with TLS log in as the user ``bridge``.
SASL_SSL = """\
ssl.keystore.type=PEM
ssl.keystore.location={pem}
sasl.enabled.mechanisms=PLAIN
listener.name.sasl_ssl.plain.sasl.jaas.config=org.apache.kafka.common.security.plain.PlainLoginModule required \
user_bridge="{password}";
"""


class KafkaServer(GuardedServer):
    """One broker in KRaft mode on free ports of the loopback."""

    def __init__(self, options: Sequence[str] = JAVA, pem: str = "", password: str = "") -> None:
        """``options`` are Java's. With ``pem``, a key (PKCS #8) and its certificates, it listens with TLS too."""
        jars = jars_of_kafka()
        self._guard = Guarded("kafka")
        port = lasting_port(range(3))
        controller = port + 1
        self.secured = f"127.0.0.1:{port + 2}"
        """Its address for clients with TLS."""
        also = f",SASL_SSL://{self.secured}" if pem else ""
        self.bootstrap = f"127.0.0.1:{port}"
        """Its address in the form that clients take."""
        properties = self._guard.directory / "server.properties"
        settings = SETTINGS.format(port=port, controller=controller, directory=self._guard.directory, also=also)
        settings += SASL_SSL.format(pem=pem, password=password) if pem else ""
        properties.write_text(settings, encoding="utf-8")
        self._java = [java(), *options, "-cp", f"{jars}/*"]
        identity = uuid.uuid4().hex[:22]
        self._guard.run(
            [*self._java, "kafka.tools.StorageTool", "format", "-t", identity, "-c", str(properties)],
        )
        self._command = [*self._java, "kafka.Kafka", str(properties)]

    @property
    def pid(self) -> int:
        """The process above the broker's; only while it runs."""
        return self._guard.pid

    def create(self, topic: str, partitions: int = 1, **config: str) -> None:
        """Create a topic, and wait until its partitions are led; ``config`` has underscores in place of dots."""
        new = NewTopic(topic, num_partitions=partitions, config={k.replace("_", "."): v for k, v in config.items()})
        admin = AdminClient({"bootstrap.servers": self.bootstrap})
        admin.create_topics([new])[topic].result(START_SECONDS)
        # The broker tells clients of a partition a moment before it leads it, and refuses requests for it until then.
        with closing(Consumer({"bootstrap.servers": self.bootstrap, "group.id": "creator"})) as consumer:
            for partition in range(partitions):
                _until_led(consumer, TopicPartition(topic, partition))

    def _answers(self) -> bool:
        try:
            AdminClient({"bootstrap.servers": self.bootstrap, "log_level": 0}).list_topics(timeout=1)
        except KafkaException:
            return False
        return True


@retry(
    stop=stop_after_delay(START_SECONDS),
    wait=wait_fixed(0.05),
    retry=retry_if_exception_type(KafkaException),
    reraise=True,
)
def _until_led(consumer: Consumer, partition: TopicPartition) -> None:
    consumer.get_watermark_offsets(partition, timeout=10)


def jars_of_kafka() -> Path:
    """The folder with the broker's jars, fetched once per clone; skips the test when they cannot be fetched."""
    return fetched("kafka", ("org.apache.kafka", "kafka_2.13", VERSION, True))


if __name__ == "__main__":
    jars_of_kafka()
