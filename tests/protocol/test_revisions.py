"""The three revisions as tables: every wire vector, three ways, and how a revision is recognised."""

from __future__ import annotations

import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.protocol.pairs import expecting, heard, vectors
from tests.protocol.strategies import message_tag, steady
from wallaroo_spark.errors import LocalProtocolError, RemoteProtocolError
from wallaroo_spark.protocol import (
    DRAFT_BE,
    DRAFT_LE,
    REVISIONS,
    V3,
    Error,
    Fault,
    Frame,
    FrameBuffer,
    Hello,
    Message,
    MessageRun,
    Nack,
    Notify,
    Restart,
    Revision,
    frame_name,
    recognise,
)

every_vector = pytest.mark.parametrize(
    ("revision", "frame", "wire"),
    vectors(),
    ids=[
        f"{revision.name}-{number}-{frame_name(type(frame))}" for number, (revision, frame, _) in enumerate(vectors())
    ],
)


def found(buffer: FrameBuffer, revision: Revision) -> list[Frame]:
    frames: list[Frame] = []
    while (piece := buffer.next(revision, message_tag(revision))) is not None:
        frames += piece.messages() if isinstance(piece, MessageRun) else [revision.decode(piece.tag, piece.body)]
    return frames


@every_vector
def test_a_vector_encodes_to_its_bytes_and_decodes_to_its_frame(revision: Revision, frame: Frame, wire: bytes) -> None:
    assert revision.encode(frame) == wire
    assert revision.decode(wire[4], wire[5:]) == frame


@every_vector
def test_a_vector_is_found_whole(revision: Revision, frame: Frame, wire: bytes) -> None:
    buffer = FrameBuffer(4 << 20)
    buffer.feed(wire)
    assert found(buffer, revision) == [frame]
    assert len(buffer) == 0


@every_vector
def test_a_vector_is_found_byte_by_byte(revision: Revision, frame: Frame, wire: bytes) -> None:
    buffer = FrameBuffer(4 << 20)
    for at in range(len(wire) - 1):
        buffer.feed(wire[at : at + 1])
        assert found(buffer, revision) == []
    buffer.feed(wire[-1:])
    assert found(buffer, revision) == [frame]


@every_vector
@pytest.mark.parametrize("behind", [1, 4, 5, 1_000])
def test_a_vector_is_found_with_bytes_behind_it(revision: Revision, frame: Frame, wire: bytes, behind: int) -> None:
    buffer = FrameBuffer(4 << 20)
    announced = struct.pack(revision.byte_order + "I", 5_000) + bytes(2_000)
    buffer.feed(wire + announced[:behind])
    assert found(buffer, revision) == [frame]
    assert len(buffer) == behind


@every_vector
def test_a_session_hears_a_vector_whole(revision: Revision, frame: Frame, wire: bytes) -> None:
    session = expecting(frame, revision)
    session.receive(wire)
    assert heard(session) == [frame]
    assert session.pending == 0


@every_vector
def test_a_session_hears_a_vector_byte_by_byte(revision: Revision, frame: Frame, wire: bytes) -> None:
    session = expecting(frame, revision)
    for at in range(len(wire) - 1):
        session.receive(wire[at : at + 1])
        assert heard(session) == []
    session.receive(wire[-1:])
    assert heard(session) == [frame]


@every_vector
def test_a_session_hears_a_vector_with_bytes_behind_it(revision: Revision, frame: Frame, wire: bytes) -> None:
    session = expecting(frame, revision)
    session.receive(wire + bytes(3))
    assert heard(session) == [frame]
    # Nothing is kept behind the frame that ends a session.
    assert session.pending == (0 if isinstance(frame, Error | Restart) else 3)


@pytest.mark.parametrize("revision", REVISIONS.values(), ids=REVISIONS)
@steady
@given(length=st.integers(1, 0xFFFF))
def test_a_hello_of_up_to_64_kib_is_recognised_in_its_revision(revision: Revision, length: int) -> None:
    start = struct.pack(revision.byte_order + "IB", length, revision.by_frame[Hello].tag)
    assert recognise(start) is revision
    assert recognise(start + b"more") is revision


@pytest.mark.parametrize(
    ("start", "revision"),
    [
        (b"\x00\x00\x01\x00H", DRAFT_BE),
        (b"\x00\x01\x00\x00H", DRAFT_LE),
        (b"\x01\x00\x00\x00H", DRAFT_LE),
        (b"\x00\x00\x00\x01H", DRAFT_BE),
        (b"\x00\xff\xff\xffH", DRAFT_BE),
        (b"\xff\xff\xff\x00H", DRAFT_LE),
        (b"\x00\x00\x01\x00\x00", V3),
        (b"\x00\x01\x00\x00\x00", V3),
    ],
)
def test_of_two_sane_lengths_the_shorter_is_meant(start: bytes, revision: Revision) -> None:
    assert recognise(start) is revision


@pytest.mark.parametrize("count", range(5))
def test_fewer_than_five_bytes_are_not_enough_to_recognise(count: int) -> None:
    assert recognise(b"\x00\x00\x00\x11\x00"[:count]) is None


@pytest.mark.parametrize(
    "start",
    [
        b"GET / HTTP",
        b"\x16\x03\x01\x02\x00",
        b"\x00\x00\x00\x00H",
        b"\x00\x00\x00\x00\x00",
        b"\x01\x01\x01\x01H",
        b"\x00\x00\x00\x11N",
        b"\x11\x00\x00\x00\x00",
    ],
)
def test_anything_else_is_not_this_protocol(start: bytes) -> None:
    with pytest.raises(RemoteProtocolError) as caught:
        recognise(start)
    assert caught.value.fields["fault"] is Fault.NOT_THIS_PROTOCOL


@pytest.mark.parametrize(("revision", "frame"), [(DRAFT_BE, Nack(0, 1, 2)), (DRAFT_LE, Restart()), (V3, Nack(0, 1, 2))])
def test_a_frame_that_a_revision_lacks_cannot_be_said_in_it(revision: Revision, frame: Frame) -> None:
    assert not revision.has(type(frame))
    with pytest.raises(LocalProtocolError, match=f"{revision.name} has no {frame_name(type(frame))}"):
        revision.encode(frame)


@pytest.mark.parametrize("revision", REVISIONS.values(), ids=REVISIONS)
def test_a_tag_that_a_revision_lacks_is_refused(revision: Revision) -> None:
    with pytest.raises(RemoteProtocolError) as caught:
        revision.decode(200, b"")
    assert caught.value.fields["fault"] is Fault.UNKNOWN_TAG


@pytest.mark.parametrize("revision", REVISIONS.values(), ids=REVISIONS)
def test_the_frame_that_ends_a_stream_can_be_said(revision: Revision) -> None:
    end = revision.end_of_stream(7, 9)
    assert not isinstance(end, Notify)
    wire = revision.encode(end)
    decoded = revision.decode(wire[4], wire[5:])
    assert decoded == end
    assert isinstance(end, Message) is (revision is not V3)


def test_a_revision_shows_its_name_alone() -> None:
    assert [repr(revision) for revision in REVISIONS.values()] == [
        "<Revision draft-le>",
        "<Revision draft-be>",
        "<Revision v3>",
    ]
