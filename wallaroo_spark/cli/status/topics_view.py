"""The topics of a registry and the sinks of a checkpoint, for ``status``."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from wallaroo_spark.cli.status.sources import ATTEMPTS
from wallaroo_spark.status import SinkStatus, TopicStatus
from wallaroo_spark.status.topics import topic_status

if TYPE_CHECKING:
    from rich.table import Table

_STYLES = {"serving": "green", "vacant": "red"}


def topics_in(registry: str) -> tuple[TopicStatus, ...]:
    """The running topics of a registry. Raises :class:`RegistryError` when it does not answer."""
    from wallaroo_spark.pubsub.topic_catalog import TopicCatalog

    with TopicCatalog(registry, attempts=ATTEMPTS) as catalog:
        found = [topic_status(catalog, name) for name in catalog.names()]
    return tuple(topic for topic in found if topic is not None)


def sinks_in(checkpoint: str) -> tuple[SinkStatus, ...]:
    """The transactional sinks of the query with this checkpoint."""
    from wallaroo_spark.sinks.two_phase.decision_log import sinks_of

    return tuple(SinkStatus(**sink) for sink in sinks_of(checkpoint))


def topics_table(topics: Iterable[TopicStatus]) -> Table:
    """One row for each partition."""
    from rich.table import Table

    table = Table(box=None, pad_edge=False, header_style="bold", show_edge=False, padding=(0, 1))
    for name in ("topic", "partition", "state"):
        table.add_column(name, no_wrap=True)
    table.add_column("address", overflow="fold", min_width=12)
    for name in ("newest epoch", "subscribers"):
        table.add_column(name, justify="right", no_wrap=True)
    for topic in topics:
        for one in topic.partitions:
            newest = "none" if one.newest is None else str(one.newest)
            state = f"[{_STYLES[one.state]}]{one.state}[/]"
            row = [str(one.partition), state, one.address or "", newest, str(one.subscribers)]
            table.add_row(topic.topic, *row)
    return table
