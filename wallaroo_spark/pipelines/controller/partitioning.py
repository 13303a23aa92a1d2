"""The partition of an event that does not name one. Pure."""

from __future__ import annotations

import hashlib

from wallaroo_spark.pipelines.schema.cloud_event import CloudEvent

PARTITION_KEY = "partitionkey"
"""The extension of CloudEvents whose value decides the partition."""


HASH_BYTES = 8


def partition_of(event: CloudEvent, partitions: int) -> int:
    """The partition of an event, from 0: by its extension ``partitionkey``, else by its source and id.

    An event that is published again has the same partition, so it is recognized there. It is another one after the
    number of partitions was raised; the partitions tell each other then which events they have.
    """
    return partition_of_hash(partition_hash(event), partitions)


def partition_hash(event: CloudEvent) -> bytes:
    """The hash of which the partition of an event is made, whatever the number of partitions."""
    text = f"i{event.source}\0{event.id}"
    for name, value in event.attributes:
        if name == PARTITION_KEY:
            text = f"k{value}"
            break
    return hashlib.blake2b(text.encode(), digest_size=HASH_BYTES).digest()


def partition_of_hash(hashed: bytes, partitions: int) -> int:
    """The partition of an event with this hash."""
    return int.from_bytes(hashed, "big") % partitions
