"""A worker offers what it holds behind the start that it was told, or behind what is committed; idle streams cost
nothing.
"""

from __future__ import annotations

import pytest

from tests.worker.bench import extents
from tests.worker.buffer.test_buffer import A, B, C, fill, take_in
from tests.worker.rows import ORIGIN, rows
from wallaroo_spark.inner.calls import PlanQuestion, StreamOffer
from wallaroo_spark.references import StreamKey
from wallaroo_spark.worker.buffer.buffer import Buffer
from wallaroo_spark.worker.buffer.held_stream import HeldStream
from wallaroo_spark.worker.buffer.offers import offer

SIZE = 74


@pytest.fixture
def buffer() -> Buffer:
    return Buffer(1 << 30, ORIGIN, "increasing")


def test_where_no_start_is_named_the_committed_reference_counts_and_is_said(buffer: Buffer) -> None:
    fill(buffer, A, 1, 2, 3)
    fill(buffer, B, 5)
    buffer.commit({A: 1})

    answer = offer(buffer, PlanQuestion())

    assert answer.offers == {A: StreamOffer(1, 3, 2, 2 * SIZE), B: StreamOffer(None, 5, 1, SIZE)}
    assert (answer.rows, answer.size) == (3, 3 * SIZE)


def test_a_named_start_counts_and_comes_back_until_its_commit_has_arrived(buffer: Buffer) -> None:
    fill(buffer, A, 1, 2, 3)
    fill(buffer, B, 5)
    fill(buffer, C, 7)
    question = PlanQuestion({A: 2, B: 5, C: None, StreamKey("shop-9", 9): 4})

    answer = offer(buffer, question)
    assert answer.offers == {A: StreamOffer(2, 3, 1, SIZE), C: StreamOffer(None, 7, 1, SIZE)}
    assert answer.uncommitted == [B]

    buffer.commit({B: 5})
    assert offer(buffer, question).uncommitted == []


def test_limits_hold_for_all_streams_and_the_whole_is_said_too(buffer: Buffer) -> None:
    fill(buffer, A, *range(1, 31))
    fill(buffer, B, *range(1, 11))

    answer = offer(buffer, PlanQuestion(max_rows=20))
    assert {key: one.rows for key, one in answer.offers.items()} == {A: 15, B: 5}
    assert (answer.rows, answer.size) == (40, 40 * SIZE)
    assert sum(one.bytes for one in offer(buffer, PlanQuestion(max_bytes=20 * SIZE)).offers.values()) == 20 * SIZE


def test_of_an_ephemeral_stream_that_comes_from_another_buffer_the_start_must_be_named(buffer: Buffer) -> None:
    buffer.rewind({A: "e:9:1:40"})
    fill(buffer, A, 1, 2, 3, ephemeral=True)

    answer = offer(buffer, PlanQuestion())
    assert (answer.offers, answer.unknown) == ({}, [A])
    named = offer(buffer, PlanQuestion({A: "e:9:1:40"}))
    assert named.offers == {A: StreamOffer("e:9:1:40", "e:3:7:3", 3, 3 * SIZE)}
    assert named.unknown == []


def test_opaque_ids_are_found_behind_a_named_start() -> None:
    buffer = Buffer(1 << 30, ORIGIN, "opaque")
    fill(buffer, A, 7, 9, 2)
    buffer.commit({A: 7})

    assert offer(buffer, PlanQuestion()).offers == {A: StreamOffer(7, 2, 2, 2 * SIZE)}
    assert offer(buffer, PlanQuestion({A: 9})).offers == {A: StreamOffer(9, 2, 1, SIZE)}


def test_streams_without_rows_are_not_looked_at(buffer: Buffer, monkeypatch: pytest.MonkeyPatch) -> None:
    for number in range(1000):
        key = StreamKey("shop", number)
        fill_quietly(buffer, key)
    buffer.commit({StreamKey("shop", number): 1 for number in range(1000)})
    fill(buffer, A, 1)
    asked: list[StreamKey] = []
    extent = HeldStream.extent
    monkeypatch.setattr(HeldStream, "extent", lambda self, *given: asked.append(self.key) or extent(self, *given))

    assert list(offer(buffer, PlanQuestion()).offers) == [A]
    assert extents(buffer, {}).keys() == {A}
    assert set(asked) == {A}
    assert [stream.key for stream in buffer.with_rows()] == [A]


def fill_quietly(buffer: Buffer, key: StreamKey) -> None:
    """Fill a stream without the checks, whose cost follows the number of streams."""
    take_in(buffer, buffer.open(key, f"stream {key.stream_id}", 0), rows((1,)))
