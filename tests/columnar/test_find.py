"""Frames found all at once are those that are found step by step, whatever the payloads look like."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.protocol.strategies import frame, message_tag, steady
from tests.revisions import revisions
from wallaroo_spark.columnar import find, find_messages
from wallaroo_spark.protocol import (
    REVISIONS,
    ConnectorSession,
    Message,
    MessageRun,
    NotifyReceived,
    Revision,
    WorkerSession,
)
from wallaroo_spark.protocol.framing import FrameRules, walk

LONGEST = 200


def rules(revision: Revision) -> FrameRules:
    return FrameRules(revision.byte_order, message_tag(revision), LONGEST)


@pytest.fixture(autouse=True)
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    """Few steps before the rest is looked at together."""
    monkeypatch.setattr(find, "LOOK", 3)
    monkeypatch.setattr(find, "WALK", 5)


def check(data: bytes, at: int, given_rules: FrameRules) -> list[int]:
    starts, end = find_messages(data, at, given_rules)
    wanted = walk(data, at, given_rules)
    assert ([int(start) for start in starts], end) == wanted
    return wanted[0]


@revisions
@steady
@given(data=st.data())
def test_frames_of_any_size_are_found(revision: Revision, data: st.DataObject) -> None:
    tag = message_tag(revision)
    header = frame(revision, tag, b"")[:4] + bytes([tag])
    # A body may contain bytes that look like the header of a frame, or only tags.
    bodies = st.binary(max_size=60) | st.just(header * 4) | st.just(bytes([tag]) * 9) | st.just(b"same size")
    sound = st.builds(lambda body: frame(revision, tag, body), bodies)
    other = st.sampled_from([frame(revision, tag ^ 1, b"another kind"), b"\0\0\0\0", b"\xff" * 7, header, b""])
    drawn = data.draw(st.lists(sound, max_size=40))
    text = b"".join(drawn) + data.draw(other) + b"".join(data.draw(st.lists(sound, max_size=5)))
    before = data.draw(st.binary(max_size=9))
    cut = data.draw(st.integers(0, 12))
    whole = before + text
    check(whole[: len(whole) - cut] if cut < len(text) else whole, len(before), rules(revision))


@revisions
def test_a_length_beyond_the_limit_ends_the_search(revision: Revision) -> None:
    tag = message_tag(revision)
    small = [frame(revision, tag, bytes(5 + number % 7)) for number in range(30)]
    data = b"".join([*small, frame(revision, tag, bytes(LONGEST)), *small])
    assert len(check(data, 0, rules(revision))) == 30


@revisions
def test_payloads_that_are_frames_themselves_are_passed_over(revision: Revision) -> None:
    tag = message_tag(revision)
    inner = frame(revision, tag, b"inner")
    rare = [frame(revision, tag, inner * 2 if number % 40 == 39 else bytes(number % 9)) for number in range(200)]
    assert len(check(b"".join(rare), 0, rules(revision))) == 200
    always = [frame(revision, tag, inner * (1 + number % 3)) for number in range(200)]
    assert len(check(b"".join(always), 0, rules(revision))) == 200


@revisions
def test_long_frames_are_found_step_by_step(revision: Revision) -> None:
    tag = message_tag(revision)
    data = b"".join(frame(revision, tag, bytes(700 + number % 5)) for number in range(40))
    given_rules = FrameRules(revision.byte_order, tag, 1 << 20)
    starts, end = find_messages(data, 0, given_rules)
    assert (starts.tolist(), end) == walk(data, 0, given_rules)


def test_a_session_uses_the_given_frame_finder() -> None:
    revision = REVISIONS["draft-le"]
    asked = []

    def finder(data: bytes, at: int, given_rules: FrameRules) -> tuple[list[int], int]:
        asked.append(given_rules)
        return walk(data, at, given_rules)

    session = WorkerSession(version="0.0.1", find=finder)
    connector = ConnectorSession(revision)
    session.receive(connector.hello(version="0.0.1", cookie=b"", program="p", instance="i"))
    assert session.next_event() is not None
    connector.receive(session.ok(10))
    assert connector.next_event() is not None
    session.receive(connector.notify(1, "s") + revision.encode(Message(1, 1, b"x")))
    assert isinstance(session.next_event(), NotifyReceived)
    found = session.next_event()
    assert isinstance(found, MessageRun)
    assert found.count == 1
    assert asked
