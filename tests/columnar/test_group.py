"""A decoded run taken apart by stream."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.columnar.oracle import stored_part
from tests.protocol.strategies import messages, run_of, steady
from wallaroo_spark.columnar import STORED_SCHEMA, Decoded, RunRows, by_stream, decode_run
from wallaroo_spark.protocol import DRAFT_BE, REVISIONS, Message, Revision


def decoded_run(revision: Revision, given: list[Message]) -> Decoded:
    return decode_run(run_of(revision, [revision.encode(message) for message in given]), event_time_unit="us")


def numbered(streams: list[int]) -> Decoded:
    return decoded_run(DRAFT_BE, [Message(stream, at, b"%d" % at) for at, stream in enumerate(streams, 1)])


@pytest.mark.parametrize("revision", REVISIONS.values(), ids=REVISIONS)
@steady
@given(data=st.data())
def test_each_stream_gets_its_rows_in_the_order_sent(revision: Revision, data: st.DataObject) -> None:
    drawn = data.draw(st.lists(messages(revision), max_size=25))
    end = data.draw(st.none() | st.integers(0, 30))
    decoded = decoded_run(revision, drawn)
    kept = range(len(drawn[:end]))
    (run,) = by_stream(decoded)
    groups = run.until(len(drawn) if end is None else end)
    assert [group.stream_id for group in groups] == list(dict.fromkeys(drawn[at].stream_id for at in kept))
    for group in groups:
        rows = [at for at in kept if drawn[at].stream_id == group.stream_id]
        assert stored_part(group).schema == STORED_SCHEMA
        assert stored_part(group).equals(decoded.columns().take(rows))
        assert group.message_ids.tolist() == decoded.fields.message_ids[rows].tolist()
        assert group.flags.tolist() == decoded.fields.flags[rows].tolist()
        assert group.sizes.tolist() == decoded.sizes[rows].tolist()
        assert group.size == sum(group.sizes.tolist())
        assert not group.rising or group.message_ids.tolist() == sorted(set(group.message_ids.tolist()))


def by_one(streams: list[int]) -> RunRows:
    (run,) = by_stream(numbered(streams))
    return run


def test_the_rows_of_a_stream_lie_together() -> None:
    first, second = by_one([7, 8, 7, 8, 8]).parts
    assert (first.stream_id, first.low, first.high) == (7, 0, 2)
    assert (second.stream_id, second.low, second.high) == (8, 2, 5)
    assert first.lot is second.lot
    assert first.lot.stored["value"].to_pylist() == [b"1", b"3", b"2", b"4", b"5"]
    assert first.rising
    assert second.rising


def test_ids_that_fall_are_noticed_in_their_stream_alone() -> None:
    ids = [(7, 1), (8, 5), (7, 2), (8, 4), (9, 1)]
    (run,) = by_stream(decoded_run(DRAFT_BE, [Message(stream, at, b"") for stream, at in ids]))
    assert [(part.stream_id, part.rising) for part in run.parts] == [(7, True), (8, False), (9, True)]
