"""The memory of rows that arrived together: counted as a whole, and freed when little of it is still held."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from proving.simulator.worker_validation import validate_buffer
from tests.protocol.strategies import run_of
from tests.worker.rows import ORIGIN
from wallaroo_spark.columnar import StreamRows, by_stream, decode_run
from wallaroo_spark.protocol import DRAFT_LE, Flags, Message
from wallaroo_spark.references import PlannedRange, StreamKey
from wallaroo_spark.worker.buffer.buffer import Buffer
from wallaroo_spark.worker.buffer.segments import LARGEST_MERGED, LOT_OVERHEAD, SEGMENT_OVERHEAD, SMALL_LOT

A, B, C = (StreamKey("shop-1", number) for number in (1, 2, 3))
ROW = 74
"""The counted memory of a message of ten bytes."""


@pytest.fixture
def buffer() -> Buffer:
    made = Buffer(1_000_000, ORIGIN, "increasing")
    for key in (A, B, C):
        made.open(key, f"stream {key.stream_id}", 0)
    return made


def parts(*messages: tuple[int, int], size: int = 10) -> list[StreamRows]:
    """Messages (stream, id) that came in one run."""
    frames, before = [], (0, 0)
    for stream_id, message_id in messages:
        # An id that comes again is a marker behind the message.
        again = (stream_id, message_id) == before
        flags, payload = (Flags.BOUNDARY, None) if again else (Flags.NONE, b"x" * size)
        frames.append(DRAFT_LE.encode(Message(stream_id, message_id, payload, flags)))
        before = (stream_id, message_id)
    (run,) = by_stream(decode_run(run_of(DRAFT_LE, frames), event_time_unit="ns"))
    return run.parts


def take_in(buffer: Buffer, *messages: tuple[int, int], size: int = 10) -> None:
    found = parts(*messages, size=size)
    held = buffer.hold(found[0].lot)
    pairs = [(buffer.streams[StreamKey("shop-1", part.stream_id)], part) for part in found]
    buffer.append(held, pairs, 0, "shop-1")
    buffer.settle(held)
    validate_buffer(buffer)


def values(buffer: Buffer, key: StreamKey, start: int | None, end: int) -> list[int]:
    found = buffer.find(PlannedRange(key, start, end))
    assert found is not None
    return [value for part, _ in found.slices for value in part.stored["message_id"].to_pylist()]


def test_a_lot_counts_whole_with_each_of_its_segments(buffer: Buffer) -> None:
    take_in(buffer, (1, 1), (2, 1), (1, 2))
    assert buffer.used == LOT_OVERHEAD + 2 * SEGMENT_OVERHEAD + 3 * ROW


def test_committed_rows_of_a_lot_count_while_half_of_the_lot_is_held(buffer: Buffer) -> None:
    take_in(buffer, (1, 1), (1, 2), (2, 1), (2, 2))
    buffer.commit({A: 2})
    validate_buffer(buffer)
    assert buffer.used == LOT_OVERHEAD + SEGMENT_OVERHEAD + 4 * ROW
    assert values(buffer, B, None, 2) == [1, 2]


def test_when_less_than_half_is_held_the_rest_moves_and_the_memory_is_free(buffer: Buffer) -> None:
    take_in(buffer, (1, 1), (3, 1), (1, 2), (2, 1), (3, 2), (1, 3), (2, 2), (1, 4), (1, 5))
    (before,) = {segment.held.lot for ledger in buffer.streams.values() for segment in ledger.segments}
    buffer.commit({A: 5, B: 1})
    validate_buffer(buffer)
    assert buffer.used == LOT_OVERHEAD + 2 * SEGMENT_OVERHEAD + 3 * ROW
    (after,) = {segment.held.lot for ledger in buffer.streams.values() for segment in ledger.segments}
    assert (before.stored.num_rows, after.stored.num_rows) == (9, 3)
    assert values(buffer, B, 1, 2) == [2]
    assert values(buffer, C, None, 2) == [1, 2]


def test_a_range_that_was_found_before_a_change_is_delivered_unchanged(buffer: Buffer) -> None:
    take_in(buffer, (1, 1), (1, 2), (1, 3), (2, 1))
    found = buffer.find(PlannedRange(B, None, 1))
    assert found is not None
    buffer.commit({A: 3})
    validate_buffer(buffer)
    assert [part.stored["message_id"].to_pylist() for part, _ in found.slices] == [[1]]


def test_a_lot_that_is_mostly_replayed_is_not_kept_whole(buffer: Buffer) -> None:
    take_in(buffer, (1, 1), (1, 2), (1, 3))
    buffer.commit({A: 3})
    buffer.open(A, "stream 1", 0)
    take_in(buffer, (1, 1), (1, 2), (1, 3), (1, 4))
    assert buffer.used == LOT_OVERHEAD + SEGMENT_OVERHEAD + ROW
    assert values(buffer, A, 3, 4) == [4]


def test_new_messages_between_replayed_ones_lie_in_a_lot_of_their_own(buffer: Buffer) -> None:
    take_in(buffer, (1, 1), (1, 5), (1, 5), (1, 6), (2, 1), (2, 2), (2, 3), (2, 4))
    assert values(buffer, A, None, 6) == [1, 5, 6]
    assert values(buffer, B, None, 4) == [1, 2, 3, 4]


def test_a_stream_that_is_dropped_frees_its_part_at_once(buffer: Buffer) -> None:
    take_in(buffer, (1, 1), (2, 1), (2, 2), (2, 3))
    buffer.drop(buffer.streams[A])
    validate_buffer(buffer)
    assert buffer.used == LOT_OVERHEAD + SEGMENT_OVERHEAD + 3 * ROW


def lots_of(buffer: Buffer) -> int:
    return len({segment.held for ledger in buffer.streams.values() for segment in ledger.segments})


def test_messages_that_came_one_by_one_are_put_together(buffer: Buffer) -> None:
    for number in range(1, 51):
        take_in(buffer, (1 + number % 2, number))
    assert buffer.used == 50 * (LOT_OVERHEAD + SEGMENT_OVERHEAD + ROW)
    found = buffer.find(PlannedRange(A, None, 50))
    assert found is not None

    buffer.merge()
    validate_buffer(buffer)
    assert buffer.used == LOT_OVERHEAD + 50 * (SEGMENT_OVERHEAD + ROW)
    assert values(buffer, A, None, 50) == list(range(2, 51, 2))
    assert values(buffer, B, None, 49) == list(range(1, 51, 2))
    assert [v for part, _ in found.slices for v in part.stored["message_id"].to_pylist()] == list(range(2, 51, 2))
    buffer.commit({A: 50, B: 49})
    assert buffer.used == 0


def test_a_lot_of_several_streams_is_put_together_with_its_neighbours(buffer: Buffer) -> None:
    take_in(buffer, (1, 1), (2, 1))
    take_in(buffer, (1, 2), (2, 2))
    buffer.merge()
    validate_buffer(buffer)
    assert lots_of(buffer) == 1

    buffer.commit({A: 2, B: 2})
    validate_buffer(buffer)
    assert buffer.used == 0


@pytest.mark.no_cover
def test_many_small_lots_are_put_together_without_being_told_to(buffer: Buffer) -> None:
    for number in range(1, 401):
        take_in(buffer, (1, number))
    assert lots_of(buffer) < 300
    assert values(buffer, A, None, 400) == list(range(1, 401))


def test_nothing_is_put_together_across_a_large_lot(buffer: Buffer) -> None:
    for number in (1, 2):
        take_in(buffer, (1, number))
    take_in(buffer, (1, 3), size=SMALL_LOT)
    for number in (4, 5):
        take_in(buffer, (1, number))
    buffer.merge()
    validate_buffer(buffer)
    assert lots_of(buffer) == 3
    serials = [segment.held.serial for segment in buffer.streams[A].segments]
    assert serials == sorted(serials)


def test_joined_segments_do_not_become_too_large(buffer: Buffer) -> None:
    size = SMALL_LOT // 2
    for number in range(1, 2 + 2 * LARGEST_MERGED // size):
        take_in(buffer, (1, number), size=size)
    buffer.merge()
    validate_buffer(buffer)
    assert lots_of(buffer) >= 2
    assert all(segment.held.size <= LARGEST_MERGED for segment in buffer.streams[A].segments)


@given(
    st.lists(
        st.one_of(
            st.tuples(st.sampled_from((1, 2, 3)), st.sampled_from((10, SMALL_LOT))),
            st.sampled_from(("merge", "commit")),
        ),
        max_size=60,
    )
)
def test_each_stream_keeps_its_order_through_joins_and_commits(
    events: list[tuple[int, int] | str],
) -> None:
    buffer = Buffer(1 << 30, ORIGIN, "increasing")
    for key in (A, B, C):
        buffer.open(key, "a stream", 0)
    last, committed = dict.fromkeys((A, B, C), 0), dict.fromkeys((A, B, C), 0)
    for event in events:
        if event == "merge":
            buffer.merge()
        elif event == "commit":
            key = max(last, key=lambda key: last[key] - committed[key])
            if last[key] > committed[key]:
                committed[key] += (last[key] - committed[key] + 1) // 2
                buffer.commit({key: committed[key]})
        else:
            assert isinstance(event, tuple)
            stream_id, size = event
            key = StreamKey("shop-1", stream_id)
            last[key] += 1
            take_in(buffer, (stream_id, last[key]), size=size)
        validate_buffer(buffer)
    for key in (A, B, C):
        if last[key] > committed[key]:
            held = values(buffer, key, committed[key] or None, last[key])
            assert held == list(range(committed[key] + 1, last[key] + 1))
            serials = [segment.held.serial for segment in buffer.streams[key].segments]
            assert serials == sorted(serials)
