"""Each protocol error by its name: what a peer may not do, as bytes."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.aqueduct.machine.pair import DATAGRAM, Pair
from wallaroo_spark.aqueduct.frames import (
    U64_MAX,
    AckNackUnreliable,
    AckReliable,
    ChannelControl,
    ChannelId,
    ClosedChannelLost,
    CloseReceiver,
    ConnectionControl,
    FinishSender,
    Frame,
    MessageFrame,
    SentUnreliable,
    Version,
    encode,
)
from wallaroo_spark.aqueduct.machine import (
    ENTRYPOINT,
    CloseCode,
    CloseConnection,
    ConnectionMachine,
    Ended,
    Half,
    Rule,
    Side,
)

C, S = Side.CLIENT, Side.SERVER
VERSION = Version(b"0.0.0-AFTER")
INNER = ChannelId(8)
"""A channel that the client creates and sends on."""
ONESHOT = ChannelId(4)
"""The same for one message."""
ANSWERS = ChannelId(1)
"""A channel that the client creates and receives on."""


class Peer:
    """Feeds frames of a peer to a machine, by streams that only a peer with a defect uses so."""

    def __init__(self, machine: ConnectionMachine) -> None:
        self.machine = machine

    def stream(self, stream: int, *frames: Frame, end: bool = False) -> Peer:
        """Send frames on a stream."""
        self.machine.stream_received(stream, b"".join(map(encode, frames)), end, 100.0)
        return self

    def raw(self, stream: int, data: bytes, *, end: bool = False) -> Peer:
        """Send bytes on a stream."""
        self.machine.stream_received(stream, data, end, 100.0)
        return self

    def datagram(self, *frames: Frame, behind: bytes = b"") -> Peer:
        """Send frames in a datagram, and bytes behind them."""
        self.machine.datagram_received(b"".join(map(encode, frames)) + behind, 100.0)
        return self


def message(channel: ChannelId = ENTRYPOINT, number: int = 0, *attach: ChannelId) -> MessageFrame:
    return MessageFrame(channel, number, b"", attach)


def server() -> Peer:
    """An open server; its control stream of the entrypoint is 1, the client's first streams are 4 and 2."""
    return Peer(Pair().server)


def client() -> Peer:
    """An open client that has sent one reliable and one unreliable message; 1 is the entrypoint's control stream."""
    pair = Pair()
    pair.holds = lambda side, _sent: side is C
    pair.send(C, ENTRYPOINT)
    pair.send(C, ENTRYPOINT, reliable=False)
    return Peer(pair.client)


def client_with_receiver() -> Peer:
    """An open client that has attached the sender of channel 1."""
    pair = Pair()
    answers = pair.client.channel(Half.RECEIVER)
    assert answers == ANSWERS
    pair.holds = lambda side, _sent: side is C
    pair.send(C, ENTRYPOINT, b"", answers)
    return Peer(pair.client)


def greeting(side: Side) -> Peer:
    """A machine that has no headers of its peer yet."""
    pair = Pair(greet=False)
    machine = pair.sides[side]
    machine.handshake_completed(DATAGRAM, 100.0)
    return Peer(machine)


def _declared() -> Peer:
    return server().stream(1, SentUnreliable(1))


def _acked_behind_a_gap() -> Peer:
    pair = Pair()
    pair.holds = lambda side, _sent: side is C
    pair.send(C, ENTRYPOINT)
    pair.send(C, ENTRYPOINT)
    return Peer(pair.client).stream(1, AckReliable((0, 1, 1)), AckReliable((0, 1, 1)))


VIOLATIONS: dict[str, tuple[Rule, Callable[[], Peer]]] = {
    "a stream that is no frames": (Rule.UNKNOWN_FRAME, lambda: server().raw(2, b"GET / HTTP/1.1")),
    "a datagram that ends within a frame": (Rule.TRUNCATED, lambda: server().datagram(message(), behind=b"\x03\x00")),
    "an empty datagram": (Rule.NO_FRAME, lambda: server().datagram()),
    "a stream that ends without a frame": (Rule.NO_FRAME, lambda: server().raw(2, b"", end=True)),
    "a stream that ends within a frame": (Rule.TRUNCATED, lambda: server().raw(2, b"\x03\x00", end=True)),
    "a version behind another frame": (Rule.VERSION_NOT_FIRST, lambda: server().stream(2, message(), VERSION)),
    "two versions": (Rule.VERSION_NOT_FIRST, lambda: server().stream(2, VERSION, VERSION)),
    "a version second in a datagram": (Rule.VERSION_NOT_FIRST, lambda: server().datagram(message(), VERSION)),
    "another version": (Rule.WRONG_VERSION, lambda: greeting(S).stream(0, Version(b"0.0.1"))),
    "headers without a version": (Rule.HEADERS_MISPLACED, lambda: greeting(S).stream(0, ConnectionControl(()))),
    "headers on a unidirectional stream": (
        Rule.HEADERS_MISPLACED,
        lambda: greeting(S).stream(2, VERSION, ConnectionControl(())),
    ),
    "headers in a datagram": (Rule.HEADERS_MISPLACED, lambda: server().datagram(VERSION, ConnectionControl(()))),
    "headers of a server on its own stream": (
        Rule.HEADERS_MISPLACED,
        lambda: client().stream(5, VERSION, ConnectionControl(())),
    ),
    "headers twice on a stream": (Rule.HEADERS_TWICE, lambda: server().stream(0, ConnectionControl(()))),
    "headers twice on two streams": (Rule.HEADERS_TWICE, lambda: server().stream(4, VERSION, ConnectionControl(()))),
    "headers of a server twice": (Rule.HEADERS_TWICE, lambda: client().stream(0, ConnectionControl(()))),
    "an answer of a server without a version": (
        Rule.HEADERS_MISPLACED,
        lambda: greeting(C).stream(0, ConnectionControl(())),
    ),
    "another frame on the connection control stream": (Rule.MESSAGE_MISPLACED, lambda: server().stream(0, message())),
    "an end of the connection control stream": (Rule.CONTROL_STREAM_ENDED, lambda: server().raw(0, b"", end=True)),
    "an end of the server's answer": (Rule.CONTROL_STREAM_ENDED, lambda: client().raw(0, b"", end=True)),
    "a channel control on a unidirectional stream": (
        Rule.CHANNEL_CONTROL_MISPLACED,
        lambda: client().stream(3, ChannelControl(ENTRYPOINT)),
    ),
    "a channel control in a datagram": (
        Rule.CHANNEL_CONTROL_MISPLACED,
        lambda: client().datagram(ChannelControl(ENTRYPOINT)),
    ),
    "two channel controls on a stream": (
        Rule.CHANNEL_CONTROL_MISPLACED,
        lambda: client().stream(1, ChannelControl(ENTRYPOINT)),
    ),
    "a channel control in an answer": (
        Rule.CHANNEL_CONTROL_MISPLACED,
        lambda: server().stream(1, ChannelControl(ENTRYPOINT)),
    ),
    "a channel control of a channel of the peer": (
        Rule.WRONG_CREATOR,
        lambda: server().stream(4, ChannelControl(INNER)),
    ),
    "a channel control without an end": (Rule.NO_FRAME, lambda: server().raw(4, b"", end=True)),
    "a version alone on a bidirectional stream": (Rule.END_MISPLACED, lambda: server().stream(4, VERSION, end=True)),
    "a message on a bidirectional stream": (Rule.MESSAGE_MISPLACED, lambda: server().stream(4, message())),
    "a message on a control stream": (Rule.MESSAGE_MISPLACED, lambda: server().stream(1, message())),
    "a declaration on a stream of messages": (
        Rule.SENT_UNRELIABLE_MISPLACED,
        lambda: server().stream(2, SentUnreliable(1)),
    ),
    "a declaration by a receiver": (Rule.SENT_UNRELIABLE_MISPLACED, lambda: client().stream(1, SentUnreliable(1))),
    "an ack on a stream of messages": (Rule.ACK_RELIABLE_MISPLACED, lambda: client().stream(3, AckReliable((1,)))),
    "an ack by a sender": (Rule.ACK_RELIABLE_MISPLACED, lambda: server().stream(1, AckReliable((1,)))),
    "a nack by a sender": (Rule.ACK_NACK_UNRELIABLE_MISPLACED, lambda: server().stream(1, AckNackUnreliable((1,)))),
    "a finish by a receiver": (Rule.FINISH_SENDER_MISPLACED, lambda: client().stream(1, FinishSender(0))),
    "a finish on a stream of messages": (Rule.FINISH_SENDER_MISPLACED, lambda: server().stream(2, FinishSender(0))),
    "a frame behind a finish": (
        Rule.SENT_UNRELIABLE_MISPLACED,
        lambda: server().stream(1, FinishSender(1), SentUnreliable(1)),
    ),
    "a close by a sender": (Rule.CLOSE_RECEIVER_MISPLACED, lambda: server().stream(1, CloseReceiver(()))),
    "a control stream that ends without a finish": (Rule.END_MISPLACED, lambda: _declared().raw(1, b"", end=True)),
    "a control stream that ends without a close": (Rule.END_MISPLACED, lambda: client().raw(1, b"", end=True)),
    "a loss on a bidirectional stream": (
        Rule.CLOSED_CHANNEL_LOST_MISPLACED,
        lambda: server().stream(4, ClosedChannelLost(INNER)),
    ),
    "a loss in a datagram": (
        Rule.CLOSED_CHANNEL_LOST_MISPLACED,
        lambda: server().datagram(ClosedChannelLost(INNER)),
    ),
    "a loss behind a message": (
        Rule.CLOSED_CHANNEL_LOST_MISPLACED,
        lambda: server().stream(2, message(), ClosedChannelLost(INNER)),
    ),
    "a message behind a loss": (
        Rule.MESSAGE_MISPLACED,
        lambda: server().stream(2, ClosedChannelLost(INNER), message()),
    ),
    "a message by the receiver of its channel": (Rule.WRONG_DIRECTION, lambda: client().stream(3, message())),
    "an attachment that its receiver has created": (
        Rule.WRONG_CREATOR,
        lambda: server().stream(2, message(ENTRYPOINT, 0, ChannelId(2))),
    ),
    "a sender that is attached to two messages": (
        Rule.ATTACHED_TWICE,
        lambda: server().stream(2, message(ENTRYPOINT, 0, ANSWERS), message(ENTRYPOINT, 1, ANSWERS)),
    ),
    "a receiver that is attached to two messages": (
        Rule.ATTACHED_TWICE,
        lambda: server().stream(2, message(ENTRYPOINT, 0, INNER), message(ENTRYPOINT, 1, INNER)),
    ),
    "a channel that is attached twice to a message": (
        Rule.ATTACHED_TWICE,
        lambda: server().stream(2, message(ENTRYPOINT, 0, INNER, INNER)),
    ),
    "the entrypoint as an attachment": (
        Rule.ATTACHED_TWICE,
        lambda: server().stream(2, message(ENTRYPOINT, 0, ENTRYPOINT)),
    ),
    "a reliable number that is used twice": (Rule.NUMBER_TWICE, lambda: server().stream(2, message(), message())),
    "a message beyond the finish": (
        Rule.NUMBER_NOT_SENT,
        lambda: server().stream(1, FinishSender(3)).stream(2, message(ENTRYPOINT, 3)),
    ),
    "a finish in front of a message that arrived": (
        Rule.NUMBER_NOT_SENT,
        lambda: server().stream(2, message(ENTRYPOINT, 3)).stream(1, FinishSender(3)),
    ),
    "a datagram that was not declared at the finish": (
        Rule.NUMBER_NOT_SENT,
        lambda: server().datagram(message()).stream(1, FinishSender(0)),
    ),
    "a datagram behind a finish that does not know it": (
        Rule.NUMBER_NOT_SENT,
        lambda: server().stream(1, FinishSender(1)).datagram(message()),
    ),
    "a number that leaves no next one": (
        Rule.NUMBER_NOT_SENT,
        lambda: server().stream(2, message(ENTRYPOINT, U64_MAX)),
    ),
    "declarations of more than 64 bits": (
        Rule.NUMBER_NOT_SENT,
        lambda: server().stream(1, SentUnreliable(U64_MAX), SentUnreliable(1)),
    ),
    "an ack of a message that was not sent": (Rule.ACK_NOT_SENT, lambda: client().stream(1, AckReliable((2,)))),
    "an undecided message that was not sent": (Rule.ACK_NOT_SENT, lambda: client().stream(1, AckReliable((0, 1, 1)))),
    "a second ack": (Rule.ACK_NOT_SENT, lambda: client().stream(1, AckReliable((1,)), AckReliable((1,)))),
    "an ack of a datagram that was not sent": (
        Rule.ACK_NOT_SENT,
        lambda: client().stream(1, AckNackUnreliable((1, 1))),
    ),
    "a second nack": (
        Rule.ACK_NOT_SENT,
        lambda: client().stream(1, AckNackUnreliable((0, 1)), AckNackUnreliable((1,))),
    ),
    "a close that acks what was not sent": (Rule.ACK_NOT_SENT, lambda: client().stream(1, CloseReceiver((2,)))),
    "a close that nacks what was acked": (
        Rule.NACK_OF_ACKED,
        lambda: client().stream(1, AckReliable((1,)), CloseReceiver((0, 1))),
    ),
    "an ack in front of which nothing is acked, twice": (Rule.ACKED_TWICE, _acked_behind_a_gap),
    "a second message of a oneshot channel": (Rule.ONESHOT, lambda: server().stream(2, message(ONESHOT, 1))),
    "an unreliable message of a oneshot channel": (Rule.ONESHOT, lambda: server().datagram(message(ONESHOT))),
    "a declaration of a oneshot channel": (
        Rule.ONESHOT,
        lambda: server().stream(2, message(ONESHOT)).stream(5, SentUnreliable(1)),
    ),
    "a finish of a oneshot channel with two messages": (
        Rule.ONESHOT,
        lambda: server().stream(2, message(ONESHOT)).stream(5, FinishSender(2)),
    ),
    "a finish of a oneshot channel that denies its message": (
        Rule.NUMBER_NOT_SENT,
        lambda: server().stream(2, message(ONESHOT)).stream(5, FinishSender(0)),
    ),
}


@pytest.mark.parametrize("name", VIOLATIONS)
def test_a_violation_closes_the_connection_by_the_name_of_its_rule(name: str) -> None:
    rule, violate = VIOLATIONS[name]

    machine = violate().machine

    found = machine.instructions()
    closes = [instruction for instruction in found if isinstance(instruction, CloseConnection)]
    assert [(close.code, close.reason.split(":")[0]) for close in closes] == [(rule.close_code, rule)]
    assert found[-1] == Ended(rule.close_code, closes[0].reason, by_peer=False)
    assert tuple(machine.counts()) == (0,) * 10
    machine.validate()


def test_a_reset_of_the_connection_control_stream_is_a_violation() -> None:
    for side in Side:
        machine = Pair().sides[side]
        machine.stream_reset(0, 1, 100.0)
        assert [found.code for found in machine.instructions() if isinstance(found, Ended)] == [CloseCode.PROTOCOL]

        machine = Pair().sides[side]
        machine.stream_stopped(0, 1, 100.0)
        assert [found.code for found in machine.instructions() if isinstance(found, Ended)] == [CloseCode.PROTOCOL]


def test_a_peer_without_datagrams_is_no_peer() -> None:
    machine = ConnectionMachine(C, now=100.0)
    machine.handshake_completed(0, 100.0)

    ends = [found for found in machine.instructions() if isinstance(found, Ended)]
    assert [end.reason.split(":")[0] for end in ends] == [Rule.NO_DATAGRAMS]


ALLOWED: dict[str, Callable[[], Peer]] = {
    "a unidirectional stream with a version alone": lambda: server().stream(2, VERSION, end=True),
    "a version in front of messages": lambda: server().stream(2, VERSION, message(), end=True),
    "a version in front of a channel control": lambda: client_with_receiver().stream(
        5, VERSION, ChannelControl(ANSWERS), SentUnreliable(0)
    ),
    "a version in front of an answer": lambda: server().stream(1, VERSION, SentUnreliable(1)),
    "a version in front of a loss": lambda: server().stream(2, VERSION, ClosedChannelLost(INNER), end=True),
    "messages of several channels on a stream": lambda: server().stream(2, message(), message(INNER), end=True),
    "several frames in a datagram": lambda: server().datagram(message(), message(ENTRYPOINT, 1), message(INNER)),
    "an ack of a datagram that was not declared": lambda: client().stream(1, AckNackUnreliable((1,))),
    "acks that are repeated by a close": lambda: client().stream(1, AckReliable((1,)), CloseReceiver((1,)), end=True),
    "a close that nacks": lambda: client().stream(1, CloseReceiver((0, 1)), end=True),
}


@pytest.mark.parametrize("name", ALLOWED)
def test_what_is_unusual_and_allowed_does_not_close_the_connection(name: str) -> None:
    machine = ALLOWED[name]().machine

    assert not any(isinstance(found, Ended) for found in machine.instructions())
    machine.validate()


def test_frames_are_read_byte_by_byte() -> None:
    peer = server()
    for byte in encode(VERSION) + encode(message(ENTRYPOINT, 0, INNER)) + encode(message(INNER)):
        peer.raw(2, bytes([byte]))
        peer.machine.validate()
    peer.raw(2, b"", end=True)

    taken = peer.machine.take(ENTRYPOINT, 100.0)
    assert taken is not None
    assert taken.attachments == (INNER,)
    assert peer.machine.take(INNER, 100.0) is not None
    assert peer.machine.counts().unfinished_bytes == 0
