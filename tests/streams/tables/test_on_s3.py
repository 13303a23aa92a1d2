"""Batches and tables on S3, with a real server, as tasks and gateways open them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import pytest
from deltalake import DeltaTable

from tests.storage.servers import BUCKET, KEY, REGION, SECRET, S3Server
from tests.streams.application import StreamTable, sealed
from tests.streams.samples import ORDERS, event, records
from wallaroo_spark.storage.locations import PortableLocation, open_location
from wallaroo_spark.streams.batch_outputs import BatchOutputs
from wallaroo_spark.streams.delta import DeltaLogs
from wallaroo_spark.streams.mover import TableMover


@pytest.fixture(scope="module")
def place() -> Iterator[PortableLocation]:
    """An application's folder in a bucket of a server of its own."""
    server = S3Server()
    try:
        server.start()
        there = {"endpoint_override": server.address, "scheme": "http", "region": REGION}
        yield PortableLocation(f"s3a://{BUCKET}/applications/shop", {"access_key": KEY, "secret_key": SECRET, **there})
    finally:
        server.remove()


def test_records_are_moved_read_and_deleted_on_an_object_store(place: PortableLocation) -> None:
    opened = open_location(place)
    table, mover = StreamTable(place, ORDERS), TableMover(place)
    for batch in range(6):
        sealed(place, batch, records(2 * batch + 1, 2 * batch + 2))
        assert table.read(0, 1)[1] == tuple(event(offset) for offset in range(1, 2 * batch + 1))
        with opened.filesystem.open_output_stream(f"{opened.root}/checkpoint/commits/{batch}") as stream:
            stream.write(b'v1\n{"nextBatchWatermarkMs":0}')
        if batch in (0, 4):
            mover.move(batch)
    everything = tuple(event(offset) for offset in range(1, 13))
    assert table.read(0, 1) == (1, everything)
    BatchOutputs(place).keep_from(5)
    assert StreamTable(place, ORDERS).read(0, 1) == table.read(0, 1) == (1, everything)
    assert TableMover(place).moved_to() == 4
    assert mover.expire(ORDERS, 0, 3) == 1
    assert StreamTable(place, ORDERS).read(0, 1) == (3, everything[2:])


def test_a_log_on_an_object_store_has_the_files_of_the_table(place: PortableLocation) -> None:
    folder = replace(place, uri=f"{place.uri}-delta")
    mover = TableMover(folder, delta=DeltaLogs(folder))
    for batch, first in enumerate((1, 3)):
        sealed(folder, batch, records(first, first + 1))
        mover.move(batch)
    mover.expire(ORDERS, 0, 3)

    logs = DeltaLogs(folder)
    table = DeltaTable(f"{logs._root}/streams/{ORDERS}", storage_options=logs._options)
    assert table.to_pyarrow_table().column("offset").to_pylist() == [3, 4]
    assert StreamTable(folder, ORDERS).read(0, 1)[0] == 3
