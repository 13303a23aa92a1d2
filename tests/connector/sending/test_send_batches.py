"""The iterables of send_many, read in batches."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from wallaroo_spark.connector.record import MessageColumns
from wallaroo_spark.connector.sending import send_batches as send_batches_module
from wallaroo_spark.connector.sending.resend_buffer import memory_cost
from wallaroo_spark.connector.sending.send_batches import SendBatch, SendBatches
from wallaroo_spark.errors import LocalProtocolError
from wallaroo_spark.protocol import HEAD_BYTES


def pieces(payloads: Any, ids: Any = None, event_times: Any = None, keys: Any = None) -> SendBatches:
    return SendBatches(payloads, ids, event_times, keys)


def pulled(given: SendBatches, found: list[MessageColumns] | None = None) -> list[MessageColumns]:
    found = [] if found is None else found
    while (piece := given.next()) is not None:
        found.append(piece.take(piece.left))
    return found


def payloads_of(given: SendBatches) -> list[bytes]:
    return [payload for batch in pulled(given) for payload in batch.payloads]


def failing(*values: Any) -> Iterator[Any]:
    yield from values
    raise OSError("the disk is on fire")


@pytest.fixture
def small_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    """Batches of three messages. The clock ends none of them earlier, however busy the machine is."""
    monkeypatch.setattr(send_batches_module, "BATCH_MESSAGES", 3)
    monkeypatch.setattr(send_batches_module, "BATCH_SECONDS", 3600.0)


@pytest.mark.usefixtures("small_pieces")
class TestPulling:
    @pytest.mark.parametrize("kind", [list, tuple, iter, lambda values: (value for value in values)])
    def test_everything_comes_in_order_whatever_it_is_in(self, kind: Any) -> None:
        values = [b"%d" % number for number in range(10)]
        batches = pulled(pieces(kind(values), ids=range(5, 25, 2), keys=iter(values)))
        assert [payload for batch in batches for payload in batch.payloads] == values
        assert [message_id for batch in batches for message_id in batch.ids or ()] == list(range(5, 25, 2))
        assert [key for batch in batches for key in batch.keys or ()] == values
        assert max(len(batch.payloads) for batch in batches) == 3

    @pytest.mark.parametrize("kind", [list, iter])
    def test_bytes_like_payloads_are_converted_to_bytes(self, kind: Any) -> None:
        values = [b"a", bytearray(b"b"), memoryview(b"c"), b"d", b"e"]
        assert payloads_of(pieces(kind(values))) == [b"a", b"b", b"c", b"d", b"e"]
        (batch,) = pulled(pieces([b"x"], keys=[memoryview(b"k")]))
        assert batch.keys == [b"k"]

    def test_a_datetime_becomes_nanoseconds(self) -> None:
        (batch,) = pulled(pieces([b"x"] * 3, event_times=[5, None, datetime(1970, 1, 1, 0, 0, 1, tzinfo=UTC)]))
        assert batch.event_times == [5, None, 1_000_000_000]

    def test_ids_may_have_no_end(self) -> None:
        from itertools import count

        assert [list(batch.ids or ()) for batch in pulled(pieces([b"x"] * 4, ids=count(7)))] == [[7, 8, 9], [10]]

    def test_large_payloads_make_small_pieces(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(send_batches_module, "BATCH_BYTES", 10)
        assert [len(batch.payloads) for batch in pulled(pieces(iter([b"x" * 6] * 3)))] == [2, 1]

    def test_one_that_takes_its_time_holds_nothing_back(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(send_batches_module, "BATCH_SECONDS", -1.0)
        given = pieces(b"%d" % number for number in range(3))
        piece = given.next()
        assert piece is not None
        assert (piece.left, given.slow) == (1, True)

    @pytest.mark.parametrize(
        ("arguments", "sent", "complaint"),
        [
            ({"payloads": [b"a", "b"]}, 1, r"a payload is bytes, and this one is str.*item 1 of send_many"),
            ({"payloads": iter([b"a", b"b", b"c", b"d", None])}, 4, r"this one is NoneType.*item 4 of send_many"),
            ({"payloads": [b"a"] * 5, "ids": iter([1, 2, 3, 4])}, 4, r"ids has 4 items, and payloads has more.*item 4"),
            ({"payloads": [b"a"] * 5, "ids": [1, "2", 3, 4, 5]}, 1, r"a message id is an integer.*'2'.*item 1"),
            ({"payloads": [b"a"] * 2, "keys": [b"k", 7]}, 1, r"a key is bytes, and this one is int.*item 1"),
            ({"payloads": [b"a"] * 2, "event_times": [1, datetime(2026, 1, 1)]}, 1, r"no time zone.*item 1"),
            ({"payloads": iter([b"a", 1]), "keys": [b"k", 7, 7]}, 1, r"a payload is bytes.*item 1"),
        ],
    )
    def test_an_invalid_item_is_an_error_after_the_items_before_it(
        self, arguments: dict[str, Any], sent: int, complaint: str
    ) -> None:
        given = pieces(**arguments)
        found: list[Any] = []
        with pytest.raises(LocalProtocolError, match=complaint) as caught:
            pulled(given, found)
        found = [payload for batch in found for payload in batch.payloads]
        assert (len(found), caught.value.fields["index"]) == (sent, sent)

    @pytest.mark.parametrize("arguments", [{"payloads": failing(b"a")}, {"payloads": [b"a"] * 2, "ids": failing(1)}])
    def test_the_error_of_an_iterable_is_raised_after_its_items(self, arguments: dict[str, Any]) -> None:
        given = pieces(**arguments)
        first = given.next()
        assert first is not None
        assert first.left == 1
        with pytest.raises(OSError, match="on fire"):
            given.next()

    def test_columns_of_other_lengths_are_refused_at_once(self) -> None:
        with pytest.raises(LocalProtocolError, match="keys has 3 items and payloads 2"):
            pieces([b"a", b"b"], keys=[b"k"] * 3)

    def test_a_single_payload_is_no_iterable_of_payloads(self) -> None:
        with pytest.raises(LocalProtocolError, match="this is a single one; use send"):
            pieces(b"abc")

    def test_nothing_is_nothing(self) -> None:
        assert pulled(pieces([])) == pulled(pieces(iter(()))) == []


class TestArrow:
    @pytest.mark.parametrize("kind", ["binary", "large_binary", "string", "large_string"])
    def test_an_array_is_read_from_its_buffers(self, kind: str, small_pieces: None) -> None:
        arrow = pytest.importorskip("pyarrow")
        values = ["", "a", "bc", "", "déf"] * 5
        array = arrow.array(values).cast(getattr(arrow, kind)())
        expected = [value.encode() for value in values]
        assert payloads_of(pieces(array)) == expected
        assert payloads_of(pieces(array[3:11])) == expected[3:11]
        assert payloads_of(pieces(arrow.chunked_array([array[:7], array[7:7], array[7:]]))) == expected
        (batch, *_) = pulled(pieces(array[:2], ids=arrow.array([5, 6]), keys=arrow.array([b"k", None])))
        assert (list(batch.ids or ()), batch.keys) == ([5, 6], [b"k", None])

    def test_a_null_is_no_payload(self) -> None:
        arrow = pytest.importorskip("pyarrow")
        with pytest.raises(LocalProtocolError, match=r"this one is NoneType.*item 2"):
            payloads_of(pieces(arrow.array([b"a", b"", None, b"d"])))

    def test_an_array_of_something_else_is_refused(self) -> None:
        arrow = pytest.importorskip("pyarrow")
        with pytest.raises(LocalProtocolError, match="an Arrow array of int64 holds no payloads"):
            payloads_of(pieces(arrow.array([1, 2])))

    def test_an_array_of_empty_payloads_has_no_data(self) -> None:
        arrow = pytest.importorskip("pyarrow")
        assert payloads_of(pieces(arrow.array([b"", b""]))) == [b"", b""]
        assert payloads_of(pieces(arrow.array([], arrow.binary()))) == []


class TestFitting:
    @given(
        st.lists(st.integers(0, 50), min_size=1, max_size=12),
        st.integers(0, 11),
        st.integers(1, 15),
        st.integers(1, 900),
        st.none() | st.integers(0, 2000),
    )
    def test_as_many_fit_as_would_one_by_one(
        self, sizes: list[int], sent: int, most: int, network: int, memory: int | None
    ) -> None:
        piece = SendBatch(MessageColumns([b"x" * size for size in sizes]))
        piece.sent(min(sent, len(sizes) - 1))
        left = [size + HEAD_BYTES for size in sizes][piece.index :]
        expected = 0
        for count in range(1, min(most, len(left)) + 1):
            full = sum(left[: count - 1]) >= network
            dear = memory is not None and memory_cost(sum(left[:count]), count) > memory
            if (full or dear) and count > 1:
                break
            expected = count
        assert piece.fitting(most, network, memory) == expected
        assert piece.next_cost == memory_cost(left[0])

    def test_a_piece_says_which_message_is_the_next(self) -> None:
        piece = SendBatch(MessageColumns([b"a", b"b", b"c"], ids=range(7, 10)), before=100)
        piece.sent(1)
        error = piece.located(LocalProtocolError("no", stream="s"))
        assert error.message == "no (item 101 of send_many, id 8; those before it were sent)"
        assert error.fields == {"stream": "s", "index": 101, "id": 8}
        assert piece.take(5) == MessageColumns([b"b", b"c"], ids=range(8, 10))


def test_a_slow_iterable_is_measured_by_the_clock(monkeypatch: pytest.MonkeyPatch) -> None:
    ticks = iter(range(100))
    clock = SimpleNamespace(monotonic=lambda: next(ticks) * send_batches_module.BATCH_SECONDS * 0.6)
    monkeypatch.setattr(send_batches_module, "time", clock)
    given = pieces(iter([b"a", b"b", b"c"]))
    piece = given.next()
    assert piece is not None
    assert piece.left == 2
