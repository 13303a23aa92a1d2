"""Both sides of a session with a connector sink, linked without a socket."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.protocol.strategies import frame, steady
from wallaroo_spark.errors import LocalProtocolError, RemoteProtocolError
from wallaroo_spark.protocol import (
    DRAFT_BE,
    V3,
    Ack,
    EosMessage,
    Error,
    Fault,
    Hello,
    Message,
    Notify,
    NotifyAck,
    Ok,
    Restart,
    Role,
    SessionState,
)
from wallaroo_spark.protocol.frames import NOTHING_PROCESSED
from wallaroo_spark.protocol.sinks.messages import (
    CONTROL_STREAM,
    DATA_STREAM,
    PHASES,
    SINK_SESSION,
    ListUncommitted,
    Phase,
    Phase1,
    Phase2,
    Range,
    Reply,
    ReplyUncommitted,
    encode_control,
)
from wallaroo_spark.protocol.sinks.sessions import RowsReceived, SinkServerSession, SinkWorkerSession

VERSION = "0.0.1"
LONGEST = 4096


@dataclass
class Linked:
    """A worker and a sink, both with ``committed`` bytes; ``cut`` is the number of bytes that arrive at once."""

    committed: int = 0
    cut: int = 1 << 20
    worker: SinkWorkerSession = field(default_factory=lambda: SinkWorkerSession(LONGEST))
    sink: SinkServerSession = field(default_factory=lambda: SinkServerSession(LONGEST, version=VERSION, cookie=b"c"))

    def to_sink(self, data: bytes) -> list[Any]:
        return list(_pass(data, self.cut, self.sink))

    def to_worker(self, data: bytes) -> list[Any]:
        return list(_pass(data, self.cut, self.worker))

    def open(self) -> Linked:
        hello = self.worker.hello(version=VERSION, cookie=b"c", program="spark", worker="orders-0")
        assert self.to_sink(hello) == [Hello(VERSION, b"c", "spark", "orders-0")]
        assert [type(event) for event in self.to_worker(self.sink.ok())] == [Ok]
        assert self.to_sink(self.worker.notify("s", self.committed)) == [Notify(DATA_STREAM, "s", self.committed)]
        ack = NotifyAck(True, DATA_STREAM, self.committed)
        assert self.to_worker(self.sink.notify_ack(self.committed)) == [ack]
        self.worker.begin(self.committed)
        return self


def _pass(data: bytes, cut: int, session: SinkWorkerSession | SinkServerSession) -> Any:
    for at in range(0, len(data), cut):
        session.receive(data[at : at + cut])
        while (event := session.next_event()) is not None:
            yield event


def taken(events: Sequence[Any]) -> bytes:
    return b"".join(row for event in events for row in event.rows)


@steady
@given(
    st.lists(st.lists(st.binary(max_size=30), max_size=6), max_size=5),
    st.sampled_from((0, 1, 10**12)),
    st.sampled_from((1, 7, 100, 1 << 20)),
)
def test_rows_arrive_once_in_order_under_their_offsets(lots: list[list[bytes]], committed: int, cut: int) -> None:
    pair = Linked(committed, cut).open()
    events = []
    for lot in lots:
        events += pair.to_sink(pair.worker.rows(lot))
    everything = b"".join(row for lot in lots for row in lot)

    assert taken(events) == everything
    assert pair.worker.offset == pair.sink.offset == committed + len(everything)
    at = committed
    for event in events:
        assert isinstance(event, RowsReceived)
        assert (event.start, event.end) == (at, at + sum(map(len, event.rows)))
        at = event.end


def test_a_transaction_is_voted_on_and_decided_and_the_next_one_follows() -> None:
    pair = Linked(100).open()
    pair.to_sink(pair.worker.rows([b"abc", b"de"]))
    vote = Phase1("t1", (Range(DATA_STREAM, pair.worker.committed, pair.worker.offset),))
    assert vote.ranges == ((1, 100, 105),)

    assert pair.to_sink(pair.worker.control(vote)) == [vote]
    assert pair.to_worker(pair.sink.control(Reply("t1", True))) == [Reply("t1", True)]
    assert pair.worker.phase is pair.sink.phase is Phase.VOTED
    assert pair.to_sink(pair.worker.control(ListUncommitted(1))) == [ListUncommitted(1)]
    assert pair.to_worker(pair.sink.control(ReplyUncommitted(1, ("t1",)))) == [ReplyUncommitted(1, ("t1",))]
    assert pair.to_sink(pair.worker.control(Phase2("t1", True))) == [Phase2("t1", True)]

    assert taken(pair.to_sink(pair.worker.rows([b"f"]))) == b"f"
    assert (pair.sink.committed, pair.sink.offset) == (pair.worker.committed, pair.worker.offset) == (105, 106)


def test_aborted_rows_are_sent_again_under_the_same_offsets() -> None:
    pair = Linked(100).open()
    for transaction in ("t1", "t2"):
        [rows] = pair.to_sink(pair.worker.rows([b"abc"]))
        assert (rows.start, rows.end) == (100, 103)
        pair.to_sink(pair.worker.control(Phase1(transaction)))
        pair.to_worker(pair.sink.control(Reply(transaction, False)))
        pair.to_sink(pair.worker.control(Phase2(transaction, False)))
    assert pair.worker.offset == pair.sink.offset == 100


def test_rows_and_control_messages_in_one_piece_are_told_apart() -> None:
    pair = Linked().open()
    wire = pair.worker.rows([b"a", b"b"]) + pair.worker.control(Phase2("another", False)) + pair.worker.rows([b"c"])
    wire += pair.worker.control(Phase1("t", (Range(1, 0, 3),)))

    first, decision, second, vote = pair.to_sink(wire)

    assert (first.rows, decision, second.rows) == ([b"a", b"b"], Phase2("another", False), [b"c"])
    assert vote == Phase1("t", (Range(1, 0, 3),))


@pytest.mark.parametrize("cut", [1, 1 << 20])
def test_the_id_of_a_row_is_the_offset_in_front_of_it(cut: int) -> None:
    """As Wallaroo's workers send it: the first id is where the last committed row ended."""
    pair = Linked(100, cut).open()
    wire = pair.worker.rows([b"abc", b"de"])

    assert wire == encoded(row(100, b"abc"), row(103, b"de"))
    assert taken(pair.to_sink(wire)) == b"abcde"


def test_stream_0_needs_no_announcement() -> None:
    pair = Linked()
    hello = pair.worker.hello(version=VERSION, cookie=b"c", program="spark", worker="orders-0")
    # All at once, and the answer to HELLO is not waited for.
    wire = hello + encoded(Notify(DATA_STREAM, "s", 0), control(ListUncommitted(7)))
    pair.sink.receive(wire)
    assert isinstance(pair.sink.next_event(), Hello)
    pair.sink.ok()

    assert pair.sink.next_event() == Notify(DATA_STREAM, "s", 0)
    pair.sink.notify_ack(0)
    assert pair.sink.next_event() == ListUncommitted(7)


def test_rows_behind_a_gap_are_dropped_and_the_next_vote_knows() -> None:
    """A worker whose connection was cut goes on where it was; a no makes it roll back."""
    pair = Linked(100).open()

    assert pair.to_sink(encoded(row(107, b"abc"), row(110, b"de"))) == []
    assert pair.sink.offset == 100
    pair.to_sink(encoded(control(Phase1("t", (Range(1, 100, 112),)))))
    assert pair.sink.gap() == "MESSAGE 107 follows 100: the bytes between them did not arrive"
    pair.sink.control(Reply("t", False))
    pair.to_sink(encoded(control(Phase2("t", False))))
    assert taken(pair.to_sink(encoded(row(100, b"whole")))) == b"whole"
    assert pair.sink.gap() == ""


def test_an_id_behind_the_row_is_told_from_other_gaps() -> None:
    pair = Linked(100).open()
    pair.to_sink(encoded(row(103, b"abc")))

    assert "its id is the offset behind the row, and must be the offset in front of it" in pair.sink.gap()


def test_rows_follow_a_decision_on_another_session() -> None:
    """A transaction that a lost connection has prepared is listed and decided; the next rows follow it."""
    pair = Linked(100).open()
    pair.to_sink(encoded(control(Phase2("left", True))))
    pair.sink.decided(140)

    assert taken(pair.to_sink(encoded(row(140, b"next")))) == b"next"
    assert (pair.sink.committed, pair.sink.offset, pair.sink.gap()) == (140, 144, "")


def test_rows_that_came_before_such_a_decision_follow_nothing() -> None:
    pair = Linked(100).open()
    pair.to_sink(encoded(row(100, b"early")))
    pair.sink.decided(140)

    assert (pair.sink.committed, pair.sink.offset) == (140, 140)
    assert pair.sink.gap() == "rows arrived before the decision after which the output ends at 140"


@pytest.mark.parametrize("reference", [0, 90, 110, NOTHING_PROCESSED])
def test_the_sinks_reference_moves_no_row(reference: int) -> None:
    pair = Linked(100).open()
    pair.to_sink(pair.worker.notify("s", 100))
    with pytest.raises(LocalProtocolError, match="stream 1 is not open"):
        pair.worker.rows([b"x"])
    pair.to_worker(V3.encode(NotifyAck(True, DATA_STREAM, reference)))

    assert pair.worker.reference == reference % NOTHING_PROCESSED
    assert pair.worker.rows([b"x"]) == encoded(row(100, b"x"))


def test_grants_of_credit_mean_nothing() -> None:
    pair = Linked().open()

    assert pair.to_worker(V3.encode(Ack(3, ((1, 7),)))) == [Ack(3, ((1, 7),))]


def encoded(*frames: Any) -> bytes:
    return b"".join(V3.encode(one) for one in frames)


def row(message_id: int, payload: bytes = b"abc", stream_id: int = DATA_STREAM) -> Message:
    return Message(stream_id, message_id, payload, event_time=0, key=b"")


def control(message: Any) -> Message:
    return row(0, encode_control(message), CONTROL_STREAM)


BROKEN_BY_A_WORKER: list[tuple[bytes, Fault]] = [
    (encoded(row(0), row(2)), Fault.WRONG_OFFSET),
    (encoded(row(0), row(0)), Fault.WRONG_OFFSET),
    (encoded(row(0, stream_id=2)), Fault.STREAM_NOT_OPEN),
    (encoded(Notify(CONTROL_STREAM, "s")), Fault.STREAM_NOT_OPEN),
    (encoded(Notify(7, "s")), Fault.STREAM_NOT_OPEN),
    (encoded(Hello(VERSION, b"c", "p", "w")), Fault.WRONG_STATE),
    (encoded(Ok(1)), Fault.WRONG_STATE),
    (frame(V3, 99, b""), Fault.UNKNOWN_TAG),
    (frame(V3, 5, bytes(25)), Fault.TRUNCATED_FRAME),
    (frame(V3, 5, bytes(7) + b"\1" + bytes(16) + b"\0\5abc"), Fault.TRUNCATED_FRAME),
    (encoded(control(Reply("t", True))), Fault.WRONG_SIDE),
    (encoded(row(1, b"", CONTROL_STREAM)), Fault.EMPTY_FRAME),
    (encoded(control(Phase1("t")), control(Phase1("u"))), Fault.WRONG_PHASE),
    (encoded(control(Phase1("t")), row(0)), Fault.WRONG_PHASE),
    (encoded(control(Phase1("t")), control(Phase2("t", True))), Fault.WRONG_PHASE),
    (encoded(control(Phase1("t")), Notify(DATA_STREAM, "s")), Fault.WRONG_PHASE),
    ((LONGEST + 1).to_bytes(4, "big") + b"\5", Fault.FRAME_TOO_LONG),
]


@pytest.mark.parametrize(("wire", "fault"), BROKEN_BY_A_WORKER, ids=[f.value for _, f in BROKEN_BY_A_WORKER])
@pytest.mark.parametrize("cut", [1, 1 << 20])
def test_a_worker_that_breaks_a_rule_is_told_which(wire: bytes, fault: Fault, cut: int) -> None:
    pair = Linked(cut=cut).open()

    with pytest.raises(RemoteProtocolError) as caught:
        pair.to_sink(wire)

    assert caught.value.fields["fault"] is fault
    assert pair.sink.state is SessionState.ERROR
    pair.sink.receive(encoded(row(3)))
    assert pair.sink.next_event() is None
    assert pair.to_worker(pair.sink.fail(caught.value.message)) == [Error(caught.value.message)]
    assert pair.worker.state is SessionState.ERROR


BROKEN_BY_A_SINK: list[tuple[bytes, Fault]] = [
    (encoded(row(3)), Fault.STREAM_NOT_OPEN),
    (encoded(Notify(0, "s")), Fault.WRONG_STATE),
    (encoded(control(ListUncommitted(1))), Fault.WRONG_SIDE),
    (encoded(control(Reply("t", True))), Fault.WRONG_PHASE),
    (encoded(Ok(1)), Fault.WRONG_STATE),
]


@pytest.mark.parametrize(("wire", "fault"), BROKEN_BY_A_SINK, ids=[fault.value for _, fault in BROKEN_BY_A_SINK])
def test_a_sink_that_breaks_a_rule_is_found_out(wire: bytes, fault: Fault) -> None:
    pair = Linked().open()

    with pytest.raises(RemoteProtocolError) as caught:
        pair.to_worker(wire)

    assert caught.value.fields["fault"] is fault
    assert pair.worker.next_event() is None


def test_a_reply_for_another_transaction_is_a_fault() -> None:
    pair = Linked().open()
    pair.worker.control(Phase1("t"))

    with pytest.raises(RemoteProtocolError, match=r"REPLY for 'u', and PHASE1 was for 't'"):
        pair.to_worker(encoded(control(Reply("u", True))))


def test_restart_ends_the_worker_session() -> None:
    pair = Linked().open()

    assert pair.to_worker(encoded(Restart("elsewhere:1"))) == [Restart("elsewhere:1")]
    assert pair.worker.state is SessionState.ERROR


@pytest.mark.parametrize(
    ("wire", "fault"),
    [
        (encoded(Hello("9", b"c", "p", "w")), Fault.WRONG_VERSION),
        (encoded(Hello(VERSION, b"", "p", "w")), Fault.WRONG_COOKIE),
        (encoded(Hello(VERSION, b"c", "p", "")), Fault.BAD_INSTANCE),
        (encoded(Hello(VERSION, b"c", "p", "w" * 256)), Fault.BAD_INSTANCE),
        (DRAFT_BE.encode(Hello(VERSION, b"c", "p", "w")), Fault.NOT_THIS_PROTOCOL),
        (b"GET / HTTP/1.1", Fault.NOT_THIS_PROTOCOL),
    ],
)
def test_a_greeting_that_is_not_accepted(wire: bytes, fault: Fault) -> None:
    sink = SinkServerSession(LONGEST, version=VERSION, cookie=b"c")
    sink.receive(wire)

    with pytest.raises(RemoteProtocolError) as caught:
        sink.next_event()
    assert caught.value.fields["fault"] is fault
    sink.receive(wire)
    assert sink.next_event() is None


def test_frames_before_the_greeting_is_answered_are_refused() -> None:
    sink = SinkServerSession(LONGEST, version=VERSION, cookie=b"c")
    sink.receive(encoded(Hello(VERSION, b"c", "p", "w"), Notify(0, "s")))
    assert isinstance(sink.next_event(), Hello)

    with pytest.raises(RemoteProtocolError, match="NOTIFY is not allowed from a worker in state handshake"):
        sink.next_event()


def test_the_end_of_a_stream_and_an_error_are_passed_on() -> None:
    pair = Linked().open()

    assert pair.to_sink(encoded(EosMessage(1, 0), Error("enough"))) == [EosMessage(1, 0), Error("enough")]
    assert pair.sink.next_event() is None


@pytest.mark.parametrize(
    ("act", "match"),
    [
        (lambda pair: pair.worker.control(Reply("t", True)), "REPLY is not a message that a worker sends"),
        (lambda pair: pair.sink.control(ListUncommitted(1)), "LIST_UNCOMMITTED is not a message that a sink sends"),
        (lambda pair: pair.worker.rows([bytes(LONGEST)]), r"a row of 4096 bytes .* at most 4096 are accepted"),
        (lambda pair: pair.sink.control(ReplyUncommitted(1, ("t" * 5000,))), "at most 4096 are accepted"),
        (lambda pair: pair.sink.control(Reply("t", True)), "REPLY for 't', and PHASE1 was for ''"),
        (lambda pair: pair.sink.ok(), "OK cannot be sent by a sink in state streaming"),
        (lambda pair: (pair.worker.control(Phase1("t")), pair.worker.rows([b"x"])), "rows while transaction 't'"),
        (lambda pair: (pair.worker.rows([b"x"]), pair.worker.begin(0)), "set it before"),
    ],
)
def test_frames_that_the_state_forbids_are_refused_before_they_are_sent(
    act: Callable[[Linked], Any], match: str
) -> None:
    with pytest.raises(LocalProtocolError, match=match):
        act(Linked().open())


def test_empty_rows_leave_no_trace() -> None:
    pair = Linked().open()

    assert pair.worker.rows([]) == pair.worker.rows([b"", b""]) == b""
    assert taken(pair.to_sink(pair.worker.rows([b"", b"a", b""]))) == b"a"


def test_the_tables_name_every_side_and_phase() -> None:
    assert set(SINK_SESSION) == {Role.WORKER, Role.SINK}
    assert set(PHASES) == set(Phase)


@steady
@given(st.binary(max_size=200))
def test_no_bytes_crash_a_sink(wire: bytes) -> None:
    pair, fault = Linked().open(), None
    try:
        pair.to_sink(wire)
    except RemoteProtocolError as error:
        fault = error.fields["fault"]
    assert fault is None or isinstance(fault, Fault)
