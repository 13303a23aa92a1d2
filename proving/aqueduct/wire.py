"""Frames on their way: what has arrived, and the rules for each frame that a side sends."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from proving.aqueduct.ledger import Channel, Ledger
from proving.simulator.engine.core import Simulation, Violation
from wallaroo_spark.aqueduct.frames import (
    AckNackUnreliable,
    AckReliable,
    ChannelControl,
    ClosedChannelLost,
    CloseReceiver,
    ConnectionControl,
    FinishSender,
    Frame,
    FrameLimits,
    MessageFrame,
    SentUnreliable,
    Side,
    Version,
    decode,
)

LAST = FinishSender, CloseReceiver, ClosedChannelLost
"""Frames that end their direction of a stream; nothing can follow then, as the network sees to."""
LIMITS = FrameLimits(frame=1 << 20, headers=1 << 16, attachments=1024)

ROUNDING = 1e-6


@dataclass
class FrameReader:
    """The frames of one direction of a stream, as far as their bytes are known."""

    data: bytearray = field(default_factory=bytearray)
    at: int = 0
    count: int = 0
    last: Frame | None = None

    def read(self, data: bytes) -> Iterator[Frame]:
        """The frames that are complete with these bytes."""
        self.data += data
        while (found := decode(self.data, self.at, LIMITS)) is not None:
            self.last, self.at = found
            self.count += 1
            yield self.last


class Wire:
    """Reads all bytes, at their sender and at their receiver."""

    def __init__(self, sim: Simulation, ledger: Ledger, nack_delay: float) -> None:
        self.opened: set[Side] = set()
        """The sides that have the headers of the other."""
        self._sim = sim
        self._ledger = ledger
        self._nack_delay = nack_delay
        self._held: dict[Side, list[tuple[Frame, int | None]] | None] = {side: [] for side in Side}
        """Frames that have arrived at a side that reads none yet, with their streams."""
        self._sent: dict[tuple[Side, int], FrameReader] = {}
        self._arriving: dict[tuple[Side, int], FrameReader] = {}
        self._controls: dict[int, Channel] = {}
        """Control streams by number."""
        self._refused: dict[int, int] = {}
        """How many unreliable messages a control stream's acks and nacks have covered."""
        self._declared: dict[int, int] = {}
        self._hasty: dict[int, str] = {}
        self._declarations: dict[int, list[tuple[int, float]]] = {}
        """How many unreliable messages were declared, and when the receiver was told, by control stream."""

    # What is sent.

    def sends(self, side: Side, stream: int, data: bytes, end: bool) -> None:
        """A side sends bytes on a stream."""
        reader = self._sent.setdefault((side, stream), FrameReader())
        for frame in reader.read(data):
            self._sim.log(side.name.lower(), f"sends {frame} on stream {stream}{', its end' if end else ''}")
            self._check_begin(side, frame, reader.count, stream)
            self._follow(side, stream, frame)
        if len(reader.data) > reader.at and end:
            raise Violation(f"stream {stream} ends within a frame")
        if end and (stream == 0 or not reader.count):
            raise Violation(f"the {side.name.lower()} ends stream {stream}, which has {reader.count} frames")
        if isinstance(reader.last, LAST) and not end:
            raise Violation(f"{reader.last} is not the end of stream {stream}")

    def _check_begin(self, side: Side, frame: Frame, count: int, stream: int | None) -> None:
        if side not in self.opened and stream != 0:
            if side is Side.SERVER:
                raise Violation(f"the server sends {frame} before it has the client's headers")
            if count == 1 and not isinstance(frame, Version) and (stream is None or stream & 1 == side):
                raise Violation(f"the client sends {frame} first, and does not have the server's headers")
        if isinstance(frame, Version) and count > 1:
            raise Violation(f"Version is frame {count} of stream {stream}")

    def _follow(self, side: Side, stream: int, frame: Frame) -> None:
        match frame:
            case ConnectionControl() if stream != 0:
                raise Violation(f"the headers are sent on stream {stream}")
            case ChannelControl(channel):
                if channel.creator is side:
                    raise Violation(f"the {side.name.lower()} opens the control stream of its own {channel}")
                self._controls[stream] = self._ledger.channels[channel]
            case MessageFrame():
                self._message(stream, frame)
            case SentUnreliable(count):
                self._declared[stream] = self._declared.get(stream, 0) + count
            case AckReliable() | AckNackUnreliable() | CloseReceiver():
                self._answer(stream, frame)
            case FinishSender(count):
                self._finish(stream, count)
            case ClosedChannelLost() if not stream & 2:
                raise Violation(f"{frame} is sent on stream {stream}")

    def _message(self, stream: int | None, frame: MessageFrame) -> None:
        message = self._ledger.channels[frame.channel].messages[stream is not None, frame.number]
        if (message.payload, message.attachments) != (frame.payload, frame.attachments):
            raise Violation(f"{frame} is sent, and is not {message}")

    def _answer(self, stream: int, frame: AckReliable | AckNackUnreliable | CloseReceiver) -> None:
        channel = self._controls[stream]
        if isinstance(frame, CloseReceiver):
            channel.deaf = True
            self._hasty.pop(stream, None)
        elif isinstance(frame, AckNackUnreliable):
            at = self._refused.get(stream, 0)
            for index, length in enumerate(frame.ranges):
                for number in range(at, at + length) if index % 2 else ():
                    self._nack(channel, stream, number)
                at += length
            self._refused[stream] = at

    def settled(self) -> None:
        """A side has done all that it wanted at a moment: only a receiver that closes may nack without a delay."""
        for text in self._hasty.values():
            raise Violation(text)

    def _nack(self, channel: Channel, stream: int, number: int) -> None:
        declared = next((time for count, time in self._declarations.get(stream, ()) if number < count), None)
        if declared is None or self._sim.now < declared + self._nack_delay - ROUNDING:
            self._hasty[stream] = (
                f"unreliable message {number} of {channel.id} is nacked, and was declared at {declared}"
            )
        # A sender declares a message that it never sends, to be answered.
        if (message := channel.messages.get((False, number))) is not None:
            message.refused = True

    def _finish(self, stream: int, count: int) -> None:
        channel = self._controls[stream]
        if count != channel.sent(reliable=True):
            raise Violation(f"{channel.id} is finished with {count} reliable messages")
        if self._declared.get(stream, 0) != channel.sent(reliable=False):
            raise Violation(f"{channel.id} is finished before all unreliable messages are declared")

    def resets(self, side: Side, stream: int, code: int) -> None:
        """A side resets a stream."""
        if stream == 0:
            raise Violation(f"the {side.name.lower()} resets the stream with the headers")
        channel = self._controls.get(stream)
        if channel is not None and side is channel.id.sender.other:
            channel.deaf = True

    def sends_datagram(self, side: Side, data: bytes) -> None:
        """A side sends a datagram."""
        reader = FrameReader()
        for frame in reader.read(data):
            self._check_begin(side, frame, reader.count, None)
            if isinstance(frame, MessageFrame):
                self._message(None, frame)
        if reader.at < len(data) or not isinstance(reader.last, MessageFrame):
            raise Violation(f"a datagram of {reader.count} frames ends with {reader.last}")

    # What arrives.

    def arrives(self, side: Side, stream: int, data: bytes) -> None:
        """Bytes of a stream arrive at a side, just before its machine gets them."""
        for frame in self._arriving.setdefault((side, stream), FrameReader()).read(data):
            self._arrived(side, frame, stream)

    def datagram_arrives(self, side: Side, data: bytes) -> None:
        """A datagram arrives."""
        for frame in FrameReader().read(data):
            self._arrived(side, frame, None)

    def begins_to_read(self, side: Side) -> None:
        """A side has an open connection, and reads what it has held."""
        held, self._held[side] = self._held[side], None
        for frame, stream in held or ():
            self._arrived(side, frame, stream)

    def _arrived(self, side: Side, frame: Frame, stream: int | None) -> None:
        if (held := self._held[side]) is not None:
            held.append((frame, stream))
            return
        match frame:
            case SentUnreliable(count) if stream is not None:
                known = self._declarations.setdefault(stream, [])
                known.append((count + (known[-1][0] if known else 0), self._sim.now))
            case MessageFrame(channel_id, number):
                channel = self._ledger.channels[channel_id]
                message = channel.messages[stream is not None, number]
                if not channel.deaf and not message.refused:
                    message.arrived = True
