"""The JSON of an application's page: one snapshot, cut to the rows that a person reads, with its history. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, replace
from typing import Any

from wallaroo_spark.status.schema import SCHEMA, record_to_json
from wallaroo_spark.web.application.record import ApplicationRecord
from wallaroo_spark.web.view import MOST_EVENTS, MOST_ROWS, rounded


def application_document(
    record: ApplicationRecord, *, age: float, patience: float, query: Mapping[str, str]
) -> dict[str, Any]:
    """The JSON-ready values of the page.

    ``age`` is the time since the newest snapshot was complete, and ``patience`` the age from which it counts as old,
    both in seconds; the page has no query. The record has at least one snapshot.
    """
    del query
    status = record.last
    assert status is not None
    groups = [
        {"stream": one.stream, "partition": one.partition, **record_to_json(group)}
        for one in status.partitions
        for group in one.groups
    ]
    groups.sort(key=lambda group: -group["lag"])
    newest = record.recent[-1]
    return {
        "schema": SCHEMA,
        "age": round(age, 3),
        "patience": patience,
        "status": record_to_json(replace(status, partitions=status.partitions[:MOST_ROWS])),
        "groups": groups[:MOST_ROWS],
        "shown": {"partitions": len(status.partitions), "groups": len(groups)},
        "rates": {"seconds": 0, **{name: rounded(getattr(newest, name)) for name in ("events", "records", "outputs")}},
        "history": {
            name: [rounded(getattr(point, name)) for point in record.recent]
            for name in ("time", "events", "records", "outputs", "unread")
        },
        "batches": [asdict(batch) for batch in record.batches],
        "events": [asdict(event) for event in list(record.happened)[:MOST_EVENTS]],
    }
