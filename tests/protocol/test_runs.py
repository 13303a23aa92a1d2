"""Messages in bulk: the bytes of the single frames joined, sent under the same rules."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.protocol.pairs import STREAM, Pair
from tests.protocol.strategies import messages, steady, u64
from tests.revisions import drafts, revisions
from wallaroo_spark.errors import LocalProtocolError
from wallaroo_spark.protocol import (
    DRAFT_BE,
    DRAFT_LE,
    HEAD_BYTES,
    U64_MAX,
    V3,
    ConnectorSession,
    EncodedRun,
    Flags,
    Message,
    MessageRun,
    Revision,
    StreamState,
    encode_run,
    encode_single,
)

BULK_FLAGS = (Flags.NONE, Flags.EPHEMERAL, Flags.UNSTABLE_REFERENCE, Flags.EPHEMERAL | Flags.UNSTABLE_REFERENCE)

Columns = tuple[list[int], list[bytes], list[int | None] | None, list[bytes | None] | None]


@st.composite
def columns(draw: st.DrawFn, revision: Revision) -> Columns:
    """Columns of messages that a revision can say: of each kind none, some or all."""
    count = draw(st.integers(1, 12))

    def column(values: st.SearchStrategy[object]) -> list[object] | None:
        chosen = draw(st.sampled_from((st.none(), st.none() | values, values)))
        found = draw(st.lists(chosen, min_size=count, max_size=count))
        return None if draw(st.booleans()) and not any(one is not None for one in found) else found

    times = u64 if revision is not V3 else st.integers(-(2**63), 2**63 - 1)
    ids = draw(st.lists(u64, min_size=count, max_size=count))
    payloads = draw(st.lists(st.binary(max_size=40), min_size=count, max_size=count))
    keys = st.none() if revision is DRAFT_LE else st.binary(max_size=9)
    return ids, payloads, column(times), column(keys)  # type: ignore[return-value]  # as drawn


def singles(revision: Revision, flags: Flags, found: Columns) -> list[bytes]:
    ids, payloads, times, keys = found
    none: list[None] = [None] * len(ids)
    return [
        revision.encode(Message(STREAM, message_id, payload, flags, time, key))
        for message_id, payload, time, key in zip(ids, payloads, times or none, keys or none, strict=True)
    ]


def a_run(revision: Revision, count: int, size: int = 1) -> EncodedRun:
    return encode_run(revision, STREAM, range(1, count + 1), [b"x" * size] * count)


@revisions
@steady
@given(data=st.data())
def test_a_run_is_its_single_frames_joined(revision: Revision, data: st.DataObject) -> None:
    found = data.draw(columns(revision))
    flags = Flags.NONE if revision is V3 else data.draw(st.sampled_from(BULK_FLAGS))
    expected = singles(revision, flags, found)
    ids, payloads, times, keys = found
    run = encode_run(revision, STREAM, ids, payloads, flags, times, keys)
    assert run.data == b"".join(expected)
    assert (run.count, run.first, run.last) == (len(ids), ids[0], ids[-1])
    assert list(run.frame_sizes()) == [len(frame) for frame in expected]
    extra = [len(payload) + len((keys or payloads)[at] or b"") * bool(keys) for at, payload in enumerate(payloads)]
    assert all(size - beside <= HEAD_BYTES for size, beside in zip(run.frame_sizes(), extra, strict=True))


@revisions
@steady
@given(data=st.data())
def test_one_message_is_written_as_the_table_writes_it(revision: Revision, data: st.DataObject) -> None:
    message = data.draw(messages(revision))
    if message.message_id is not None:
        fields = (message.payload, message.flags, message.event_time, message.key)
        run = encode_single(revision, message.stream_id, message.message_id, *fields)
        assert (run.data, list(run.ids)) == (revision.encode(message), [message.message_id])


@revisions
@steady
@given(data=st.data())
def test_a_run_may_be_split_between_any_two_frames(revision: Revision, data: st.DataObject) -> None:
    ids, payloads, times, keys = data.draw(columns(revision).filter(lambda found: len(found[0]) > 1))
    run = encode_run(revision, STREAM, ids, payloads, 0, times, keys)
    at = data.draw(st.integers(1, run.count - 1))
    one, other = run.split(at)
    assert (list(one.ids), list(other.ids)) == (ids[:at], ids[at:])
    assert list(one.frame_sizes()) == list(run.frame_sizes())[:at]
    assert one.data + other.data == run.data


@pytest.mark.parametrize(
    ("revision", "message", "reason"),
    [
        (DRAFT_LE, Message(1, 2, b"", key=b"k"), "draft-le messages have no key"),
        (V3, Message(1, 2, b"", Flags.EPHEMERAL), "v3 messages have no flags"),
        (DRAFT_LE, Message(1, 2, b"abc", Flags.BOUNDARY), "has no payload, and this one has 3 bytes"),
        (V3, Message(1, 2, b"", event_time=2**63), "the event time"),
        (DRAFT_BE, Message(2**64, 2, b""), "the stream id"),
        (DRAFT_BE, Message(1, 2**64, b""), "the message id"),
        (DRAFT_BE, Message(1, 2, b"", key=b"k" * 70_000), "at most 65535"),
    ],
)
def test_bulk_encoding_refuses_with_the_same_errors(revision: Revision, message: Message, reason: str) -> None:
    for write in (revision.encode, lambda frame: bulk(revision, frame)):
        with pytest.raises(LocalProtocolError, match=reason):
            write(message)


def bulk(revision: Revision, message: Message) -> EncodedRun:
    assert message.message_id is not None
    ids, payloads = [1, message.message_id], [b"", message.payload or b""]
    times, keys = [message.event_time] * 2, [message.key] * 2
    return encode_run(revision, message.stream_id, ids, payloads, message.flags, times, keys)


def test_a_message_without_an_id_is_refused_unless_it_is_ephemeral() -> None:
    with pytest.raises(LocalProtocolError, match="has no id"):
        DRAFT_BE.encode(Message(1, None, b""))
    wire = DRAFT_LE.encode(Message(1, None, b"x", Flags.EPHEMERAL))
    assert wire == DRAFT_LE.encode(Message(1, 0, b"x", Flags.EPHEMERAL))


@drafts
def test_boundaries_in_bulk_have_no_payload_either(revision: Revision) -> None:
    run = encode_run(revision, STREAM, [1, 2], [b"", b""], Flags.BOUNDARY)
    assert run.data == b"".join(revision.encode(Message(STREAM, number, None, Flags.BOUNDARY)) for number in (1, 2))


def test_a_stream_does_not_end_in_bulk() -> None:
    with pytest.raises(LocalProtocolError, match="send the message with EOS alone"):
        encode_run(DRAFT_BE, STREAM, [1], [b"x"], Flags.EOS)


def test_a_run_shows_its_ids_and_not_its_payloads() -> None:
    run = encode_run(DRAFT_BE, 7, range(5, 8), [b"secret"] * 3)
    assert repr(run) == "EncodedRun(stream_id=7, 3 messages, ids 5 to 7, 87 bytes)"


class TestSession:
    @revisions
    def test_a_run_costs_a_credit_for_each_message(self, revision: Revision) -> None:
        pair = Pair(revision, credits=4).start().open()
        (event,) = pair.to_worker(pair.connector.messages(a_run(revision, 3)))
        assert isinstance(event, MessageRun)
        assert [message.message_id for message in event.messages()] == [1, 2, 3]
        assert pair.connector.credits.available == pair.worker.credits.available == 0
        assert pair.connector.credits.spent == 4

    @revisions
    def test_a_run_without_a_credit_for_each_message_is_not_sent_and_not_charged(self, revision: Revision) -> None:
        pair = Pair(revision, credits=3).start().open()
        with pytest.raises(LocalProtocolError, match="MESSAGEs need a credit each, 3 in all, and there are 2"):
            pair.connector.messages(a_run(revision, 3))
        assert pair.connector.credits.available == 2

    @revisions
    def test_a_frame_of_a_run_is_held_against_the_limit_and_the_run_is_not(self, revision: Revision) -> None:
        pair = Pair(revision)
        pair.connector = ConnectorSession(revision, max_frame_bytes=128)
        pair.start().open()
        pair.connector.messages(a_run(revision, 20))
        run = encode_run(revision, STREAM, [30, 31], [b"", bytes(128)])
        with pytest.raises(LocalProtocolError, match=r"message 31 of stream 7 makes a frame of \d+ bytes; at most 128"):
            pair.connector.messages(run)
        assert pair.connector.credits.available == 79

    @revisions
    def test_a_run_needs_an_open_stream_and_a_session_that_streams(self, revision: Revision) -> None:
        with pytest.raises(LocalProtocolError, match="MESSAGE cannot be sent by a connector in state connected"):
            ConnectorSession(revision).messages(a_run(revision, 1))
        pair = Pair(revision).start()
        with pytest.raises(LocalProtocolError, match="stream 7, which is start"):
            pair.connector.messages(a_run(revision, 1))
        pair.bring(StreamState.CLOSED)
        with pytest.raises(LocalProtocolError, match="stream 7, which is closed"):
            pair.connector.messages(a_run(revision, 1))

    def test_the_greatest_id_goes_in_a_run_too(self) -> None:
        run = encode_run(V3, STREAM, range(U64_MAX - 1, U64_MAX + 1), [b"x"] * 2)
        assert run.data == b"".join(V3.encode(Message(STREAM, U64_MAX - 1 + at, b"x")) for at in (0, 1))
