"""The streams of a session: names, stacked NACKs, reopening, ends, ephemeral streams, and spans of runs."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.protocol.spans import spans
from tests.protocol.strategies import steady
from tests.revisions import drafts
from wallaroo_spark.errors import RemoteProtocolError
from wallaroo_spark.protocol import (
    DRAFT_LE,
    REVISIONS,
    V3,
    Fault,
    Revision,
    SessionStreams,
    StreamEvent,
    StreamSpan,
    StreamState,
)


def table(revision: Revision = DRAFT_LE, *, max_streams: int = 10, opened: tuple[int, ...] = (1,)) -> SessionStreams:
    streams = SessionStreams(revision, max_streams)
    for stream_id in opened:
        streams.notify(stream_id, f"stream-{stream_id}")
        if revision is V3:
            streams.apply(stream_id, StreamEvent.ACCEPTED)
    return streams


def admitted(streams: SessionStreams, *rows: tuple[int, bool, bool]) -> list[tuple[int, Fault | None]]:
    """Admit a run of (stream, EOS, ephemeral) and settle it; return index and fault of each verdict."""
    verdicts = [streams.admit(span) for span in spans(list(rows))]
    refused = [verdict.refusal for verdict in verdicts if verdict.refusal is not None]
    for verdict in verdicts:
        streams.settle(verdict, min((one.at for one in refused), default=len(rows)))
    return [(one.at, one.fault) for one in refused]


def test_a_stream_that_was_never_notified_is_in_its_start_and_not_counted() -> None:
    streams = table(opened=())
    assert streams.get(9).state is StreamState.START
    assert (len(streams), list(streams)) == (0, [])


def test_a_session_has_only_so_many_streams() -> None:
    streams = table(max_streams=2, opened=(1, 2))
    with pytest.raises(RemoteProtocolError, match="stream 3 would be one more than the 2") as caught:
        streams.notify(3, "third")
    assert caught.value.fields["fault"] is Fault.TOO_MANY_STREAMS
    assert admitted(streams, (1, True, False)) == []
    assert streams.notify(1, "again").state is StreamState.OPEN
    assert [stream.stream_id for stream in streams] == [1, 2]


def test_each_nack_takes_a_notify_of_its_own() -> None:
    streams = table()
    for _ in range(3):
        assert streams.apply(1, StreamEvent.NACK).state is StreamState.RESET
    states = [streams.notify(1, name).state for name in ("a", "b", "c")]
    assert states == [StreamState.RESET, StreamState.RESET, StreamState.OPEN]
    assert streams.get(1).name == "c"
    with pytest.raises(RemoteProtocolError):
        streams.notify(1, "d")


def test_messages_and_ends_on_their_way_during_a_reset_are_ignored() -> None:
    streams = table(opened=(1, 2))
    streams.apply(1, StreamEvent.NACK)
    verdicts = [streams.admit(span) for span in spans([(1, False, False), (1, True, True), (1, False, False)])]
    assert [(verdict.ignored, verdict.refusal) for verdict in verdicts] == [(True, None)]
    streams.settle(verdicts[0], 3)
    assert streams.get(1).state is StreamState.RESET


def test_a_closed_stream_can_be_reset_too() -> None:
    streams = table()
    assert admitted(streams, (1, True, False)) == []
    assert streams.apply(1, StreamEvent.NACK).state is StreamState.RESET
    assert streams.notify(1, "again").state is StreamState.OPEN


@pytest.mark.parametrize("revision", REVISIONS.values(), ids=REVISIONS)
def test_a_stream_that_has_ended_is_opened_again_by_notify_under_a_new_name(revision: Revision) -> None:
    streams = table(revision)
    streams.apply(1, StreamEvent.EOS)
    assert admitted(streams, (1, False, False)) == [(0, Fault.STREAM_NOT_OPEN)]
    again = streams.notify(1, "renamed")
    assert again.state is revision.streams[StreamState.CLOSED][StreamEvent.NOTIFY]
    assert again.name == "renamed"


def test_a_second_notify_of_an_open_v3_stream_changes_nothing() -> None:
    streams = table(V3)
    assert streams.notify(1, "other").name == "stream-1"
    assert streams.apply(1, StreamEvent.REFUSED).state is StreamState.OPEN


@drafts
def test_a_second_notify_of_an_open_draft_stream_is_a_fault(revision: Revision) -> None:
    with pytest.raises(RemoteProtocolError, match="NOTIFY of stream 1, which is open") as caught:
        table(revision).notify(1, "again")
    assert caught.value.fields["fault"] is Fault.STREAM_ALREADY_OPEN


@drafts
def test_nothing_follows_the_end_of_a_stream(revision: Revision) -> None:
    streams = table(revision)
    assert admitted(streams, (1, False, False), (1, True, False), (1, False, False)) == [(2, Fault.STREAM_NOT_OPEN)]
    assert streams.get(1).state is StreamState.CLOSED


@drafts
@pytest.mark.parametrize("first", [True, False], ids=["ephemeral-first", "lasting-first"])
def test_a_stream_is_ephemeral_or_it_is_not(revision: Revision, first: bool) -> None:
    assert admitted(table(revision), (1, False, first), (1, False, not first)) == [(1, Fault.MIXED_EPHEMERAL)]
    streams = table(revision)
    assert admitted(streams, (1, False, first), (1, False, first)) == []
    assert admitted(streams, (1, False, not first)) == [(0, Fault.MIXED_EPHEMERAL)]
    assert streams.get(1).ephemeral is first


@drafts
def test_a_stream_that_is_opened_again_may_choose_again_whether_it_is_ephemeral(revision: Revision) -> None:
    streams = table(revision)
    assert admitted(streams, (1, True, True)) == []
    streams.notify(1, "again")
    assert admitted(streams, (1, False, False)) == []


@drafts
def test_of_two_faults_of_a_stream_the_first_counts(revision: Revision) -> None:
    mixed_first = admitted(table(revision), (1, False, False), (1, True, True), (1, False, False))
    ended_first = admitted(table(revision), (1, True, False), (1, False, False), (1, False, True))
    assert (mixed_first, ended_first) == ([(1, Fault.MIXED_EPHEMERAL)], [(1, Fault.STREAM_NOT_OPEN)])


@drafts
def test_an_end_behind_another_streams_fault_does_not_count(revision: Revision) -> None:
    streams = table(revision, opened=(1, 2))
    assert admitted(streams, (2, False, False), (9, False, False), (1, True, True)) == [(1, Fault.STREAM_NOT_OPEN)]
    assert (streams.get(1).state, streams.get(1).ephemeral) == (StreamState.OPEN, None)
    assert streams.get(2).ephemeral is False


def test_draft_le_streams_know_no_restart() -> None:
    streams = table(DRAFT_LE)
    streams.restart()
    assert streams.get(1).state is StreamState.OPEN


@steady
@given(st.lists(st.tuples(st.integers(0, 3), st.booleans(), st.booleans()), max_size=20))
def test_spans_say_where_each_stream_does_what(rows: list[tuple[int, bool, bool]]) -> None:
    found = spans(rows)
    assert [span.stream_id for span in found] == list(dict.fromkeys(stream for stream, _, _ in rows))
    for span in found:
        mine = [(at, eos, ephemeral) for at, (stream, eos, ephemeral) in enumerate(rows) if stream == span.stream_id]
        ends = [at for at, eos, _ in mine if eos]
        assert span == StreamSpan(
            span.stream_id,
            first=mine[0][0],
            eos=next(iter(ends), None),
            after_eos=next((at for at, _, _ in mine if ends and at > ends[0]), None),
            first_ephemeral=next((at for at, _, ephemeral in mine if ephemeral), None),
            first_lasting=next((at for at, _, ephemeral in mine if not ephemeral), None),
        )


def test_a_finished_stream_makes_room_for_another_and_an_open_one_does_not() -> None:
    streams = SessionStreams(DRAFT_LE, 2)
    for number in (1, 2):
        streams.notify(number, "")
    streams.apply(1, StreamEvent.EOS)
    with pytest.raises(RemoteProtocolError, match="stream 3 would be one more than the 2"):
        streams.notify(3, "")
    streams.finish(1)
    streams.finish(2)
    streams.notify(3, "")
    assert {stream.stream_id for stream in streams} == {2, 3}
    assert streams.get(1).state is StreamState.START


def test_a_finished_stream_that_is_opened_again_stays() -> None:
    streams = SessionStreams(DRAFT_LE, 2)
    for number in (1, 2):
        streams.notify(number, "")
        streams.apply(number, StreamEvent.EOS)
        streams.finish(number)
    streams.notify(1, "")
    streams.apply(2, StreamEvent.NACK)
    with pytest.raises(RemoteProtocolError, match="end streams that are complete"):
        streams.notify(3, "")
