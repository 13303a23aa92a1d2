"""Positions of producers: sequences that begin again, repetitions, gaps and epochs."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest

from tests.doors.kafka.batches import batch
from wallaroo_spark.doors.kafka.apis import Code
from wallaroo_spark.doors.kafka.positions import fence, number, place
from wallaroo_spark.doors.kafka.record_batch import BatchHead, BatchRefused, head_of

LAST = (1 << 31) - 1


def head(sequence: int, count: int = 1, epoch: int = 0) -> BatchHead:
    return replace(head_of(batch(producer=7, epoch=epoch, sequence=0)), sequence=sequence, count=count)


def test_sequences_begin_again_behind_the_last_one() -> None:
    first = place(head(LAST - 2, 5), None)
    assert (first.first, first.last) == (LAST - 1, LAST + 3)
    again = place(head(LAST - 2, 5), first.last)
    assert again == replace(first, repeated=True)
    behind = place(head(2, 3), first.last)
    assert (behind.first, behind.last, behind.repeated) == (LAST + 4, LAST + 6, False)
    with pytest.raises(BatchRefused):
        place(head(3), first.last)


def test_a_position_is_known_again_from_its_reference_alone() -> None:
    chance = random.Random(1)
    for _ in range(200):
        epoch, count = chance.randrange(1 << 15), chance.randrange(1 << 40)
        position, size = (epoch << 48) + count, chance.randrange(1, 5000)
        found = place(head(count % (LAST + 1), size, epoch), position)
        assert (found.first, found.last, found.repeated) == (position + 1, position + size, False)
        assert place(head(count % (LAST + 1), size, epoch), found.last) == replace(found, repeated=True)


def test_what_is_neither_next_nor_repeated_is_refused() -> None:
    position = place(head(0, 10), None).last
    for sequence, count in ((11, 1), (9, 2), (0, 11), (1 << 30, 1), (LAST, 1)):
        with pytest.raises(BatchRefused) as caught:
            place(head(sequence, count), position)
        assert caught.value.code is Code.OUT_OF_ORDER_SEQUENCE
    assert place(head(3, 4), position).repeated


def test_a_greater_epoch_begins_at_0_and_an_older_one_has_ended() -> None:
    position = place(head(0, 10), None).last
    found = place(head(0, 1, epoch=3), position)
    assert found.first == (3 << 48) + 1 > position
    with pytest.raises(BatchRefused) as caught:
        place(head(10, 1, epoch=2), found.last)
    assert caught.value.code is Code.INVALID_PRODUCER_EPOCH
    with pytest.raises(BatchRefused):
        place(head(10, 1, epoch=4), found.last)


def test_a_fence_that_was_given_up_itself_stays_the_same() -> None:
    position = place(head(0, 10, epoch=3), None).last
    behind = fence(position)
    assert fence(behind) == behind == 4 << 48
    with pytest.raises(BatchRefused) as caught:
        place(head(10, 1, epoch=3), behind)
    assert caught.value.code is Code.UNKNOWN_PRODUCER_ID
    assert place(head(0, 1, epoch=4), behind).first == behind + 1


def test_records_without_sequences_are_numbered_from_where_they_are_told() -> None:
    assert (number(5, 1000).first, number(5, 1000).last) == (1000, 1004)
