"""How each frame is written and read, revision by revision."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.protocol.strategies import messages, steady, u64
from tests.revisions import revisions
from wallaroo_spark.errors import LocalProtocolError, RemoteProtocolError
from wallaroo_spark.protocol import (
    DRAFT_BE,
    DRAFT_LE,
    V3,
    Ack,
    EosMessage,
    Error,
    Fault,
    Flags,
    Frame,
    Hello,
    Message,
    Nack,
    Notify,
    NotifyAck,
    Ok,
    Restart,
    Revision,
    StreamReference,
)

u32 = st.sampled_from((0, 1, 2**32 - 1)) | st.integers(0, 2**32 - 1)
text = st.text(max_size=20)
pairs = st.lists(st.tuples(u64, u64), max_size=5).map(tuple)


def references(revision: Revision) -> st.SearchStrategy[tuple[StreamReference, ...]]:
    if revision is V3:
        return st.just(())
    names = text if revision is DRAFT_BE else st.just("")
    return st.lists(st.builds(StreamReference, u64, u64, names), max_size=5).map(tuple)


def frames(revision: Revision) -> st.SearchStrategy[Frame]:
    """Any frame that a revision can say, as decoding gives it back."""
    strategies: dict[type, st.SearchStrategy[Frame]] = {
        Hello: st.builds(Hello, text, st.binary(max_size=20), text, text),
        Ok: st.builds(Ok, u32, references(revision)),
        Error: st.builds(Error, text),
        Notify: st.builds(Notify, u64, text, u64),
        NotifyAck: st.builds(NotifyAck, st.booleans(), u64, u64),
        Message: messages(revision),
        EosMessage: st.builds(EosMessage, u64, st.none() | u64),
        Ack: st.builds(Ack, u32, pairs),
        Nack: st.builds(Nack, u32, u64, u64),
        Restart: st.builds(Restart, text if revision is V3 else st.just("")),
    }
    return st.one_of([strategies[row.frame] for row in revision.rows])


@revisions
@steady
@given(data=st.data())
def test_every_frame_is_read_back_as_it_was_written(revision: Revision, data: st.DataObject) -> None:
    frame = data.draw(frames(revision))
    wire = revision.encode(frame)
    assert int.from_bytes(wire[:4], "little" if revision.byte_order == "<" else "big") == len(wire) - 4
    assert wire[4] == revision.by_frame[type(frame)].tag
    assert revision.decode(wire[4], wire[5:]) == frame


@revisions
@steady
@given(data=st.data())
def test_a_frame_cut_anywhere_or_made_longer_is_another_frame_or_a_fault(
    revision: Revision, data: st.DataObject
) -> None:
    wire = revision.encode(data.draw(frames(revision)))
    cut = data.draw(st.integers(0, len(wire) - 5))
    for body in (wire[5 : 5 + cut], wire[5:] + b"\x00"):
        outcome = attempt(revision, wire[4], body)
        assert isinstance(outcome, Frame) or isinstance(outcome.fields["fault"], Fault)


def attempt(revision: Revision, tag: int, body: bytes) -> Frame | RemoteProtocolError:
    try:
        return revision.decode(tag, body)
    except RemoteProtocolError as error:
        return error


def fault(revision: Revision, tag: int | str, body: bytes) -> Fault:
    with pytest.raises(RemoteProtocolError) as caught:
        revision.decode(ord(tag) if isinstance(tag, str) else tag, body)
    found = caught.value.fields["fault"]
    assert isinstance(found, Fault)
    return found


def test_an_ack_must_hold_as_many_references_as_it_announces() -> None:
    body = bytes(4) + b"\x00\x00\x00\x02" + bytes(16)
    for revision, tag in ((DRAFT_BE, "A"), (V3, 6)):
        assert fault(revision, tag, body) is Fault.TRUNCATED_FRAME
        assert fault(revision, tag, body + bytes(17)) is Fault.TRUNCATED_FRAME
        assert fault(revision, tag, bytes(4) + b"\xff\xff\xff\xff") is Fault.TRUNCATED_FRAME


def test_a_draft_le_list_of_references_may_not_end_within_one() -> None:
    assert fault(DRAFT_LE, "A", bytes(4 + 15)) is Fault.TRUNCATED_FRAME
    assert fault(DRAFT_LE, "O", bytes(4 + 17)) is Fault.TRUNCATED_FRAME


def test_the_success_of_a_notify_ack_is_zero_or_one() -> None:
    assert fault(V3, 4, b"\x02" + bytes(16)) is Fault.WRONG_STATE


def test_the_address_of_a_restart_is_utf_8() -> None:
    assert fault(V3, 7, b"\x00\x00\x00\x01\xff") is Fault.INVALID_TEXT
    assert V3.decode(7, b"") == V3.decode(7, bytes(4)) == Restart()


def test_a_draft_be_restart_is_empty() -> None:
    assert fault(DRAFT_BE, "!", b"\x00") is Fault.OVERLONG_FRAME


@pytest.mark.parametrize(("revision", "known"), [(DRAFT_LE, 31), (DRAFT_BE, 63)], ids=["draft-le", "draft-be"])
def test_every_reserved_flag_is_refused(revision: Revision, known: int) -> None:
    order = revision.byte_order
    good = revision.encode(Message(1, 2, b""))[5:]
    for bit in range(16):
        flags = (1 << bit).to_bytes(2, "little" if order == "<" else "big")
        if 1 << bit & ~known:
            assert fault(revision, "M", flags + good[2:]) is Fault.RESERVED_FLAG


@pytest.mark.parametrize("revision", [DRAFT_LE, DRAFT_BE], ids=repr)
def test_a_boundary_with_a_payload_is_refused(revision: Revision) -> None:
    wire = revision.encode(Message(1, 2, None, Flags.BOUNDARY))
    assert fault(revision, "M", wire[5:] + b"x") is Fault.BOUNDARY_PAYLOAD


def test_a_reason_that_is_not_utf_8_is_shown_all_the_same() -> None:
    assert DRAFT_BE.decode(ord("E"), b"\x00\x02a\xff") == Error("a\N{REPLACEMENT CHARACTER}")


def test_a_reason_is_cut_between_characters() -> None:
    wire = DRAFT_BE.encode(Error("é" * 40_000))
    assert DRAFT_BE.decode(wire[4], wire[5:]) == Error("é" * 32_767)


def test_an_ephemeral_draft_le_message_without_an_id_carries_zero() -> None:
    wire = DRAFT_LE.encode(Message(1, None, b"x", Flags.EPHEMERAL))
    assert DRAFT_LE.decode(wire[4], wire[5:]) == Message(1, 0, b"x", Flags.EPHEMERAL)


@pytest.mark.parametrize(
    ("revision", "message", "reason"),
    [
        (DRAFT_LE, Message(1, 2, b"", key=b"k"), "draft-le messages have no key"),
        (V3, Message(1, 2, b"", Flags.EPHEMERAL), "v3 messages have no flags"),
        (DRAFT_BE, Message(1, None, b""), "a message of stream 1 has no id"),
        (DRAFT_LE, Message(1, 2, b"abc", Flags.BOUNDARY), "has no payload, and this one has 3 bytes"),
        (V3, Message(1, 2, b"", event_time=2**63), "the event time"),
        (DRAFT_BE, Message(2**64, 2, b""), "the stream id"),
    ],
)
def test_a_message_that_cannot_be_said_is_our_own_error(revision: Revision, message: Message, reason: str) -> None:
    with pytest.raises(LocalProtocolError, match=reason):
        revision.encode(message)


def test_a_hello_does_not_show_its_cookie_and_a_message_shortens_its_payload() -> None:
    assert "secret" not in repr(Hello("0.0.1", b"secret", "program", "shop-1"))
    shown = repr(Message(1, 2, b"x" * 1_000))
    assert "(1000 bytes)" in shown
    assert len(shown) < 200
    assert "payload=None" in repr(Message(1, 2, None, Flags.BOUNDARY))
    assert repr(b"short") in repr(Message(1, 2, b"short"))
