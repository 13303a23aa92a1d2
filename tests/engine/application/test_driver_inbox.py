"""The driver's own events."""

from __future__ import annotations

from pathlib import Path

from wallaroo_spark.engine.application.housekeeping import DriverInbox, dismissals, keys_of
from wallaroo_spark.pipelines.controller.messages.events import GatewayStarted, RecordsExpired
from wallaroo_spark.pipelines.controller.messages.values import PartitionKey
from wallaroo_spark.pipelines.controller.stored.encoding import decode
from wallaroo_spark.pipelines.schema.declarations import NamespaceDeclaration, StreamDeclaration
from wallaroo_spark.pipelines.schema.store import StoredSchema
from wallaroo_spark.streams.inbox import InboxPosition, InboxReader, InboxWriter

ORDERS = StreamDeclaration(name="orders", namespace="shop", partitions=2)
NAMESPACE = NamespaceDeclaration(name="shop")
SCHEMA = StoredSchema(1, {ORDERS.key: ORDERS, NAMESPACE.key: NAMESPACE})
KEYS = [PartitionKey("shop/orders", 0), PartitionKey("shop/orders", 1)]


def test_events_are_in_the_inbox_at_the_returned_position(tmp_path: Path) -> None:
    inbox, reader = DriverInbox(str(tmp_path)), InboxReader(str(tmp_path))

    assert inbox.write([(KEYS[0], RecordsExpired(7))]) == InboxPosition(1, 1)
    assert inbox.write([(KEYS[1], RecordsExpired(9))]) == InboxPosition(1, 2)
    assert DriverInbox(str(tmp_path)).write([(KEYS[1], RecordsExpired(11))]) == InboxPosition(2, 1)

    unread = reader.unread({}, fresh=True)["driver"]
    rows = [row for file in unread[1] for part in reader.read("driver", 1, file) for row in part.to_pylist()]
    assert [(row["stream"], row["partition"], decode(row["event"])) for row in rows] == [
        ("shop/orders", 0, RecordsExpired(7)),
        ("shop/orders", 1, RecordsExpired(9)),
    ]


def test_gateways_that_the_application_has_no_more_are_dismissed_at_every_partition(tmp_path: Path) -> None:
    for gateway in ("g0", "g1", "g1"):
        InboxWriter(str(tmp_path), gateway).open()
    DriverInbox(str(tmp_path)).write([(KEYS[0], RecordsExpired(7))])
    reader = InboxReader(str(tmp_path))

    assert keys_of(SCHEMA) == KEYS
    assert dismissals(SCHEMA, reader, gateways=2) == []
    assert dismissals(SCHEMA, reader, gateways=1) == [(key, GatewayStarted("g1", 3)) for key in KEYS]
