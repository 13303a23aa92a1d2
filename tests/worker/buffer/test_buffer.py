"""All streams of a worker: memory, shared limits, and streams without held rows."""

from __future__ import annotations

import pytest

from proving.simulator.worker_validation import validate_buffer
from tests.worker.bench import extents
from tests.worker.rows import ORIGIN, rows, slice_ids
from wallaroo_spark.columnar import StreamRows
from wallaroo_spark.errors import RemoteProtocolError
from wallaroo_spark.protocol import Fault
from wallaroo_spark.references import PlannedRange, Reference, StreamKey
from wallaroo_spark.worker.buffer.buffer import STREAM_OVERHEAD, Buffer
from wallaroo_spark.worker.buffer.found import FoundRange
from wallaroo_spark.worker.buffer.held_stream import Extent, HeldStream
from wallaroo_spark.worker.buffer.segments import LOT_OVERHEAD, SEGMENT_OVERHEAD

A, B, C = StreamKey("shop-1", 1), StreamKey("shop-1", 2), StreamKey("shop-2", 1)
BUDGET = 1_000_000


@pytest.fixture
def buffer() -> Buffer:
    return Buffer(BUDGET, ORIGIN, "increasing")


def fill(buffer: Buffer, key: StreamKey, *ids: int, ephemeral: bool = False) -> HeldStream:
    ledger = buffer.streams.get(key) or buffer.open(key, f"stream {key.stream_id}", 0)
    take_in(buffer, ledger, rows(ids, ephemeral=ephemeral))
    validate_buffer(buffer)
    return ledger


def take_in(buffer: Buffer, ledger: HeldStream, part: StreamRows) -> None:
    held = buffer.hold(part.lot)
    buffer.append(held, [(ledger, part)], 0, ledger.key.scope)
    buffer.settle(held)


def found_ids(found: FoundRange | None) -> list[int]:
    assert found is not None
    return [value for part, _ in found.slices for value in slice_ids(part)]


def test_accepted_rows_are_counted_and_committed_rows_are_freed(buffer: Buffer) -> None:
    fill(buffer, A, 1, 2)
    fill(buffer, B, 1)
    assert buffer.used == 2 * (LOT_OVERHEAD + SEGMENT_OVERHEAD) + 3 * 74
    assert buffer.rows == 3

    buffer.commit({A: 2, B: 1})
    validate_buffer(buffer)
    assert buffer.used == 0
    assert buffer.rows == 3


def test_replays_cost_nothing(buffer: Buffer) -> None:
    fill(buffer, A, 1, 2)
    buffer.open(A, "stream 1", 0)
    used, version = buffer.used, buffer.version
    fill(buffer, A, 1, 2)

    assert (buffer.used, buffer.version, buffer.rows) == (used, version, 2)


def test_rows_accepted_before_a_violation_stay_counted(buffer: Buffer) -> None:
    good, bad = buffer.open(A, "", 0), fill(buffer, B, 1)

    several, ephemeral = rows([1, 2]), rows([2], ephemeral=True)
    with pytest.raises(RemoteProtocolError, match="EPHEMERAL"):
        buffer.append(buffer.hold(several.lot), [(good, several), (bad, ephemeral)], 0, "shop-1")

    validate_buffer(buffer)
    assert buffer.rows == 3


def test_streams_themselves_have_a_limit(buffer: Buffer) -> None:
    most = BUDGET // STREAM_OVERHEAD
    for number in range(most):
        buffer.open(StreamKey("shop-1", number), "", 0)

    with pytest.raises(RemoteProtocolError, match=f"this worker has {most} streams, as many as its memoryBudget") as e:
        buffer.open(StreamKey("shop-1", most), "", 0)
    assert e.value.fields["fault"] is Fault.TOO_MANY_STREAMS

    buffer.forget(buffer.streams[StreamKey("shop-1", 0)])
    buffer.open(StreamKey("shop-1", most), "", 0)
    validate_buffer(buffer)


def test_names_of_streams_count_too(buffer: Buffer) -> None:
    buffer.open(A, "x" * 60_000, 0)
    assert buffer.overhead == STREAM_OVERHEAD + 60_000

    buffer.open(A, "y", 0)
    assert buffer.overhead == STREAM_OVERHEAD + 1
    validate_buffer(buffer)


def test_a_stream_that_comes_back_counts_positions_on(buffer: Buffer) -> None:
    ledger = fill(buffer, A, 1, 2, 3, ephemeral=True)
    buffer.commit({A: "e:3:7:3"})
    buffer.forget(ledger)
    fill(buffer, A, 1, 2, ephemeral=True)

    assert extents(buffer, {A: "e:3:7:3"}) == {A: Extent("e:3:7:5", 2, 2 * 74)}
    assert found_ids(buffer.find(PlannedRange(A, "e:3:7:3", "e:3:7:5"))) == [1, 2]


def test_a_batch_takes_all_streams(buffer: Buffer) -> None:
    fill(buffer, A, 1, 2)
    fill(buffer, C, 7)
    buffer.open(B, "empty", 0)

    assert extents(buffer, {A: 1}) == {A: Extent(2, 1, 74), C: Extent(7, 1, 74)}
    assert extents(buffer, {A: 2, C: 7}) == {}


def test_a_commit_waits_for_its_acknowledgement_until_the_buffer_is_told(buffer: Buffer) -> None:
    fill(buffer, A, 1, 2, 3)
    fill(buffer, B, 1, ephemeral=True)
    fill(buffer, C, 7)

    assert not buffer.owes({})
    assert not buffer.owes({A: 0})
    assert buffer.owes({A: 2})
    assert buffer.owes({B: "e:3:7:4"})
    buffer.commit({A: 2, B: "e:3:7:4"})
    assert not buffer.owes({A: 2, B: "e:3:7:4"})
    assert buffer.owes({A: 3})


def test_limits_are_shared_by_the_rows_of_each_stream(buffer: Buffer) -> None:
    fill(buffer, A, *range(1, 31))
    fill(buffer, B, *range(1, 11))

    assert extents(buffer, {}, max_rows=1000)[A].rows == 30
    limited = extents(buffer, {}, max_rows=20)
    assert (limited[A].rows, limited[B].rows) == (15, 5)
    limited = extents(buffer, {}, max_bytes=74 * 20)
    assert (limited[A].rows, limited[B].rows) == (15, 5)
    limited = extents(buffer, {}, max_rows=4, max_bytes=74 * 20)
    assert (limited[A].rows, limited[B].rows) == (3, 1)
    assert extents(buffer, {B: 10}, max_rows=3) == {A: Extent(3, 3, 3 * 74)}


def test_every_stream_may_take_one_message(buffer: Buffer) -> None:
    fill(buffer, A, *range(1, 31))
    fill(buffer, B, 1)

    limited = extents(buffer, {}, max_rows=1)
    assert (limited[A].rows, limited[B].rows) == (1, 1)


def test_a_planned_range_comes_in_pieces_with_the_end_of_each(buffer: Buffer) -> None:
    fill(buffer, A, 1, 2)
    fill(buffer, A, 3, 4)
    found = buffer.find(PlannedRange(A, 1, 3))

    assert found is not None
    assert found.name == "stream 1"
    assert [(slice_ids(part), reference) for part, reference in found.slices] == [([2], 2), ([3], 3)]
    assert buffer.find(PlannedRange(A, 1, 9)) is None


def test_a_range_of_a_stream_that_nobody_sends_is_waited_for(buffer: Buffer) -> None:
    assert buffer.find(PlannedRange(A, None, 3)) is None


def test_an_ephemeral_range_that_is_gone_is_not_waited_for(buffer: Buffer) -> None:
    assert found_ids(buffer.find(PlannedRange(A, None, "e:3:6:9"))) == []


def test_an_ephemeral_range_of_another_slot_is_not_called_gone(buffer: Buffer) -> None:
    assert buffer.find(PlannedRange(A, None, "e:2:6:9")) is None
    put = fill(buffer, A, 1)
    assert put.range(None, "e:2:6:9") is None


def test_a_commit_of_a_stream_that_is_not_here_is_remembered(buffer: Buffer) -> None:
    assert buffer.commit({A: 5, C: "e:0:1:2"}) == []

    assert buffer.reference(A) == 5
    assert buffer.reference(B) is None
    assert buffer.reference(C) is None
    assert buffer.open(A, "", 5).committed == 5
    validate_buffer(buffer)


def test_a_commit_says_which_streams_moved(buffer: Buffer) -> None:
    a, _ = fill(buffer, A, 1, 2), fill(buffer, B, 1)

    assert buffer.commit({A: 2}) == [a]
    assert buffer.commit({A: 1}) == []
    assert buffer.reference(A) == 2


def test_an_instance_is_told_the_committed_references_of_its_streams(buffer: Buffer) -> None:
    buffer.rewind({A: 5, B: "e:0:1:2", C: 7})
    buffer.commit({A: 6})

    assert list(buffer.resumable("shop-1")) == [(A, 6)]
    assert list(buffer.resumable("shop-2")) == [(C, 7)]
    assert list(buffer.resumable("shop-3")) == []
    buffer.rewind({})
    assert list(buffer.resumable("shop-1")) == []
    validate_buffer(buffer)


def test_a_rewind_names_the_messages_to_send_again(buffer: Buffer) -> None:
    buffer.rewind({A: 5, B: 5, C: 5})
    fill(buffer, A, 6, 7)

    assert buffer.rewind({A: 4, B: 5, C: 6}) == [A]
    validate_buffer(buffer)
    assert buffer.used == 0


@pytest.mark.parametrize(
    ("message_ids", "before", "after", "back"),
    [
        ("increasing", 5, 4, True),
        ("increasing", 5, None, True),
        ("increasing", 5, 6, False),
        ("increasing", 5, 5, False),
        ("increasing", "e:0:1:2", None, False),
        ("opaque", 5, 6, True),
        ("opaque", 5, 5, False),
    ],
)
def test_a_stream_of_which_nothing_is_held_may_be_needed_again_too(
    message_ids: str, before: Reference, after: Reference | None, back: bool
) -> None:
    buffer = Buffer(BUDGET, ORIGIN, message_ids)
    buffer.rewind({A: before})

    assert buffer.rewind({} if after is None else {A: after}) == ([A] if back else [])


def test_streams_can_be_dropped(buffer: Buffer) -> None:
    ledger = fill(buffer, A, 1, 2)
    version = buffer.version
    buffer.drop(ledger)
    validate_buffer(buffer)

    assert buffer.used == 0
    assert buffer.version > version
    assert buffer.streams == {A: ledger}


def test_the_rest_behind_the_last_stable_reference_can_be_dropped(buffer: Buffer) -> None:
    ledger = buffer.open(A, "", 0)
    take_in(buffer, ledger, rows([1]))
    take_in(buffer, ledger, rows([2, 3], unstable=[2, 3]))
    buffer.drop_unstable(ledger)
    validate_buffer(buffer)

    assert buffer.used == LOT_OVERHEAD + SEGMENT_OVERHEAD + 74


def test_the_end_of_a_stream_is_news(buffer: Buffer) -> None:
    ledger, version = fill(buffer, A, 1), buffer.version
    buffer.end(ledger)

    assert ledger.ended
    assert buffer.version > version
