"""The state tables: every missing key is an error for the right side, every key leads where it says, on both sides."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pytest

from tests.protocol.pairs import STREAM, Pair, connector_events, in_state, worker_events
from wallaroo_spark.errors import LocalProtocolError, RemoteProtocolError
from wallaroo_spark.protocol import (
    DRAFT_BE,
    REVISIONS,
    SESSION,
    V3,
    Ack,
    EosMessage,
    Error,
    Fault,
    Frame,
    Hello,
    Message,
    Nack,
    Notify,
    NotifyAck,
    Ok,
    Restart,
    Revision,
    Role,
    SessionState,
    SessionStreams,
    StreamEvent,
    StreamSpan,
    StreamState,
    frame_name,
)

SAMPLES: dict[type, Frame] = {
    Hello: Hello("0.0.1", b"cookie", "program", "shop-1"),
    Ok: Ok(5),
    Error: Error("why"),
    Notify: Notify(8, "other"),
    NotifyAck: NotifyAck(True, STREAM, 3),
    Message: Message(STREAM, 1, b"x"),
    EosMessage: EosMessage(STREAM, 1),
    Ack: Ack(1, ((STREAM, 1),)),
    Nack: Nack(1, STREAM, 0),
    Restart: Restart(),
}
SENDS: dict[Role, dict[type, Callable[[Pair], bytes | None]]] = {
    Role.CONNECTOR: {
        Hello: lambda pair: pair.connector.hello(version="0.0.1", cookie=b"cookie", program="p", instance="shop-1"),
        Notify: lambda pair: pair.connector.notify(8, "other"),
        Message: lambda pair: pair.connector.message(Message(STREAM, 1, b"x")),
        EosMessage: lambda pair: pair.connector.end_of_stream(STREAM, 1),
        Error: lambda pair: pair.connector.error("why"),
    },
    Role.WORKER: {
        Ok: lambda pair: pair.worker.ok(5),
        NotifyAck: lambda pair: pair.worker.notify_ack(STREAM, 3, success=True),
        Ack: lambda pair: pair.worker.ack(1, [(STREAM, 1)]),
        Nack: lambda pair: pair.worker.nack(STREAM, None, 1),
        Restart: lambda pair: pair.worker.restart(),
        Error: lambda pair: pair.worker.error("why"),
    },
}
DEAF = (SessionState.RESTARTING, SessionState.ERROR, SessionState.DISCONNECTED)


def revision_with(*frames: type) -> Revision:
    """The first revision that has these frames; draft-be where it will do."""
    return next(r for r in (DRAFT_BE, *REVISIONS.values()) if all(r.has(frame) for frame in frames))


def pair_in(state: SessionState, frame: type) -> Pair:
    """Both sides in a session state, and the stream in a state that is no obstacle to the frame."""
    pair = Pair(revision_with(frame, Restart) if state is SessionState.RESTARTING else revision_with(frame))
    if state is SessionState.HANDSHAKE:
        pair.handshake()
    elif state in (SessionState.STREAMING, SessionState.RESTARTING, SessionState.ERROR):
        pair.start()
        pair.bring(StreamState.NOTIFY_SENT if frame is NotifyAck else StreamState.OPEN)
    if state is SessionState.RESTARTING:
        pair.to_connector(pair.worker.restart())
    elif state is SessionState.ERROR:
        pair.to_worker(pair.connector.error("why") or b"")
    elif state is SessionState.DISCONNECTED:
        pair.connector.close()
        pair.worker.close()
    assert (pair.connector.state, pair.worker.state) == (state, state)
    return pair


def receive(pair: Pair, sender: Role, data: bytes) -> list[object]:
    """The events of the other side for these bytes."""
    if sender is Role.CONNECTOR:
        return list(pair.to_worker(data))
    return list(pair.to_connector(data))


def keys(*, present: bool) -> list[tuple[Role, SessionState, type]]:
    return [
        (role, state, frame)
        for role in SESSION
        for state in SessionState
        for frame in SAMPLES
        if (frame in SESSION[role].get(state, {})) is present
        # No revision that can be restarted has NACK.
        and not (state is SessionState.RESTARTING and frame is Nack)
    ]


def named(rows: list[tuple[Role, SessionState, type]]) -> list[str]:
    return [f"{role}-{state}-{frame_name(frame)}" for role, state, frame in rows]


@pytest.mark.parametrize(("sender", "state", "frame"), keys(present=False), ids=named(keys(present=False)))
def test_a_frame_that_the_state_does_not_allow_is_the_senders_fault(
    sender: Role, state: SessionState, frame: type
) -> None:
    pair = pair_in(state, frame)
    data = pair.revision.encode(SAMPLES[frame])
    if state in DEAF:
        assert receive(pair, sender, data) == []
        assert (pair.connector.state, pair.worker.state) == (state, state)
        return
    with pytest.raises(RemoteProtocolError) as caught:
        receive(pair, sender, data)
    sent_by = {allowed for row in SESSION[sender].values() for allowed in row}
    if sender is Role.CONNECTOR and state is SessionState.CONNECTED:
        wanted = Fault.NOT_THIS_PROTOCOL
    else:
        wanted = Fault.WRONG_STATE if frame in sent_by else Fault.WRONG_SIDE
    assert caught.value.fields["fault"] is wanted
    assert in_state(pair.worker if sender is Role.CONNECTOR else pair.connector, SessionState.ERROR)


@pytest.mark.parametrize(
    ("sender", "state", "frame"),
    [key for key in keys(present=False) if key[2] in SENDS[key[0]] and key[2] is not Error],
    ids=str,
)
def test_a_frame_that_the_state_does_not_allow_cannot_be_sent(sender: Role, state: SessionState, frame: type) -> None:
    pair = pair_in(state, frame)
    before = pair.connector.credits.available, pair.worker.credits.available
    with pytest.raises(LocalProtocolError):
        SENDS[sender][frame](pair)
    assert (pair.connector.state, pair.worker.state) == (state, state)
    assert (pair.connector.credits.available, pair.worker.credits.available) == before


@pytest.mark.parametrize("sender", SESSION)
@pytest.mark.parametrize("state", DEAF)
def test_a_session_that_has_ended_has_no_error_to_send(sender: Role, state: SessionState) -> None:
    pair = pair_in(state, Error)
    assert SENDS[sender][Error](pair) is None


# A worker has no ERROR to send before it knows the revision, and recognises none by one.
_REACHED = [key for key in keys(present=True) if key[1:] != (SessionState.CONNECTED, Error)]


@pytest.mark.parametrize(("sender", "state", "frame"), _REACHED, ids=named(_REACHED))
def test_a_frame_leads_both_sides_to_the_state_in_the_table(sender: Role, state: SessionState, frame: type) -> None:
    pair = pair_in(state, frame)
    data = SENDS[sender][frame](pair)
    assert data is not None
    assert len(receive(pair, sender, data)) == 1
    wanted = SESSION[sender][state][frame]
    assert (pair.connector.state, pair.worker.state) == (wanted, wanted)


def test_an_error_in_place_of_a_hello_ends_the_connectors_side() -> None:
    pair = Pair(DRAFT_BE)
    data = pair.connector.error("why")
    assert in_state(pair.connector, SessionState.ERROR)
    with pytest.raises(RemoteProtocolError):
        pair.to_worker(data or b"")
    assert pair.worker.error("why") is None


def test_a_worker_that_gives_up_before_the_hello_is_heard() -> None:
    pair = Pair(DRAFT_BE)
    assert pair.to_connector(DRAFT_BE.encode(Error("full"))) == [Error("full")]
    assert in_state(pair.connector, SessionState.ERROR)


# Frames by which an event reaches the other side, for the revisions that have them.
BY_CONNECTOR = (StreamEvent.NOTIFY, StreamEvent.MESSAGE, StreamEvent.EOS)


def told(revision: Revision, event: StreamEvent) -> Frame | None:
    frames: dict[StreamEvent, Frame] = {
        StreamEvent.NOTIFY: Notify(STREAM, "orders"),
        StreamEvent.MESSAGE: Message(STREAM, 1, b"x"),
        StreamEvent.EOS: revision.end_of_stream(STREAM, 1),
        StreamEvent.ACCEPTED: NotifyAck(True, STREAM, 3),
        StreamEvent.REFUSED: NotifyAck(False, STREAM, 3),
        StreamEvent.NACK: Nack(0, STREAM, 3),
    }
    frame = frames[event]
    return frame if revision.has(type(frame)) else None


DO: dict[StreamEvent, Callable[[Pair], bytes]] = {
    StreamEvent.NOTIFY: lambda pair: pair.connector.notify(STREAM, "orders"),
    StreamEvent.MESSAGE: lambda pair: pair.connector.message(Message(STREAM, 1, b"x")),
    StreamEvent.EOS: lambda pair: pair.connector.end_of_stream(STREAM, 1),
    StreamEvent.ACCEPTED: lambda pair: pair.worker.notify_ack(STREAM, 3, success=True),
    StreamEvent.REFUSED: lambda pair: pair.worker.notify_ack(STREAM, 3, success=False),
    StreamEvent.NACK: lambda pair: pair.worker.nack(STREAM, 3),
}

STREAM_KEYS = [
    (revision, state, event, event in events)
    for revision in REVISIONS.values()
    for state, events in revision.streams.items()
    for event in StreamEvent
]
# RESTART is for the session: it is never a fault of a stream. A terminated stream's session hears nothing at all.
LIVE = [
    (revision, state, event, allowed)
    for revision, state, event, allowed in STREAM_KEYS
    if event is not StreamEvent.RESTART and state is not StreamState.TERMINATED and told(revision, event)
]


def stream_ids(rows: Sequence[tuple[Revision, StreamState, StreamEvent, bool]]) -> list[str]:
    return [f"{revision.name}-{state}-{event}" for revision, state, event, _ in rows]


MISSING = [row for row in LIVE if not row[3]]
PRESENT = [row for row in LIVE if row[3]]


@pytest.mark.parametrize(("revision", "state", "event", "_allowed"), MISSING, ids=stream_ids(MISSING))
def test_an_event_that_the_stream_does_not_allow_is_an_error_on_both_sides(
    revision: Revision, state: StreamState, event: StreamEvent, _allowed: bool
) -> None:
    pair = Pair(revision).start().bring(state)
    frame = told(revision, event)
    assert frame is not None
    with pytest.raises(LocalProtocolError):
        DO[event](pair)
    assert pair.connector.streams.get(STREAM).state is pair.worker.streams.get(STREAM).state is state
    with pytest.raises(RemoteProtocolError) as caught:
        receive(pair, Role.CONNECTOR if event in BY_CONNECTOR else Role.WORKER, revision.encode(frame))
    wanted = Fault.STREAM_ALREADY_OPEN if event is StreamEvent.NOTIFY else Fault.STREAM_NOT_OPEN
    assert caught.value.fields["fault"] is wanted
    assert in_state(pair.worker if event in BY_CONNECTOR else pair.connector, SessionState.ERROR)


@pytest.mark.parametrize(("revision", "state", "event", "_allowed"), PRESENT, ids=stream_ids(PRESENT))
def test_an_event_leads_the_stream_to_the_state_in_the_table_on_both_sides(
    revision: Revision, state: StreamState, event: StreamEvent, _allowed: bool
) -> None:
    pair = Pair(revision).start().bring(state)
    frame = told(revision, event)
    assert frame is not None
    if state is StreamState.RESET and event in (StreamEvent.MESSAGE, StreamEvent.EOS):
        # Only the worker meets these: they were on their way when its NACK was.
        pair.to_worker(revision.encode(frame))
        assert pair.worker.streams.get(STREAM).state is StreamState.RESET
        return
    receive(pair, Role.CONNECTOR if event in BY_CONNECTOR else Role.WORKER, DO[event](pair))
    wanted = revision.streams[state][event]
    assert pair.connector.streams.get(STREAM).state is pair.worker.streams.get(STREAM).state is wanted


@pytest.mark.parametrize("revision", [DRAFT_BE, V3], ids=repr)
def test_nothing_is_allowed_to_a_terminated_stream(revision: Revision) -> None:
    table = SessionStreams(revision, 10)
    table.notify(STREAM, "orders")
    table.restart()
    assert table.get(STREAM).state is StreamState.TERMINATED
    with pytest.raises(RemoteProtocolError):
        table.notify(STREAM, "orders")
    for event in (StreamEvent.EOS, StreamEvent.ACCEPTED, StreamEvent.REFUSED, StreamEvent.NACK):
        with pytest.raises(RemoteProtocolError):
            table.apply(STREAM, event)
    refusal = table.admit(StreamSpan(STREAM, 0, first_lasting=0)).refusal
    assert refusal is not None
    assert refusal.fault is Fault.STREAM_NOT_OPEN


@pytest.mark.parametrize("revision", [DRAFT_BE, V3], ids=repr)
def test_a_restart_terminates_the_streams_and_both_sides_ignore_later_frames(revision: Revision) -> None:
    pair = Pair(revision).start().bring(StreamState.TERMINATED)
    assert pair.connector.state is pair.worker.state is SessionState.RESTARTING
    pair.worker.receive(revision.encode(Message(STREAM, 1, b"x")))
    pair.connector.receive(revision.encode(Ack(1)))
    assert (worker_events(pair.worker), connector_events(pair.connector)) == ([], [])
    assert pair.worker.pending == pair.connector.pending == 0
