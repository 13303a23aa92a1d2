"""The encodings of the seed as bytes: each is read whole, byte by byte, and with other bytes behind it."""

from __future__ import annotations

import pytest

from wallaroo_spark.aqueduct.errors import ProtocolViolation
from wallaroo_spark.aqueduct.frames import (
    AckNackUnreliable,
    AckReliable,
    ChannelControl,
    ChannelId,
    ClosedChannelLost,
    CloseReceiver,
    ConnectionControl,
    FinishSender,
    Frame,
    FrameLimits,
    MessageFrame,
    SentUnreliable,
    Version,
    decode,
    encode,
)
from wallaroo_spark.aqueduct.frames.values import U64_MAX
from wallaroo_spark.aqueduct.violations import CloseCode, Rule

LIMITS = FrameLimits(frame=1000, headers=100, attachments=4)
MAGIC = "ef505fa6600f408e" + b"AQUEDUCT".hex()

VECTORS: dict[str, tuple[Frame, str]] = {
    "version": (Version(b"0.0.0-AFTER"), MAGIC + "0b" + b"0.0.0-AFTER".hex()),
    "no headers": (ConnectionControl(()), "0100"),
    "headers": (ConnectionControl((("a-1", b""), ("b", b"\xff\x00"))), "010a" + "03612d31" + "00" + "0162" + "02ff00"),
    "a header twice": (ConnectionControl((("a", b"1"), ("a", b"2"))), "0108" + "01610131" + "01610132"),
    "channel control of the entrypoint": (ChannelControl(ChannelId(0)), "0200"),
    "channel control of two bytes": (ChannelControl(ChannelId(128)), "028001"),
    "message": (MessageFrame(ChannelId(0), 0, b"hi"), "0300000268" + "6900"),
    "empty message": (MessageFrame(ChannelId(1), 127, b""), "03017f0000"),
    "message with attachments": (
        MessageFrame(ChannelId(0), 300, b"x", (ChannelId(2), ChannelId(255))),
        "0300ac02" + "0178" + "03" + "02" + "ff01",
    ),
    "largest number": (MessageFrame(ChannelId(0), U64_MAX, b""), "0300" + "ffffffffffffffffff01" + "0000"),
    "sent unreliable": (SentUnreliable(5), "0405"),
    "ack reliable": (AckReliable((3,)), "050103"),
    "ack reliable behind a gap": (AckReliable((0, 2, 1)), "0503000201"),
    "ack and nack": (AckNackUnreliable((2, 1, 128)), "060402018001"),
    "nack only": (AckNackUnreliable((0, 1)), "06020001"),
    "finish sender": (FinishSender(16384), "07808001"),
    "close receiver without acks": (CloseReceiver(()), "0800"),
    "close receiver": (CloseReceiver((1, 1, 1)), "0803010101"),
    "closed channel lost": (ClosedChannelLost(ChannelId(7)), "0907"),
}


@pytest.mark.parametrize("name", VECTORS)
def test_a_frame_is_these_bytes(name: str) -> None:
    frame, vector = VECTORS[name]

    assert encode(frame).hex() == vector


@pytest.mark.parametrize("name", VECTORS)
def test_a_frame_is_read_whole(name: str) -> None:
    frame, vector = VECTORS[name]
    data = bytes.fromhex(vector)

    assert decode(data, 0, LIMITS) == (frame, len(data))


@pytest.mark.parametrize("name", VECTORS)
def test_a_frame_is_read_byte_by_byte(name: str) -> None:
    frame, vector = VECTORS[name]
    data = bytes.fromhex(vector)

    assert [decode(bytearray(data[:size]), 0, LIMITS) for size in range(len(data))] == [None] * len(data)
    assert decode(bytearray(data), 0, LIMITS) == (frame, len(data))


@pytest.mark.parametrize("name", VECTORS)
def test_a_frame_is_read_with_other_bytes_around_it(name: str) -> None:
    frame, vector = VECTORS[name]
    data = b"\xff\xff" + bytes.fromhex(vector) + b"\x63\x00"

    assert decode(data, 2, LIMITS) == (frame, len(data) - 2)


REFUSED: dict[str, tuple[str, Rule]] = {
    "an integer with a byte too many": ("028000", Rule.VARINT_NOT_SHORTEST),
    "an integer of 65 bits": ("02ffffffffffffffffff02", Rule.VARINT_TOO_LARGE),
    "an integer of eleven bytes": ("02ffffffffffffffffff8101", Rule.VARINT_TOO_LARGE),
    "an unknown type": ("0a", Rule.UNKNOWN_FRAME),
    "type zero": ("00", Rule.UNKNOWN_FRAME),
    "another protocol": ("ef505fa7", Rule.WRONG_MAGIC),
    "a version of another program": (MAGIC[:-2] + "55", Rule.WRONG_MAGIC),
    "a version of 256 bytes": (MAGIC + "8002", Rule.WRONG_VERSION),
    "three arrays in the headers": ("0106" + "0161" + "0162" + "0163", Rule.HEADERS_ODD),
    "an empty key": ("0103" + "00" + "0162", Rule.HEADER_KEY_EMPTY),
    "a key beyond ASCII": ("0103" + "01e9" + "00", Rule.HEADER_KEY_NOT_ASCII),
    "headers that end within a key": ("010202" + "61", Rule.ARRAY_OUT_OF_BOUNDS),
    "headers that end within a length": ("010180", Rule.ARRAY_OUT_OF_BOUNDS),
    "headers of 101 bytes": ("0165", Rule.HEADERS_TOO_LONG),
    "attachments that end within an id": ("03000000" + "0180", Rule.ARRAY_OUT_OF_BOUNDS),
    "five attachments": ("03000000" + "050812182028", Rule.TOO_MANY_ATTACHMENTS),
    "attachments of 41 bytes": ("03000000" + "29", Rule.TOO_MANY_ATTACHMENTS),
    "a payload beyond the limit": ("030000" + "e807", Rule.FRAME_TOO_LONG),
    "a message that its attachments make too long": (
        "030000" + "df07" + "00" * 991 + "0408101820",
        Rule.FRAME_TOO_LONG,
    ),
    "an ack without a range": ("0500", Rule.RANGES_EMPTY),
    "an ack of a range of zero": ("050100", Rule.RANGE_ZERO),
    "an ack with a zero inside": ("0503010001", Rule.RANGE_ZERO),
    "a nack without a range": ("0600", Rule.RANGES_EMPTY),
    "a nack of a range of zero": ("060100", Rule.RANGE_ZERO),
    "a nack with a zero at the end": ("06020100", Rule.RANGE_ZERO),
    "a close with a range of zero": ("080100", Rule.RANGE_ZERO),
    "ranges that end within an integer": ("050180", Rule.ARRAY_OUT_OF_BOUNDS),
    "ranges of 128 KiB and a byte": ("05818008", Rule.RANGES_TOO_LONG),
}


@pytest.mark.parametrize("name", REFUSED)
def test_bytes_that_are_no_frame_are_refused_by_the_name_of_the_rule(name: str) -> None:
    vector, rule = REFUSED[name]

    with pytest.raises(ProtocolViolation, match=f"^{rule}: ") as refused:
        decode(bytes.fromhex(vector), 0, LIMITS)

    assert refused.value.fields["rule"] is rule


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_refused_whole_is_refused_byte_by_byte(name: str) -> None:
    data = bytes.fromhex(REFUSED[name][0])

    with pytest.raises(ProtocolViolation, match=f"^{REFUSED[name][1]}: "):
        assert all(decode(data[:size], 0, LIMITS) is None for size in range(1, len(data) + 1))


def test_a_violation_closes_with_the_code_of_its_kind() -> None:
    assert Rule.VARINT_TOO_LARGE.close_code is CloseCode.PROTOCOL
    assert Rule.WRONG_VERSION.close_code is CloseCode.VERSION
    assert Rule.FRAME_TOO_LONG.close_code is CloseCode.LIMITS


def test_the_text_of_a_message_shortens_its_payload() -> None:
    assert repr(MessageFrame(ChannelId(2), 1, b"a" * 40, (ChannelId(0),))) == (
        f"MessageFrame(<channel 2 of the server, sent by the client>, 1, {b'a' * 32!r} and 8 bytes, "
        "[<channel 0 of the client, sent by the client>])"
    )
