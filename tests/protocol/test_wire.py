"""Primitive types."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.protocol.strategies import i64, steady, u64
from wallaroo_spark.errors import LocalProtocolError, RemoteProtocolError
from wallaroo_spark.protocol import Fault
from wallaroo_spark.protocol.frames import Reader, Writer

orders = pytest.mark.parametrize("order", ["<", ">"], ids=["little", "big"])


@orders
@steady
@given(number=u64, number_signed=i64, text=st.text(max_size=30), data=st.binary(max_size=30), small=st.integers(0, 255))
def test_written_values_are_read_back(
    order: str, number: int, number_signed: int, text: str, data: bytes, small: int
) -> None:
    write = Writer(order).u8(small).u16(small, "a").u32(small, "b").u64(number, "c").i64(number_signed, "d")
    body = write.short_text(text, "e").short_bytes(data, "f").raw(data).done()
    read = Reader(body, order, "TEST")
    assert (read.u8("a"), read.u16("b"), read.u32("c"), read.u64("d"), read.i64("e")) == (
        small,
        small,
        small,
        number,
        number_signed,
    )
    assert (read.short_text("f"), read.short_bytes("g"), read.rest(), read.left) == (text, data, data, 0)
    read.finish()


@orders
def test_every_integer_has_its_byte_order_and_width(order: str) -> None:
    body = Writer(order).u16(1, "a").u32(1, "b").u64(1, "c").i64(-2, "d").done()
    widths = [(2, 1), (4, 1), (8, 1), (8, 2**64 - 2)]
    wanted = b"".join(value.to_bytes(width, "little" if order == "<" else "big") for width, value in widths)
    assert body == wanted


def test_a_field_that_is_cut_off_is_named_with_its_arrived_bytes() -> None:
    with pytest.raises(
        RemoteProtocolError, match="ACK frame ends within the credits: 3 of 4 bytes are there"
    ) as caught:
        Reader(b"abc", ">", "ACK").u32("the credits")
    assert caught.value.fields["fault"] is Fault.TRUNCATED_FRAME


def test_short_bytes_may_not_promise_more_than_is_there() -> None:
    with pytest.raises(RemoteProtocolError, match="within the name: 1 of 65535 bytes"):
        Reader(b"\xff\xffa", ">", "NOTIFY").short_bytes("the name")


def test_text_must_be_utf_8_and_the_message_says_where_it_is_not() -> None:
    with pytest.raises(RemoteProtocolError, match="the name in a NOTIFY frame is not UTF-8 at byte 2") as caught:
        Reader(b"\x00\x03ab\xff", ">", "NOTIFY").short_text("the name")
    assert caught.value.fields["fault"] is Fault.INVALID_TEXT


def test_bytes_behind_the_last_field_are_refused() -> None:
    with pytest.raises(RemoteProtocolError, match="OK frame has 2 bytes more") as caught:
        Reader(b"ab", ">", "OK").finish()
    assert caught.value.fields["fault"] is Fault.OVERLONG_FRAME


def test_a_value_that_does_not_fit_its_field_cannot_be_written() -> None:
    with pytest.raises(LocalProtocolError, match="the credits is 4294967296, which does not fit 4 bytes"):
        Writer(">").u32(2**32, "the credits")
    with pytest.raises(LocalProtocolError, match="the id is -1"):
        Writer("<").u64(-1, "the id")
    with pytest.raises(LocalProtocolError, match="the name has 65536 bytes; at most 65535"):
        Writer(">").short_text("x" * 65_536, "the name")
    with pytest.raises(LocalProtocolError, match="the name cannot be written as UTF-8 from character 1"):
        Writer(">").short_text("a\udc80", "the name")
