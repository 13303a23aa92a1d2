"""The worker's side of a session."""

from __future__ import annotations

import pytest

from tests.protocol.pairs import STREAM, Pair, admit, worker_events
from tests.protocol.spans import spans
from tests.revisions import drafts, revisions
from wallaroo_spark.errors import LocalProtocolError, RemoteProtocolError
from wallaroo_spark.protocol import (
    DRAFT_BE,
    DRAFT_LE,
    NOTHING_PROCESSED,
    V3,
    Ack,
    EosMessage,
    Error,
    Fault,
    Flags,
    Hello,
    Message,
    MessageRun,
    Nack,
    Notify,
    NotifyAck,
    NotifyReceived,
    Ok,
    Restart,
    Revision,
    SessionState,
    StreamReference,
    StreamSpan,
    StreamState,
    WorkerSession,
    broken,
)


def run_event(pair: Pair, *messages: Message) -> MessageRun:
    """Messages fed to the worker unchecked by a connector; the event that they make."""
    pair.worker.receive(b"".join(pair.revision.encode(message) for message in messages))
    event = pair.worker.next_event()
    assert isinstance(event, MessageRun)
    return event


@revisions
def test_a_hello_has_the_connectors_names_and_revision(revision: Revision) -> None:
    pair = Pair(revision)
    (event,) = pair.to_worker(
        pair.connector.hello(version="0.0.1", cookie=b"cookie", program="shop", instance="shop-1")
    )
    assert isinstance(event, Hello)
    assert event is pair.worker.hello
    assert (event.program, event.instance) == ("shop", "shop-1")
    assert (pair.worker.revision, pair.worker.state) == (revision, SessionState.HANDSHAKE)


def test_there_are_no_streams_before_the_revision_is_known() -> None:
    with pytest.raises(LocalProtocolError, match="no streams before"):
        _ = WorkerSession(version="0.0.1").streams


@revisions
def test_ok_has_credits_and_the_references_that_the_revision_sends(revision: Revision) -> None:
    pair = Pair(revision).handshake()
    known = StreamReference(STREAM, 12, "orders" if revision is DRAFT_BE else "")
    (ok,) = pair.to_connector(pair.worker.ok(5, [known]))
    assert ok == Ok(5, () if revision is V3 else (known,))
    assert pair.worker.credits.available == pair.connector.credits.available == 5


@revisions
def test_an_ack_carries_credits_references_or_both(revision: Revision) -> None:
    pair = Pair(revision, credits=0).start()
    assert pair.to_connector(pair.worker.ack(3)) == [Ack(3)]
    assert pair.to_connector(pair.worker.ack(refs=[(STREAM, 9)])) == [Ack(0, ((STREAM, 9),))]
    assert pair.to_connector(pair.worker.ack(4, [(STREAM, 9), (8, 1)])) == [Ack(4, ((STREAM, 9), (8, 1)))]
    assert pair.worker.credits.available == pair.connector.credits.available == 7


@revisions
def test_a_notify_costs_a_credit_and_may_overdraw(revision: Revision) -> None:
    pair = Pair(revision, credits=1).start()
    events = pair.to_worker(pair.connector.notify(1, "a") + pair.connector.notify(2, "b", 17))
    assert events == [NotifyReceived(Notify(1, "a", 0)), NotifyReceived(Notify(2, "b", 17))]
    assert pair.worker.credits.available == pair.connector.credits.available == -1


def test_a_notify_of_an_open_v3_stream_is_marked_and_can_be_refused() -> None:
    pair = Pair(V3).start().open()
    (event,) = pair.to_worker(pair.connector.notify(STREAM, "orders"))
    assert event == NotifyReceived(Notify(STREAM, "orders"), already_open=True)
    assert pair.to_connector(pair.worker.notify_ack(STREAM, 4, success=False)) == [NotifyAck(False, STREAM, 4)]
    assert pair.connector.is_open(STREAM)


def test_a_stream_of_which_nothing_is_committed_is_accepted_with_the_greatest_reference() -> None:
    pair = Pair(V3).start().bring(StreamState.NOTIFY_SENT)
    (answer,) = pair.to_connector(pair.worker.notify_ack(STREAM, None, success=True))
    assert answer == NotifyAck(True, STREAM, NOTHING_PROCESSED)


def test_a_nack_without_a_reference_goes_back_to_zero() -> None:
    pair = Pair(DRAFT_LE).start().open()
    assert pair.to_connector(pair.worker.nack(STREAM, None, 2)) == [Nack(2, STREAM, 0)]
    assert pair.worker.credits.available == pair.connector.credits.available == 101


def test_a_restart_can_name_another_worker_in_v3_alone() -> None:
    pair = Pair(V3).handshake()
    assert pair.to_connector(pair.worker.restart("host:7101")) == [Restart("host:7101")]
    pair = Pair(DRAFT_BE).start()
    assert pair.to_connector(pair.worker.restart("host:7101")) == [Restart()]


@pytest.mark.parametrize("message_id", [None, 12])
def test_the_end_of_a_v3_stream_is_an_event_with_or_without_an_id(message_id: int | None) -> None:
    pair = Pair(V3).start().open()
    assert pair.to_worker(V3.encode(EosMessage(STREAM, message_id))) == [EosMessage(STREAM, message_id)]
    assert pair.worker.streams.get(STREAM).state is StreamState.CLOSED
    assert pair.worker.credits.available == 99


@revisions
def test_an_error_of_the_connector_is_an_event_and_ends_the_session(revision: Revision) -> None:
    pair = Pair(revision).start()
    data = pair.connector.error("disk full") or b""
    assert pair.to_worker(data + revision.encode(Notify(1, "a"))) == [Error("disk full")]
    assert (pair.worker.state, pair.worker.pending) == (SessionState.ERROR, 0)


@revisions
def test_messages_are_charged_once_per_run(revision: Revision) -> None:
    pair = Pair(revision, credits=6).start().open()
    events = pair.send(*(Message(STREAM, number, b"x") for number in range(1, 6)))
    assert [event.count for event in events if isinstance(event, MessageRun)] == [5]
    assert pair.worker.credits.available == pair.connector.credits.available == 0


@revisions
def test_messages_beyond_the_credits_end_the_session_and_those_before_count(revision: Revision) -> None:
    pair = Pair(revision, credits=3).start().open()
    event = run_event(pair, *(Message(STREAM, number, b"x") for number in range(1, 6)))
    assert event.count == 2
    admission = admit(pair.worker, event)
    assert admission.end == 2
    assert admission.error is not None
    assert admission.error.fields["fault"] is Fault.NO_CREDIT
    assert "3 MESSAGE frames" in admission.error.message
    assert (pair.worker.state, pair.worker.pending) == (SessionState.ERROR, 0)


@revisions
def test_a_message_without_any_credit_ends_the_session_at_once(revision: Revision) -> None:
    pair = Pair(revision, credits=1).start().open()
    with pytest.raises(RemoteProtocolError) as caught:
        pair.to_worker(revision.encode(Message(STREAM, 1, b"x")))
    assert caught.value.fields["fault"] is Fault.NO_CREDIT


@revisions
def test_a_decoding_error_ends_the_session_behind_the_valid_messages(revision: Revision) -> None:
    pair = Pair(revision).start().open()
    event = run_event(pair, *(Message(STREAM, number, b"x") for number in range(3)))
    error = broken(Fault.RESERVED_FLAG, "why")
    admission = pair.worker.admit(_spans(list(event.head(2).messages())), 2, error)
    assert (admission.end, admission.error) == (2, error)
    assert pair.worker.state is SessionState.ERROR


@drafts
def test_an_earlier_fault_of_a_stream_counts_before_a_later_one_in_decoding(revision: Revision) -> None:
    pair = Pair(revision).start().open()
    event = run_event(pair, Message(STREAM, 1, b"x"), Message(99, 1, b"x"))
    admission = pair.worker.admit(_spans(list(event.messages())), 2, broken(Fault.RESERVED_FLAG, "why"))
    assert admission.end == 1
    assert admission.error is not None
    assert admission.error.fields["fault"] is Fault.STREAM_NOT_OPEN


def test_of_streams_with_faults_the_earliest_decides() -> None:
    pair = Pair(DRAFT_BE).start().open()
    event = run_event(pair, Message(STREAM, 1, b"x"), Message(50, 1, b"x"), Message(40, 1, b"x"))
    admission = admit(pair.worker, event)
    assert admission.end == 1
    assert admission.error is not None
    assert "stream 50" in admission.error.message


def test_messages_of_a_reset_stream_are_ignored_and_charged() -> None:
    pair = Pair(DRAFT_LE).start().open().open(8)
    pair.worker.nack(STREAM, 3)
    event = run_event(pair, Message(STREAM, 4, b"x"), Message(8, 1, b"y"), Message(STREAM, 5, b"x", Flags.EOS))
    admission = admit(pair.worker, event)
    assert (admission.end, admission.ignored, admission.error) == (3, frozenset({STREAM}), None)
    assert pair.worker.credits.available == 95
    assert pair.worker.streams.get(STREAM).state is StreamState.RESET


@drafts
def test_a_message_may_end_its_stream(revision: Revision) -> None:
    pair = Pair(revision).start().open()
    pair.send(Message(STREAM, 1, b"last", Flags.EOS))
    assert pair.worker.streams.get(STREAM).state is StreamState.CLOSED


@drafts
def test_a_boundary_without_an_end_closes_nothing(revision: Revision) -> None:
    pair = Pair(revision).start().open()
    pair.send(Message(STREAM, 1, None, Flags.BOUNDARY), Message(STREAM, 2, b"x"))
    assert pair.worker.streams.get(STREAM).state is StreamState.OPEN


@revisions
def test_a_fault_is_answered_by_an_error_frame_and_later_bytes_are_ignored(revision: Revision) -> None:
    pair = Pair(revision).start()
    with pytest.raises(RemoteProtocolError) as caught:
        pair.to_worker(revision.encode(Message(STREAM, 1, b"x")))
    assert pair.to_connector(pair.worker.fail(caught.value.message)) == [Error(caught.value.message)]
    assert pair.to_worker(revision.encode(Notify(1, "a"))) == []
    assert pair.worker.pending == 0


def test_a_peer_that_speaks_something_else_gets_no_answer() -> None:
    worker = WorkerSession(version="0.0.1")
    worker.receive(b"GET / HTTP/1.1\r\n")
    with pytest.raises(RemoteProtocolError):
        worker_events(worker)
    assert worker.fail("no") is None
    assert worker_events(worker) == []


def test_a_session_that_is_gone_has_nothing_to_answer_with() -> None:
    pair = Pair(DRAFT_BE).start()
    pair.worker.receive_end()
    assert pair.worker.fail("late") is None
    assert pair.worker.state is SessionState.DISCONNECTED
    assert pair.worker.error("later") is None
    assert pair.worker.state is SessionState.DISCONNECTED


@revisions
def test_an_end_between_frames_is_no_fault_and_one_within_a_frame_is(revision: Revision) -> None:
    pair = Pair(revision).start()
    pair.worker.receive_end()
    assert pair.worker.state is SessionState.DISCONNECTED
    pair = Pair(revision).start()
    assert pair.to_worker(revision.encode(Notify(1, "a"))[:-1]) == []
    with pytest.raises(RemoteProtocolError, match="ended within a frame") as caught:
        pair.worker.receive_end()
    assert caught.value.fields["fault"] is Fault.TRUNCATED_FRAME
    assert (pair.worker.state, pair.worker.pending) == (SessionState.DISCONNECTED, 0)


def test_an_end_after_an_error_is_no_fault_even_within_a_frame() -> None:
    pair = Pair(DRAFT_BE).start()
    pair.worker.error("why")
    pair.worker.receive(b"\x00\x00")
    pair.worker.receive_end()
    assert pair.worker.state is SessionState.DISCONNECTED


def _spans(messages: list[Message]) -> list[StreamSpan]:
    return spans([(m.stream_id, bool(m.flags & Flags.EOS), bool(m.flags & Flags.EPHEMERAL)) for m in messages])


@drafts
def test_a_message_behind_the_end_of_its_stream_is_refused_and_those_before_it_are_accepted(revision: Revision) -> None:
    pair = Pair(revision).start().open()
    event = run_event(pair, Message(STREAM, 1, b"x", Flags.EOS), Message(STREAM, 2, b"x"))
    admission = pair.worker.admit(_spans(list(event.messages())), 2)
    assert admission.end == 1
    assert admission.error is not None
    assert admission.error.fields["fault"] is Fault.STREAM_NOT_OPEN
    assert pair.worker.streams.get(STREAM).state is StreamState.CLOSED
