"""A decoded run taken apart by stream."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.protocol.strategies import messages, run_of, steady, stream_ids
from wallaroo_spark.columnar import STORED_SCHEMA, DecodedRun, by_stream, decode_run
from wallaroo_spark.protocol import DRAFT_BE, REVISIONS, Message, Revision


def decoded_run(revision: Revision, given: list[Message]) -> DecodedRun:
    return decode_run(run_of(revision, [revision.encode(message) for message in given]), event_time_unit="us")


def numbered(streams: list[int]) -> DecodedRun:
    return decoded_run(DRAFT_BE, [Message(stream, at, b"%d" % at) for at, stream in enumerate(streams, 1)])


@pytest.mark.parametrize("revision", REVISIONS.values(), ids=REVISIONS)
@steady
@given(data=st.data())
def test_each_stream_gets_its_rows_in_the_order_sent(revision: Revision, data: st.DataObject) -> None:
    drawn = data.draw(st.lists(messages(revision), max_size=25))
    end = data.draw(st.none() | st.integers(0, 30))
    ignored = data.draw(st.sets(stream_ids()))
    decoded = decoded_run(revision, drawn)
    kept = [at for at, message in enumerate(drawn[:end]) if message.stream_id not in ignored]
    groups = by_stream(decoded, end=end, ignored=ignored)
    assert [group.stream_id for group in groups] == list(dict.fromkeys(drawn[at].stream_id for at in kept))
    for group in groups:
        rows = [at for at in kept if drawn[at].stream_id == group.stream_id]
        assert group.stored.schema == STORED_SCHEMA
        assert group.stored.equals(decoded.stored.take(rows))
        assert group.message_ids.tolist() == decoded.message_ids[rows].tolist()
        assert group.flags.tolist() == decoded.flags[rows].tolist()
        assert group.sizes.tolist() == decoded.sizes[rows].tolist()


def test_a_run_of_one_stream_is_sliced_and_not_copied() -> None:
    decoded = numbered([7, 7, 7])
    (group,) = by_stream(decoded, end=2)
    assert group.stored["value"].to_pylist() == [b"1", b"2"]
    assert group.stored["value"].buffers()[2].address == decoded.stored["value"].buffers()[2].address


def test_streams_of_one_run_share_no_memory() -> None:
    decoded = numbered([7, 8, 7, 8, 8])
    groups = by_stream(decoded)
    addresses = {group.stored["value"].buffers()[2].address for group in groups}
    assert len(groups) == len(addresses) == 2
    assert decoded.stored["value"].buffers()[2].address not in addresses


def test_an_ignored_stream_that_is_alone_leaves_nothing() -> None:
    assert by_stream(numbered([7, 7]), ignored={7}) == []
