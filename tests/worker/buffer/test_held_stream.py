"""One stream's rows: the extent of a batch, the rows of a planned range, commits and rewinds."""

from __future__ import annotations

import pytest

from proving.simulator.worker_validation import validate_stream
from tests.worker.rows import KEY, ORIGIN, end_of, extent, held, ids_of, ledger, put
from wallaroo_spark.errors import RemoteProtocolError
from wallaroo_spark.protocol import Fault
from wallaroo_spark.references import Reference, StreamKey
from wallaroo_spark.worker.buffer.ephemeral import Origin
from wallaroo_spark.worker.buffer.held_stream import Extent
from wallaroo_spark.worker.buffer.segments import SEGMENT_OVERHEAD


class TestReferences:
    def test_an_ephemeral_reference_names_the_buffer_it_is_good_for(self) -> None:
        assert ORIGIN.reference(12) == "e:3:7:12"
        assert ORIGIN.position("e:3:7:12") == 12
        assert Origin(3, 8).position("e:3:7:12") is None
        assert Origin(4, 7).position("e:3:7:12") is None

    def test_ids_of_the_whole_source_always_increase(self) -> None:
        assert ledger("opaque", key=StreamKey("", 1)).increasing
        assert not ledger("opaque").increasing
        assert ledger("increasing").increasing

    def test_a_ledger_shows_where_it_stands(self) -> None:
        stream = ledger(committed=4)
        put(stream, [5, 6])

        assert repr(stream) == "HeldStream('shop-1'/1, 0..2, committed=4)"


class TestExtent:
    def test_nothing_held_is_nothing_to_plan(self) -> None:
        assert extent(ledger(), None) is None
        assert extent(ledger(committed=5), 5) is None

    def test_a_batch_may_take_all_there_is(self) -> None:
        stream = ledger()
        put(stream, [1, 2])
        put(stream, [5])

        assert extent(stream, None) == Extent(5, rows=3, bytes=3 * 74)
        assert extent(stream, 2) == Extent(5, rows=1, bytes=74)
        assert extent(stream, 3) == Extent(5, rows=1, bytes=74)
        assert extent(stream, 5) is None

    def test_committed_rows_are_not_offered_again(self) -> None:
        stream = ledger()
        put(stream, [1, 2, 3])
        stream.commit(2)

        assert extent(stream, None) is None
        assert extent(stream, 1) is None
        assert end_of(stream, 2) == 3

    def test_rows_are_limited(self) -> None:
        stream = ledger()
        put(stream, [1, 2])
        put(stream, [3, 4])

        assert extent(stream, None, rows=3) == Extent(3, rows=3, bytes=3 * 74)
        assert end_of(stream, 1, rows=1) == 2
        assert end_of(stream, None, rows=0) == 1

    def test_bytes_are_limited_but_the_first_message_always_fits(self) -> None:
        stream = ledger()
        put(stream, [1, 2])
        put(stream, [3, 4])

        assert end_of(stream, None, size=74 * 3) == 3
        assert end_of(stream, None, size=74 * 3 - 1) == 2
        assert end_of(stream, None, size=1) == 1
        assert end_of(stream, None, size=10_000) == 4
        assert end_of(stream, None, rows=2, size=10_000) == 2

    def test_opaque_references_are_found_by_equality(self) -> None:
        stream = ledger("opaque")
        put(stream, [9, 2, 7])

        assert end_of(stream, None) == 7
        assert end_of(stream, 9, rows=1) == 2
        assert extent(stream, 55) is None

    def test_an_ephemeral_stream_is_planned_by_position(self) -> None:
        stream = ledger()
        put(stream, [0, 0, 0], ephemeral=True)

        assert extent(stream, None) == Extent("e:3:7:3", rows=3, bytes=3 * 74)
        assert end_of(stream, "e:3:7:1", rows=1) == "e:3:7:2"
        assert extent(stream, "e:3:7:3") is None

    def test_an_ephemeral_reference_of_another_buffer_is_behind_everything_here(self) -> None:
        stream = ledger()
        put(stream, [0, 0], ephemeral=True)

        assert end_of(stream, "e:3:6:100") == "e:3:7:2"

    def test_a_stream_that_was_ephemeral_starts_at_its_beginning(self) -> None:
        stream = ledger(committed="e:3:6:100")
        put(stream, [4, 5])

        assert end_of(stream, "e:3:6:100") == 5


class TestAppend:
    def test_replays_are_dropped(self) -> None:
        stream = ledger()

        assert put(stream, [1, 2, 3]) == 3
        stream.open("orders", 0)
        assert put(stream, [2]) == 0
        assert put(stream, [3, 4, 5]) == 2
        stream.open("orders", 0)
        assert put(stream, [4, 5, 6, 7]) == 2
        assert held(stream) == [1, 2, 3, 4, 5, 6, 7]

    def test_a_decreasing_id_is_an_error_and_the_messages_before_it_count(self) -> None:
        stream = ledger()

        with pytest.raises(RemoteProtocolError, match="stream 1: message 10 was sent behind message 30") as caught:
            put(stream, [30, 10, 20])
        assert caught.value.fields["fault"] is Fault.IDS_NOT_INCREASING
        assert "messageIds=increasing" in caught.value.message
        assert "set messageIds=opaque" in caught.value.message
        validate_stream(stream)
        assert held(stream) == [30]

    def test_messages_that_break_a_rule_of_opaque_ids_do_not_count_as_sent(self) -> None:
        stream = ledger("opaque")
        put(stream, [5])
        with pytest.raises(RemoteProtocolError, match="message 5 was sent before"):
            put(stream, [7, 5])

        stream.open("orders", 0)
        assert put(stream, [5, 7]) == 1
        assert held(stream) == [5, 7]

    def test_a_range_that_ends_at_an_unstable_group_waits_for_all_of_it(self) -> None:
        stream = ledger()
        put(stream, [4])
        put(stream, [5, 5], unstable=[5])
        assert end_of(stream, None) == 4
        assert ids_of(stream, None, 5) is None

        put(stream, [5])
        assert end_of(stream, None) == 5
        assert ids_of(stream, None, 5) == [4, 5, 5, 5]
        assert ids_of(stream, 4, 5) == [5, 5, 5]
        put(stream, [6])
        assert ids_of(stream, 5, 6) == [6]

    def test_values_and_sizes_follow_the_rows_that_stay(self) -> None:
        stream = ledger()
        put(stream, [2, 4])
        stream.open("orders", 0)
        put(stream, [3, 5, 6])

        segment = stream.segments[-1]
        assert segment.held.lot.stored["message_id"].to_pylist()[segment.low : segment.high] == [5, 6]
        assert len(segment.sizes) == len(segment) == 2

    @pytest.mark.parametrize("first", [True, False])
    def test_a_stream_is_ephemeral_or_it_is_not(self, first: bool) -> None:
        stream = ledger()
        put(stream, [1], ephemeral=first)
        stream.open("orders", 0)

        with pytest.raises(RemoteProtocolError, match="not committed yet") as caught:
            put(stream, [2], ephemeral=not first)
        assert caught.value.fields["fault"] is Fault.MIXED_EPHEMERAL

    def test_a_stream_with_a_committed_reference_cannot_become_ephemeral(self) -> None:
        stream = ledger(committed=5)

        with pytest.raises(RemoteProtocolError, match="use another stream id"):
            put(stream, [6], ephemeral=True)

    def test_a_stream_that_was_ephemeral_may_become_lasting_once_nothing_is_held(self) -> None:
        stream = ledger()
        put(stream, [3], ephemeral=True)
        stream.commit("e:3:7:1")
        stream.open("orders", 0)

        assert put(stream, [1, 2]) == 2
        assert end_of(stream, "e:3:7:1") == 2


class TestRange:
    def test_a_range_is_complete_when_its_end_has_arrived(self) -> None:
        stream = ledger()
        put(stream, [1, 2, 3])

        assert ids_of(stream, None, 4) is None
        assert ids_of(stream, None, 3) == [1, 2, 3]
        assert ids_of(stream, 1, 2) == [2]

    def test_or_anything_beyond_it(self) -> None:
        stream = ledger()
        put(stream, [1, 2, 6])

        assert ids_of(stream, None, 4) == [1, 2]
        assert ids_of(stream, 2, 4) == []

    def test_or_the_stream_s_end(self) -> None:
        stream = ledger()
        put(stream, [1, 2])
        stream.close()

        assert ids_of(stream, None, 4) == [1, 2]

    def test_a_range_that_is_partly_committed_is_not_here(self) -> None:
        stream = ledger()
        put(stream, [1, 2, 3])
        stream.commit(2)

        assert ids_of(stream, 1, 3) is None
        assert ids_of(stream, None, 3) is None
        assert ids_of(stream, "e:3:7:0", 3) is None
        assert ids_of(stream, 2, 3) == [3]

    def test_opaque_ranges_need_both_ends(self) -> None:
        stream = ledger("opaque")
        put(stream, [9, 2])

        assert ids_of(stream, None, 7) is None
        assert ids_of(stream, 5, 2) is None
        put(stream, [7])
        assert ids_of(stream, 9, 7) == [2, 7]
        assert ids_of(stream, None, 5) is None
        stream.close()
        assert ids_of(stream, 9, 5) == [2, 7]

    def test_an_ephemeral_range_has_the_rows_that_remain(self) -> None:
        stream = ledger()
        put(stream, [1, 2, 3], ephemeral=True)

        assert ids_of(stream, None, "e:3:7:2") == [1, 2]
        assert ids_of(stream, "e:3:7:1", "e:3:7:3") == [2, 3]
        assert ids_of(stream, "e:3:7:1", "e:3:7:4") is None
        assert ids_of(stream, "e:3:6:1", "e:3:6:4") == []
        assert ids_of(stream, None, 5) is None

    def test_positions_that_an_earlier_ledger_passed_stand_for_nothing_here(self) -> None:
        stream = ledger(committed="e:3:7:5", position=8)
        put(stream, [1, 2], ephemeral=True)

        assert ids_of(stream, "e:3:7:5", "e:3:7:7") == []
        assert end_of(stream, "e:3:7:5") == "e:3:7:10"
        assert ids_of(stream, "e:3:7:5", "e:3:7:10") == [1, 2]


class TestCommit:
    def test_committed_rows_are_dropped(self) -> None:
        stream = ledger()
        put(stream, [1, 2])
        put(stream, [3, 4])

        assert stream.commit(3)
        assert held(stream) == [4]
        assert stream.committed == 3
        assert stream.commit(4)
        assert stream.empty

    def test_an_older_commit_changes_nothing(self) -> None:
        stream = ledger()
        put(stream, [1, 2, 3])
        stream.commit(2)

        assert not stream.commit(2)
        assert not stream.commit(1)
        assert held(stream) == [3]

    def test_a_commit_beyond_the_held_messages_makes_the_rest_replays(self) -> None:
        stream = ledger()
        put(stream, [1, 2])
        stream.commit(5)

        assert stream.empty
        assert put(stream, [3, 4, 5, 6]) == 1

    def test_an_opaque_commit_beyond_the_held_messages_makes_all_up_to_it_replays(self) -> None:
        stream = ledger("opaque", committed=1)
        put(stream, [9, 2])

        assert stream.commit(7)
        assert stream.empty
        assert put(stream, [5, 7, 3]) == 1
        assert held(stream) == [3]

    def test_an_ephemeral_commit_goes_by_position(self) -> None:
        stream = ledger()
        put(stream, [1, 2, 3], ephemeral=True)
        stream.commit("e:3:7:2")

        assert held(stream) == [3]
        assert stream.committed == "e:3:7:2"


class TestRewind:
    def test_to_where_it_stands_nothing_happens(self) -> None:
        stream = ledger(committed=4)
        put(stream, [5, 6])

        assert not stream.rewind(4)
        assert held(stream) == [5, 6]

    def test_forward_within_the_held_rows_the_head_is_dropped(self) -> None:
        stream = ledger(committed=4)
        put(stream, [5])
        put(stream, [6, 7])

        assert not stream.rewind(6)
        assert held(stream) == [7]

    def test_forward_beyond_the_held_rows_the_sender_continues(self) -> None:
        stream = ledger(committed=4)
        put(stream, [5, 6])

        assert not stream.rewind(9)
        assert stream.empty
        assert put(stream, [7, 9, 10]) == 1

    def test_a_stream_that_had_ended_is_still_ended_when_the_query_is_ahead(self) -> None:
        stream = ledger()
        put(stream, [1, 2])
        stream.close()
        stream.rewind(9)

        assert ids_of(stream, 9, 12) == []

    @pytest.mark.parametrize("back", [2, None, "e:3:6:1"])
    def test_a_rewind_beyond_the_held_rows_rewinds_the_sender_too(self, back: Reference | None) -> None:
        stream = ledger(committed=4)
        put(stream, [5, 6])

        assert stream.rewind(back)
        assert stream.empty
        assert put(stream, [3, 4, 5]) == 3

    def test_a_stream_that_had_ended_must_end_again(self) -> None:
        stream = ledger(committed=4)
        put(stream, [5, 6])
        stream.close()
        stream.rewind(2)

        assert ids_of(stream, 2, 6) is None

    def test_a_new_stream_joins_on_to_any_reference_that_it_holds(self) -> None:
        stream = ledger()
        put(stream, [5, 6])

        assert not stream.rewind(5)
        assert held(stream) == [6]

    def test_a_stream_of_which_nothing_is_committed_joins_on_to_nothing(self) -> None:
        stream = ledger(committed="e:3:6:1")
        put(stream, [5, 6])

        assert not stream.rewind(None)
        assert held(stream) == [5, 6]

    def test_opaque_streams_join_where_the_reference_is_held(self) -> None:
        stream = ledger("opaque", committed=1)
        put(stream, [9, 2, 7])

        assert not stream.rewind(2)
        assert held(stream) == [7]
        assert stream.rewind(5)
        assert stream.empty

    def test_ephemeral_streams_never_go_back(self) -> None:
        stream = ledger()
        put(stream, [1, 2, 3], ephemeral=True)
        stream.commit("e:3:7:1")

        assert not stream.rewind(None)
        assert not stream.rewind(12)
        assert not stream.rewind("e:3:7:2")
        assert held(stream) == [3]


class TestLettingGo:
    def test_dropped_rows_are_new_when_they_are_sent_again(self) -> None:
        stream = ledger(committed=4)
        put(stream, [5, 6])
        stream.close()

        stream.drop()
        assert stream.empty
        assert not stream.ended
        assert put(stream, [4, 5, 6]) == 2

    def test_an_ephemeral_position_never_stands_for_another_row(self) -> None:
        stream = ledger()
        put(stream, [1, 2], ephemeral=True)
        stream.drop()
        put(stream, [3], ephemeral=True)

        assert ids_of(stream, None, "e:3:7:2") == []
        assert ids_of(stream, "e:3:7:2", "e:3:7:3") == [3]

    def test_the_memory_of_rows_is_known(self) -> None:
        stream = ledger(key=KEY)
        put(stream, [1, 2])
        put(stream, [3])

        assert stream.cost == 2 * SEGMENT_OVERHEAD + 3 * 74
        stream.commit(1)
        assert stream.cost == 2 * SEGMENT_OVERHEAD + 2 * 74
        stream.commit(2)
        assert stream.cost == SEGMENT_OVERHEAD + 74
