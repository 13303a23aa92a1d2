"""The state of a topic, from what its registry has."""

from __future__ import annotations

from typing import Any

from wallaroo_spark.errors import RegistryError
from wallaroo_spark.observe.receiver import PartitionStatus, TopicStatus
from wallaroo_spark.observe.surroundings import may_not_list, topic_status
from wallaroo_spark.pubsub.topic_catalog import PublisherProgress, ServedPartition, TopicRecord

RECORD = TopicRecord("totals", 3, "history", False, b"", "a driver")


class Catalog:
    """The records of one topic."""

    def __init__(self, record: TopicRecord | None, served: dict[int, ServedPartition]) -> None:
        self._record = record
        self._served = served

    def find(self, name: str) -> TopicRecord | None:
        return self._record if self._record is not None and name == self._record.name else None

    def served(self, name: str) -> dict[int, ServedPartition]:
        return self._served


def test_each_partition_is_served_or_vacant_and_a_new_publisher_has_no_progress() -> None:
    served: Any = Catalog(
        RECORD,
        {0: ServedPartition("h:1", PublisherProgress(41, 3)), 2: ServedPartition("h:2")},
    )

    assert topic_status(served, "totals") == TopicStatus(
        "totals",
        "a driver",
        "history",
        (
            PartitionStatus(0, "serving", "h:1", 41, 3),
            PartitionStatus(1, "vacant"),
            PartitionStatus(2, "serving", "h:2", None, 0),
        ),
    )


def test_a_topic_that_does_not_run_has_no_state() -> None:
    assert topic_status(Catalog(None, {}), "totals") is None


def test_only_a_missing_right_is_named_as_one() -> None:
    refused = RegistryError("Redis at h:1 refused to list the topics: this user has no permissions to run 'scan'")

    assert "+scan" in may_not_list(refused)
    assert may_not_list(RegistryError("Redis at h:1 cannot be reached")) == ""
