"""The table of a registry's topics for ``status``."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rich.table import Table

    from wallaroo_spark.pubsub.topic_catalog import TopicCatalog

_STYLES = {"serving": "green", "vacant": "red"}


def look_at_topics(topics: TopicCatalog) -> list[dict[str, Any]]:
    """The running topics, as JSON-ready values: ``topic``, ``driver``, ``identity`` and ``partitions``, each of
    these with its ``state``, ``address``, ``newest`` epoch and ``subscribers``.

    Raises :class:`RegistryError` when the registry does not answer.
    """
    found = []
    for name in topics.names():
        record = topics.find(name)
        if record is None:
            continue
        served = topics.served(name)
        partitions = []
        for partition in range(record.partitions):
            place = served.get(partition)
            progress = place.progress if place else None
            partitions.append(
                {
                    "partition": partition,
                    "state": "serving" if place else "vacant",
                    "address": place.address if place else None,
                    "newest": progress.newest if progress else None,
                    "subscribers": progress.subscribers if progress else 0,
                }
            )
        found.append({"topic": name, "driver": record.owner, "identity": record.identity, "partitions": partitions})
    return found


def topics_table(topics: Iterable[Mapping[str, Any]]) -> Table:
    """One row a partition, from the result of :func:`look_at_topics`."""
    from rich.table import Table

    table = Table(box=None, pad_edge=False, header_style="bold", show_edge=False, padding=(0, 1))
    for name in ("topic", "partition", "state"):
        table.add_column(name, no_wrap=True)
    table.add_column("address", overflow="fold", min_width=12)
    for name in ("newest epoch", "subscribers"):
        table.add_column(name, justify="right", no_wrap=True)
    for topic in topics:
        for one in topic["partitions"]:
            newest = "none" if one["newest"] is None else str(one["newest"])
            state = f"[{_STYLES[one['state']]}]{one['state']}[/]"
            row = [str(one["partition"]), state, one["address"] or "", newest, str(one["subscribers"])]
            table.add_row(topic["topic"], *row)
    return table
