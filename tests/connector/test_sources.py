"""Sources that are not files."""

from __future__ import annotations

import asyncio
import io
import os
from collections.abc import AsyncIterator, Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from wallaroo_spark.connector import Record, Records, Stdin, sources
from wallaroo_spark.errors import ConfigurationError, ReplayError

pytestmark = pytest.mark.timeout(30)


def read(source: Records, after: int | None) -> list[int | None]:
    records = source.read(after)
    assert isinstance(records, Iterator)
    return [record.id for record in records]


class TestRecords:
    @given(st.lists(st.integers(0, 100), unique=True).map(sorted), st.none() | st.integers(0, 100))
    def test_what_is_committed_is_passed_over(self, ids: list[int], after: int | None) -> None:
        source = Records("orders", lambda: [(number, b"x") for number in ids])
        assert read(source, after) == [number for number in ids if after is None or number > after]

    def test_opaque_references_are_looked_for(self) -> None:
        source = Records("orders", lambda: [Record(number, b"x") for number in (30, 10, 20)], opaque=True)
        assert read(source, None) == [30, 10, 20]
        assert read(source, 10) == [20]
        assert read(source, 20) == []

    def test_an_opaque_reference_that_is_not_there_is_an_error(self) -> None:
        with pytest.raises(ReplayError, match="no record with reference 99"):
            read(Records("orders", lambda: [(30, b"x")], opaque=True), 99)

    def test_a_record_without_a_reference_is_an_error(self) -> None:
        with pytest.raises(ReplayError, match="without a reference"):
            read(Records("orders", lambda: [Record(None, b"x")]), None)

    async def test_asynchronous_iterables_will_do(self) -> None:
        async def numbers() -> AsyncIterator[tuple[int, bytes]]:
            for number in (1, 2, 3):
                yield number, b"x"

        records = Records("orders", numbers).read(1)
        assert isinstance(records, AsyncIterator)
        assert [record.id async for record in records] == [2, 3]


class TestStdin:
    async def test_lines_come_without_their_newlines_and_without_references(self) -> None:
        source = Stdin(io.BytesIO(b"one\r\n\ntwo"))
        assert [record async for record in source.read(None)] == [
            Record(None, b"one\r"),
            Record(None, b""),
            Record(None, b"two"),
        ]
        assert not source.replayable

    async def test_no_more_lines_are_read_ahead_than_allowed(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(sources, "PIECE_BYTES", 2)
        file = io.BytesIO(b"x\n" * 1000)
        records = Stdin(file, most_waiting=3).read(None)
        for taken in range(1, 500):
            await anext(records)
            # Those that wait, the one taken, and one that the reader has in its hand.
            assert file.tell() <= 2 * (taken + 3 + 1)
        assert len([record async for record in records]) == 501

    async def test_one_who_stops_reading_does_not_wait_for_the_next_line(self) -> None:
        receiving, sending = os.pipe()
        with os.fdopen(receiving, "rb") as file, os.fdopen(sending, "wb", buffering=0) as pipe:
            pipe.write(b"one\n")
            records = Stdin(file).read(None)
            assert await anext(records) == Record(None, b"one")
            waiting = asyncio.ensure_future(anext(records))
            await asyncio.sleep(0)
            waiting.cancel()
            await asyncio.wait([waiting])
            assert waiting.cancelled()

    async def test_a_line_without_end_is_given_up(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(sources, "LONGEST_LINE", 30)
        with pytest.raises(ConfigurationError, match="more than 30 bytes"):
            await anext(Stdin(io.BytesIO(b"x" * 100)).read(None))

    async def test_a_file_that_cannot_be_read_is_an_error(self) -> None:
        file = io.BytesIO()
        file.close()
        with pytest.raises(ValueError, match="closed file"):
            await anext(Stdin(file).read(None))
