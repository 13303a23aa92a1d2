"""Frames of all revisions as text and values; an error is named with its byte, and decoding continues."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator

import pytest

from tests.protocol.page import Worked, worked
from wallaroo_spark.errors import RemoteProtocolError
from wallaroo_spark.protocol import DRAFT_BE, DRAFT_LE, REVISIONS, V3, Ack, Hello, Message, Notify, Ok, Restart
from wallaroo_spark.wiretap.decoding import CaptureDecoder, DecodedFrame, decode, decode_bytes
from wallaroo_spark.wiretap.proxy import End
from wallaroo_spark.wiretap.recording import ConnectionOpened, Event, Passed, Remark

SESSIONS = [session for session in worked() if session.whole]
HELLO = Hello("0.0.1", b"secret", "orders", "shop-1")
CONNECTOR, WORKER = End.CONNECTOR, End.WORKER


def events(session: Worked, size: int = 1000) -> Iterator[Event]:
    """A session of the page as a capture has it, in chunks of a size."""
    yield ConnectionOpened(0.0, 1, "peer:1")
    for number, frame in enumerate(session.frames, 1):
        for at in range(0, len(frame.wire), size):
            yield Passed(float(number), 1, CONNECTOR if frame.out else WORKER, frame.wire[at : at + size])
    yield Remark(99.0, 1, "the connector closed", closed=True)


def decoded(*given: tuple[End, bytes]) -> list[DecodedFrame]:
    """The frames of one connection."""
    found = decode([ConnectionOpened(0.0, 1, "peer:1"), *(Passed(1.0, 1, sender, data) for sender, data in given)])
    return [one for one in found if isinstance(one, DecodedFrame)]


def is_sink(session: Worked) -> bool:
    return session.kind == "sink"


@pytest.mark.parametrize("size", [1, 5, 1000])
@pytest.mark.parametrize("session", SESSIONS, ids=lambda session: session.kind)
def test_the_worked_sessions_are_decoded_whole(session: Worked, size: int) -> None:
    frames = [one for one in decode(events(session, size)) if isinstance(one, DecodedFrame)]

    assert [frame.data for frame in frames] == [frame.wire for frame in session.frames]
    assert [frame.at for frame in frames] == [float(number) for number in range(1, len(frames) + 1)]
    if not is_sink(session):
        assert [frame.name for frame in frames] == [frame.name for frame in session.frames]
        assert not [frame.error for frame in frames if frame.error]
    assert all(json.loads(json.dumps(frame.to_json()))["size"] == len(frame.data) for frame in frames)


@pytest.mark.parametrize("session", [one for one in SESSIONS if not is_sink(one)], ids=lambda session: session.kind)
def test_a_frame_reads_as_on_the_page(session: Worked) -> None:
    frames = [one for one in decode(events(session)) if isinstance(one, DecodedFrame)]
    for shown, frame in zip(session.frames, frames, strict=True):
        fields = {k: v.encode() if k in ("payload", "key", "cookie") else v for k, v in shown.fields.items()}
        fields.pop("flags", None)
        known = frame.fields()
        known.pop("flags", None)
        if frame.name == "NOTIFY_ACK" and known["ref"] is None:
            known["ref"] = 2**64 - 1
        if frame.name == "OK":
            fields.setdefault("streams", [])
            known["streams"] = [one if len(fields["streams"][0]) == 3 else (one[0], one[2]) for one in known["streams"]]
        assert known == {"address": ""} | fields if frame.name == "RESTART" else known == fields
        assert frame.text().startswith(frame.name)


def test_an_error_in_a_frame_is_named_at_its_byte_and_the_next_frame_follows() -> None:
    hello = DRAFT_BE.encode(HELLO)
    wrong = bytes.fromhex("00000013 4d 0040 0000000000000007 0000000000000029")
    right = DRAFT_BE.encode(Notify(7, "orders"))

    bad, good = list(decode_bytes([hello, wrong, right]))[1:]

    assert bad.frame is None
    assert bad.name == "MESSAGE"
    assert "flags are 0x0040" in bad.error
    assert bad.error_offset == len(hello) + 7  # behind length, tag and flags
    assert good.frame == Notify(7, "orders")


@pytest.mark.parametrize(
    ("frame", "offset", "reason"),
    [
        ("00000009 4e 0000000000000007", 13, "ends within the length of the stream name"),
        ("0000000c 4e 0000000000000007 0005 6f", 15, "ends within the stream name"),
        ("00000001 58", 4, "tag 88 is not a frame of draft-be; its tags are 72 HELLO"),
        ("00000000", 0, "length 0"),
    ],
)
def test_each_kind_of_error_has_its_byte(frame: str, offset: int, reason: str) -> None:
    bad, good = decode_bytes([bytes.fromhex(frame), DRAFT_BE.encode(Ok(3))], DRAFT_BE)

    assert reason in bad.error
    assert bad.error_offset == offset
    assert good.frame == Ok(3)


def test_behind_a_frame_that_is_too_long_no_frame_is_claimed() -> None:
    first, rest = decode_bytes([bytes.fromhex("7fffffff 4d 00"), b"more"], DRAFT_BE)

    assert "check the byte order" in first.error
    assert "no frame can be found" in rest.error
    assert (first.offset, rest.offset) == (0, 6)


def test_a_connection_that_ends_within_a_frame_is_told() -> None:
    *_, last = decode_bytes([DRAFT_LE.encode(HELLO), b"\x19\x00\x00\x00N\x07"])

    assert "ended within a frame, behind 6 bytes of 29" in last.error


def test_plain_bytes_without_a_hello_need_the_revision() -> None:
    with pytest.raises(RemoteProtocolError, match=r"--revision"):
        list(decode_bytes([V3.encode(Ack(1))]))

    (found,) = decode_bytes([V3.encode(Ack(1))], V3)
    assert found.frame == Ack(1)


class TestRules:
    """A frame that is written well and comes at the wrong time."""

    def test_a_message_without_a_credit(self) -> None:
        notify, message = DRAFT_BE.encode(Notify(7, "a")), DRAFT_BE.encode(Message(7, 1, b"x"))
        frames = decoded(
            (CONNECTOR, DRAFT_BE.encode(HELLO)), (WORKER, DRAFT_BE.encode(Ok(2))), (CONNECTOR, notify + 2 * message)
        )

        assert [frame.credits for frame in frames] == [None, 2, 1, 0, -1]
        assert [bool(frame.error) for frame in frames] == [False] * 4 + [True]
        assert "no credit left" in frames[-1].error

    def test_a_message_of_a_stream_that_is_not_open(self) -> None:
        frames = decoded(
            (CONNECTOR, V3.encode(HELLO)), (WORKER, V3.encode(Ok(9))), (CONNECTOR, V3.encode(Message(7, 1, b"x")))
        )

        assert "stream 7" in frames[-1].error
        assert frames[-1].frame is not None

    def test_a_frame_in_the_wrong_state(self) -> None:
        frames = decoded((CONNECTOR, V3.encode(HELLO) + V3.encode(Notify(7, "a"))))

        assert "NOTIFY of a connector is not allowed in state handshake" in frames[-1].error

    def test_frames_on_their_way_behind_a_restart_are_no_error(self) -> None:
        frames = decoded(
            (CONNECTOR, DRAFT_BE.encode(HELLO)),
            (WORKER, DRAFT_BE.encode(Ok(9)) + DRAFT_BE.encode(Restart())),
            (CONNECTOR, DRAFT_BE.encode(Notify(7, "a"))),
        )

        assert not [frame.error for frame in frames if frame.error]


def test_a_worker_that_answers_before_the_hello_was_recorded_is_decoded() -> None:
    frames = decoded((WORKER, DRAFT_BE.encode(Ok(9))), (CONNECTOR, DRAFT_BE.encode(HELLO)))

    assert [frame.name for frame in frames] == ["OK", "HELLO"]


@pytest.mark.parametrize("seed", range(20))
def test_all_bytes_are_in_the_pieces_for_any_input(seed: int) -> None:
    chance = random.Random(seed)
    whole = b"".join(frame.wire for session in SESSIONS[:3] for frame in session.frames)
    noise = bytearray(chance.choice([*REVISIONS.values()]).encode(HELLO) + whole)
    for _ in range(chance.randrange(20)):
        noise[chance.randrange(len(noise))] = chance.randrange(256)
    decoder = CaptureDecoder()
    pieces = [Passed(1.0, 1, CONNECTOR, bytes(noise[at : at + 11])) for at in range(0, len(noise), 11)]

    frames = [frame for piece in pieces for frame in decoder.feed(piece)]
    frames += decoder.finish()

    assert b"".join(frame.data for frame in frames) == noise
    assert [frame.offset for frame in frames] == [
        sum(len(other.data) for other in frames[:number]) for number in range(len(frames))
    ]
