"""One side of a simulated connection: its machine, its application, and its part of the network."""

from __future__ import annotations

from typing import Any

from proving.aqueduct.application import Application
from proving.aqueduct.surroundings import Surroundings
from proving.simulator.engine.core import Part, Violation
from wallaroo_spark.aqueduct.frames import ENTRYPOINT, Half, Side
from wallaroo_spark.aqueduct.machine import (
    Acked,
    CloseCode,
    CloseConnection,
    ConnectionMachine,
    Ended,
    HeadersExchanged,
    HeadersReceived,
    MessageAvailable,
    Nacked,
    ReceiverEnded,
    ResetStream,
    RoomAgain,
    SendDatagram,
    SenderEnded,
    SendStream,
)


class SimulatedSide:
    """A machine with everything around it. What arrives before the handshake is complete waits."""

    def __init__(self, around: Surroundings, side: Side) -> None:
        self.around = around
        self.side = side
        self.part = Part(side.name.lower())
        self.over = False
        self._ready = False
        self._early: list[tuple[str, tuple[Any, ...]]] = []
        self._ticks_at: float | None = None
        self._following = False
        asked = side is Side.SERVER and around.profile.asks
        self.machine = ConnectionMachine(
            side, now=self.now, limits=around.profile.limits, headers=None if asked else around.headers[side]
        )
        self.application = Application(self)

    @property
    def now(self) -> float:
        """The side's own clock."""
        return self.around.sim.now + (1000.0 if self.side is Side.SERVER else 0.0)

    def log(self, text: str) -> None:
        """Add a line to the history."""
        self.around.sim.log(self.part.name, text)

    # What the network does.

    def handshake_completes(self) -> None:
        """TLS is complete."""
        self._ready = True
        self.event("handshake_completed", self.around.profile.datagram_bytes)
        if self.side is Side.CLIENT and not self.over:
            self.around.judge.gets(ENTRYPOINT, Half.SENDER)
            self.application.gets(ENTRYPOINT)
            self.application.begin()
        early, self._early = self._early, []
        for name, arguments in early:
            self.event(name, *arguments)

    def stream_arrives(self, stream: int, data: bytes, ended: bool) -> None:
        """Bytes of a stream arrive."""
        self.around.wire.arrives(self.side, stream, data)
        self._when_ready("stream_received", stream, data, ended)

    def reset_arrives(self, stream: int, code: int) -> None:
        """The reset of a stream arrives."""
        self._when_ready("stream_reset", stream, code)

    def datagram_arrives(self, data: bytes) -> None:
        """A datagram arrives."""
        self.around.wire.datagram_arrives(self.side, data)
        self._when_ready("datagram_received", data)

    def connection_ends(self, code: int, reason: str) -> None:
        """The connection has ended."""
        if not self.over:
            self.event("connection_lost", code, reason)
            if not self.over:
                raise Violation(f"the {self.part.name} is not told that its connection has ended")

    def _when_ready(self, name: str, *arguments: Any) -> None:
        if self.over:
            return
        if self._ready:
            self.event(name, *arguments)
        else:
            self._early.append((name, arguments))

    # What the machine is told, and what it wants.

    def event(self, name: str, *arguments: Any) -> None:
        """Tell the machine of an event, and do what it wants."""
        shown = ", ".join(f"{len(one)} bytes" if isinstance(one, bytes) else str(one) for one in arguments)
        self.log(f"{name}({shown})")
        getattr(self.machine, name)(*arguments, self.now)
        self.follow()

    def follow(self) -> None:
        """Do what the machine wants. The application may call it again meanwhile."""
        if self._following:
            return
        self._following = True
        while found := self.machine.instructions():
            for one in found:
                if self.over:
                    raise Violation(f"the {self.part.name} wants {one} after the end of its connection")
                self._do(one)
        self._following = False
        self.around.wire.settled()
        self.machine.validate()
        self.around.judge.within_limits(self.machine)
        self._plan_tick()

    def _do(self, wanted: Any) -> None:
        judge, application = self.around.judge, self.application
        match wanted:
            case SendStream(stream, data, end):
                self.around.wire.sends(self.side, stream, data, end)
                self.around.network.lane(self.side, stream).send(data, end)
            case ResetStream(stream, code):
                self.log(f"resets stream {stream} with {int(code)}")
                self.around.wire.resets(self.side, stream, code)
                self.around.network.lane(self.side, stream).send_reset(code)
            case SendDatagram(data):
                self.around.wire.sends_datagram(self.side, data)
                self.around.network.datagram(self.side, data)
            case CloseConnection(code, reason):
                if code is not CloseCode.ORDERLY:
                    raise Violation(f"the {self.part.name} closes the connection: {code.name}, {reason}")
                self.around.network.end(code, reason, self.side)
            case HeadersReceived(headers):
                self.around.wire.opened.add(self.side)
                if headers != self.around.headers[self.side.other]:
                    raise Violation(f"the {self.part.name} gets the headers {headers}")
                if self.side is Side.SERVER and self.around.profile.asks:
                    self.around.sim.after(0.1, self.part, self._answer)
            case HeadersExchanged():
                self.log("has an open connection")
                self.around.wire.begins_to_read(self.side)
                if self.side is Side.SERVER:
                    judge.gets(ENTRYPOINT, Half.RECEIVER)
                    application.gets(ENTRYPOINT)
                    application.begin()
            case MessageAvailable(channel):
                application.available(channel)
            case Acked():
                self.log(f"is told {wanted}")
                judge.acked(wanted)
            case Nacked():
                self.log(f"is told {wanted}")
                judge.nacked(wanted)
            case RoomAgain():
                self.around.sim.after(0.0, self.part, lambda: application.room(wanted.channel))
            case SenderEnded(channel) | ReceiverEnded(channel):
                self.log(f"is told {wanted}")
                judge.ended(wanted)
                application.ended(channel, Half.SENDER if isinstance(wanted, SenderEnded) else Half.RECEIVER)
            case Ended():
                self.log(f"is told {wanted}")
                self.over = True
                judge.over = True
            case _:
                raise Violation(f"the {self.part.name} wants {wanted}")

    def _answer(self) -> None:
        if not self.over:
            self.machine.answer_headers(self.around.headers[self.side], self.now)
            self.follow()

    def _plan_tick(self) -> None:
        wanted = self.machine.next_tick()
        if wanted is None or self.over:
            return
        wanted = max(wanted - self.now, 0.0) + self.around.sim.now
        if self._ticks_at is None or wanted < self._ticks_at:
            self._ticks_at = wanted
            self.around.sim.at(wanted, self.part, lambda: self._tick(wanted))

    def _tick(self, planned: float) -> None:
        if self._ticks_at != planned:
            return
        self._ticks_at = None
        due = self.machine.next_tick()
        if not self.over and due is not None:
            if due <= self.now:
                self.machine.tick(self.now)
                again = self.machine.next_tick()
                if again is not None and again <= due:
                    raise Violation(f"the {self.part.name} wants to be told the time {again} for ever")
            self.follow()
