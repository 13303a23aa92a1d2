"""Records one by one and as columns."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from wallaroo_spark.connector import Record, Records, batches
from wallaroo_spark.connector.batches import Batch, Batches, batches_of
from wallaroo_spark.errors import LocalProtocolError, ReplayError

records = st.builds(
    Record,
    st.none() | st.integers(0, 9),
    st.binary(max_size=3),
    st.none() | st.integers(0, 9),
    st.none() | st.just(b"k"),
)
pairs = st.tuples(st.integers(0, 9), st.binary(max_size=3))


@pytest.fixture
def small_groups(monkeypatch: pytest.MonkeyPatch) -> None:
    """Groups of three, however long reading them takes."""
    monkeypatch.setattr(batches, "GROUP_MESSAGES", 3)
    monkeypatch.setattr(batches, "GROUP_SECONDS", 60.0)


@given(st.lists(records | pairs, max_size=12) | st.lists(records, max_size=12) | st.lists(pairs, max_size=12))
def test_batches_hold_the_records_in_order(items: list[Any]) -> None:
    expected = [item if isinstance(item, Record) else Record(*item) for item in items]
    assert [record for batch in batches_of(iter(items)) for record in batch.records()] == expected


@pytest.mark.usefixtures("small_groups")
class TestGrouping:
    def test_as_many_as_there_are_go_together(self) -> None:
        found = list(batches_of((number, b"%d" % number) for number in range(7)))
        assert [tuple(batch.ids or ()) for batch in found] == [(0, 1, 2), (3, 4, 5), (6,)]

    def test_large_ones_go_in_small_batches(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(batches, "GROUP_BYTES", 3)
        assert [len(batch.payloads) for batch in batches_of(iter([Record(1, b"xx")] * 3))] == [2, 1]

    def test_an_iterator_that_takes_its_time_is_not_waited_for(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(batches, "GROUP_SECONDS", -1.0)
        read: list[int] = []

        def slow() -> Iterator[tuple[int, bytes]]:
            for number in range(3):
                read.append(number)
                yield number, b"x"

        for number, batch in enumerate(batches_of(slow())):
            assert (list(batch.ids or ()), read[-1]) == ([number], number)

    def test_what_an_iterator_raises_comes_behind_what_it_gave(self) -> None:
        def broken() -> Iterator[tuple[int, bytes]]:
            yield from ((number, b"x") for number in range(4))
            raise OSError("the disk is on fire")

        found = batches_of(broken())
        assert [len(next(found).payloads), len(next(found).payloads)] == [3, 1]
        with pytest.raises(OSError, match="on fire"):
            next(found)

    @pytest.mark.parametrize(
        ("odd", "complaint"),
        [
            (Record(2, "text"), "a payload is bytes, and this one is str"),
            (Record(2, b"", datetime(2026, 1, 1)), "no time zone"),
            (Record(2, b"", None, 7), "a key is bytes"),
            ((2, "text"), "a payload is bytes"),
        ],
    )
    def test_what_cannot_be_sent_is_told_in_its_turn(self, odd: Any, complaint: str) -> None:
        found = batches_of(iter([Record(1, b"a"), odd, Record(3, b"c")]))
        assert list(next(found).records()) == [Record(1, b"a")]
        with pytest.raises(LocalProtocolError, match=complaint):
            next(found)

    def test_what_can_be_converted_is(self) -> None:
        moment = datetime(1970, 1, 1, 0, 0, 2, tzinfo=UTC)
        odd: Any = Record(1, bytearray(b"a"), moment, memoryview(b"k"))
        assert list(batches_of(iter([odd]))) == [Batch([b"a"], [1], [2_000_000_000], [b"k"])]


def test_columns_with_nothing_in_them_are_left_out() -> None:
    (batch,) = batches_of(iter([Record(None, b"a"), Record(None, b"b", key=b"k")]))
    assert batch == Batch([b"a", b"b"], None, None, [None, b"k"])


def test_an_iterator_of_batches_is_one_of_records_and_gives_back_what_it_holds() -> None:
    ended: list[bool] = []

    def reading() -> Iterator[Batch]:
        try:
            yield Batch([b"a", b"b"], [1, 2])
            yield Batch([b"c"], [3])
        finally:
            ended.append(True)

    found: Any = Batches(reading())  # type: ignore[arg-type]  # a generator it is
    assert next(found) == Record(1, b"a")
    found.close()
    assert ended == [True]


class TestRecordsInBatches:
    def read(self, items: list[Any], after: int | None, **settings: Any) -> list[list[int]]:
        found = Records("orders", lambda: items, **settings).read(after)
        assert isinstance(found, Batches)
        return [list(batch.ids or ()) for batch in found.batches]

    def test_what_is_committed_is_passed_over(self, small_groups: None) -> None:
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
        assert next(source) == Record(1, b"x")  # type: ignore[call-overload]  # a plain iterator
        with pytest.raises(ReplayError, match="without a reference"):
            next(source)  # type: ignore[call-overload]
