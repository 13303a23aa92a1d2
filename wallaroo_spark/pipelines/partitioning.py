"""The partition of an event that does not name one. Pure."""

from __future__ import annotations

import hashlib

from wallaroo_spark.pipelines.controller.messages.values import CloudEvent

PARTITION_KEY = "partitionkey"
"""The extension of CloudEvents whose value decides the partition."""


def partition_of(event: CloudEvent, partitions: int) -> int:
    """The partition of an event, from 0: by its extension ``partitionkey``, else by its source and id.

    An event that is published again has the same partition, so it is recognized there. It is another one after the
    number of partitions was raised.
    """
    key = next((value for name, value in event.attributes if name == PARTITION_KEY), None)
    text = f"k{key}" if key is not None else f"i{event.source}\0{event.id}"
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "big") % partitions
