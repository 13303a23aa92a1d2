"""Two machines that are joined in memory. What one sends reaches the other in order, but for what a test holds."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TypeVar

from wallaroo_spark.aqueduct.frames import Frame, FrameLimits, Half, Headers, Side, decode
from wallaroo_spark.aqueduct.machine import (
    AqueductLimits,
    ChannelId,
    CloseConnection,
    ConnectionMachine,
    Instruction,
    ResetStream,
    SendDatagram,
    SendStream,
    TakenMessage,
)

DATAGRAM = 1200
Notice = TypeVar("Notice")
Network = SendStream | ResetStream | SendDatagram | CloseConnection
Holds = Callable[[Side, Network], bool]
LIMITS = FrameLimits(2**24, 2**16, 1024)


class Pair:
    """A client and a server. ``notices`` has what each application was told, ``sent`` what each has sent."""

    def __init__(
        self,
        limits: AqueductLimits | None = None,
        *,
        headers: Headers = (),
        server_headers: Headers | None = (),
        greet: bool = True,
    ) -> None:
        self.now = 100.0
        self.sides = {
            Side.CLIENT: ConnectionMachine(Side.CLIENT, now=self.now, limits=limits, headers=headers),
            Side.SERVER: ConnectionMachine(Side.SERVER, now=self.now, limits=limits, headers=server_headers),
        }
        self.client, self.server = self.sides[Side.CLIENT], self.sides[Side.SERVER]
        self.notices: dict[Side, list[Instruction]] = {Side.CLIENT: [], Side.SERVER: []}
        self.sent: dict[Side, list[Network]] = {Side.CLIENT: [], Side.SERVER: []}
        self.held: list[tuple[Side, Network]] = []
        self.holds: Holds = lambda _side, _instruction: False
        """Which instructions do not reach the other side until ``release``."""
        self._reset: set[tuple[Side, int]] = set()
        self._ended: set[tuple[Side, int]] = set()
        if greet:
            for machine in self.sides.values():
                machine.handshake_completed(DATAGRAM, self.now)
            self.run()

    def run(self) -> None:
        """Deliver everything that is on its way, and what follows from it."""
        while self._pump(Side.CLIENT) | self._pump(Side.SERVER):
            pass
        for machine in self.sides.values():
            machine.validate()

    def _pump(self, side: Side) -> bool:
        found = self.sides[side].instructions()
        for instruction in found:
            if not isinstance(instruction, Network):
                self.notices[side].append(instruction)
                continue
            self.sent[side].append(instruction)
            if self.holds(side, instruction):
                self.held.append((side, instruction))
            else:
                self.deliver(side, instruction)
        return bool(found)

    def deliver(self, side: Side, instruction: Network) -> None:
        """Let an instruction of a side reach the other one."""
        to = self.sides[side.other]
        match instruction:
            case SendStream(stream, data, end):
                if (side, stream) not in self._reset:
                    if end:
                        self._ended.add((side, stream))
                    to.stream_received(stream, data, end, self.now)
            case ResetStream(stream, code):
                # QUIC ignores a reset behind the end.
                if (side, stream) not in self._reset and (side, stream) not in self._ended:
                    self._reset.add((side, stream))
                    to.stream_reset(stream, code, self.now)
            case SendDatagram(data):
                to.datagram_received(data, self.now)
            case CloseConnection(code, reason):
                to.connection_lost(code, reason, self.now)

    def release(self) -> None:
        """Deliver what was held, in its order."""
        self.holds = lambda _side, _instruction: False
        held, self.held = self.held, []
        for side, instruction in held:
            self.deliver(side, instruction)
        self.run()

    def lose(self) -> None:
        """What was held never arrives."""
        self.holds = lambda _side, _instruction: False
        self.held.clear()

    def wait(self, seconds: float = 0.2) -> None:
        """Let time go by, with everything that is due in it."""
        until = self.now + seconds
        while True:
            ticks = [machine.next_tick() for machine in self.sides.values()]
            due = min((tick for tick in ticks if tick is not None), default=until)
            self.now = max(self.now, min(due, until))
            for machine in self.sides.values():
                machine.tick(self.now)
            self.run()
            if due >= until:
                return

    def told(self, side: Side, kind: type[Notice]) -> list[Notice]:
        """The notices of a kind that an application was told."""
        return [notice for notice in self.notices[side] if isinstance(notice, kind)]

    def frames(self, side: Side, stream: int | None = None) -> list[Frame]:
        """The frames that a side has sent on a stream, or in datagrams."""
        if stream is None:
            parts = [sent.data for sent in self.sent[side] if isinstance(sent, SendDatagram)]
        else:
            of_stream = [sent for sent in self.sent[side] if isinstance(sent, SendStream) and sent.stream == stream]
            parts = [b"".join(sent.data for sent in of_stream)]
        return [frame for part in parts for frame in split(part)]

    def all_frames(self, side: Side) -> list[Frame]:
        """The frames that a side has sent anywhere, stream by stream."""
        streams = dict.fromkeys(sent.stream for sent in self.sent[side] if isinstance(sent, SendStream))
        return [frame for stream in (*streams, None) for frame in self.frames(side, stream)]

    def resets(self, side: Side) -> list[ResetStream]:
        """The resets that a side has sent."""
        return [sent for sent in self.sent[side] if isinstance(sent, ResetStream)]

    def send(self, side: Side, channel: ChannelId, payload: bytes = b"", *attach: ChannelId, **how: bool) -> int:
        """Send a message, and deliver it."""
        number = self.sides[side].send(channel, payload, now=self.now, attach=attach, **how)
        self.run()
        return number

    def take(self, side: Side, channel: ChannelId) -> TakenMessage:
        """Take the next message, which must be there."""
        message = self.sides[side].take(channel, self.now)
        assert message is not None
        self.run()
        return message

    def payloads(self, side: Side, channel: ChannelId) -> list[bytes]:
        """Take all messages."""
        found = []
        while (message := self.sides[side].take(channel, self.now)) is not None:
            found.append(message.payload)
            self.run()
        return found

    def close_all(self) -> None:
        """Let all channels end that the applications still have, and check that nothing is left."""
        for side, machine in self.sides.items():
            for channel in machine.channels():
                if channel.half_at(side) is Half.SENDER:
                    machine.cancel(channel, self.now)
                else:
                    machine.close_receiver(channel, self.now)
            self.run()
        for _ in range(5):
            self.wait(2.0)
        assert [tuple(machine.counts()) for machine in self.sides.values()] == [(0,) * 10] * 2


def split(data: bytes) -> Iterator[Frame]:
    """The frames in bytes, which must be whole."""
    at = 0
    while at < len(data):
        found = decode(data, at, LIMITS)
        assert found is not None
        frame, at = found
        yield frame
