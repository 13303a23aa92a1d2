"""The bytes of messages: the vectors, a round trip in any pieces, and invalid input."""

from __future__ import annotations

import struct

import msgpack
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.pubsub.strategies import lists_of_times
from wallaroo_spark.errors import PubSubError, RemoteProtocolError
from wallaroo_spark.protocol.faults import Fault
from wallaroo_spark.pubsub.messages import (
    MAX_CONTROL_BYTES,
    MAX_HELLO_BYTES,
    MAX_TEXT_BYTES,
    Closed,
    Data,
    Decoder,
    Message,
    Snapshot,
    SubscriberHello,
    Update,
    Why,
    encode,
    encode_parts,
)
from wallaroo_spark.pubsub.times import Time

VECTORS: list[tuple[Message, str]] = [
    (Snapshot((1, 2, 3), (4, 5, 6)), "0000000d 920090 9193010203 9193040506"),
    (Update(((0, -1), (1, 1))), "0000000b 920190 91929200ff920101"),
    (Data(42, msgpack.packb(["hello", "world"])), "00000012 920290 912a 92a568656c6c6fa5776f726c64"),
]
HELLO = SubscriberHello("1", "sesame", "totals", 1, "board", "query-1", ((7, 0),))

times = lists_of_times(4).map(tuple)
one_time = lists_of_times(1).map(tuple)
texts = st.text(max_size=20)
messages = st.one_of(
    st.builds(Snapshot, times, times),
    st.builds(Update, lists_of_times(4).map(lambda found: tuple((time, (-1) ** i) for i, time in enumerate(found)))),
    st.builds(Data, lists_of_times(1).map(lambda found: found[0]), st.binary(max_size=200)),
    st.builds(Closed, st.sampled_from(Why), texts),
    st.builds(
        SubscriberHello, texts, texts, texts, st.integers(0, 99), texts, st.none() | texts, st.just(()) | one_time
    ),
)


def frame(body: str | bytes) -> bytes:
    raw = bytes.fromhex(body) if isinstance(body, str) else body
    return struct.pack(">I", len(raw)) + raw


@pytest.mark.parametrize(("message", "text"), VECTORS, ids=lambda value: type(value).__name__)
def test_the_vectors_hold_byte_for_byte(message: Message, text: str) -> None:
    raw = bytes.fromhex(text)
    assert encode(message) == raw

    for pieces in ([raw], [raw[i : i + 1] for i in range(len(raw))], [raw + raw]):
        decoder = Decoder()
        for piece in pieces[:-1]:
            decoder.feed(piece)
            assert decoder.next() is None
        decoder.feed(pieces[-1])
        assert decoder.next() == message


@given(st.lists(messages, max_size=4), st.lists(st.integers(1, 40), min_size=1, max_size=20))
def test_messages_come_out_as_they_went_in_however_they_are_cut(found: list[Message], cuts: list[int]) -> None:
    raw, decoder, out, at = b"".join(map(encode, found)), Decoder(), [], 0

    while at < len(raw):
        size = cuts[at % len(cuts)]
        decoder.feed(raw[at : at + size])
        at += size
        while (message := decoder.next()) is not None:
            out.append(message)

    assert out == found
    decoder.finish()


@given(st.binary(max_size=60))
def test_any_bytes_raise_at_most_a_violation_of_the_protocol(body: bytes) -> None:
    for head in (b"", b"\x92\x00\x90", b"\x92\x01\x90", b"\x92\x02\x90", b"\x92\x03\x90", b"\x92\x04\x90"):
        decoder = Decoder()
        decoder.feed(frame(head + body))
        try:
            message = decoder.next()
        except RemoteProtocolError:
            continue
        assert isinstance(message, Message)


def test_the_payload_of_data_is_not_decoded() -> None:
    decoder = Decoder()
    decoder.feed(frame("920290 912a c1c1c1"))  # c1 is the one byte that MessagePack never uses

    data = decoder.next()

    assert isinstance(data, Data)
    assert (data.time, bytes(data.payload)) == (42, b"\xc1\xc1\xc1")


def test_a_payload_is_written_as_it_is() -> None:
    payload = memoryview(bytes(1000))
    head, rest = encode_parts(Data((3, 1), payload))

    assert rest is payload
    assert bytes(head) + bytes(rest) == encode(Data((3, 1), payload))


@pytest.mark.parametrize(
    ("body", "fault", "says"),
    [
        ("92", Fault.EMPTY_FRAME, "a message of 1 bytes is announced"),
        ("920990", Fault.UNKNOWN_TAG, "begins with 920990"),
        ("480065", Fault.UNKNOWN_TAG, "begins with 480065"),
        ("920090 9193010203", Fault.TRUNCATED_FRAME, "ends within the upper frontier"),
        ("920090 9193010203 9193040506 c0", Fault.OVERLONG_FRAME, "1 bytes more than its fields"),
        ("920090 93010203 9193040506", Fault.INVALID_TEXT, "the lower frontier is not wrapped"),
        ("920090 9101 9190", Fault.INVALID_TEXT, "the lower frontier is no array of times"),
        ("920190 91929100920101", Fault.INVALID_TEXT, "no array of"),
        ("920190 9101", Fault.INVALID_TEXT, "no array of"),
        ("920290 2a", Fault.INVALID_TEXT, "the time of data is not wrapped"),
        ("920290 91a161", Fault.INVALID_TEXT, "where a time is expected"),
        ("920390 92a3666f6fa3626172", Fault.INVALID_TEXT, "known code"),
        ("920490 90", Fault.INVALID_TEXT, "seven fields"),
        ("920190 c1", Fault.INVALID_TEXT, "is not MessagePack"),
    ],
)
def test_a_broken_message_is_named(body: str, fault: Fault, says: str) -> None:
    decoder = Decoder()
    decoder.feed(frame(body))

    with pytest.raises(RemoteProtocolError, match=says) as caught:
        decoder.next()
    assert caught.value.fields["fault"] is fault


def test_a_hello_that_is_broken_does_not_give_its_cookie_away() -> None:
    decoder = Decoder()
    decoder.feed(frame(b"\x92\x04\x90" + msgpack.packb(["1", "sesame", "totals", "x", "board", None, None])))

    with pytest.raises(RemoteProtocolError) as caught:
        decoder.next()
    assert "sesame" not in str(caught.value)
    assert "sesame" not in repr(HELLO)


def test_a_length_is_judged_before_anything_is_set_aside_for_it() -> None:
    for head, decoder in (
        (struct.pack(">I", 101), Decoder(max_message_bytes=100)),
        (struct.pack(">I", MAX_CONTROL_BYTES + 1) + b"\x92\x00\x90", Decoder()),
        (struct.pack(">I", MAX_HELLO_BYTES + 1), Decoder(control_only=True)),
    ):
        decoder.feed(head)
        with pytest.raises(RemoteProtocolError, match="is announced") as caught:
            decoder.next()
        assert caught.value.fields["fault"] is Fault.FRAME_TOO_LONG


def test_data_may_be_longer_than_other_messages() -> None:
    decoder = Decoder()
    decoder.feed(encode(Data(1, bytes(MAX_CONTROL_BYTES + 1))))
    assert decoder.next() is not None

    strict = Decoder(control_only=True)
    strict.feed(encode(Data(1, b"x")))
    with pytest.raises(RemoteProtocolError, match="sends no data"):
        strict.next()


def test_a_stream_that_ends_within_a_message_was_cut() -> None:
    decoder = Decoder()
    decoder.feed(encode(HELLO)[:-1])

    assert decoder.next() is None
    with pytest.raises(RemoteProtocolError, match="ends within a message"):
        decoder.finish()


def test_the_longest_hello_and_the_longest_time_fit() -> None:
    longest: Time = ((1 << 63,) * 16,) * 4
    text = "\x7f" * MAX_TEXT_BYTES
    decoder = Decoder(control_only=True)
    decoder.feed(encode(SubscriberHello(text, text, text, 1, text, text, (longest,))))
    assert decoder.next() is not None

    decoder = Decoder()
    decoder.feed(encode(Data(longest, b"rows")))
    assert decoder.next() == Data(longest, b"rows")


@pytest.mark.parametrize(
    "message",
    [
        Data(((1,) * 13,) * 5, b""),
        Data(1.5, b""),  # type: ignore[arg-type]  # refused
        SubscriberHello("1", "c" * (MAX_TEXT_BYTES + 1), "totals", 0, "board"),
    ],
)
def test_values_that_no_message_can_carry_are_not_encoded(message: Message) -> None:
    with pytest.raises(PubSubError):
        encode(message)


def test_a_long_reason_is_cut_to_the_limit() -> None:
    decoder = Decoder()
    decoder.feed(encode(Closed(Why.LATER, "é" * 5000)))

    closed = decoder.next()

    assert isinstance(closed, Closed)
    assert len(closed.reason.encode()) <= MAX_TEXT_BYTES
    assert closed.reason.endswith("é…")


def test_the_unit_is_nil_and_a_tuple_an_array() -> None:
    found: list[Time] = [None, (1, (2, 3))]

    assert [encode(Data(time, b""))[4:].hex() for time in found] == ["92029091c0", "9202909192019202" + "03"]
