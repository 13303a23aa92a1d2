"""Channels that are lost with the message that created them, ghosts, and acks that cannot be sure yet."""

from __future__ import annotations

from tests.aqueduct.machine.pair import Network, Pair
from wallaroo_spark.aqueduct.frames import AckNackUnreliable, ChannelControl, ClosedChannelLost, MessageFrame, encode
from wallaroo_spark.aqueduct.machine import (
    ENTRYPOINT,
    Acked,
    AqueductLimits,
    ChannelId,
    EndReason,
    Half,
    Nacked,
    ReceiverEnded,
    ResetStream,
    RoomAgain,
    SendDatagram,
    SenderEnded,
    SendStream,
    Side,
)

C, S = Side.CLIENT, Side.SERVER


def datagrams(_side: Side, sent: Network) -> bool:
    return isinstance(sent, SendDatagram)


def lost_sender(pair: Pair) -> ChannelId:
    """A channel of the client whose receiver was attached to a datagram that was lost."""
    inner = pair.client.channel(Half.SENDER)
    pair.holds = datagrams
    pair.send(C, ENTRYPOINT, b"", inner, reliable=False)
    pair.lose()
    return inner


def test_a_datagram_that_does_not_arrive_is_nacked_after_a_fair_wait() -> None:
    pair = Pair()
    pair.holds = datagrams
    pair.send(C, ENTRYPOINT, reliable=False)
    pair.wait(0.9)
    assert pair.told(C, Nacked) == []

    pair.wait(0.3)

    assert pair.told(C, Nacked) == [Nacked(ENTRYPOINT, range(1), False, EndReason.LOST)]
    assert pair.frames(S, 1)[1:] == [AckNackUnreliable((0, 1))]


def test_a_message_that_arrives_behind_its_nack_is_not_processed() -> None:
    pair = Pair()
    inner = lost_sender(pair)
    pair.wait(2.0)
    late = next(sent for sent in pair.sent[C] if isinstance(sent, SendDatagram))

    pair.deliver(C, late)
    pair.run()

    assert pair.payloads(S, ENTRYPOINT) == []
    assert pair.server.counts().receivers == 1
    assert pair.told(C, SenderEnded) == [SenderEnded(inner, EndReason.LOST)]


def test_a_datagram_that_arrives_twice_is_delivered_once() -> None:
    pair = Pair()
    pair.send(C, ENTRYPOINT, b"a", reliable=False)
    pair.deliver(C, pair.sent[C][-1])
    pair.wait()
    pair.deliver(C, next(sent for sent in pair.sent[C] if isinstance(sent, SendDatagram)))
    pair.wait()

    assert pair.payloads(S, ENTRYPOINT) == [b"a"]


def test_acks_and_nacks_of_datagrams_are_ranges() -> None:
    pair = Pair()
    for number in range(8):
        pair.holds = lambda _side, sent, lost=number in (0, 3, 4, 7): lost and isinstance(sent, SendDatagram)
        pair.send(C, ENTRYPOINT, reliable=False)
    pair.lose()
    pair.wait(2.0)

    assert pair.frames(S, 1)[1:] == [AckNackUnreliable((0, 1, 2, 2, 2, 1))]
    assert pair.told(C, Acked) == [Acked(ENTRYPOINT, range(1, 3), False), Acked(ENTRYPOINT, range(5, 7), False)]
    nacked = [notice.numbers for notice in pair.told(C, Nacked)]
    assert nacked == [range(1), range(3, 5), range(7, 8)]
    assert pair.server.queues.lost == 4


def test_a_finished_receiver_gives_datagrams_the_same_time_to_arrive() -> None:
    pair = Pair()
    pair.holds = datagrams
    pair.send(C, ENTRYPOINT, b"slow", reliable=False)
    pair.send(C, ENTRYPOINT, b"lost", reliable=False)
    slow = pair.held[0]
    pair.client.finish(ENTRYPOINT, pair.now)
    pair.run()
    pair.wait(0.5)
    assert pair.told(C, SenderEnded) == []
    pair.deliver(*slow)
    pair.wait(1.0)

    assert pair.payloads(S, ENTRYPOINT) == [b"slow"]
    assert pair.told(C, SenderEnded) == [SenderEnded(ENTRYPOINT, EndReason.FINISHED)]
    assert pair.told(S, ReceiverEnded) == [ReceiverEnded(ENTRYPOINT, EndReason.FINISHED)]


def test_a_lost_message_loses_the_channels_that_it_has_created() -> None:
    pair = Pair()
    sender, receiver = pair.client.channel(Half.SENDER), pair.client.channel(Half.RECEIVER)
    pair.holds = datagrams
    pair.send(C, ENTRYPOINT, b"", sender, receiver, reliable=False)
    pair.lose()
    pair.wait(2.0)

    assert pair.told(C, SenderEnded) == [SenderEnded(sender, EndReason.LOST)]
    assert pair.told(C, ReceiverEnded) == [ReceiverEnded(receiver, EndReason.LOST)]
    assert pair.client.counts().links == 0
    pair.close_all()


def test_a_lost_channel_loses_its_messages_and_what_they_have_created_to_any_depth() -> None:
    pair = Pair()
    top = pair.client.channel(Half.SENDER)
    pair.holds = lambda side, _sent: side is C
    pair.send(C, ENTRYPOINT, b"", top, reliable=False)
    channel, chain = top, [top]
    for _ in range(3000):
        inner = pair.client.channel(Half.SENDER)
        pair.client.send(channel, b"", now=pair.now, attach=[inner])
        chain.append(inner)
        channel = inner
    pair.run()
    held, pair.held = pair.held, []
    pair.holds = lambda _side, _sent: False
    # All arrives but the datagram.
    for side, sent in held:
        if not isinstance(sent, SendDatagram):
            pair.deliver(side, sent)
    pair.run()
    pair.wait(2.0)

    assert {end.channel: end.reason for end in pair.told(C, SenderEnded)} == dict.fromkeys(chain, EndReason.LOST)
    assert len(pair.told(C, SenderEnded)) == len(chain)
    assert pair.server.counts().receivers == 1
    assert pair.told(S, ReceiverEnded) == []
    pair.close_all()


def test_acks_of_a_channel_that_may_still_be_lost_are_told_when_it_cannot() -> None:
    pair = Pair()
    inner = pair.client.channel(Half.SENDER)
    pair.holds = datagrams
    pair.send(C, ENTRYPOINT, b"", inner, reliable=False)
    pair.holds = lambda _side, _sent: False
    pair.send(C, inner, b"")
    pair.send(C, inner, b"")
    pair.wait(0.3)
    assert pair.client.counts().unacked_messages == 1
    assert pair.told(C, Acked) == []

    pair.release()
    pair.wait(0.3)

    assert pair.told(C, Acked) == [Acked(inner, range(2), True), Acked(ENTRYPOINT, range(1), False)]


def test_acks_of_a_channel_that_is_lost_are_told_as_losses() -> None:
    pair = Pair()
    inner = lost_sender(pair)
    pair.send(C, inner, b"")
    pair.send(C, inner, b"", reliable=False)
    pair.wait(2.0)

    assert pair.told(C, Acked) == []
    assert pair.told(C, Nacked) == [
        Nacked(inner, range(1), False, EndReason.LOST),
        Nacked(inner, range(1), True, EndReason.LOST),
        Nacked(ENTRYPOINT, range(1), False, EndReason.LOST),
    ]
    pair.close_all()


def test_a_lost_sender_resets_its_control_stream_and_its_messages_as_lost() -> None:
    pair = Pair()
    inner = lost_sender(pair)
    pair.send(C, inner, b"")
    pair.wait(2.0)

    assert pair.resets(C) == [ResetStream(5, 2), ResetStream(2, 2)]
    assert pair.resets(S) == [ResetStream(5, 2)]
    assert pair.server.counts().receivers == 1
    assert pair.told(S, ReceiverEnded) == []
    assert pair.told(C, SenderEnded) == [SenderEnded(inner, EndReason.LOST)]


def test_a_channel_that_was_finished_before_it_is_lost_is_told_by_a_stream_of_its_own() -> None:
    pair = Pair()
    inner = lost_sender(pair)
    pair.send(C, inner, b"never taken")
    pair.client.finish(inner, pair.now)
    pair.run()
    assert pair.client.counts().lost_links == 1
    assert pair.told(C, SenderEnded) == []
    assert pair.server.counts().queued_messages == 1

    pair.wait(2.0)

    assert ClosedChannelLost(inner) in pair.all_frames(C)
    assert pair.told(C, SenderEnded) == [SenderEnded(inner, EndReason.LOST)]
    assert pair.server.counts().queued_messages == 0
    assert pair.server.counts().receivers == 1
    pair.close_all()


def test_a_channel_that_was_cancelled_before_it_is_lost_leaves_nothing_at_the_other_side() -> None:
    pair = Pair()
    inner = lost_sender(pair)
    pair.send(C, inner, b"")
    pair.client.cancel(inner, pair.now)
    pair.run()
    pair.wait(2.0)

    assert pair.server.counts().receivers == 1
    pair.close_all()


def test_the_loss_goes_through_channels_that_have_ended_to_those_that_have_not() -> None:
    pair = Pair()
    top = lost_sender(pair)
    ended, alive = pair.client.channel(Half.SENDER), pair.client.channel(Half.SENDER)
    pair.send(C, top, b"", ended)
    pair.send(C, ended, b"", alive)
    pair.send(C, alive, b"")
    pair.client.finish(ended, pair.now)
    pair.run()
    pair.wait(0.3)
    assert pair.client.counts().lost_links == 1

    pair.wait(2.0)

    assert {end.channel: end.reason for end in pair.told(C, SenderEnded)} == dict.fromkeys(
        (top, ended, alive), EndReason.LOST
    )
    assert pair.server.counts().receivers == 1
    pair.close_all()


def test_a_channel_that_has_ended_and_is_reachable_leaves_no_link() -> None:
    pair = Pair()
    top, inner = pair.client.channel(Half.SENDER), pair.client.channel(Half.SENDER)
    pair.holds = datagrams
    pair.send(C, ENTRYPOINT, b"", top, reliable=False)
    pair.holds = lambda _side, _sent: False
    pair.send(C, top, b"", inner)
    pair.client.finish(top, pair.now)
    pair.wait(0.3)
    assert pair.client.counts()[2:4] == (1, 2)

    pair.release()
    pair.wait(0.3)

    assert pair.client.counts()[2:4] == (0, 0)
    assert pair.told(C, SenderEnded) == [SenderEnded(top, EndReason.FINISHED)]
    pair.send(C, inner, b"reachable")
    pair.wait()
    assert Acked(inner, range(1), True) in pair.told(C, Acked)


def test_a_control_stream_for_a_channel_that_is_gone_is_reset_as_lost() -> None:
    pair = Pair()
    inner = pair.client.channel(Half.SENDER)
    pair.holds = lambda side, sent: side is C and isinstance(sent, SendStream) and sent.stream == 6
    pair.send(C, ENTRYPOINT, b"", inner)
    pair.send(C, inner, b"late")
    late = pair.held[:]
    pair.lose()
    pair.take(S, ENTRYPOINT)
    pair.client.cancel(inner, pair.now)
    pair.run()
    assert pair.told(S, ReceiverEnded) == [ReceiverEnded(inner, EndReason.CANCELLED, 1)]
    pair.wait(31.0)

    for _, sent in late:
        assert isinstance(sent, SendStream)
        pair.server.stream_received(sent.stream, sent.data, sent.end, pair.now)
    pair.run()

    assert pair.frames(S, 9) == [ChannelControl(inner)]
    assert pair.resets(C)[-1] == ResetStream(9, 2)
    assert pair.server.counts().receivers == 1
    assert pair.told(S, ReceiverEnded) == [ReceiverEnded(inner, EndReason.CANCELLED, 1)]


def test_a_late_message_of_a_receiver_that_was_discarded_recently_makes_no_ghost() -> None:
    pair = Pair()
    pair.holds = lambda side, sent: side is C and isinstance(sent, SendStream) and sent.stream == 6
    pair.send(C, ENTRYPOINT)
    pair.send(C, ENTRYPOINT, ordered=False)
    late = pair.held[:]
    pair.lose()
    pair.server.close_receiver(ENTRYPOINT, pair.now)
    pair.run()
    pair.wait(29.0)
    streams = [sent.stream for sent in pair.sent[S] if isinstance(sent, SendStream)]

    for side, sent in late:
        pair.deliver(side, sent)
    pair.run()

    assert [sent.stream for sent in pair.sent[S] if isinstance(sent, SendStream)] == streams
    assert pair.server.counts().receivers == 0


def test_a_second_control_stream_of_a_channel_is_reset_as_lost() -> None:
    pair = Pair()
    pair.client.stream_received(5, encode(ChannelControl(ENTRYPOINT)), False, pair.now)
    pair.run()

    assert pair.resets(C) == [ResetStream(5, 2)]
    assert pair.told(C, SenderEnded) == []


def test_a_control_stream_of_a_channel_that_was_not_attached_is_reset_as_lost() -> None:
    pair = Pair()
    inner = pair.client.channel(Half.SENDER)
    for stream, channel in ((5, inner), (9, ChannelId(8000))):
        pair.client.stream_received(stream, encode(ChannelControl(channel)), False, pair.now)
    pair.run()

    assert pair.resets(C) == [ResetStream(5, 2), ResetStream(9, 2)]
    assert pair.told(C, SenderEnded) == []


def test_a_message_of_a_channel_that_this_side_has_created_and_forgotten_is_dropped() -> None:
    pair = Pair()
    answers = pair.client.channel(Half.RECEIVER)
    pair.send(C, ENTRYPOINT, b"", answers)
    pair.take(S, ENTRYPOINT)
    pair.client.close_receiver(answers, pair.now)
    pair.run()
    counts = pair.client.counts()

    pair.client.stream_received(3, encode(MessageFrame(answers, 0, b"late")), True, pair.now)
    pair.run()

    assert pair.client.counts() == counts


def test_a_loss_that_is_told_of_an_unknown_channel_has_no_effect() -> None:
    pair = Pair()
    counts = pair.client.counts()
    pair.client.stream_received(3, encode(ClosedChannelLost(ChannelId(2))), True, pair.now)
    pair.run()

    assert pair.client.counts() == counts


def test_attachments_of_evicted_messages_are_lost() -> None:
    pair = Pair(AqueductLimits(window_messages=2))
    channels = []
    for _ in range(4):
        answers, questions = pair.client.channel(Half.RECEIVER), pair.client.channel(Half.SENDER)
        pair.send(C, ENTRYPOINT, b"", answers, questions, reliable=False)
        pair.wait()
        channels.append((answers, questions))
    pair.wait(2.0)

    assert pair.payloads(S, ENTRYPOINT) == [b"", b""]
    lost_answers, lost_questions = zip(*channels[:2], strict=True)
    assert pair.told(C, ReceiverEnded) == [ReceiverEnded(channel, EndReason.LOST) for channel in lost_answers]
    assert pair.told(C, SenderEnded) == [SenderEnded(channel, EndReason.LOST) for channel in lost_questions]
    pair.close_all()


def test_a_dropped_attachment_is_told_lost_even_if_its_control_stream_never_names_it() -> None:
    """A reset may overtake ChannelControl, so a stream of its own repeats the word."""
    pair = Pair()
    answers = pair.client.channel(Half.RECEIVER)
    pair.holds = lambda side, sent: side is S
    pair.send(C, ENTRYPOINT, b"", answers)
    pair.client.cancel(ENTRYPOINT, pair.now)
    pair.run()
    held, pair.held = pair.held, []
    pair.holds = lambda _side, _sent: False
    for side, sent in held:
        if not (isinstance(sent, SendStream) and sent.stream == 5):
            pair.deliver(side, sent)
    pair.run()

    assert ClosedChannelLost(answers) in pair.all_frames(S)
    assert pair.told(C, ReceiverEnded) == [ReceiverEnded(answers, EndReason.LOST)]


def test_a_sender_that_waits_for_room_is_not_told_of_room_when_it_is_lost() -> None:
    pair = Pair(AqueductLimits(window_messages=1))
    inner = lost_sender(pair)
    pair.holds = lambda side, sent: side is C and isinstance(sent, SendStream) and sent.stream == 2
    pair.send(C, inner, b"")
    assert not pair.client.has_room(inner, 0)
    pair.wait(2.0)

    assert [room for room in pair.told(C, RoomAgain) if room.channel == inner] == []
    pair.close_all()
