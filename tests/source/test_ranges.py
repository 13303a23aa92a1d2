"""Planned ranges are read from the worker that has them, awaited while they are sent again, and given up with an
error."""

from __future__ import annotations

import logging
import pickle
import threading
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pyarrow as pa
import pytest

from tests.source.fleet import TOKEN, LiveFleet
from tests.waiting import SECONDS, eventually
from wallaroo_spark.connector import Record, Records, stream_id_of
from wallaroo_spark.errors import ReplayError
from wallaroo_spark.references import PlannedRange, StreamKey
from wallaroo_spark.registry import Registry
from wallaroo_spark.source.ranges import RangePartition, read_ranges

STREAM = str(stream_id_of("shop-1", "numbers"))


def of_shop(start: int | None, end: int) -> PlannedRange:
    return PlannedRange(StreamKey("shop-1", int(STREAM)), start, end)


def partition(fleet: LiveFleet, *ranges: PlannedRange, slot: int = 0, **options: Any) -> RangePartition:
    addresses = options.pop("addresses", {slot: lease.flight for slot, lease in fleet.registry.leases().items()})
    known = {"token": TOKEN, "replay_timeout": 30.0, "fail_on_data_loss": True, "include_boundaries": False}
    return RangePartition(slot, list(ranges), addresses, replace(fleet.options, **{**known, **options}))


def read(part: RangePartition) -> Iterator[pa.RecordBatch]:
    # As in an executor, the plan has been pickled.
    part = pickle.loads(pickle.dumps(part))
    return read_ranges(part, lambda: Registry(part.options.registry, part.options.receiver, attempts=1))


def ids(batches: Iterator[pa.RecordBatch]) -> list[int]:
    return [message_id for batch in batches for message_id in batch["message_id"].to_pylist()]


def numbers(first: int, last: int, size: int = 1) -> Records:
    return Records("numbers", lambda: [Record(number, bytes(size)) for number in range(first, last + 1)])


def feed(fleet: LiveFleet, source: Records, slot: int = 0) -> threading.Thread:
    """Feed without waiting for acknowledgements, which nobody sends here."""
    connector = fleet.connect("shop-1", slot)

    def run() -> None:
        try:
            connector.feed(source, end=False)
        except Exception:
            logging.getLogger(__name__).debug("the test has ended", exc_info=True)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    return thread


def test_exactly_the_planned_rows_come_in_order(fleet: LiveFleet) -> None:
    fleet.start(0)
    fleet.begin()
    feed(fleet, numbers(1, 50))
    eventually(lambda: fleet.held(0) == 50)

    assert ids(read(partition(fleet, of_shop(10, 30)))) == list(range(11, 31))
    # A task that is run again reads the same.
    assert ids(read(partition(fleet, of_shop(10, 30)))) == list(range(11, 31))


def test_boundaries_come_when_they_are_asked_for(fleet: LiveFleet) -> None:
    fleet.start(0)
    fleet.begin()
    stream = fleet.connect("shop-1").open("numbers")
    stream.send(b"x", id=1)
    stream.send_boundary(2)
    eventually(lambda: fleet.held(0) == 2)

    assert ids(read(partition(fleet, of_shop(None, 2)))) == [1]
    assert ids(read(partition(fleet, of_shop(None, 2), include_boundaries=True))) == [1, 2]


def test_a_range_that_is_not_there_is_waited_for_until_it_is_sent_again(fleet: LiveFleet) -> None:
    fleet.start(0)
    fleet.begin()
    found: list[int] = []
    reading = threading.Thread(target=lambda: found.extend(ids(read(partition(fleet, of_shop(5, 20))))))
    reading.start()
    reading.join(0.3)
    assert reading.is_alive()

    feed(fleet, numbers(6, 40))
    reading.join(SECONDS)

    assert found == list(range(6, 21))


def test_the_rest_is_read_from_another_slot_when_the_stream_has_moved_there(fleet: LiveFleet) -> None:
    fleet.start(0)
    fleet.start(1)
    fleet.begin()
    feed(fleet, numbers(1, 20), slot=1)
    eventually(lambda: fleet.held(1) == 20)

    assert ids(read(partition(fleet, of_shop(None, 20), slot=0))) == list(range(1, 21))


def test_a_read_that_is_cut_off_half_way_goes_on_with_the_successor_of_the_worker(fleet: LiveFleet) -> None:
    total, size = 20_000, 2_000
    fleet.start(0, own_process=True)
    fleet.begin()
    feed(fleet, numbers(1, total, size))
    eventually(lambda: fleet.held(0) == total)

    batches = read(partition(fleet, of_shop(None, total)))
    found = ids(iter([next(batches)]))
    assert 0 < len(found) < total
    fleet.kill(0)
    fleet.start(0)
    fleet.begin()
    found += ids(batches)

    assert found == list(range(1, total + 1))


def test_workers_are_found_by_the_task_itself_when_none_was_known_at_planning(fleet: LiveFleet) -> None:
    part = partition(fleet, of_shop(None, 3))
    assert part.addresses == {}
    found: list[int] = []
    reading = threading.Thread(target=lambda: found.extend(ids(read(part))))
    reading.start()
    fleet.start(0)
    fleet.begin()
    feed(fleet, numbers(1, 3))
    reading.join(SECONDS)

    assert found == [1, 2, 3]


def test_reading_goes_on_while_redis_is_away(fleet: LiveFleet) -> None:
    fleet.start(0)
    fleet.begin()
    feed(fleet, numbers(1, 5))
    eventually(lambda: fleet.held(0) == 5)
    part = partition(fleet, of_shop(None, 5), registry="redis://127.0.0.1:1/0", slot=7)

    assert ids(read(part)) == [1, 2, 3, 4, 5]


def test_rows_that_are_not_sent_again_are_an_error_that_names_their_streams(fleet: LiveFleet) -> None:
    fleet.start(0)
    fleet.begin()
    ranges = [PlannedRange(StreamKey("shop-1", number), 4, 9) for number in range(6)]
    part = partition(fleet, *ranges, PlannedRange(StreamKey("", 77), None, 3), replay_timeout=0.5)

    with pytest.raises(ReplayError) as failed:
        ids(read(part))

    said = failed.value.message
    assert said.startswith("planned messages of instance 'shop-1' stream 0 (4, 9], instance 'shop-1' stream 1 (4, 9]")
    assert "and 2 more were not sent again within 0.5 seconds (replayTimeout)" in said
    assert "start the connectors that own them, or set failOnDataLoss=false to go on without" in said
    assert failed.value.fields["ranges"] == part.ranges
    assert pickle.loads(pickle.dumps(failed.value)).fields == failed.value.fields


def test_rows_that_are_not_sent_again_are_left_out_without_fail_on_data_loss(
    fleet: LiveFleet, caplog: pytest.LogCaptureFixture
) -> None:
    fleet.start(0)
    fleet.begin()
    feed(fleet, numbers(1, 5))
    eventually(lambda: fleet.held(0) == 5)
    missing = PlannedRange(StreamKey("shop-2", 9), None, 3)
    part = partition(
        fleet,
        missing,
        of_shop(2, 5),
        replay_timeout=0.5,
        fail_on_data_loss=False,
    )

    assert ids(read(part)) == [3, 4, 5]
    assert "instance 'shop-2' stream 9 (None, 3]" in caplog.text
    assert "the batch goes on without them, because failOnDataLoss is false" in caplog.text


def test_an_ephemeral_range_of_a_lost_worker_is_not_waited_for(fleet: LiveFleet) -> None:
    lost = fleet.start(0, own_process=True)
    fleet.begin()
    stream = fleet.connect("shop-1").open("fleeting", ephemeral=True)
    stream.send(b"x")
    eventually(lambda: fleet.held(0) == 1)
    planned = PlannedRange(StreamKey("shop-1", stream.id), None, f"e:0:{lost.generation}:1")
    assert len(ids(read(partition(fleet, planned)))) == 1
    fleet.kill(0)
    fleet.start(0)

    assert ids(read(partition(fleet, planned, replay_timeout=20))) == []


def test_an_ephemeral_range_is_read_from_its_own_slot_whichever_is_asked_first(fleet: LiveFleet) -> None:
    lease = fleet.start(0)
    fleet.start(1)
    fleet.begin()
    stream = fleet.connect("shop-1").open("fleeting", ephemeral=True)
    stream.send(b"x")
    eventually(lambda: fleet.held(0) == 1)
    planned = PlannedRange(StreamKey("shop-1", stream.id), None, f"e:0:{lease.generation}:1")

    assert len(ids(read(partition(fleet, planned, slot=1)))) == 1


def test_secrets_do_not_show(fleet: LiveFleet) -> None:
    shown = repr(partition(fleet, of_shop(None, 1)))

    assert TOKEN not in shown
    assert fleet.options.registry not in shown
