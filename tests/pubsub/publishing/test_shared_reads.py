"""Subscribers that are sent the same file at the same time share one reading of it."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import pytest

from wallaroo_spark.errors import CheckpointError
from wallaroo_spark.pubsub.messages import Data
from wallaroo_spark.pubsub.publishing.publication import SHARED_BYTES, SHARED_READINGS, Readings

QUARTER = b"x" * (SHARED_BYTES // 4)


class File:
    """So many messages; counts how often they were read, and fails at ``broken``."""

    def __init__(self, messages: int, payload: bytes = b"x", broken: int | None = None) -> None:
        self.readings = 0
        self._messages, self._payload, self._broken = messages, payload, broken

    def read(self) -> Iterator[Data]:
        self.readings += 1
        for number in range(self._messages):
            if number == self._broken:
                raise CheckpointError(f"message {number} cannot be read")
            yield Data(number, self._payload)


async def follow(readings: Readings, key: str, file: File) -> list[object]:
    found: list[object] = []
    async for message in readings.messages(key, file.read):
        found.append(message.time)
        await asyncio.sleep(0)
    return found


async def test_subscribers_that_are_woken_together_share_one_reading() -> None:
    readings, file = Readings(), File(5)
    found = await asyncio.gather(*(follow(readings, "a", file) for _ in range(200)))

    assert found == [[0, 1, 2, 3, 4]] * 200
    assert file.readings == 1
    assert await follow(readings, "a", file) == [0, 1, 2, 3, 4]
    assert file.readings == 1


async def test_a_subscriber_that_falls_behind_reads_the_file_alone() -> None:
    readings, file = Readings(), File(12, QUARTER)
    slow = readings.messages("a", file.read)
    assert (await anext(slow)).time == 0
    assert await follow(readings, "a", file) == list(range(12))

    assert [message.time async for message in slow] == list(range(1, 12))
    assert file.readings == 2
    assert await follow(readings, "a", file) == list(range(12))
    assert file.readings == 3


async def test_a_subscriber_that_leaves_takes_nothing_from_the_others() -> None:
    readings, file = Readings(), File(3)
    both = [asyncio.ensure_future(follow(readings, "a", file)) for _ in range(2)]
    await asyncio.sleep(0)
    both[0].cancel()

    assert await both[1] == [0, 1, 2]
    assert file.readings == 1
    with pytest.raises(asyncio.CancelledError):
        await both[0]


async def test_a_failed_reading_fails_for_its_users_and_for_no_later_one() -> None:
    readings, broken, mended = Readings(), File(3, broken=1), File(3)
    ends = await asyncio.gather(*(follow(readings, "a", broken) for _ in range(5)), return_exceptions=True)

    assert [str(end) for end in ends] == ["message 1 cannot be read"] * 5
    assert broken.readings == 1
    assert await follow(readings, "a", mended) == [0, 1, 2]


async def test_as_many_readings_are_shared_as_memory_has_room_for() -> None:
    readings, files = Readings(), [File(2) for _ in range(SHARED_READINGS + 1)]
    started = [readings.messages(str(number), file.read) for number, file in enumerate(files)]
    for one in started:
        await anext(one)
    for number, file in enumerate(files):
        assert await follow(readings, str(number), file) == [0, 1]
    assert [file.readings for file in files] == [1] * SHARED_READINGS + [2]
    for one in started:
        assert [message.time async for message in one] == [1]

    # Nobody is in them any more, so a new one takes the place of one of them.
    newest = File(2)
    assert await follow(readings, "newest", newest) == await follow(readings, "newest", newest) == [0, 1]
    assert newest.readings == 1
