"""Windows, queues and budgets: what a machine holds at most, and who waits for it."""

from __future__ import annotations

import pytest

from tests.aqueduct.machine.pair import DATAGRAM, Pair, split
from wallaroo_spark.aqueduct.errors import MessageTooLarge, NoRoom
from wallaroo_spark.aqueduct.frames import (
    AckNackUnreliable,
    ChannelId,
    Frame,
    MessageFrame,
    SentUnreliable,
    Version,
    encode,
)
from wallaroo_spark.aqueduct.machine import (
    ENTRYPOINT,
    Acked,
    AqueductLimits,
    CloseCode,
    ConnectionMachine,
    Ended,
    EndReason,
    Half,
    ReceiverEnded,
    RoomAgain,
    SenderEnded,
    SendStream,
    Side,
)

C, S = Side.CLIENT, Side.SERVER
SMALL = AqueductLimits(
    window_messages=4, window_bytes=4000, connection_window_bytes=8000, unfinished_bytes=3000, frame=2000
)
COST = 128
"""What a message costs beside its payload."""


def ends(machine: ConnectionMachine) -> list[tuple[int, str]]:
    """Code and rule of the end of a machine's connection."""
    found = [instruction for instruction in machine.instructions() if isinstance(instruction, Ended)]
    return [(end.code, end.reason.split(":")[0]) for end in found]


def message(number: int, payload: bytes = b"", channel: ChannelId = ENTRYPOINT) -> MessageFrame:
    return MessageFrame(channel, number, payload)


def feed(machine: ConnectionMachine, stream: int, *frames: Frame) -> None:
    machine.stream_received(stream, b"".join(map(encode, frames)), False, 100.0)


def test_a_send_beyond_the_window_of_its_channel_has_no_room_until_half_of_it_is_free() -> None:
    pair = Pair(SMALL)
    pair.holds = lambda side, _sent: side is S
    for _ in range(4):
        assert pair.client.has_room(ENTRYPOINT, 0)
        pair.send(C, ENTRYPOINT)
    assert not pair.client.has_room(ENTRYPOINT, 0)
    with pytest.raises(NoRoom, match="4 messages"):
        pair.client.send(ENTRYPOINT, b"", now=pair.now)
    counts = pair.client.counts()
    assert counts.unacked_messages == 4

    pair.release()

    assert pair.told(C, RoomAgain) == [RoomAgain(ENTRYPOINT)]
    assert pair.send(C, ENTRYPOINT) == 4


def test_a_window_counts_bytes() -> None:
    pair = Pair(SMALL)
    pair.holds = lambda side, _sent: side is S
    pair.send(C, ENTRYPOINT, bytes(1900))
    pair.send(C, ENTRYPOINT, bytes(4000 - 1900 - 2 * COST))

    with pytest.raises(NoRoom, match="4000 bytes"):
        pair.client.send(ENTRYPOINT, b"", now=pair.now)


def test_a_message_that_is_larger_than_the_window_is_sent_alone() -> None:
    pair = Pair(AqueductLimits(window_bytes=1000, connection_window_bytes=1000))
    pair.send(C, ENTRYPOINT, b"a")
    with pytest.raises(NoRoom):
        pair.client.send(ENTRYPOINT, bytes(5000), now=pair.now)
    pair.wait()

    pair.send(C, ENTRYPOINT, bytes(5000))

    assert [len(payload) for payload in pair.payloads(S, ENTRYPOINT)] == [1, 5000]
    pair.wait()
    assert pair.client.unacked_messages == 0


def test_the_window_of_the_connection_holds_all_channels() -> None:
    pair = Pair(SMALL)
    channels = [pair.client.channel(Half.SENDER) for _ in range(4)]
    pair.send(C, ENTRYPOINT, b"", *channels)
    pair.take(S, ENTRYPOINT)
    pair.wait()
    pair.holds = lambda side, _sent: side is S
    for channel in channels:
        pair.send(C, channel, bytes(1800))
    with pytest.raises(NoRoom, match="7712 bytes of all channels"):
        pair.client.send(ENTRYPOINT, bytes(500), now=pair.now)

    for channel in channels:
        pair.take(S, channel)
    pair.release()
    pair.wait()

    assert pair.told(C, RoomAgain) == [RoomAgain(ENTRYPOINT)]


def test_a_channel_that_ends_makes_room_in_the_connection() -> None:
    pair = Pair(SMALL)
    channels = [pair.client.channel(Half.SENDER) for _ in range(4)]
    pair.send(C, ENTRYPOINT, b"", *channels)
    pair.take(S, ENTRYPOINT)
    pair.wait()
    pair.holds = lambda side, _sent: side is C
    for channel in channels:
        pair.send(C, channel, bytes(1800))
    with pytest.raises(NoRoom):
        pair.client.send(ENTRYPOINT, bytes(500), now=pair.now)
    for channel in channels[:2]:
        pair.server.close_receiver(channel, pair.now)
    pair.run()

    assert pair.told(C, RoomAgain) == [RoomAgain(ENTRYPOINT)]


def test_acks_wait_while_the_queue_is_above_its_limit_and_go_on_when_messages_are_taken() -> None:
    pair = Pair(SMALL)
    for _ in range(4):
        pair.send(C, ENTRYPOINT)
    pair.wait()
    assert [notice.numbers for notice in pair.told(C, Acked)] == [range(number, number + 1) for number in range(4)]
    pair.send(C, ENTRYPOINT)
    pair.wait()
    assert len(pair.told(C, Acked)) == 4

    pair.take(S, ENTRYPOINT)
    pair.wait()

    assert pair.told(C, Acked)[4:] == [Acked(ENTRYPOINT, range(4, 5), True)]


def test_acks_wait_while_all_queues_together_are_above_their_limit() -> None:
    pair = Pair(AqueductLimits(connection_window_bytes=1000, frame=2000))
    other = pair.client.channel(Half.SENDER)
    pair.send(C, ENTRYPOINT, b"", other)
    pair.take(S, ENTRYPOINT)
    pair.wait()
    pair.send(C, ENTRYPOINT, bytes(800))
    pair.wait()
    acked = len(pair.told(C, Acked))
    pair.send(C, other, bytes(800))
    pair.wait()
    assert len(pair.told(C, Acked)) == acked

    pair.take(S, ENTRYPOINT)
    pair.wait()

    assert pair.told(C, Acked)[acked:] == [Acked(other, range(1), True)]


def test_a_finished_channel_is_closed_when_its_acks_may_be_sent() -> None:
    pair = Pair(SMALL)
    for _ in range(4):
        pair.send(C, ENTRYPOINT)
    pair.wait()
    pair.send(C, ENTRYPOINT)
    pair.client.finish(ENTRYPOINT, pair.now)
    pair.run()
    pair.wait()
    assert pair.told(C, SenderEnded) == []

    assert len(pair.payloads(S, ENTRYPOINT)) == 5

    assert pair.told(C, SenderEnded) == [SenderEnded(ENTRYPOINT, EndReason.FINISHED)]
    assert pair.told(S, ReceiverEnded) == [ReceiverEnded(ENTRYPOINT, EndReason.FINISHED)]


def test_acks_that_wait_go_on_when_another_queue_is_dropped() -> None:
    pair = Pair(AqueductLimits(connection_window_bytes=1000, frame=2000))
    other = pair.client.channel(Half.SENDER)
    pair.send(C, ENTRYPOINT, b"", other)
    pair.take(S, ENTRYPOINT)
    pair.wait()
    pair.send(C, other, bytes(800))
    pair.wait()
    pair.send(C, ENTRYPOINT, bytes(800))
    pair.wait()

    pair.server.close_receiver(other, pair.now)
    pair.wait()

    assert pair.client.unacked_messages == 0


def test_unreliable_messages_beyond_the_limit_evict_the_oldest() -> None:
    pair = Pair(SMALL)
    for number in range(10):
        pair.send(C, ENTRYPOINT, str(number).encode(), reliable=False)
        pair.wait()

    assert pair.payloads(S, ENTRYPOINT) == [b"6", b"7", b"8", b"9"]
    assert pair.server.queues.lost == 6


def test_unreliable_messages_never_evict_reliable_ones() -> None:
    pair = Pair(SMALL)
    for number in range(10):
        pair.send(C, ENTRYPOINT, str(number).encode(), reliable=number % 4 == 0)
        pair.wait()

    assert pair.payloads(S, ENTRYPOINT) == [b"0", b"4", b"8", b"9"]


def test_a_queue_of_which_messages_are_taken_and_evicted_keeps_no_trace_of_them() -> None:
    pair = Pair(SMALL)
    for number in range(500):
        pair.send(C, ENTRYPOINT, str(number).encode(), reliable=False)
        pair.wait()
        if number % 3 == 0:
            pair.payloads(S, ENTRYPOINT)
    pair.payloads(S, ENTRYPOINT)

    assert pair.server.counts()[7:9] == (0, 0)


def test_a_peer_that_ignores_the_window_is_closed() -> None:
    pair = Pair(SMALL)
    feed(pair.server, 2, *map(message, range(8)))
    assert ends(pair.server) == []

    feed(pair.server, 2, message(8))

    assert ends(pair.server) == [(CloseCode.LIMITS, "window-exceeded")]


def test_a_peer_that_ignores_the_window_of_the_connection_is_closed() -> None:
    pair = Pair(SMALL)
    for index in range(1, 9):
        feed(pair.server, 4 * index + 2, message(0, bytes(1800), ChannelId(8 * index)))
    assert ends(pair.server) == []

    feed(pair.server, 2, message(0, bytes(1800)))

    assert ends(pair.server) == [(CloseCode.LIMITS, "window-exceeded")]


def test_a_peer_that_leaves_a_gap_between_all_messages_is_closed() -> None:
    pair = Pair(SMALL)
    for number in range(2, 22, 2):
        feed(pair.server, 2, message(number))
        assert pair.server.take(ENTRYPOINT, 100.0) is not None

    feed(pair.server, 2, message(22))

    assert ends(pair.server) == [(CloseCode.LIMITS, "too-many-gaps")]


def test_incomplete_frames_of_many_streams_count_together() -> None:
    pair = Pair(SMALL)
    part = encode(message(0, bytes(1800)))[:1500]
    pair.server.stream_received(2, part, False, 100.0)
    pair.server.stream_received(6, part, False, 100.0)
    assert ends(pair.server) == []

    pair.server.stream_received(10, b"\x03", False, 100.0)

    assert ends(pair.server) == [(CloseCode.LIMITS, "too-much-unfinished")]


def test_what_is_held_for_the_headers_counts_as_unfinished() -> None:
    pair = Pair(SMALL, greet=False)
    pair.server.handshake_completed(DATAGRAM, 100.0)
    held = encode(message(0, bytes(900)))
    for stream in (2, 6, 10):
        pair.server.stream_received(stream, held, False, 100.0)
    assert ends(pair.server) == []
    pair.server.datagram_received(held, 100.0)

    assert ends(pair.server) == [(CloseCode.LIMITS, "too-much-unfinished")]


def test_frames_of_early_data_before_the_handshake_count_as_unfinished() -> None:
    pair = Pair(SMALL, greet=False)
    pair.server.stream_received(0, encode(Version(b"0.0.0-AFTER")), False, 100.0)
    pair.server.stream_received(2, bytes(3001), False, 100.0)

    assert ends(pair.server) == [(CloseCode.LIMITS, "too-much-unfinished")]


def test_channels_are_limited_at_both_sides() -> None:
    pair = Pair(AqueductLimits(channels=3))
    for _ in range(2):
        pair.client.channel(Half.SENDER)
    with pytest.raises(NoRoom, match="the limit is 3"):
        pair.client.channel(Half.SENDER)

    for index in range(1, 4):
        feed(pair.server, 2, message(0, b"", ChannelId(8 * index)))

    assert ends(pair.server) == [(CloseCode.LIMITS, "too-many-channels")]


def test_attachments_are_limited_at_both_sides() -> None:
    pair = Pair(AqueductLimits(attachments=2))
    channels = [pair.client.channel(Half.SENDER) for _ in range(3)]
    with pytest.raises(MessageTooLarge, match="3 attachments"):
        pair.client.send(ENTRYPOINT, b"", now=pair.now, attach=channels)

    feed(pair.server, 2, MessageFrame(ENTRYPOINT, 0, b"", tuple(channels)))

    assert ends(pair.server) == [(CloseCode.LIMITS, "too-many-attachments")]


def test_a_declaration_of_very_many_messages_costs_nothing() -> None:
    pair = Pair()
    feed(pair.server, 1, SentUnreliable(2**63))
    pair.server.tick(110.0)

    sent = [found for found in pair.server.instructions() if isinstance(found, SendStream)]
    assert len(sent) == 1
    assert len(sent[0].data) < 20


def test_very_many_declarations_are_kept_as_a_few() -> None:
    pair = Pair()
    for number in range(1000):
        pair.server.stream_received(1, encode(SentUnreliable(1)), False, 100.0 + number / 1000)
    pair.server.instructions()

    pair.server.tick(101.0301)
    pair.server.tick(102.0)

    parts = [found.data for found in pair.server.instructions() if isinstance(found, SendStream)]
    frames = [frame for part in parts for frame in split(part)]
    assert frames == [AckNackUnreliable((0, 31)), AckNackUnreliable((0, 969))]


def test_discarded_receivers_are_remembered_in_a_small_number() -> None:
    pair = Pair(AqueductLimits(remembered_receivers=2))
    for index in range(5):
        channel = pair.client.channel(Half.SENDER)
        pair.send(C, ENTRYPOINT, b"", channel)
        pair.take(S, ENTRYPOINT)
        pair.client.finish(channel, pair.now)
        pair.run()
        assert len(pair.told(S, ReceiverEnded)) == index + 1

    for index in range(5):
        feed(pair.server, 402 + 4 * index, message(7, b"", ChannelId(8 * (index + 1))))

    # The two that were discarded last make no ghosts.
    assert pair.server.counts().receivers == 1 + 3


def test_many_messages_and_channels_take_time_in_proportion() -> None:
    pair = Pair()
    for _ in range(2000):
        channel = pair.client.channel(Half.SENDER)
        pair.client.send(ENTRYPOINT, b"", now=pair.now, attach=[channel])
        pair.client.send(channel, b"", now=pair.now)
    pair.run()
    pair.wait()
    assert pair.client.counts().links == 0
    pair.server.close_receiver(ENTRYPOINT, pair.now)
    pair.wait(2.0)

    assert pair.client.counts().senders == pair.server.counts().receivers == 0
