"""The tables of settings in ``docs/sinks.md`` and ``docs/pubsub.md``, written from the tables in the code.

Run ``python -m wallaroo_spark.cli.pages.settings_tables docs`` after a table has changed. Comments in a page mark where
a table begins and ends.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import Any

from wallaroo_spark.cli.pages.settings import settings_table
from wallaroo_spark.pubsub.publishing.settings import TopicSettings
from wallaroo_spark.pubsub.subscribing.settings import SubscriptionSettings, TopicSourceSettings
from wallaroo_spark.sinks.settings import (
    ConnectorSinkSettings,
    FilesSettings,
    KafkaSettings,
    PostgresWriterSettings,
    RedisSettings,
)

TABLES: dict[str, dict[str, Any]] = {
    "sinks.md": {
        "sinks.connector": ConnectorSinkSettings,
        "sinks.files": FilesSettings,
        "sinks.postgres": PostgresWriterSettings,
        "sinks.kafka": KafkaSettings,
        "sinks.redis": RedisSettings,
    },
    "pubsub.md": {"subscribe": SubscriptionSettings, "TopicSource": TopicSourceSettings, "Topic": TopicSettings},
}
"""The tables of each page, by the name of the function or class that takes the settings."""


def with_tables(page: str, text: str) -> str:
    """The text of a page with new tables from the code. Raises ValueError unless the page has one place for each."""
    for name, table in TABLES[page].items():
        begin, end = f"<!-- settings of {name} -->\n", "<!-- end of settings -->\n"
        place = re.compile(re.escape(begin) + "(?:\\|.*\n|\n)*" + re.escape(end))
        new = f"{begin}\n{settings_table(table)}\n{end}"
        places = len(place.findall(text))
        if places != 1:
            raise ValueError(f"{page} has {places} places for the settings of {name}; write {begin!r} and {end!r} once")
        text = place.sub(new.replace("\\", r"\\"), text)
    return text


def main(folder: Path) -> None:
    """Write the tables of all pages of a folder."""
    for page in TABLES:
        path = folder / page
        path.write_text(with_tables(page, path.read_text(encoding="utf-8")), encoding="utf-8")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
