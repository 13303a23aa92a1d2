"""Records one by one and as columns."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from wallaroo_spark.connector import Record
from wallaroo_spark.connector import record as message_columns_module
from wallaroo_spark.connector.record import GroupedRecords, MessageColumns, grouped
from wallaroo_spark.errors import LocalProtocolError

records = st.builds(
    Record,
    st.none() | st.integers(0, 9),
    st.binary(max_size=3),
    st.none() | st.integers(0, 9),
    st.none() | st.just(b"k"),
)
pairs = st.tuples(st.integers(0, 9), st.binary(max_size=3))


@given(st.lists(records | pairs, max_size=12) | st.lists(records, max_size=12) | st.lists(pairs, max_size=12))
def test_batches_hold_the_records_in_order(items: list[Any]) -> None:
    expected = [item if isinstance(item, Record) else Record(*item) for item in items]
    assert [record for batch in grouped(iter(items)) for record in batch.records()] == expected


@pytest.mark.usefixtures("small_groups")
class TestGrouping:
    def test_as_many_as_there_are_go_together(self) -> None:
        found = list(grouped((number, b"%d" % number) for number in range(7)))
        assert [tuple(batch.ids or ()) for batch in found] == [(0, 1, 2), (3, 4, 5), (6,)]

    def test_large_ones_go_in_small_batches(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(message_columns_module, "GROUP_BYTES", 3)
        assert [len(batch.payloads) for batch in grouped(iter([Record(1, b"xx")] * 3))] == [2, 1]

    def test_an_iterator_that_takes_its_time_is_not_waited_for(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(message_columns_module, "GROUP_SECONDS", -1.0)
        read: list[int] = []

        def slow() -> Iterator[tuple[int, bytes]]:
            for number in range(3):
                read.append(number)
                yield number, b"x"

        for number, batch in enumerate(grouped(slow())):
            assert (list(batch.ids or ()), read[-1]) == ([number], number)

    def test_the_error_of_an_iterator_comes_after_its_items(self) -> None:
        def broken() -> Iterator[tuple[int, bytes]]:
            yield from ((number, b"x") for number in range(4))
            raise OSError("the disk is on fire")

        found = grouped(broken())
        assert [len(next(found).payloads), len(next(found).payloads)] == [3, 1]
        with pytest.raises(OSError, match="on fire"):
            next(found)

    @pytest.mark.parametrize(
        ("odd", "complaint"),
        [
            (Record(2, "text"), "a payload is bytes, and this one is str"),  # type: ignore[arg-type]  # refused
            (Record(2, b"", datetime(2026, 1, 1)), "no time zone"),
            (Record(2, b"", None, 7), "a key is bytes"),  # type: ignore[arg-type]  # refused
            ((2, "text"), "a payload is bytes"),
        ],
    )
    def test_an_invalid_record_is_an_error_after_the_records_before_it(self, odd: Any, complaint: str) -> None:
        found = grouped(iter([Record(1, b"a"), odd, Record(3, b"c")]))
        assert list(next(found).records()) == [Record(1, b"a")]
        with pytest.raises(LocalProtocolError, match=complaint):
            next(found)

    def test_convertible_values_are_converted(self) -> None:
        moment = datetime(1970, 1, 1, 0, 0, 2, tzinfo=UTC)
        odd = Record(1, bytearray(b"a"), moment, memoryview(b"k"))  # type: ignore[arg-type]  # converted
        assert list(grouped(iter([odd]))) == [MessageColumns([b"a"], [1], [2_000_000_000], [b"k"])]


def test_columns_with_nothing_in_them_are_left_out() -> None:
    (batch,) = grouped(iter([Record(None, b"a"), Record(None, b"b", key=b"k")]))
    assert batch == MessageColumns([b"a", b"b"], None, None, [None, b"k"])


def test_an_iterator_of_batches_is_one_of_records_and_closes_its_files() -> None:
    ended: list[bool] = []

    def reading() -> Iterator[MessageColumns]:
        try:
            yield MessageColumns([b"a", b"b"], [1, 2])
            yield MessageColumns([b"c"], [3])
        finally:
            ended.append(True)

    found: Any = GroupedRecords(reading())  # type: ignore[arg-type]  # a generator it is
    assert next(found) == Record(1, b"a")
    found.close()
    assert ended == [True]
