"""The connector's side of a session."""

from __future__ import annotations

import pytest

from tests.protocol.pairs import STREAM, Pair
from tests.revisions import revisions
from wallaroo_spark.errors import LocalProtocolError, RemoteProtocolError
from wallaroo_spark.protocol import (
    DRAFT_BE,
    DRAFT_LE,
    V3,
    Ack,
    ConnectorSession,
    Error,
    Fault,
    Flags,
    Message,
    MessageRun,
    Revision,
    SessionState,
    StreamState,
    faults,
)


def test_a_connector_speaks_draft_be_unless_told_otherwise() -> None:
    assert ConnectorSession().revision is DRAFT_BE


@revisions
def test_a_message_needs_a_credit(revision: Revision) -> None:
    pair = Pair(revision, credits=1).start().open()
    with pytest.raises(LocalProtocolError, match="need a credit each, 1 in all"):
        pair.connector.message(Message(STREAM, 1, b"x"))
    pair.to_connector(pair.worker.ack(1))
    assert pair.send(Message(STREAM, 1, b"x"))
    assert pair.connector.credits.available == 0


@revisions
def test_a_message_longer_than_a_frame_may_be_is_not_sent_and_not_charged(revision: Revision) -> None:
    connector = ConnectorSession(revision, max_frame_bytes=128)
    pair = Pair(revision)
    pair.connector = connector
    pair.start().open()
    before = connector.credits.available
    with pytest.raises(LocalProtocolError, match=r"message 5 of stream 7 makes a frame of \d+ bytes; at most 128"):
        connector.message(Message(STREAM, 5, bytes(128)))
    assert connector.credits.available == before


@revisions
def test_streams_are_opened_only_while_streaming(revision: Revision) -> None:
    with pytest.raises(LocalProtocolError, match="NOTIFY cannot be sent in state connected"):
        ConnectorSession(revision).notify(1, "a")


def test_a_stream_too_many_is_our_own_error() -> None:
    pair = Pair(DRAFT_BE)
    pair.connector = ConnectorSession(DRAFT_BE, max_streams=1)
    pair.start().open(1)
    with pytest.raises(LocalProtocolError, match="stream 2 would be one more than the 1"):
        pair.connector.notify(2, "b")


@revisions
def test_a_stream_is_open_once_messages_may_be_sent(revision: Revision) -> None:
    pair = Pair(revision).start()
    assert not pair.connector.is_open(STREAM)
    pair.to_worker(pair.connector.notify(STREAM, "orders"))
    assert pair.connector.is_open(STREAM) is (revision is not V3)
    if revision is V3:
        pair.to_connector(pair.worker.notify_ack(STREAM, 3, success=True))
    assert pair.connector.is_open(STREAM)


@revisions
def test_closing_a_stream_costs_a_credit_where_it_is_a_message(revision: Revision) -> None:
    pair = Pair(revision).start().open()
    before = pair.connector.credits.available
    pair.close()
    assert before - pair.connector.credits.available == int(pair.connector.end_costs_credit) == int(revision is not V3)
    assert pair.worker.credits.available == pair.connector.credits.available
    assert pair.worker.streams.get(STREAM).state is StreamState.CLOSED


@pytest.mark.parametrize("revision", [DRAFT_LE, DRAFT_BE], ids=repr)
def test_a_last_message_closes_its_stream(revision: Revision) -> None:
    pair = Pair(revision).start().open()
    pair.send(Message(STREAM, 1, b"last", Flags.EOS))
    assert not pair.connector.is_open(STREAM)
    with pytest.raises(LocalProtocolError, match="stream 7, which is closed"):
        pair.connector.message(Message(STREAM, 2, b"x"))


def test_a_stream_that_is_reset_is_opened_by_as_many_notifies_as_there_were_nacks() -> None:
    pair = Pair(DRAFT_LE).start().open()
    pair.to_connector(pair.worker.nack(STREAM, 3) + pair.worker.nack(STREAM, 2))
    pair.to_worker(pair.connector.notify(STREAM, "orders", 3))
    assert not pair.connector.is_open(STREAM)
    pair.to_worker(pair.connector.notify(STREAM, "orders", 2))
    assert pair.connector.is_open(STREAM)
    events = pair.send(Message(STREAM, 3, b"x"))
    assert isinstance(events[0], MessageRun)


@revisions
def test_an_error_of_the_worker_ends_the_session_and_nothing_behind_it_is_read(revision: Revision) -> None:
    pair = Pair(revision).start()
    data = (pair.worker.error("bye") or b"") + revision.encode(Ack(5))
    assert pair.to_connector(data) == [Error("bye")]
    assert (pair.connector.state, pair.connector.pending) == (SessionState.ERROR, 0)


@revisions
def test_a_frame_that_cannot_be_read_ends_the_session(revision: Revision) -> None:
    pair = Pair(revision).start()
    wire = bytearray(revision.encode(Ack(5)))
    wire[4] = 222
    with pytest.raises(RemoteProtocolError) as caught:
        pair.to_connector(bytes(wire))
    assert caught.value.fields["fault"] is Fault.UNKNOWN_TAG
    assert pair.connector.state is SessionState.ERROR
    assert pair.connector.fail("what?") is not None


@revisions
def test_a_frame_of_the_worker_has_a_greatest_length_too(revision: Revision) -> None:
    pair = Pair(revision)
    pair.connector = ConnectorSession(revision, max_frame_bytes=100)
    pair.start()
    with pytest.raises(RemoteProtocolError) as caught:
        pair.to_connector(revision.encode(Ack(0, ((1, 1),) * 10)))
    assert caught.value.fields["fault"] is Fault.FRAME_TOO_LONG


def test_a_reason_can_send_a_connector_elsewhere_or_ask_it_to_come_back() -> None:
    moved = faults.redirect("worker-3.example:7100", "slot 3 has shop-1")
    assert faults.redirect_address(moved) == "worker-3.example:7100"
    assert "slot 3 has shop-1" in moved
    assert faults.redirect_address("redirect to nowhere") is None
    assert faults.is_later(faults.later("the registry is away"))
    assert not faults.is_later(moved)
