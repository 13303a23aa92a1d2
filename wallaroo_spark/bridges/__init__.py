"""Bridges: what PostgreSQL, Kafka and others keep is sent to a receiver, from the committed reference on.

``wallaroo-spark bridge`` runs one. Source: ``docs/bridges.md``.
"""

from wallaroo_spark.bridges.bridge import Bridge, Promise
from wallaroo_spark.bridges.streams import BridgedStream, QueuedMessage, QueuedStream, feed

__all__ = ["BRIDGES", "Bridge", "BridgedStream", "Promise", "QueuedMessage", "QueuedStream", "feed"]

BRIDGES = {
    "journal": "wallaroo_spark.bridges.sources.journal.JournalBridge",
    "kafka": "wallaroo_spark.bridges.sources.kafka_topic.KafkaBridge",
    "mqtt": "wallaroo_spark.bridges.sources.mqtt.MqttBridge",
    "nats": "wallaroo_spark.bridges.sources.nats_stream.NatsBridge",
    "postgres": "wallaroo_spark.bridges.sources.postgres_changes.PostgresBridge",
    "postgres-table": "wallaroo_spark.bridges.sources.postgres_table.PostgresTableBridge",
    "rabbitmq": "wallaroo_spark.bridges.sources.rabbitmq.RabbitQueueBridge",
    "rabbitmq-stream": "wallaroo_spark.bridges.sources.rabbitmq.RabbitStreamBridge",
    "redis": "wallaroo_spark.bridges.sources.redis_stream.RedisBridge",
    "s3": "wallaroo_spark.bridges.sources.s3_objects.S3Bridge",
    "syslog": "wallaroo_spark.bridges.sources.syslog.SyslogBridge",
    "python": "wallaroo_spark.bridges.sources.python.PythonBridge",
}
"""Name of a source on the command line → the class of its settings."""
