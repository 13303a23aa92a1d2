"""Unstable references: a batch ends at a reference that the stream can resume from, or at the stream's end."""

from __future__ import annotations

from tests.worker.rows import end_of, extent, held, ids_of, ledger, put
from wallaroo_spark.worker.buffer.held_stream import Extent


class TestUnstableReferences:
    def test_a_batch_ends_at_a_stable_id_only(self) -> None:
        stream = ledger()
        put(stream, [1, 2, 3, 4], unstable=[2, 4])

        assert end_of(stream, None) == 3
        assert end_of(stream, None, rows=2) == 1
        assert end_of(stream, 1, rows=1) == 3
        assert extent(stream, 3) is None

    def test_rows_behind_the_last_stable_one_wait_for_the_next(self) -> None:
        stream = ledger()
        put(stream, [1, 2], unstable=[1, 2])
        assert extent(stream, None) is None

        put(stream, [3])
        assert extent(stream, None, rows=1) == Extent(3, rows=3, bytes=3 * 74)

    def test_the_end_of_the_stream_will_do(self) -> None:
        stream = ledger()
        put(stream, [1, 2], unstable=[2])
        stream.close()

        assert end_of(stream, None) == 2

    def test_possible_ends_of_a_batch_stay_when_the_stream_is_notified_again(self) -> None:
        stream = ledger()
        put(stream, [1, 2], unstable=[2])
        stream.close()

        stream.open("orders", 0)
        assert ids_of(stream, None, 2) == [1, 2]

    def test_the_rest_is_dropped_when_the_stream_is_notified_again(self) -> None:
        stream = ledger()
        put(stream, [1, 2])
        put(stream, [3, 4], unstable=[3, 4])

        stream.open("orders", 0)
        assert held(stream) == [1, 2]
        assert put(stream, [1, 2, 3, 4]) == 2

    def test_within_a_run_the_rest_is_cut_off(self) -> None:
        stream = ledger(committed=0)
        put(stream, [1, 2, 3], unstable=[2, 3])

        stream.open("orders", 0)
        assert held(stream) == [1]

    def test_without_a_stable_row_all_rows_are_dropped(self) -> None:
        stream = ledger(committed=4)
        put(stream, [5, 6], unstable=[5, 6])

        stream.open("orders", 4)
        assert stream.empty
        assert put(stream, [4, 5, 6]) == 2

    def test_opaque_ids_are_new_again_behind_the_last_stable_one(self) -> None:
        stream = ledger("opaque")
        put(stream, [9, 2, 7], unstable=[2, 7])
        stream.open("orders", 0)

        assert put(stream, [9, 2, 7]) == 2
        assert held(stream) == [9, 2, 7]
