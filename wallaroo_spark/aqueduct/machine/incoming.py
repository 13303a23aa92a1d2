"""What is read from one stream or datagram of the peer: its bytes as frames, each in its place.

Source: ``docs/aqueduct/protocol.md#streams``.
"""

from __future__ import annotations

from collections.abc import Iterator

from wallaroo_spark.aqueduct.frames import (
    AckNackUnreliable,
    AckReliable,
    ChannelId,
    ClosedChannelLost,
    CloseReceiver,
    ConnectionControl,
    FinishSender,
    Frame,
    FrameLimits,
    MessageFrame,
    SentUnreliable,
    Version,
    decode,
)
from wallaroo_spark.aqueduct.machine.channels.receiving import ReceivingHalf
from wallaroo_spark.aqueduct.machine.channels.sending import SendingHalf
from wallaroo_spark.aqueduct.machine.states import MISPLACED, READING, ReadEvent, ReadState
from wallaroo_spark.aqueduct.violations import Rule, violation

ChannelHalf = SendingHalf | ReceivingHalf

EVENTS: dict[type[Frame], ReadEvent] = {
    Version: ReadEvent.VERSION,
    ConnectionControl: ReadEvent.CONNECTION_CONTROL,
    MessageFrame: ReadEvent.MESSAGE,
    SentUnreliable: ReadEvent.SENT_UNRELIABLE,
    AckReliable: ReadEvent.ACK_RELIABLE,
    AckNackUnreliable: ReadEvent.ACK_NACK_UNRELIABLE,
    FinishSender: ReadEvent.FINISH_SENDER,
    CloseReceiver: ReadEvent.CLOSE_RECEIVER,
    ClosedChannelLost: ReadEvent.CLOSED_CHANNEL_LOST,
}
"""The event of a frame; that of ChannelControl depends on its channel."""
CONTROL_STATES = (ReadState.CONTROL, ReadState.CONTROL_ANSWER, ReadState.CONTROL_ANSWER_VERSION)
GREETING = (Version.TYPE, ConnectionControl.TYPE)
"""The frames that are read before both sides have each other's headers."""


class IncomingStream:
    """The direction of a stream in which the peer sends, or a datagram."""

    __slots__ = ("_data", "counted", "discarded", "ended", "framed", "half", "id", "state")

    def __init__(self, stream: int, state: ReadState, half: ChannelHalf | None = None) -> None:
        self.id = stream
        self.state = state
        self.half = half
        """The half of the channel whose control stream this is."""
        self.ended = False
        """Whether the end of the stream has come; frames in front of it may be held."""
        self.discarded: ChannelId | None = None
        """The channel whose receiver was discarded while its sender has not ended the stream."""
        self.framed = False
        """Whether a whole frame has come."""
        self.counted = 0
        """The part of ``held`` that the connection has counted."""
        self._data = bytearray()

    @property
    def held(self) -> int:
        """Bytes of frames that are incomplete or not read yet."""
        return len(self._data)

    def receive(self, data: bytes, ended: bool) -> None:
        """Take the next bytes of the stream."""
        if self.state is not ReadState.IGNORED:
            self._data += data
        self.ended = self.ended or ended

    def ignore(self) -> None:
        """Read nothing any more."""
        self.state = ReadState.IGNORED
        self.half = None
        self._data.clear()

    def advance(self, event: ReadEvent) -> None:
        """Go to the next state; a violation where the event has no place here."""
        row = READING[self.state]
        if event not in row:
            rule = MISPLACED[event]
            if event is ReadEvent.END and self.state in CONTROL_STATES:
                rule = Rule.CONTROL_STREAM_ENDED
            if event is ReadEvent.CONNECTION_CONTROL and self.state is ReadState.CONTROL:
                rule = Rule.HEADERS_TWICE
            raise violation(rule, f"{event} has no place on: {self.state}")
        self.state = row[event]

    def frames(self, limits: FrameLimits, *, greeting: bool) -> Iterator[Frame]:
        """Read the frames that are whole; ``greeting``: only those of the greeting are read now.

        What was read is removed at the end, once for all frames.
        """
        at, data = 0, self._data
        while at < len(data) and not (greeting and data[at] not in GREETING):
            found = decode(data, at, limits)
            if found is None:
                break
            frame, at = found
            self.framed = True
            yield frame
        del data[:at]

    def check_end(self) -> None:
        """The end has come, and no whole frame is left."""
        if self._data:
            raise violation(Rule.TRUNCATED, f"the {self.state} ends within a frame of more than {self.held} bytes")
        if not self.framed and self.state is not ReadState.IGNORED:
            raise violation(Rule.NO_FRAME, f"the {self.state} ends without a frame")
        self.advance(ReadEvent.END)
