"""The state of a running topic, from the records in its registry."""

from __future__ import annotations

from typing import Any

from wallaroo_spark.errors import RegistryError
from wallaroo_spark.status.model import PartitionStatus, TopicStatus


def topic_status(catalog: Any, name: str) -> TopicStatus | None:
    """The topic of this name in a ``TopicCatalog``, with each partition; None when it does not run.

    Raises :class:`RegistryError` when the registry does not answer.
    """
    record = catalog.find(name)
    if record is None:
        return None
    served = catalog.served(name)
    partitions = tuple(_partition(number, served.get(number)) for number in range(record.partitions))
    return TopicStatus(name, record.owner, record.identity, partitions)


def may_not_list(error: RegistryError) -> str:
    """The sentence for a Redis user that lacks the right to list the topics; empty for any other error."""
    if "no permissions" not in error.message:
        return ""
    return (
        "Topics are not shown, because the Redis user of the registry's URL may not list them: they need +scan, as the "
        "user operators of docs/security.md has"
    )


def _partition(number: int, place: Any) -> PartitionStatus:
    if place is None:
        return PartitionStatus(number, "vacant")
    progress = place.progress
    newest, subscribers = (None, 0) if progress is None else (progress.newest, progress.subscribers)
    return PartitionStatus(number, "serving", place.address, newest, subscribers)
