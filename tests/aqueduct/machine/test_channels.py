"""Messages, attachments and acks, as two machines that are joined exchange them."""

from __future__ import annotations

import pytest

from tests.aqueduct.machine.pair import DATAGRAM, Pair
from wallaroo_spark.aqueduct.errors import MessageTooLarge, NoRoom, SenderClosed
from wallaroo_spark.aqueduct.frames import (
    AckNackUnreliable,
    AckReliable,
    ChannelControl,
    ChannelId,
    CloseReceiver,
    FinishSender,
    MessageFrame,
    SentUnreliable,
    Version,
)
from wallaroo_spark.aqueduct.machine import (
    ENTRYPOINT,
    Acked,
    AqueductLimits,
    EndReason,
    Half,
    HeadersExchanged,
    HeadersReceived,
    MessageAvailable,
    ReceiverEnded,
    SenderEnded,
    SendStream,
    Side,
    TakenMessage,
)
from wallaroo_spark.errors import ArgumentValueError

C, S = Side.CLIENT, Side.SERVER


def test_both_sides_exchange_their_headers_and_open() -> None:
    pair = Pair(headers=(("cbor-b3b650", b"1"), ("cbor-b3b650", b"2")), server_headers=(("server", b""),))

    assert pair.notices[C] == [HeadersReceived((("server", b""),)), HeadersExchanged()]
    assert pair.notices[S] == [HeadersReceived((("cbor-b3b650", b"1"), ("cbor-b3b650", b"2"))), HeadersExchanged()]


def test_a_server_may_answer_the_headers_of_the_client() -> None:
    pair = Pair(headers=(("want", b"a"),), server_headers=None)
    assert pair.told(S, HeadersReceived) == [HeadersReceived((("want", b"a"),))]
    assert pair.told(C, HeadersExchanged) == []
    assert pair.sent[S] == []

    pair.server.answer_headers((("have", b"a"),), pair.now)
    pair.run()

    assert pair.told(C, HeadersReceived) == [HeadersReceived((("have", b"a"),))]
    with pytest.raises(ArgumentValueError, match="once"):
        pair.server.answer_headers((), pair.now)


def test_messages_that_come_before_the_headers_of_the_client_are_held() -> None:
    pair = Pair(greet=False)
    pair.server.handshake_completed(DATAGRAM, pair.now)
    pair.client.handshake_completed(DATAGRAM, pair.now)
    pair.holds = lambda side, sent: side is C and isinstance(sent, SendStream) and sent.stream == 0
    pair.send(C, ENTRYPOINT, b"first")
    pair.send(C, ENTRYPOINT, b"datagram", reliable=False)
    assert pair.server.counts().unfinished_bytes > 0
    assert pair.sent[S] == []

    pair.release()

    assert sorted(pair.payloads(S, ENTRYPOINT)) == [b"datagram", b"first"]
    assert pair.server.counts().unfinished_bytes == 0


def test_a_server_reads_nothing_before_the_handshake_is_complete() -> None:
    pair = Pair(greet=False)
    pair.client.handshake_completed(DATAGRAM, pair.now)
    pair.send(C, ENTRYPOINT, b"early")
    assert pair.notices[S] == pair.sent[S] == []

    pair.server.handshake_completed(DATAGRAM, pair.now)
    pair.run()

    assert pair.payloads(S, ENTRYPOINT) == [b"early"]


def test_a_server_answers_before_it_sends_anything_else() -> None:
    pair = Pair(server_headers=None)
    pair.send(C, ENTRYPOINT, b"x")
    assert pair.sent[S] == []

    pair.server.answer_headers((), pair.now)
    pair.run()

    first = pair.sent[S][0]
    assert isinstance(first, SendStream)
    assert (first.stream, first.data[0]) == (0, Version.TYPE)


def test_a_client_begins_each_stream_and_datagram_with_its_version_until_it_has_the_headers() -> None:
    pair = Pair(greet=False)
    pair.client.handshake_completed(DATAGRAM, pair.now)
    pair.send(C, ENTRYPOINT, b"ordered")
    pair.send(C, ENTRYPOINT, b"again")
    pair.send(C, ENTRYPOINT, b"own", ordered=False)
    pair.send(C, ENTRYPOINT, b"datagram", reliable=False)
    version = Version(b"0.0.0-AFTER")
    assert [frame == version for frame in pair.frames(C, 2)] == [True, False, False]
    assert [frame == version for frame in pair.frames(C, 6)] == [True, False]
    assert [frame == version for frame in pair.frames(C)] == [True, False]

    pair.server.handshake_completed(DATAGRAM, pair.now)
    pair.run()
    pair.send(C, ENTRYPOINT, b"later", ordered=False)

    assert isinstance(pair.frames(C, 10)[0], MessageFrame)


def test_ordered_messages_share_a_stream_and_unordered_ones_have_their_own() -> None:
    pair = Pair()
    for ordered in (True, False, True, False):
        pair.send(C, ENTRYPOINT, ordered=ordered)

    assert [sent.stream for sent in pair.sent[C] if isinstance(sent, SendStream)] == [0, 2, 6, 2, 10]


def test_reliable_and_unreliable_messages_have_their_own_numbers() -> None:
    pair = Pair()

    numbers = [pair.send(C, ENTRYPOINT, reliable=reliable) for reliable in (True, False, True, False, False)]

    assert numbers == [0, 0, 1, 1, 2]
    assert [pair.take(S, ENTRYPOINT)[:2] for _ in range(5)] == [
        (0, True),
        (0, False),
        (1, True),
        (1, False),
        (2, False),
    ]


def test_a_message_brings_senders_and_receivers_at_their_index() -> None:
    pair = Pair()
    answers, questions = pair.client.channel(Half.RECEIVER), pair.client.channel(Half.SENDER)

    pair.send(C, ENTRYPOINT, b"both", questions, answers)
    message = pair.take(S, ENTRYPOINT)

    assert message == TakenMessage(0, True, b"both", (questions, answers))
    assert [channel.half_at(S) for channel in message.attachments] == [Half.RECEIVER, Half.SENDER]
    pair.send(S, answers, b"answer")
    pair.send(C, questions, b"question")
    assert pair.payloads(C, answers) == [b"answer"]
    assert pair.payloads(S, questions) == [b"question"]


def test_channels_of_channels_nest_to_any_depth() -> None:
    pair = Pair()
    channel, side = ENTRYPOINT, C
    for depth in range(50):
        inner = pair.sides[side].channel(Half.SENDER)
        pair.send(side, channel, str(depth).encode(), inner)
        assert pair.take(side.other, channel).payload == str(depth).encode()
        back = pair.sides[side.other].channel(Half.SENDER)
        answer = pair.sides[side].channel(Half.RECEIVER)
        pair.send(side, inner, b"", answer)
        pair.take(side.other, inner)
        pair.send(side.other, answer, b"", back)
        pair.take(side, answer)
        channel, side = back, side.other
    pair.wait()

    assert pair.client.counts().links == pair.server.counts().links == 0
    pair.close_all()


def test_ids_are_minted_in_order_within_their_three_bits() -> None:
    pair = Pair()
    halves = [(Half.SENDER, False), (Half.SENDER, False), (Half.RECEIVER, False), (Half.SENDER, True)]

    assert [pair.client.channel(half, oneshot=oneshot) for half, oneshot in halves] == [8, 16, 1, 4]
    assert [pair.server.channel(half, oneshot=oneshot) for half, oneshot in halves] == [3, 11, 2, 7]


def test_the_side_that_did_not_create_a_channel_opens_its_control_stream() -> None:
    pair = Pair()
    theirs = pair.client.channel(Half.RECEIVER)
    pair.send(C, ENTRYPOINT, b"", theirs)

    assert pair.frames(S, 1)[0] == ChannelControl(ENTRYPOINT)
    assert pair.frames(S, 5)[0] == ChannelControl(theirs)
    assert not any(isinstance(frame, ChannelControl) for frame in pair.all_frames(C))


def test_a_sender_may_send_before_its_receiver_has_arrived() -> None:
    pair = Pair()
    inner = pair.client.channel(Half.SENDER)
    pair.holds = lambda side, sent: side is C and isinstance(sent, SendStream) and sent.stream == 2
    pair.send(C, ENTRYPOINT, b"brings it", inner)
    pair.send(C, inner, b"early")
    pair.holds = lambda _side, _sent: False
    assert pair.server.counts().receivers == 2
    assert pair.told(S, MessageAvailable) == []

    pair.release()
    pair.take(S, ENTRYPOINT)

    assert pair.told(S, MessageAvailable) == [MessageAvailable(ENTRYPOINT), MessageAvailable(inner)]
    assert pair.payloads(S, inner) == [b"early"]


def test_a_sender_cannot_send_before_its_receiver_is_attached() -> None:
    pair = Pair()
    inner = pair.client.channel(Half.SENDER)

    with pytest.raises(ArgumentValueError, match="must be attached"):
        pair.client.send(inner, b"", now=pair.now)


def test_an_end_of_a_channel_is_attached_once_and_by_its_creator() -> None:
    pair = Pair()
    inner = pair.client.channel(Half.SENDER)
    pair.send(C, ENTRYPOINT, b"", inner)
    pair.take(S, ENTRYPOINT)
    answers = pair.server.channel(Half.SENDER)
    other = pair.client.channel(Half.SENDER)
    pair.client.cancel(other, pair.now)

    for attach in ([inner], [ENTRYPOINT], [answers], [other], [ChannelId(800)], [inner, inner]):
        with pytest.raises(ArgumentValueError):
            pair.client.send(ENTRYPOINT, b"", now=pair.now, attach=attach)
    assert (pair.client.counts().unacked_messages, pair.client.counts().links) == (1, 1)


def test_a_receiver_acks_many_messages_at_a_time_after_a_short_delay() -> None:
    pair = Pair()
    for _ in range(5):
        pair.send(C, ENTRYPOINT)
    assert pair.told(C, Acked) == []

    pair.wait()

    assert pair.told(C, Acked) == [Acked(ENTRYPOINT, range(5), True)]
    assert pair.frames(S, 1)[1:] == [AckReliable((5,))]


def test_acks_begin_at_the_lowest_number_that_is_not_acked() -> None:
    pair = Pair()
    pair.send(C, ENTRYPOINT)
    pair.wait()
    pair.holds = lambda _side, sent: isinstance(sent, SendStream) and sent.stream == 6
    pair.send(C, ENTRYPOINT, ordered=False)
    pair.holds = lambda _side, _sent: False
    pair.send(C, ENTRYPOINT)
    pair.send(C, ENTRYPOINT)
    pair.wait()
    pair.send(C, ENTRYPOINT)
    pair.wait()
    pair.release()
    pair.wait()

    # 0; 2 and 3, behind 1 that is missing; 4, behind 1 to 3; 1.
    assert pair.frames(S, 1)[1:] == [AckReliable(ranges) for ranges in ((1,), (0, 1, 2), (0, 3, 1), (1,))]
    assert pair.client.counts().unacked_messages == 0


def test_unreliable_messages_are_declared_and_acked() -> None:
    pair = Pair()
    for _ in range(3):
        pair.send(C, ENTRYPOINT, reliable=False)
    pair.wait()

    assert pair.frames(C, 1) == [SentUnreliable(3)]
    assert pair.frames(S, 1)[1:] == [AckNackUnreliable((3,))]
    assert pair.told(C, Acked) == [Acked(ENTRYPOINT, range(3), False)]


def test_unreliable_messages_are_declared_when_the_control_stream_is_attached() -> None:
    pair = Pair()
    inner = pair.client.channel(Half.SENDER)
    pair.holds = lambda side, _sent: side is S
    pair.send(C, ENTRYPOINT, b"", inner)
    pair.send(C, inner, reliable=False)
    pair.wait(1.0)
    assert not any(isinstance(frame, SentUnreliable) for frame in pair.all_frames(C))

    pair.release()

    assert pair.frames(C, 5) == [SentUnreliable(1)]


def test_a_finished_channel_delivers_all_messages_and_says_so() -> None:
    pair = Pair()
    pair.send(C, ENTRYPOINT, b"a")
    pair.send(C, ENTRYPOINT, b"b", ordered=False)
    pair.client.finish(ENTRYPOINT, pair.now)
    pair.run()
    assert pair.told(S, ReceiverEnded) == []

    assert pair.payloads(S, ENTRYPOINT) == [b"a", b"b"]

    assert pair.told(S, ReceiverEnded) == [ReceiverEnded(ENTRYPOINT, EndReason.FINISHED)]
    assert pair.told(C, SenderEnded) == [SenderEnded(ENTRYPOINT, EndReason.FINISHED)]
    assert pair.frames(C, 1) == [FinishSender(2)]
    assert pair.frames(S, 1)[1:] == [CloseReceiver((2,))]
    assert pair.resets(C) == pair.resets(S) == []
    pair.close_all()


def test_a_channel_without_a_message_finishes() -> None:
    pair = Pair()
    pair.client.finish(ENTRYPOINT, pair.now)
    pair.run()

    assert pair.frames(S, 1)[1:] == [CloseReceiver(())]
    assert pair.told(S, ReceiverEnded) == [ReceiverEnded(ENTRYPOINT, EndReason.FINISHED)]
    assert pair.told(C, SenderEnded) == [SenderEnded(ENTRYPOINT, EndReason.FINISHED)]


def test_a_finish_waits_for_the_control_stream() -> None:
    pair = Pair()
    inner = pair.client.channel(Half.SENDER)
    pair.holds = lambda side, _sent: side is S
    pair.send(C, ENTRYPOINT, b"", inner)
    pair.send(C, inner, reliable=False)
    pair.client.finish(inner, pair.now)
    pair.run()
    assert not any(isinstance(frame, FinishSender) for frame in pair.all_frames(C))

    pair.release()

    assert pair.frames(C, 5) == [SentUnreliable(1), FinishSender(0)]


def test_a_finished_receiver_waits_for_messages_that_are_on_their_way() -> None:
    pair = Pair()
    pair.holds = lambda _side, sent: isinstance(sent, SendStream) and sent.stream == 6
    pair.send(C, ENTRYPOINT, b"a")
    pair.send(C, ENTRYPOINT, b"late", ordered=False)
    pair.client.finish(ENTRYPOINT, pair.now)
    pair.run()
    pair.wait(60)
    assert pair.payloads(S, ENTRYPOINT) == [b"a"]
    assert pair.told(S, ReceiverEnded) == []

    pair.release()

    assert pair.payloads(S, ENTRYPOINT) == [b"late"]
    assert pair.told(S, ReceiverEnded) == [ReceiverEnded(ENTRYPOINT, EndReason.FINISHED)]


def test_a_finished_sender_takes_no_message() -> None:
    pair = Pair()
    pair.client.finish(ENTRYPOINT, pair.now)

    with pytest.raises(SenderClosed, match="finishing"):
        pair.client.send(ENTRYPOINT, b"", now=pair.now)
    with pytest.raises(SenderClosed):
        pair.client.finish(ENTRYPOINT, pair.now)
    pair.run()
    with pytest.raises(SenderClosed, match="no such sender"):
        pair.client.send(ENTRYPOINT, b"", now=pair.now)
    with pytest.raises(SenderClosed, match="no such sender"):
        pair.client.finish(ENTRYPOINT, pair.now)
    pair.client.cancel(ENTRYPOINT, pair.now)


def test_the_end_of_a_channel_is_told_behind_the_take_that_brings_it() -> None:
    pair = Pair()
    inner, answers = pair.client.channel(Half.SENDER), pair.client.channel(Half.RECEIVER)
    pair.send(C, ENTRYPOINT, b"", inner, answers)
    pair.client.finish(inner, pair.now)
    pair.client.close_receiver(answers, pair.now)
    pair.run()
    assert pair.told(S, ReceiverEnded) == []
    assert pair.told(S, SenderEnded) == []

    pair.take(S, ENTRYPOINT)

    assert pair.told(S, ReceiverEnded) == [ReceiverEnded(inner, EndReason.FINISHED)]
    assert pair.told(S, SenderEnded) == [SenderEnded(answers, EndReason.CLOSED)]
    assert pair.server.take(inner, pair.now) is None


def test_a_oneshot_channel_ends_with_its_message() -> None:
    pair = Pair()
    inner = pair.client.channel(Half.SENDER, oneshot=True)
    pair.send(C, ENTRYPOINT, b"", inner)
    pair.send(C, inner, b"the one")
    pair.take(S, ENTRYPOINT)
    pair.wait()

    assert pair.payloads(S, inner) == [b"the one"]
    assert pair.told(S, ReceiverEnded) == [ReceiverEnded(inner, EndReason.FINISHED)]
    assert pair.told(C, SenderEnded) == [SenderEnded(inner, EndReason.FINISHED)]


def test_a_oneshot_channel_takes_one_reliable_message_at_its_api() -> None:
    pair = Pair()
    inner = pair.client.channel(Half.SENDER, oneshot=True)
    pair.send(C, ENTRYPOINT, b"", inner)

    with pytest.raises(SenderClosed, match="ends with its one message"):
        pair.client.finish(inner, pair.now)
    with pytest.raises(ArgumentValueError, match="one reliable message"):
        pair.client.send(inner, b"", now=pair.now, reliable=False)
    pair.send(C, inner)
    with pytest.raises(SenderClosed):
        pair.client.send(inner, b"", now=pair.now)


def test_a_oneshot_sender_that_was_received_answers_once() -> None:
    pair = Pair()
    answer = pair.client.channel(Half.RECEIVER, oneshot=True)
    pair.send(C, ENTRYPOINT, b"question", answer)
    pair.take(S, ENTRYPOINT)
    pair.send(S, answer, b"answer")

    assert pair.payloads(C, answer) == [b"answer"]
    assert pair.told(C, ReceiverEnded) == [ReceiverEnded(answer, EndReason.FINISHED)]
    assert pair.told(S, SenderEnded) == [SenderEnded(answer, EndReason.FINISHED)]


def test_a_message_that_fits_into_no_frame_or_datagram_is_refused() -> None:
    pair = Pair(AqueductLimits(frame=2000))

    with pytest.raises(MessageTooLarge, match="the limit is 2000; send several"):
        pair.client.send(ENTRYPOINT, bytes(2000), now=pair.now)
    with pytest.raises(MessageTooLarge, match="the limit is 1200; send it reliably"):
        pair.client.send(ENTRYPOINT, bytes(1200), now=pair.now, reliable=False)
    # Type, channel, number, length and attachments take six bytes.
    assert pair.send(C, ENTRYPOINT, bytes(DATAGRAM - 6), reliable=False) == 0
    assert pair.send(C, ENTRYPOINT, bytes(2000 - 6)) == 0


def test_the_version_in_front_counts_for_the_size_of_a_datagram() -> None:
    pair = Pair(greet=False)
    pair.client.handshake_completed(DATAGRAM, pair.now)
    room = DATAGRAM - 6 - len(b"\xef" + bytes(7) + b"AQUEDUCT" + b"\x0b0.0.0-AFTER")

    with pytest.raises(MessageTooLarge):
        pair.client.send(ENTRYPOINT, bytes(room + 1), now=pair.now, reliable=False)
    pair.client.send(ENTRYPOINT, bytes(room), now=pair.now, reliable=False)


def test_an_unreliable_message_waits_for_the_handshake() -> None:
    pair = Pair(greet=False)
    pair.client.instructions()
    with pytest.raises(NoRoom, match="handshake"):
        pair.client.send(ENTRYPOINT, b"", now=pair.now, reliable=False)

    pair.client.handshake_completed(DATAGRAM, pair.now)

    assert [type(found).__name__ for found in pair.client.instructions()] == ["RoomAgain"]
    assert pair.send(C, ENTRYPOINT, b"", reliable=False) == 0


def test_calls_name_the_half_that_this_side_does_not_have() -> None:
    pair = Pair()

    with pytest.raises(ArgumentValueError, match="cannot receive"):
        pair.client.take(ENTRYPOINT, pair.now)
    with pytest.raises(ArgumentValueError, match="cannot send"):
        pair.server.send(ENTRYPOINT, b"", now=pair.now)
    assert pair.server.take(ChannelId(8), pair.now) is None


def test_headers_that_cannot_be_sent_are_refused() -> None:
    for headers in ((("", b""),), (("é", b""),), (("a", bytes(70_000)),)):
        with pytest.raises(ArgumentValueError):
            Pair(headers=headers)


def test_streams_are_opened_in_the_order_of_their_ids() -> None:
    pair = Pair()
    for index in range(10):
        channel = pair.client.channel(Half.SENDER)
        pair.send(C, ENTRYPOINT, b"", channel, pair.client.channel(Half.RECEIVER))
        pair.send(C, channel, b"", ordered=index % 2 == 0)
        pair.take(S, ENTRYPOINT)
    pair.close_all()

    for side in Side:
        streams = [sent.stream for sent in pair.sent[side] if isinstance(sent, SendStream)]
        for kind in (0, 2):
            own = [stream for stream in dict.fromkeys(streams) if stream & 3 == kind + side]
            assert own == sorted(own)
