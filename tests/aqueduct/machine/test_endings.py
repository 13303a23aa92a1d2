"""Channels that end early: cancelled, closed by the application, reset."""

from __future__ import annotations

import pytest

from tests.aqueduct.machine.pair import Holds, Network, Pair
from wallaroo_spark.aqueduct.errors import ConnectionLost, SenderClosed
from wallaroo_spark.aqueduct.frames import (
    AckNackUnreliable,
    ChannelControl,
    CloseReceiver,
    FinishSender,
    SentUnreliable,
)
from wallaroo_spark.aqueduct.machine import (
    ENTRYPOINT,
    Acked,
    CloseCode,
    CloseConnection,
    Ended,
    EndReason,
    Half,
    Nacked,
    ReceiverEnded,
    ResetCode,
    ResetStream,
    SenderEnded,
    SendStream,
    Side,
)

C, S = Side.CLIENT, Side.SERVER


def of_stream(side: Side, stream: int) -> Holds:
    return lambda from_, sent: from_ is side and isinstance(sent, SendStream) and sent.stream == stream


def everything_of(side: Side) -> Holds:
    return lambda from_, _sent: from_ is side


def test_a_cancelled_sender_resets_its_control_stream_and_the_streams_of_its_messages() -> None:
    pair = Pair()
    pair.holds = of_stream(C, 6)
    pair.send(C, ENTRYPOINT, b"a")
    pair.send(C, ENTRYPOINT, b"b", ordered=False)

    pair.client.cancel(ENTRYPOINT, pair.now)
    pair.run()
    pair.release()

    assert pair.resets(C) == [ResetStream(2, 1), ResetStream(6, 1), ResetStream(1, 1)]
    assert pair.told(S, ReceiverEnded) == [ReceiverEnded(ENTRYPOINT, EndReason.CANCELLED, 1)]
    assert pair.server.take(ENTRYPOINT, pair.now) is None
    assert pair.told(C, SenderEnded) == [SenderEnded(ENTRYPOINT, EndReason.CANCELLED)]
    pair.close_all()


def test_a_cancelled_sender_learns_what_was_delivered_before() -> None:
    pair = Pair()
    pair.send(C, ENTRYPOINT, b"a")
    pair.holds = of_stream(C, 6)
    pair.send(C, ENTRYPOINT, b"b", ordered=False)
    pair.client.cancel(ENTRYPOINT, pair.now)
    pair.run()

    assert pair.told(C, Acked) == [Acked(ENTRYPOINT, range(1), True)]
    assert pair.told(C, Nacked) == [Nacked(ENTRYPOINT, range(1, 2), True, EndReason.CANCELLED)]
    assert pair.frames(S, 1)[1:] == [CloseReceiver((1,))]


def test_a_cancelled_sender_takes_no_message_and_no_second_end() -> None:
    pair = Pair()
    pair.client.cancel(ENTRYPOINT, pair.now)
    pair.client.cancel(ENTRYPOINT, pair.now)

    with pytest.raises(SenderClosed, match="cancelled"):
        pair.client.send(ENTRYPOINT, b"", now=pair.now)
    with pytest.raises(SenderClosed):
        pair.client.finish(ENTRYPOINT, pair.now)
    pair.run()
    assert pair.told(C, SenderEnded) == [SenderEnded(ENTRYPOINT, EndReason.CANCELLED)]


def test_a_cancel_waits_for_the_control_stream_but_not_the_reset_of_messages() -> None:
    pair = Pair()
    inner = pair.client.channel(Half.SENDER)
    pair.holds = everything_of(S)
    pair.send(C, ENTRYPOINT, b"", inner)
    pair.send(C, inner, b"a")

    pair.client.cancel(inner, pair.now)
    pair.run()
    assert pair.resets(C) == [ResetStream(6, 1)]
    pair.release()

    assert pair.resets(C) == [ResetStream(6, 1), ResetStream(5, 1)]
    pair.take(S, ENTRYPOINT)
    assert pair.told(S, ReceiverEnded) == [ReceiverEnded(inner, EndReason.CANCELLED, 1)]


def test_a_received_sender_that_is_cancelled_at_once_makes_the_receiver_answer_before_the_reset() -> None:
    """A reset may overtake ChannelControl, and the receiver would never learn which channel was cancelled."""
    pair = Pair()
    answers = pair.client.channel(Half.RECEIVER)
    pair.send(C, ENTRYPOINT, b"", answers)
    pair.take(S, ENTRYPOINT)

    pair.server.cancel(answers, pair.now)
    pair.run()
    assert pair.resets(S) == []
    assert pair.frames(S, 5) == [ChannelControl(answers), SentUnreliable(1)]
    pair.wait(2.0)

    assert pair.frames(C, 5) == [AckNackUnreliable((0, 1)), CloseReceiver(())]
    assert pair.resets(S) == [ResetStream(5, 1)]
    assert pair.told(C, ReceiverEnded) == [ReceiverEnded(answers, EndReason.CANCELLED, 1)]
    assert pair.told(S, SenderEnded) == [SenderEnded(answers, EndReason.CANCELLED)]
    assert pair.told(S, Nacked) == []
    pair.close_all()


def test_a_received_sender_that_was_answered_is_reset_at_once() -> None:
    pair = Pair()
    answers = pair.client.channel(Half.RECEIVER)
    pair.send(C, ENTRYPOINT, b"", answers)
    pair.take(S, ENTRYPOINT)
    pair.send(S, answers, b"a")
    pair.wait()

    pair.server.cancel(answers, pair.now)
    pair.run()

    assert pair.resets(S) == [ResetStream(3, 1), ResetStream(5, 1)]
    assert pair.told(C, ReceiverEnded) == [ReceiverEnded(answers, EndReason.CANCELLED, 1)]


def test_a_received_oneshot_sender_is_cancelled_by_a_finish_without_a_message() -> None:
    pair = Pair()
    answer = pair.client.channel(Half.RECEIVER, oneshot=True)
    pair.send(C, ENTRYPOINT, b"", answer)
    pair.take(S, ENTRYPOINT)

    pair.server.cancel(answer, pair.now)
    pair.run()

    assert pair.frames(S, 5) == [ChannelControl(answer), FinishSender(0)]
    assert [end.reason for end in pair.told(C, ReceiverEnded)] == [EndReason.CANCELLED]
    assert pair.told(S, SenderEnded) == [SenderEnded(answer, EndReason.CANCELLED)]
    pair.close_all()


def test_a_cancel_behind_a_finish_that_is_on_its_way_has_no_effect() -> None:
    pair = Pair()
    pair.send(C, ENTRYPOINT, b"a")
    pair.client.finish(ENTRYPOINT, pair.now)
    pair.client.cancel(ENTRYPOINT, pair.now)
    pair.run()

    assert pair.payloads(S, ENTRYPOINT) == [b"a"]
    assert pair.told(C, SenderEnded) == [SenderEnded(ENTRYPOINT, EndReason.FINISHED)]


def test_a_cancel_takes_back_a_finish_that_waits_for_the_control_stream() -> None:
    pair = Pair()
    inner = pair.client.channel(Half.SENDER)
    pair.holds = everything_of(S)
    pair.send(C, ENTRYPOINT, b"", inner)
    pair.client.finish(inner, pair.now)
    pair.client.cancel(inner, pair.now)
    pair.release()

    assert pair.told(C, SenderEnded) == []
    pair.wait()

    assert pair.told(C, SenderEnded) == [SenderEnded(inner, EndReason.CANCELLED)]


def test_an_application_that_closes_its_receiver_drops_what_it_has_not_taken() -> None:
    pair = Pair()
    pair.send(C, ENTRYPOINT, b"a")
    pair.send(C, ENTRYPOINT, b"b", reliable=False)

    pair.server.close_receiver(ENTRYPOINT, pair.now)
    pair.run()

    assert pair.frames(S, 1)[1:] == [AckNackUnreliable((1,)), CloseReceiver((1,))]
    assert pair.server.take(ENTRYPOINT, pair.now) is None
    assert pair.told(S, ReceiverEnded) == [ReceiverEnded(ENTRYPOINT, EndReason.CLOSED)]
    assert pair.told(C, SenderEnded) == [SenderEnded(ENTRYPOINT, EndReason.CLOSED)]
    with pytest.raises(SenderClosed):
        pair.client.send(ENTRYPOINT, b"", now=pair.now)
    pair.close_all()


def test_messages_behind_the_close_of_a_receiver_are_nacked() -> None:
    pair = Pair()
    pair.send(C, ENTRYPOINT)
    pair.holds = lambda side, _sent: side is C
    for ordered in (True, False, True):
        pair.send(C, ENTRYPOINT, ordered=ordered)
    pair.send(C, ENTRYPOINT, reliable=False)
    pair.server.close_receiver(ENTRYPOINT, pair.now)
    pair.run()

    assert pair.told(C, Acked) == [Acked(ENTRYPOINT, range(1), True)]
    assert pair.told(C, Nacked) == [
        Nacked(ENTRYPOINT, range(1, 4), True, EndReason.CLOSED),
        Nacked(ENTRYPOINT, range(1), False, EndReason.CLOSED),
    ]
    pair.release()
    assert pair.resets(C) == [ResetStream(2, 1), ResetStream(6, 1), ResetStream(1, 1)]
    pair.close_all()


def test_what_was_attached_to_messages_of_a_closed_receiver_is_closed_and_cancelled_but_not_lost() -> None:
    pair = Pair()
    questions, answers = pair.client.channel(Half.SENDER), pair.client.channel(Half.RECEIVER)
    inner = pair.client.channel(Half.RECEIVER)
    pair.send(C, ENTRYPOINT, b"", questions, answers)
    pair.send(C, questions, b"", inner)

    pair.server.close_receiver(ENTRYPOINT, pair.now)
    pair.run()
    pair.wait(2.0)

    assert {end.channel: end.reason for end in pair.told(C, SenderEnded)} == {
        ENTRYPOINT: EndReason.CLOSED,
        questions: EndReason.CLOSED,
    }
    assert {end.channel: end.reason for end in pair.told(C, ReceiverEnded)} == {
        answers: EndReason.CANCELLED,
        inner: EndReason.CANCELLED,
    }
    assert pair.told(S, SenderEnded) == []
    pair.close_all()


def test_what_was_attached_to_messages_of_a_cancelled_channel_is_lost() -> None:
    pair = Pair()
    questions, answers = pair.client.channel(Half.SENDER), pair.client.channel(Half.RECEIVER)
    pair.send(C, ENTRYPOINT, b"", questions, answers)
    pair.send(C, questions, b"")

    pair.client.cancel(ENTRYPOINT, pair.now)
    pair.run()

    assert {end.channel: end.reason for end in pair.told(C, SenderEnded)} == {
        ENTRYPOINT: EndReason.CANCELLED,
        questions: EndReason.LOST,
    }
    assert pair.told(C, ReceiverEnded) == [ReceiverEnded(answers, EndReason.LOST)]
    pair.close_all()


def test_a_receiver_is_closed_when_its_control_stream_is_attached() -> None:
    pair = Pair()
    answers = pair.client.channel(Half.RECEIVER)
    pair.holds = everything_of(S)
    pair.send(C, ENTRYPOINT, b"", answers)
    pair.client.close_receiver(answers, pair.now)
    pair.run()
    assert pair.told(C, ReceiverEnded) == []
    pair.release()

    assert pair.told(C, ReceiverEnded) == [ReceiverEnded(answers, EndReason.CLOSED)]
    pair.take(S, ENTRYPOINT)
    assert pair.told(S, SenderEnded) == [SenderEnded(answers, EndReason.CLOSED)]
    pair.close_all()


def test_messages_for_a_receiver_that_waits_to_be_closed_are_nacked() -> None:
    pair = Pair()
    answers = pair.client.channel(Half.RECEIVER)
    pair.send(C, ENTRYPOINT, b"", answers)
    pair.take(S, ENTRYPOINT)
    other = pair.client.channel(Half.RECEIVER)
    pair.holds = lambda side, sent: side is S and isinstance(sent, SendStream) and sent.stream == 9
    pair.send(C, ENTRYPOINT, b"", other)
    pair.take(S, ENTRYPOINT)
    inner = pair.server.channel(Half.SENDER)
    pair.client.close_receiver(other, pair.now)
    pair.send(S, other, b"", inner)
    pair.release()
    pair.wait()

    assert pair.told(S, Nacked) == [Nacked(other, range(1), True, EndReason.CLOSED)]
    assert pair.told(S, SenderEnded) == [SenderEnded(inner, EndReason.LOST), SenderEnded(other, EndReason.CLOSED)]
    pair.close_all()


def test_a_channel_that_was_never_attached_ends_without_a_word_to_the_peer() -> None:
    pair = Pair()
    before = pair.client.counts()
    sender, receiver = pair.client.channel(Half.SENDER), pair.client.channel(Half.RECEIVER)
    sent = len(pair.sent[C])

    pair.client.cancel(sender, pair.now)
    pair.client.close_receiver(receiver, pair.now)
    pair.run()

    assert pair.told(C, SenderEnded) == [SenderEnded(sender, EndReason.CANCELLED)]
    assert pair.told(C, ReceiverEnded) == [ReceiverEnded(receiver, EndReason.CLOSED)]
    assert len(pair.sent[C]) == sent
    assert pair.client.counts() == before


def test_a_channel_may_be_finished_before_it_is_attached() -> None:
    pair = Pair()
    sender = pair.client.channel(Half.SENDER)
    pair.client.finish(sender, pair.now)
    pair.send(C, ENTRYPOINT, b"", sender)
    pair.take(S, ENTRYPOINT)

    assert pair.told(S, ReceiverEnded) == [ReceiverEnded(sender, EndReason.FINISHED)]


def test_a_finished_receiver_that_is_closed_drops_the_rest() -> None:
    pair = Pair()
    answers = pair.client.channel(Half.RECEIVER)
    pair.send(C, ENTRYPOINT, b"", answers)
    pair.client.finish(ENTRYPOINT, pair.now)
    pair.run()

    pair.server.close_receiver(ENTRYPOINT, pair.now)
    pair.run()
    pair.wait(2.0)

    assert pair.told(S, ReceiverEnded) == [ReceiverEnded(ENTRYPOINT, EndReason.CLOSED)]
    assert pair.told(C, SenderEnded) == [SenderEnded(ENTRYPOINT, EndReason.FINISHED)]
    assert [end.reason for end in pair.told(C, ReceiverEnded)] == [EndReason.CANCELLED]
    pair.close_all()


def test_an_unknown_code_of_a_reset_is_a_cancel_that_shows_the_code() -> None:
    pair = Pair()
    pair.send(C, ENTRYPOINT)
    pair.take(S, ENTRYPOINT)
    inner = pair.client.channel(Half.SENDER)
    pair.send(C, ENTRYPOINT, b"", inner)
    pair.take(S, ENTRYPOINT)

    pair.server.stream_reset(1, 77, pair.now)
    pair.client.stream_reset(5, 78, pair.now)
    pair.run()

    assert pair.told(S, ReceiverEnded)[0] == ReceiverEnded(ENTRYPOINT, EndReason.CANCELLED, 77)
    assert pair.told(C, SenderEnded)[0] == SenderEnded(inner, EndReason.CLOSED, 78)


def test_a_reset_of_a_stream_of_which_nothing_arrived_is_ignored() -> None:
    pair = Pair()
    pair.server.stream_reset(2, 1, pair.now)
    pair.run()

    assert pair.told(S, Ended) == []
    assert pair.server.counts().streams == pair.client.counts().streams == 1


def test_a_reset_of_a_bidirectional_stream_that_named_no_channel_is_answered_by_a_reset() -> None:
    pair = Pair()
    pair.server.stream_reset(4, 1, pair.now)
    pair.run()

    assert pair.resets(S) == [ResetStream(4, 2)]
    assert pair.server.counts().streams == 1


def test_a_reset_drops_the_incomplete_frame_in_front_of_it() -> None:
    pair = Pair()
    pair.server.stream_received(2, b"\x03\x00\x00\x05hel", False, pair.now)
    assert pair.server.counts().unfinished_bytes == 7

    pair.server.stream_reset(2, 1, pair.now)

    assert pair.server.counts().unfinished_bytes == 0
    pair.run()
    assert pair.told(S, Ended) == []


def test_a_sender_whose_stream_of_messages_nobody_reads_is_cancelled() -> None:
    pair = Pair()
    pair.send(C, ENTRYPOINT)
    sent = len(pair.sent[C])
    pair.client.stream_stopped(2, 1, pair.now)
    pair.run()

    assert pair.sent[C][sent:] == [ResetStream(1, 1)]
    assert pair.told(C, SenderEnded) == [SenderEnded(ENTRYPOINT, EndReason.CANCELLED)]


@pytest.mark.parametrize("code", [1, 2])
def test_nothing_is_sent_on_a_control_stream_that_the_peer_does_not_read(code: int) -> None:
    pair = Pair()
    pair.send(C, ENTRYPOINT)
    pair.server.stream_stopped(1, code, pair.now)
    sent = [found for found in pair.server.instructions() if isinstance(found, Network)]

    assert sent == []
    assert pair.server.counts().receivers == 0


def test_a_stop_of_an_unknown_or_finished_stream_has_no_effect() -> None:
    pair = Pair()
    pair.send(C, ENTRYPOINT, ordered=False)
    pair.wait()

    pair.client.stream_stopped(2, 1, pair.now)
    pair.client.stream_stopped(400, 1, pair.now)
    pair.run()

    assert pair.told(C, SenderEnded) == []
    assert pair.told(C, Ended) == []


def test_the_application_ends_the_connection() -> None:
    pair = Pair()
    pair.send(C, ENTRYPOINT, b"a")
    pair.client.close("done", pair.now)
    pair.run()

    assert pair.sent[C][-1] == CloseConnection(CloseCode.ORDERLY, "done")
    assert pair.told(C, Ended) == [Ended(0, "done", by_peer=False)]
    assert pair.told(S, Ended) == [Ended(0, "done", by_peer=True)]
    for machine in pair.sides.values():
        assert tuple(machine.counts()) == (0,) * 10
        assert machine.next_tick() is None


def test_an_ended_connection_takes_no_calls_and_ignores_events() -> None:
    pair = Pair()
    pair.client.connection_lost(7, "gone", pair.now)
    pair.client.stream_received(1, b"\xff", True, pair.now)
    pair.client.connection_lost(8, "again", pair.now)
    pair.client.close("again", pair.now)
    pair.client.tick(pair.now)

    assert pair.client.instructions() == [Ended(7, "gone", by_peer=True)]
    for call in (
        lambda: pair.client.send(ENTRYPOINT, b"", now=pair.now),
        lambda: pair.client.finish(ENTRYPOINT, pair.now),
        lambda: pair.client.cancel(ENTRYPOINT, pair.now),
        lambda: pair.client.channel(Half.SENDER),
        lambda: pair.client.take(ENTRYPOINT, pair.now),
    ):
        with pytest.raises(ConnectionLost):
            call()


def test_a_late_handshake_ends_the_connection() -> None:
    pair = Pair(greet=False)
    pair.now += 9.9
    pair.client.tick(pair.now)
    assert pair.client.next_tick() == 110.0

    pair.client.tick(110.0)
    ends = [found for found in pair.client.instructions() if isinstance(found, CloseConnection)]

    assert [(end.code, end.reason.split(":")[0]) for end in ends] == [(CloseCode.LIMITS, "handshake-timeout")]


def test_a_reset_code_of_two_is_lost() -> None:
    assert int(ResetCode.LOST) == 2
    pair = Pair()
    pair.send(C, ENTRYPOINT)
    pair.server.stream_reset(1, 2, pair.now)
    pair.run()

    assert pair.told(S, ReceiverEnded) == [ReceiverEnded(ENTRYPOINT, EndReason.LOST)]
    assert pair.resets(S) == [ResetStream(1, 2)]
