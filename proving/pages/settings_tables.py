"""The tables of settings in ``docs/sinks.md`` and two other pages, written from the tables in the code.

Comments in a page mark where a table begins and ends.
"""

from __future__ import annotations

import re
from typing import Any

from proving.pages.settings import settings_table
from wallaroo_spark.pubsub.publishing.publisher import TopicSettings
from wallaroo_spark.pubsub.subscribing.settings import SubscriptionSettings, TopicSourceSettings
from wallaroo_spark.sinks.settings import (
    ConnectorSinkSettings,
    DeltaSettings,
    FilesSettings,
    IcebergSettings,
    KafkaSettings,
    PostgresWriterSettings,
    RedisSettings,
    SqlSettings,
    StreamSettings,
)

TABLES: dict[str, dict[str, Any]] = {
    "sinks/connector.md": {"sinks.connector": ConnectorSinkSettings},
    "sinks.md": {
        "sinks.files": FilesSettings,
        "sinks.delta": DeltaSettings,
        "sinks.iceberg": IcebergSettings,
        "sinks.postgres": PostgresWriterSettings,
        "sinks.sql": SqlSettings,
        "sinks.kafka": KafkaSettings,
        "sinks.redis": RedisSettings,
        "sinks.stream": StreamSettings,
    },
    "pubsub.md": {"subscribe": SubscriptionSettings, "TopicSource": TopicSourceSettings, "Topic": TopicSettings},
}
"""The tables of each page, by the name of the function or class that takes the settings."""

BESIDE = {"TopicSource": SubscriptionSettings}
"""Tables of which a page has only the rows that are not in this one, which is above it on the page."""


def with_tables(page: str, text: str) -> str:
    """The text of a page with new tables from the code. Raises ValueError unless the page has one place for each."""
    for name, table in TABLES[page].items():
        begin, end = f"<!-- settings of {name} -->\n", "<!-- end of settings -->\n"
        place = re.compile(re.escape(begin) + "(?:\\|.*\n|\n)*" + re.escape(end))
        new = f"{begin}\n{settings_table(table, BESIDE.get(name))}\n{end}"
        places = len(place.findall(text))
        if places != 1:
            raise ValueError(f"{page} has {places} places for the settings of {name}; write {begin!r} and {end!r} once")
        text = place.sub(new.replace("\\", r"\\"), text)
    return text
