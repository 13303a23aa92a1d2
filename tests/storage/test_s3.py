"""The files of tasks beside a checkpoint on S3, with a real server and the settings that the driver has shipped."""

from __future__ import annotations

from collections.abc import Iterator

import pyarrow as pa
import pytest

from tests.checkpoint.conftest import offset, offsets_text
from tests.storage.servers import BUCKET, KEY, REGION, SECRET, S3Server
from wallaroo_spark.checkpoint import CheckpointFiles, PlannedBatch, QueryProgress
from wallaroo_spark.pipelines.controller.messages.values import PartitionKey
from wallaroo_spark.sidecar.folder import SidecarFolder
from wallaroo_spark.sinks.interface import Transaction
from wallaroo_spark.sinks.stores.staged_rows import StagedRows
from wallaroo_spark.storage.locations import PortableLocation
from wallaroo_spark.streams.inbox import InboxFile, InboxPosition, InboxReader, InboxWriter


@pytest.fixture(scope="module")
def place() -> Iterator[PortableLocation]:
    """A checkpoint in a bucket of a server of its own, as the driver ships it."""
    server = S3Server()
    try:
        server.start()
        there = {"endpoint_override": server.address, "scheme": "http", "region": REGION}
        yield PortableLocation(server.checkpoint, {"access_key": KEY, "secret_key": SECRET, **there})
    finally:
        server.remove()


@pytest.fixture(autouse=True)
def _no_gateway(monkeypatch: pytest.MonkeyPatch) -> None:
    """As in a task: other tests of this process may have a Spark session."""
    monkeypatch.setattr("wallaroo_spark.sinks.stores.staged_rows.session", lambda: None)


def test_files_beside_a_checkpoint_are_replaced_and_created_as_on_a_disk(place: PortableLocation) -> None:
    beside = SidecarFolder(place, "sinks", "orders")
    assert (beside.names(), beside.read("7.json")) == ([], None)
    beside.write("7.json", b"one")
    beside.write("7.json", b"two")
    assert not beside.create("7.json", b"three")
    assert beside.create("8.json", b"four")
    assert (beside.names(), beside.read("7.json")) == (["7.json", "8.json"], b"two")
    for _ in range(2):
        beside.delete("7.json")
    SidecarFolder(place, "sinks").delete_folder("orders")
    assert beside.names() == []


def test_rows_are_staged_and_read_again(place: PortableLocation) -> None:
    stage, transaction = StagedRows(place, "orders"), Transaction.new("orders", 0, 0)
    prepared = stage.write(transaction, [pa.record_batch({"a": [1, 2]}), pa.record_batch({"a": [3]})])
    assert [value for piece in stage.read([prepared]) for value in piece["a"].to_pylist()] == [1, 2, 3]
    assert stage.found() == [transaction]
    assert stage.identity() == StagedRows(place, "orders").identity()
    stage.clear(0)
    assert stage.found() == []


def test_spark_s_logs_are_followed(place: PortableLocation) -> None:
    files = CheckpointFiles(place)
    assert files.progress("orders") == QueryProgress(None, None)

    def put(name: str, text: str) -> None:
        with files.filesystem.open_output_stream(f"{BUCKET}/checkpoints/orders/{name}") as stream:
            stream.write(text.encode())

    put("metadata", '{"id":"query-1"}')
    put("offsets/0", offsets_text(offset({"shop-1": {"7": 100}})))
    planned = PlannedBatch(0, {"shop-1": {"7": 100}})
    assert files.progress("orders") == QueryProgress(None, planned)
    put("commits/0", "v1\n{}")
    assert files.progress("orders") == QueryProgress(planned, None)
    assert (files.query_id(), files.committed(), files.stamp()) == ("query-1", 0, None)


def test_the_shown_location_has_no_secret(place: PortableLocation) -> None:
    shown = f"{place} {place!r} {CheckpointFiles(place)!r} {SidecarFolder(place)!r}"
    assert SECRET not in shown
    assert KEY not in shown


def test_an_inbox_has_its_files_and_generations(place: PortableLocation) -> None:
    key = PartitionKey("shop/orders", 0)
    for generation in (1, 2):
        writer = InboxWriter(place, "g0")
        assert writer.open() == generation
        assert [writer.write([(key, b"one")]), writer.write([(key, b"two")] * 2)] == [1, 2]
    reader = InboxReader(place)

    assert reader.unread({"g0": InboxPosition(1, 1)}) == {
        "g0": {1: (InboxFile(2, 2, 6),), 2: (InboxFile(1, 1, 3), InboxFile(2, 2, 6))}
    }
    assert sum(batch.num_rows for batch in reader.read("g0", 2, InboxFile(2, 2, 6))) == 2
    assert reader.delete_read({"g0": InboxPosition(2, 1)}) == 1
    assert reader.unread({}, fresh=True) == {"g0": {2: (InboxFile(2, 2, 6),)}}
    assert InboxWriter(place, "g0").open() == 3
