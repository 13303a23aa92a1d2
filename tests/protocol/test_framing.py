"""Finding frames, and runs of messages."""

from __future__ import annotations

import itertools
import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.protocol.pairs import bytes_held
from tests.protocol.strategies import frame, message_tag, messages, run_of, steady
from tests.revisions import revisions
from wallaroo_spark.errors import RemoteProtocolError
from wallaroo_spark.protocol import (
    DRAFT_BE,
    Error,
    Fault,
    FrameBuffer,
    Message,
    MessageRun,
    Notify,
    RawFrame,
    Revision,
)

TAG = message_tag(DRAFT_BE)


def flattened(found: list[RawFrame | MessageRun]) -> list[tuple[int, bytes]]:
    """Tags and bodies, runs taken apart."""
    frames: list[tuple[int, bytes]] = []
    for piece in found:
        if isinstance(piece, MessageRun):
            frames += [(message_tag(piece.revision), bytes(body)) for body in piece.bodies()]
        else:
            frames.append((piece.tag, piece.body))
    return frames


def drained(buffer: FrameBuffer, revision: Revision) -> list[RawFrame | MessageRun]:
    found = []
    while (piece := buffer.next(revision, message_tag(revision))) is not None:
        found.append(piece)
    return found


@revisions
@steady
@given(data=st.data())
def test_frames_are_found_however_the_stream_is_split(revision: Revision, data: st.DataObject) -> None:
    tags = st.sampled_from((message_tag(revision), message_tag(revision), 99))
    frames = data.draw(st.lists(st.tuples(tags, st.binary(max_size=20)), max_size=12))
    stream = b"".join(frame(revision, tag, body) for tag, body in frames)
    cuts = sorted(data.draw(st.sets(st.integers(0, len(stream)))))
    buffer, found = FrameBuffer(64), []
    for start, end in zip([0, *cuts], [*cuts, len(stream)], strict=True):
        buffer.feed(stream[start:end])
        found += drained(buffer, revision)
    assert flattened(found) == frames
    assert len(buffer) == 0


@revisions
@steady
@given(sizes=st.lists(st.tuples(st.integers(0, 3), st.integers(1, 80)), max_size=8), data=st.data())
def test_messages_of_one_size_are_found_whatever_is_in_them(
    revision: Revision, sizes: list[tuple[int, int]], data: st.DataObject
) -> None:
    # Bodies that look like headers, in long rows of one size.
    tag = message_tag(revision)
    body = st.sampled_from((bytes((tag,)), frame(revision, tag, b"")[:3], b"\0\0\0"))
    bodies = st.lists(body, min_size=1, max_size=5).map(itertools.cycle)
    frames = [(tag, one[:size]) for size, count in sizes for one in itertools.islice(data.draw(bodies), count)]
    stream = b"".join(frame(revision, tag, body) for tag, body in frames)
    cut = data.draw(st.integers(0, len(stream)))
    buffer, found = FrameBuffer(64), []
    for piece in (stream[:cut], stream[cut:]):
        buffer.feed(piece)
        found += drained(buffer, revision)

    assert flattened(found) == frames
    assert len(buffer) == 0


def test_messages_that_follow_one_another_are_one_run() -> None:
    wire = [DRAFT_BE.encode(Message(1, number, b"x")) for number in range(5)]
    buffer = FrameBuffer(64)
    buffer.feed(b"".join(wire[:3]) + DRAFT_BE.encode(Notify(2, "n")) + b"".join(wire[3:]) + wire[0][:7])
    found = drained(buffer, DRAFT_BE)
    assert [piece.count if isinstance(piece, MessageRun) else piece.tag for piece in found] == [3, ord("N"), 2]
    assert len(buffer) == 7


@revisions
@steady
@given(data=st.data())
def test_the_head_of_a_run_is_its_first_messages(revision: Revision, data: st.DataObject) -> None:
    drawn = data.draw(st.lists(messages(revision), max_size=8))
    wire = [revision.encode(message) for message in drawn]
    run = run_of(revision, wire, revision.encode(Notify(1, "before")))
    count = data.draw(st.integers(0, 10))
    head = run.head(count)
    assert list(head.messages()) == drawn[:count]
    assert head.count == min(count, len(drawn))
    assert head.size == sum(len(piece) for piece in wire[:count])
    assert head.data is run.data


@revisions
def test_a_length_of_zero_is_refused(revision: Revision) -> None:
    assert refused(revision, 0) is Fault.EMPTY_FRAME


@revisions
def test_a_length_above_the_limit_is_refused_and_one_at_the_limit_is_not(revision: Revision) -> None:
    assert refused(revision, 65) is Fault.FRAME_TOO_LONG
    assert refused(revision, 2**32 - 1) is Fault.FRAME_TOO_LONG
    buffer = FrameBuffer(64)
    buffer.feed(frame(revision, 99, bytes(63)))
    assert drained(buffer, revision) == [RawFrame(99, bytes(63))]


def refused(revision: Revision, length: int) -> Fault:
    """The fault of a length, seen as soon as its fourth byte is there."""
    buffer = FrameBuffer(64)
    for byte in struct.pack(revision.byte_order + "I", length)[:3]:
        buffer.feed(bytes((byte,)))
        assert buffer.next(revision, 0) is None
    buffer.feed(struct.pack(revision.byte_order + "I", length)[3:])
    with pytest.raises(RemoteProtocolError) as caught:
        buffer.next(revision, 0)
    fault = caught.value.fields["fault"]
    assert isinstance(fault, Fault)
    return fault


@pytest.mark.parametrize("behind", [b"", b"\x4d", b"\x4d" * 40])
@pytest.mark.parametrize("length", [0, 65])
def test_good_messages_before_a_bad_length_come_first(length: int, behind: bytes) -> None:
    buffer = FrameBuffer(64)
    buffer.feed(DRAFT_BE.encode(Message(1, 2, b"x")) * 2 + struct.pack(">I", length) + behind)
    run = buffer.next(DRAFT_BE, TAG)
    assert isinstance(run, MessageRun)
    assert run.count == 2
    with pytest.raises(RemoteProtocolError):
        buffer.next(DRAFT_BE, TAG)


def test_the_next_bytes_can_be_seen_without_taking_them() -> None:
    buffer = FrameBuffer(64)
    buffer.feed(b"\x00\x00")
    assert buffer.peek(5) == b"\x00\x00"
    buffer.feed(b"\x00\x01X\x00")
    assert buffer.peek(5) == b"\x00\x00\x00\x01X"
    assert buffer.next(DRAFT_BE, TAG) == RawFrame(ord("X"), b"")
    assert buffer.peek(5) == b"\x00"


def test_a_buffer_that_is_cleared_holds_nothing() -> None:
    buffer = FrameBuffer(64)
    buffer.feed(DRAFT_BE.encode(Error("x")) + b"\x00\x00")
    assert buffer.next(DRAFT_BE, TAG) is not None
    buffer.clear()
    assert len(buffer) == 0
    assert buffer.next(DRAFT_BE, TAG) is None
    buffer.feed(DRAFT_BE.encode(Error("y")))
    assert len(drained(buffer, DRAFT_BE)) == 1


def test_nothing_is_set_aside_for_a_length_that_is_merely_announced() -> None:
    buffer = FrameBuffer(1 << 30)
    buffer.feed(struct.pack(">IB", 1 << 30, TAG) + b"x" * 10)
    assert buffer.next(DRAFT_BE, TAG) is None
    assert bytes_held(buffer) < 200


def test_returned_frames_are_not_held_any_longer() -> None:
    buffer = FrameBuffer(4 << 20)
    buffer.feed(DRAFT_BE.encode(Message(1, 2, bytes(3 << 20))) + b"\x00\x00\x00")
    assert isinstance(buffer.next(DRAFT_BE, TAG), MessageRun)
    assert bytes_held(buffer) < 200
    buffer.feed(b"\x03" + b"Eab" + DRAFT_BE.encode(Error("x" * 30_000)))
    assert len(drained(buffer, DRAFT_BE)) == 2
    assert bytes_held(buffer) < 200
