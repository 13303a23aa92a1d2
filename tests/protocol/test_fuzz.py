"""Whatever arrives, a worker's session ends with a named fault or goes on; it never fails otherwise, nor grows."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.protocol.pairs import HELLO, STREAM, VERSION, admit, bytes_held
from tests.protocol.strategies import frame, messages, steady
from tests.revisions import revisions
from wallaroo_spark.errors import RemoteProtocolError
from wallaroo_spark.protocol import (
    V3,
    Error,
    Fault,
    Hello,
    MessageRun,
    Notify,
    NotifyReceived,
    Revision,
    SessionState,
    WorkerSession,
)

pytestmark = pytest.mark.no_cover

MAX_FRAME = 256
# An empty bytes object takes this much, and the buffer refers to a few.
SLACK = 300
thorough = settings(steady, max_examples=100)


def serve(chunks: list[bytes]) -> WorkerSession:
    """A worker that answers as it should, given these bytes; everything but a named fault is let through."""
    worker = WorkerSession(version=VERSION, cookie=HELLO.cookie, max_frame_bytes=MAX_FRAME, max_streams=20)
    for chunk in chunks:
        worker.receive(chunk)
        try:
            answer_all(worker)
        except RemoteProtocolError as error:
            expect_the_end(worker, error)
        buffer = worker._buffer
        assert len(buffer) <= MAX_FRAME + 4
        assert bytes_held(buffer) <= MAX_FRAME + SLACK
        assert (
            len(worker.streams) <= 20
            if worker.revision
            else worker.state
            in (
                SessionState.CONNECTED,
                SessionState.ERROR,
            )
        )
    return worker


def answer_all(worker: WorkerSession) -> None:
    while (event := worker.next_event()) is not None:
        match event:
            case Hello():
                worker.ok(50)
            case NotifyReceived(notify, already_open) if worker.revision is V3:
                worker.notify_ack(notify.stream_id, None, success=not already_open)
            case MessageRun():
                admission = admit(worker, event)
                assert 0 <= admission.end <= event.count
                if admission.error:
                    raise admission.error


def expect_the_end(worker: WorkerSession, error: RemoteProtocolError) -> None:
    assert isinstance(error.fields["fault"], Fault)
    assert 0 < len(error.message) < 400
    assert worker.state is SessionState.ERROR
    assert (worker.fail(error.message) is None) is (worker.revision is None)
    assert worker.pending == 0
    assert worker.next_event() is None


def split(data: bytes, cuts: list[int]) -> list[bytes]:
    edges = [0, *sorted(cut % (len(data) + 1) for cut in cuts), len(data)]
    return [data[start:end] for start, end in pairwise(edges)]


cuts = st.lists(st.integers(0, 2_000), max_size=8)


@thorough
@given(data=st.binary(max_size=400), cuts=cuts)
def test_arbitrary_bytes_lead_to_a_fault_or_to_nothing(data: bytes, cuts: list[int]) -> None:
    worker = serve(split(data, cuts))
    assert worker.state in (SessionState.CONNECTED, SessionState.ERROR)


@revisions
@thorough
@given(data=st.data(), cuts=cuts)
def test_any_frames_behind_a_hello_lead_to_a_fault_or_to_nothing(
    revision: Revision, data: st.DataObject, cuts: list[int]
) -> None:
    tags = st.sampled_from([row.tag for row in revision.rows]) | st.integers(0, 255)
    frames = data.draw(st.lists(st.tuples(tags, st.binary(max_size=60)), max_size=8))
    wire = revision.encode(HELLO) + b"".join(frame(revision, tag, body) for tag, body in frames)
    worker = serve(split(wire, cuts))
    assert worker.hello == HELLO


@st.composite
def conversations(draw: st.DrawFn, revision: Revision) -> list[bytes]:
    """The frames of a connector that keeps the rules, apart perhaps from credit and states."""
    opened = [revision.encode(Notify(stream_id, "name")) for stream_id in (0, 1, STREAM)]
    said = messages(revision).map(revision.encode)
    ended = st.sampled_from((0, 1, STREAM)).map(lambda stream_id: revision.encode(revision.end_of_stream(stream_id, 9)))
    gone = st.builds(lambda reason: revision.encode(Error(reason)), st.text(max_size=5))
    return [revision.encode(HELLO), *opened, *draw(st.lists(said | said | said | ended | gone, max_size=10))]


MUTATIONS = st.lists(
    st.tuples(st.sampled_from(("flip", "drop", "insert", "repeat")), st.integers(0, 2_000), st.binary(max_size=6)),
    max_size=4,
)


def mutated(data: bytes, mutations: list[tuple[str, int, bytes]]) -> bytes:
    for kind, where, extra in mutations:
        at = where % (len(data) + 1)
        match kind:
            case "flip":
                data = data[:at] + bytes(byte ^ 1 << where % 8 for byte in data[at : at + 1]) + data[at + 1 :]
            case "drop":
                data = data[:at] + data[at + 1 + len(extra) :]
            case "insert":
                data = data[:at] + extra + data[at:]
            case _:
                data = data[:at] + data[at // 2 : at] + data[at:]
    return data


@revisions
@thorough
@given(data=st.data(), mutations=MUTATIONS, cuts=cuts)
def test_a_conversation_that_is_damaged_leads_to_a_fault_or_to_nothing(
    revision: Revision, data: st.DataObject, mutations: list[tuple[str, int, bytes]], cuts: list[int]
) -> None:
    frames = data.draw(conversations(revision))
    # Damage behind the HELLO, most of the time, so that it is not always the HELLO that is refused.
    spared = frames[0] if data.draw(st.integers(0, 4)) else b""
    wire = spared + mutated(b"".join(frames)[len(spared) :], mutations)
    worker = serve(split(wire, cuts))
    assert not spared or worker.hello == HELLO


@revisions
@thorough
@given(data=st.data(), cuts=cuts)
def test_how_a_conversation_is_split_makes_no_difference(
    revision: Revision, data: st.DataObject, cuts: list[int]
) -> None:
    wire = b"".join(data.draw(conversations(revision)))
    whole, in_pieces = serve([wire]), serve(split(wire, cuts))
    assert in_pieces.state is whole.state
    # A run is charged before it is looked into, so only sessions without a fault have the same to show.
    assert whole.state is SessionState.ERROR or in_pieces.credits.spent == whole.credits.spent
    assert [(s.stream_id, s.state) for s in in_pieces.streams] == [(s.stream_id, s.state) for s in whole.streams]


@revisions
@steady
@given(version=st.text(max_size=200), cookie=st.binary(max_size=20))
def test_a_stranger_learns_nothing_of_the_cookie(revision: Revision, version: str, cookie: bytes) -> None:
    secret = b"a-secret-of-this-fleet"
    worker = WorkerSession(version=VERSION, cookie=secret)
    worker.receive(revision.encode(Hello(version, cookie, "p", "i")))
    with pytest.raises(RemoteProtocolError) as caught:
        worker.next_event()
    assert secret.decode() not in f"{caught.value.message} {caught.value.fields} {worker.hello}"
