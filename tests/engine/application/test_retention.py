"""Records expire: a key is told first, and the files go once it has heard."""

from __future__ import annotations

from pathlib import Path
from typing import cast

from wallaroo_spark.engine.application.housekeeping import DriverInbox, Retention
from wallaroo_spark.pipelines.controller.messages.events import RecordsExpired
from wallaroo_spark.pipelines.controller.stored.encoding import decode
from wallaroo_spark.pipelines.schema.declarations import StreamDeclaration
from wallaroo_spark.pipelines.schema.store import StoredSchema
from wallaroo_spark.streams.inbox import InboxPosition, InboxReader
from wallaroo_spark.streams.mover import TableMover

KEPT = StreamDeclaration(name="kept", namespace="shop")
SHORT = StreamDeclaration(name="short", namespace="shop", partitions=2, ttl=60.0)
SCHEMA = StoredSchema(1, {KEPT.key: KEPT, SHORT.key: SHORT})
NOW = 1_000_000


class Tables:
    """Tables of which the records before an offset have expired, by partition."""

    def __init__(self) -> None:
        self.old: dict[int, int] = {}
        self.asked: list[tuple[str, int, int]] = []
        self.deleted: list[tuple[str, int, int]] = []

    def expired(self, stream: str, partition: int, before: int) -> int | None:
        self.asked.append((stream, partition, before))
        return self.old.get(partition)

    def expire(self, stream: str, partition: int, before: int) -> int:
        self.deleted.append((stream, partition, before))
        self.old.pop(partition)
        return 1


def told(folder: Path) -> list[tuple[int, object]]:
    reader = InboxReader(str(folder))
    files = reader.unread({}, fresh=True).get("driver", {}).get(1, ())
    rows = [row for file in files for part in reader.read("driver", 1, file) for row in part.to_pylist()]
    return [(row["partition"], decode(row["event"])) for row in rows]


def test_only_streams_with_a_ttl_are_looked_at(tmp_path: Path) -> None:
    tables = Tables()

    Retention(cast(TableMover, tables), DriverInbox(str(tmp_path))).look(SCHEMA, NOW, {})

    assert tables.asked == [("shop/short", 0, NOW - 60_000), ("shop/short", 1, NOW - 60_000)]
    assert told(tmp_path) == []


def test_files_are_deleted_once_the_key_has_heard_of_it(tmp_path: Path) -> None:
    tables = Tables()
    retention = Retention(cast(TableMover, tables), DriverInbox(str(tmp_path)))
    tables.old = {1: 8}

    retention.look(SCHEMA, NOW, {})
    assert told(tmp_path) == [(1, RecordsExpired(8))]
    tables.old = {0: 5, 1: 9}
    retention.look(SCHEMA, NOW, {"driver": InboxPosition(0, 0), "g0": InboxPosition(3, 9)})
    assert tables.deleted == []
    assert told(tmp_path) == [(1, RecordsExpired(8)), (0, RecordsExpired(5))]
    retention.look(SCHEMA, NOW, {"driver": InboxPosition(1, 1)})

    assert tables.deleted == [("shop/short", 1, 8)]
    retention.look(SCHEMA, NOW, {"driver": InboxPosition(2, 0)})
    assert tables.deleted == [("shop/short", 1, 8), ("shop/short", 0, 5)]
