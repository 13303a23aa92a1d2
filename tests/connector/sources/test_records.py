"""Sources that are not files."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from wallaroo_spark.connector import Record, Records
from wallaroo_spark.connector.record import GroupedRecords
from wallaroo_spark.errors import ReplayError


def read(source: Records, after: int | None) -> list[int | None]:
    records = source.read(after)
    assert isinstance(records, Iterator)
    return [record.id for record in records]


class TestRecords:
    @given(st.lists(st.integers(0, 100), unique=True).map(sorted), st.none() | st.integers(0, 100))
    def test_committed_records_are_skipped(self, ids: list[int], after: int | None) -> None:
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


class TestRecordsInBatches:
    def read(self, items: list[Any], after: int | None, **settings: Any) -> list[list[int]]:
        found = Records("orders", lambda: items, **settings).read(after)
        assert isinstance(found, GroupedRecords)
        return [list(batch.ids or ()) for batch in found.groups]

    def test_committed_records_are_skipped(self, small_groups: None) -> None:
        items = [(number, b"x") for number in range(1, 9)]
        assert self.read(items, None) == [[1, 2, 3], [4, 5, 6], [7, 8]]
        assert self.read(items, 5) == [[6], [7, 8]]
        assert self.read(items, 6) == [[7, 8]]
        assert self.read(items, 9) == []

    def test_opaque_references_are_looked_for(self, small_groups: None) -> None:
        items = [(number, b"x") for number in (30, 10, 20, 50)]
        assert self.read(items, 10, opaque=True) == [[20], [50]]
        assert self.read(items, 20, opaque=True) == [[50]]
        with pytest.raises(ReplayError, match="no record with reference 99"):
            self.read(items, 99, opaque=True)

    def test_a_record_without_a_reference_is_told_in_its_turn(self) -> None:
        source = Records("orders", lambda: [Record(1, b"x"), Record(None, b"y")]).read(None)
        assert next(source) == Record(1, b"x")  # type: ignore[arg-type]  # a plain iterator
        with pytest.raises(ReplayError, match="without a reference"):
            next(source)  # type: ignore[arg-type]  # a plain iterator
