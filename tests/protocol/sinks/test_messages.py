"""Messages of the control stream: vectors, and round trips."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.protocol.strategies import steady, u64
from wallaroo_spark.errors import LocalProtocolError, RemoteProtocolError
from wallaroo_spark.protocol import Fault, frame_name
from wallaroo_spark.protocol.sinks.messages import (
    CONTROL_ROWS,
    ListUncommitted,
    Phase1,
    Phase2,
    Range,
    Reply,
    ReplyUncommitted,
    SinkMessage,
    WorkersLeft,
    decode_control,
    encode_control,
)

VECTORS: list[tuple[SinkMessage, str]] = [
    (ListUncommitted(7), "c9 0000000000000007"),
    (ReplyUncommitted(7), "ca 0000000000000007 00000000"),
    (ReplyUncommitted(2**64 - 1, ("a", "é")), "ca ffffffffffffffff 00000002 000161 0002c3a9"),
    (Phase1("t"), "cb 000174 00000000"),
    (
        Phase1("o/1/0/x", (Range(1, 256, 65536),)),
        "cb 0007 6f2f312f302f78 00000001 0000000000000001 0000000000000100 0000000000010000",
    ),
    (Reply("t", True), "cc 000174 01"),
    (Reply("t", False), "cc 000174 00"),
    (Phase2("t", True), "cd 000174 01"),
    (Phase2("", False), "cd 0000 00"),
    (WorkersLeft(1, ("w-0", "w-1")), "ce 0000000000000001 00000002 0003772d30 0003772d31"),
]

texts = st.text(max_size=12)
some = st.lists(texts, max_size=4).map(tuple)
controls: st.SearchStrategy[SinkMessage] = st.one_of(
    st.builds(ListUncommitted, u64),
    st.builds(ReplyUncommitted, u64, some),
    st.builds(Phase1, texts, st.lists(st.builds(Range, u64, u64, u64), max_size=3).map(tuple)),
    st.builds(Reply, texts, st.booleans()),
    st.builds(Phase2, texts, st.booleans()),
    st.builds(WorkersLeft, u64, some),
)


@pytest.mark.parametrize(("message", "text"), VECTORS, ids=lambda value: value if isinstance(value, str) else "")
def test_the_vectors_hold_both_ways(message: SinkMessage, text: str) -> None:
    wire = bytes.fromhex(text)

    assert encode_control(message) == wire
    assert decode_control(wire) == message


def test_the_vectors_have_every_message() -> None:
    assert {frame_name(type(message)) for message, _ in VECTORS} == {frame_name(row.frame) for row in CONTROL_ROWS}
    assert [row.tag for row in CONTROL_ROWS] == list(range(201, 207))


@steady
@given(controls)
def test_every_message_is_read_back_as_it_was_written(message: SinkMessage) -> None:
    assert decode_control(encode_control(message)) == message


@steady
@given(controls, st.data())
def test_a_message_cut_anywhere_is_a_fault(message: SinkMessage, data: st.DataObject) -> None:
    wire = encode_control(message)
    cut = wire[: data.draw(st.integers(0, len(wire) - 1))]

    with pytest.raises(RemoteProtocolError) as caught:
        decode_control(cut)
    assert caught.value.fields["fault"] in (Fault.EMPTY_FRAME, Fault.TRUNCATED_FRAME, Fault.INVALID_TEXT)


@steady
@given(st.binary(max_size=60))
def test_any_bytes_are_a_message_or_a_fault(wire: bytes) -> None:
    outcome: SinkMessage | Fault
    try:
        outcome = decode_control(wire)
    except RemoteProtocolError as error:
        outcome = error.fields["fault"]
    assert isinstance(outcome, Fault) or encode_control(outcome) == wire


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ("", Fault.EMPTY_FRAME),
        ("c8", Fault.UNKNOWN_TAG),
        ("c9 0000000000000007 00", Fault.OVERLONG_FRAME),
        ("ca 0000000000000007 ffffffff", Fault.TRUNCATED_FRAME),
        ("cb 0000 ffffffff", Fault.TRUNCATED_FRAME),
        ("cc 0000 02", Fault.WRONG_STATE),
        ("cd 0001 ff 00", Fault.INVALID_TEXT),
    ],
)
def test_bytes_that_the_table_does_not_have_are_named(text: str, fault: Fault) -> None:
    with pytest.raises(RemoteProtocolError) as caught:
        decode_control(bytes.fromhex(text))
    assert caught.value.fields["fault"] is fault


def test_a_value_that_does_not_fit_is_refused() -> None:
    with pytest.raises(LocalProtocolError, match="at most 65535"):
        encode_control(Phase2("x" * 65536, True))
