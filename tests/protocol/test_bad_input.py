"""Input of a broken or hostile peer: each fault by its name, one ERROR in reply, and later bytes are ignored."""

from __future__ import annotations

import struct

import pytest

from tests.protocol.pairs import STREAM, Pair, in_state, worker_events
from tests.protocol.strategies import frame, message_tag
from tests.revisions import drafts, revisions
from wallaroo_spark.errors import RemoteProtocolError
from wallaroo_spark.protocol import (
    DRAFT_LE,
    V3,
    Ack,
    Error,
    Fault,
    Flags,
    Hello,
    Message,
    Notify,
    Ok,
    Revision,
    SessionState,
    WorkerSession,
)
from wallaroo_spark.protocol.frames import structs
from wallaroo_spark.protocol.sessions.worker_session import MAX_NAME_BYTES

bytewise = pytest.mark.parametrize("bytewise", [False, True], ids=["whole", "byte-by-byte"])


def refused(worker: WorkerSession, data: bytes, *, piece: int | None = None) -> RemoteProtocolError:
    """The error that bytes lead to, in pieces if wanted; afterwards the session says why once and hears nothing."""
    size = piece or len(data)
    with pytest.raises(RemoteProtocolError) as caught:
        feed(worker, [data[at : at + size] for at in range(0, len(data), size)])
    assert isinstance(caught.value.fields["fault"], Fault)
    assert in_state(worker, SessionState.ERROR)
    reply = worker.fail(caught.value.message)
    if worker.revision:
        assert reply is not None
        assert worker.revision.decode(reply[4], reply[5:]) == Error(caught.value.message)
        worker.receive(worker.revision.encode(Notify(99, "late")))
        assert worker.next_event() is None
        assert worker.streams.get(99).name == ""
    assert worker.pending == 0
    return caught.value


def feed(worker: WorkerSession, pieces: list[bytes]) -> None:
    for piece in pieces:
        worker.receive(piece)
        worker_events(worker)


def fault_of(pair: Pair, data: bytes, *, bytewise: bool = False) -> Fault:
    fault = refused(pair.worker, data, piece=1 if bytewise else None).fields["fault"]
    assert isinstance(fault, Fault)
    return fault


def hello(
    revision: Revision, *, version: str = "0.0.1", cookie: bytes = b"cookie", program: str = "p", instance: str = "i"
) -> bytes:
    return revision.encode(Hello(version, cookie, program, instance))


def hello_frame(revision: Revision, *parts: bytes) -> bytes:
    """A HELLO of short_bytes that may hold anything."""
    u16 = structs(revision.byte_order).u16
    tag = revision.by_frame[Hello].tag
    return frame(revision, tag, b"".join(u16.pack(len(part)) + part for part in parts))


@revisions
@bytewise
def test_a_wrong_version_is_refused(revision: Revision, bytewise: bool) -> None:
    assert fault_of(Pair(revision), hello(revision, version="0.0.10"), bytewise=bytewise) is Fault.WRONG_VERSION


@revisions
@bytewise
@pytest.mark.parametrize("cookie", [b"", b"cooki", b"cookie2", b"Cookie"])
def test_a_wrong_cookie_is_refused_and_no_cookie_is_ever_repeated(
    revision: Revision, bytewise: bool, cookie: bytes
) -> None:
    error = refused(Pair(revision).worker, hello(revision, cookie=cookie), piece=1 if bytewise else None)
    assert error.fields["fault"] is Fault.WRONG_COOKIE
    # The same words and fields whatever was sent or expected.
    assert error.message == "the cookie is not the one that is expected here"
    assert error.fields == {"fault": Fault.WRONG_COOKIE}


@revisions
def test_no_cookie_on_either_side_is_a_match_and_one_on_the_connectors_side_alone_is_not(revision: Revision) -> None:
    worker = WorkerSession(version="0.0.1")
    worker.receive(hello(revision, cookie=b""))
    assert len(worker_events(worker)) == 1
    assert refused(WorkerSession(version="0.0.1"), hello(revision)).fields["fault"] is Fault.WRONG_COOKIE


@revisions
def test_the_version_counts_before_anything_behind_it_is_decoded(revision: Revision) -> None:
    assert fault_of(Pair(revision), hello_frame(revision, b"9", b"cookie", b"\xff")) is Fault.WRONG_VERSION
    assert fault_of(Pair(revision), hello_frame(revision, b"9")) is Fault.WRONG_VERSION


@revisions
def test_the_cookie_counts_before_the_names_are_decoded(revision: Revision) -> None:
    assert fault_of(Pair(revision), hello_frame(revision, b"0.0.1", b"wrong", b"\xff", b"\xff")) is Fault.WRONG_COOKIE


@revisions
@pytest.mark.parametrize("instance", ["", "x" * 256, "é" * 128])
def test_an_empty_or_over_long_instance_name_is_refused(revision: Revision, instance: str) -> None:
    assert fault_of(Pair(revision), hello(revision, instance=instance)) is Fault.BAD_INSTANCE


@revisions
@pytest.mark.parametrize("bad", [0, 2, 3], ids=["version", "program", "instance"])
def test_text_in_a_hello_that_is_not_utf_8_is_refused(revision: Revision, bad: int) -> None:
    parts = [b"0.0.1", b"cookie", b"program", b"shop-1"]
    parts[bad] = b"ab\xff"
    assert fault_of(Pair(revision), hello_frame(revision, *parts)) is Fault.INVALID_TEXT


@revisions
@bytewise
def test_a_stream_name_that_is_not_utf_8_is_refused(revision: Revision, bytewise: bool) -> None:
    wire = revision.encode(Notify(1, "abc")).replace(b"abc", b"a\xc3(")
    assert fault_of(Pair(revision).start(), wire, bytewise=bytewise) is Fault.INVALID_TEXT


@revisions
@bytewise
@pytest.mark.parametrize("tag", [9, 33 + 1, 255])
def test_an_unknown_tag_is_refused(revision: Revision, bytewise: bool, tag: int) -> None:
    assert fault_of(Pair(revision).start(), frame(revision, tag, b"abc"), bytewise=bytewise) is Fault.UNKNOWN_TAG


@revisions
@bytewise
def test_a_frame_shorter_than_its_fields_is_refused(revision: Revision, bytewise: bool) -> None:
    for sound in (revision.encode(Notify(1, "abc")), revision.encode(Message(STREAM, 1, b"")), hello(revision)):
        pair = Pair(revision) if sound == hello(revision) else Pair(revision).start().open()
        cut = frame(revision, sound[4], sound[5:-1])
        assert fault_of(pair, cut, bytewise=bytewise) is Fault.TRUNCATED_FRAME


@revisions
@bytewise
def test_a_frame_longer_than_its_fields_is_refused(revision: Revision, bytewise: bool) -> None:
    for sound in (revision.encode(Notify(1, "abc")), hello(revision), revision.encode(Error("why"))):
        pair = Pair(revision) if sound == hello(revision) else Pair(revision).start()
        longer = frame(revision, sound[4], sound[5:] + b"\x00")
        assert fault_of(pair, longer, bytewise=bytewise) is Fault.OVERLONG_FRAME


@revisions
@bytewise
@pytest.mark.parametrize("length", [(4 << 20) + 1, 2**31, 2**32 - 1])
def test_a_length_bomb_is_refused_before_its_body(revision: Revision, bytewise: bool, length: int) -> None:
    bomb = struct.pack(revision.byte_order + "I", length)
    assert fault_of(Pair(revision).start(), bomb, bytewise=bytewise) is Fault.FRAME_TOO_LONG


@revisions
def test_a_hello_is_held_to_the_greatest_length_too(revision: Revision) -> None:
    worker = WorkerSession(version="0.0.1", cookie=b"cookie", max_frame_bytes=1 << 10)
    assert refused(worker, hello(revision, program="x" * 2_000)[:5]).fields["fault"] is Fault.FRAME_TOO_LONG


@revisions
def test_a_frame_without_even_a_tag_is_refused(revision: Revision) -> None:
    assert fault_of(Pair(revision).start(), bytes(4)) is Fault.EMPTY_FRAME


@drafts
@bytewise
def test_a_reserved_flag_is_refused(revision: Revision, bytewise: bool) -> None:
    sound = revision.encode(Message(STREAM, 1, b"x"))
    wire = frame(revision, sound[4], structs(revision.byte_order).u16.pack(64) + sound[7:])
    assert fault_of(Pair(revision).start().open(), wire, bytewise=bytewise) is Fault.RESERVED_FLAG


def test_the_key_flag_is_reserved_in_draft_le() -> None:
    sound = DRAFT_LE.encode(Message(STREAM, 1, b"x"))
    wire = frame(DRAFT_LE, sound[4], bytes((int(Flags.KEY), 0)) + sound[7:])
    assert fault_of(Pair(DRAFT_LE).start().open(), wire) is Fault.RESERVED_FLAG


@drafts
@bytewise
def test_a_boundary_with_a_payload_is_refused(revision: Revision, bytewise: bool) -> None:
    sound = revision.encode(Message(STREAM, 1, None, Flags.BOUNDARY))
    wire = frame(revision, message_tag(revision), sound[5:] + b"x")
    assert fault_of(Pair(revision).start().open(), wire, bytewise=bytewise) is Fault.BOUNDARY_PAYLOAD


@revisions
@bytewise
def test_a_message_before_its_notify_is_refused(revision: Revision, bytewise: bool) -> None:
    wire = revision.encode(Message(STREAM, 1, b"x"))
    assert fault_of(Pair(revision).start(), wire, bytewise=bytewise) is Fault.STREAM_NOT_OPEN


@revisions
@bytewise
def test_a_message_after_the_end_of_its_stream_is_refused(revision: Revision, bytewise: bool) -> None:
    wire = revision.encode(revision.end_of_stream(STREAM, 1)) + revision.encode(Message(STREAM, 2, b"x"))
    assert fault_of(Pair(revision).start().open(), wire, bytewise=bytewise) is Fault.STREAM_NOT_OPEN


@revisions
@bytewise
def test_a_message_without_credit_is_refused(revision: Revision, bytewise: bool) -> None:
    wire = b"".join(revision.encode(Message(STREAM, number, b"x")) for number in range(4))
    assert fault_of(Pair(revision, credits=3).start().open(), wire, bytewise=bytewise) is Fault.NO_CREDIT


@revisions
@bytewise
def test_a_second_hello_is_refused(revision: Revision, bytewise: bool) -> None:
    assert fault_of(Pair(revision).start(), hello(revision), bytewise=bytewise) is Fault.WRONG_STATE
    assert fault_of(Pair(revision), hello(revision) * 2, bytewise=bytewise) is Fault.WRONG_STATE


@revisions
@bytewise
def test_a_frame_before_the_workers_yes_is_refused(revision: Revision, bytewise: bool) -> None:
    wire = revision.encode(Notify(1, "a"))
    assert fault_of(Pair(revision).handshake(), wire, bytewise=bytewise) is Fault.WRONG_STATE


@revisions
@bytewise
def test_a_frame_of_the_workers_side_is_refused(revision: Revision, bytewise: bool) -> None:
    for sent in (Ok(5), Ack(5, ((STREAM, 1),))):
        assert fault_of(Pair(revision).start(), revision.encode(sent), bytewise=bytewise) is Fault.WRONG_SIDE


@drafts
def test_a_stream_that_mixes_ephemeral_messages_with_others_is_refused(revision: Revision) -> None:
    wire = revision.encode(Message(STREAM, 1, b"x")) + revision.encode(Message(STREAM, 2, b"x", Flags.EPHEMERAL))
    assert fault_of(Pair(revision).start().open(), wire) is Fault.MIXED_EPHEMERAL


@drafts
def test_a_second_notify_of_an_open_stream_is_refused(revision: Revision) -> None:
    wire = revision.encode(Notify(STREAM, "orders"))
    assert fault_of(Pair(revision).start().open(), wire) is Fault.STREAM_ALREADY_OPEN


@revisions
def test_streams_without_number_are_refused(revision: Revision) -> None:
    wire = b"".join(revision.encode(Notify(number, "x")) for number in range(4))
    assert fault_of(Pair(revision, max_streams=3).start(), wire) is Fault.TOO_MANY_STREAMS


@revisions
def test_a_stream_name_without_measure_is_refused(revision: Revision) -> None:
    pair = Pair(revision).start()
    pair.worker.receive(revision.encode(Notify(1, "x" * MAX_NAME_BYTES)))
    assert pair.worker.next_event() is not None
    assert fault_of(pair, revision.encode(Notify(2, "x" * (MAX_NAME_BYTES + 1)))) is Fault.NAME_TOO_LONG


def test_notifying_without_end_is_refused() -> None:
    pair = Pair(V3, max_streams=3, credits=1).start()
    wire = V3.encode(Notify(1, "x"))
    pair.worker.receive(wire)
    assert pair.worker.next_event() is not None
    pair.worker.notify_ack(1, None, success=True)
    assert fault_of(pair, wire * 4) is Fault.NO_CREDIT


@pytest.mark.parametrize("start", [b"GET / HTTP/1.1\r\n", b"\x16\x03\x01\x02\x00\x01", bytes(5), b"\xff" * 9])
@bytewise
def test_another_protocol_is_refused_without_a_reply(start: bytes, bytewise: bool) -> None:
    worker = WorkerSession(version="0.0.1")
    assert refused(worker, start, piece=1 if bytewise else None).fields["fault"] is Fault.NOT_THIS_PROTOCOL
    assert worker.fail("no") is None


@revisions
def test_a_fault_of_one_session_leaves_the_others_as_they_were(revision: Revision) -> None:
    broken, sound = Pair(revision).start().open(), Pair(revision).start().open()
    assert fault_of(broken, frame(revision, 255, b"")) is Fault.UNKNOWN_TAG
    assert len(sound.send(Message(STREAM, 1, b"x"))) == 1
    assert sound.worker.credits.available == 98
