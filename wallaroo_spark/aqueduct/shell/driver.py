"""The machine of a connection on its QUIC link: events go in, instructions are carried out, and waiters are woken."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable, Sequence
from typing import Any

from wallaroo_spark.aqueduct import errors
from wallaroo_spark.aqueduct.machine import (
    Acked,
    AqueductLimits,
    ChannelId,
    CloseConnection,
    ConnectionMachine,
    Ended,
    EndReason,
    Half,
    Headers,
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
    Side,
    TakenMessage,
)
from wallaroo_spark.aqueduct.shell.quic import LinkEnd, QuicLink
from wallaroo_spark.errors import AqueductError, WallarooError, one_line, printable

_log = one_line(logging.getLogger(__name__))

VIOLATIONS = (1, 2, 3)
"""Codes with which a side closes a connection whose other side has broken a rule or gone beyond a limit."""
INTERNAL_CODE = 4
"""The code with which a connection is closed that this program gives up: after a defect, or for silence."""
_BY_END = {
    EndReason.CANCELLED: (errors.Cancelled, "its sender was cancelled"),
    EndReason.CLOSED: (errors.ReceiverClosed, "its receiver was closed"),
    EndReason.LOST: (errors.LostInTransit, "it was lost in transit, or the message that carried it was"),
    EndReason.FINISHED: (errors.SenderClosed, "it is finished"),
}


def error_of(what: str, reason: EndReason, code: int = 0, **fields: Any) -> AqueductError:
    """The error of a message or a channel that has ended for a reason."""
    kind, text = _BY_END[reason]
    # Codes that the protocol does not know count as cancelled, and are shown.
    shown = f" (reset with code {code})" if code > 2 else ""
    return kind(f"{what} has ended: {text}{shown}", **fields)


class SentMessage:
    """A message that ``send`` has accepted."""

    def __init__(self, channel: ChannelId, number: int, loop: asyncio.AbstractEventLoop) -> None:
        self.channel = channel
        self.number = number
        """Its number among the reliable, or among the unreliable messages of the channel."""
        self._loop = loop
        self._result: bool | WallarooError | None = None
        self._future: asyncio.Future[bool] | None = None

    @property
    def acked(self) -> asyncio.Future[bool]:
        """Done with True when the message is in the queue of the receiver; or with the error that says why it will not
        be. It says nothing about what the other program does with the message."""
        if self._future is None:
            self._future = self._loop.create_future()
            self._tell()
        return self._future

    def settle(self, result: bool | WallarooError) -> None:
        """Note what has become of the message."""
        self._result = result
        self._tell()

    def _tell(self) -> None:
        if self._future is None or self._future.done() or self._result is None:
            return
        if isinstance(self._result, WallarooError):
            self._future.set_exception(self._result)
            # Who only looks later is not blamed meanwhile.
            self._future.exception()
        else:
            self._future.set_result(True)


class Waiters:
    """Tasks that wait until something has changed."""

    def __init__(self) -> None:
        self._waiting: list[asyncio.Future[None]] = []

    async def wait(self) -> None:
        """Wait for the next change."""
        future = asyncio.get_running_loop().create_future()
        self._waiting.append(future)
        try:
            await future
        finally:
            if future in self._waiting:
                self._waiting.remove(future)

    def wake(self) -> None:
        """Something has changed."""
        waiting, self._waiting = self._waiting, []
        for future in waiting:
            if not future.done():
                future.set_result(None)


class OpenHalf:
    """One end of a channel that the program has: what both kinds of ends share."""

    def __init__(self, driver: Driver, channel: ChannelId) -> None:
        self.driver = driver
        self.channel = channel
        self.changed = Waiters()
        self.ended: EndReason | None = None
        """How the channel has ended, when it has."""
        self.error: WallarooError | None = None
        """What calls raise from now on."""
        self.sent: dict[tuple[bool, int], SentMessage] = {}
        """Messages that are undecided: reliable or not, number → message."""
        self.used = False
        self.attached = True
        """Whether the other side has the other end, or will have it."""
        self.finished = False
        """Whether the program has finished this sender."""

    @property
    def half(self) -> Half:
        """Which of the two ends it is."""
        return self.channel.half_at(self.driver.side)

    def end(self, reason: EndReason, error: WallarooError | None) -> None:
        """Nothing more happens on the channel."""
        self.ended = reason
        self.error = self.error or error
        for message in self.sent.values():
            message.settle(error or error_of(f"message {message.number} of {self.channel}", reason))
        self.sent.clear()
        self.changed.wake()

    def check(self) -> None:
        """Raise the error of the channel or of the connection, if there is one."""
        if self.error is not None:
            raise self.error.with_traceback(None)


class Driver:
    """One connection. Everything is called from the thread of its event loop, but for :meth:`forget`."""

    def __init__(
        self,
        side: Side,
        limits: AqueductLimits,
        headers: Headers | None,
        answer: Callable[[Headers], Headers] | None = None,
    ) -> None:
        self.side = side
        self.loop = asyncio.get_running_loop()
        self.machine = ConnectionMachine(side, now=self.loop.time(), limits=limits, headers=headers)
        self.link: QuicLink | None = None
        self.halves: dict[ChannelId, OpenHalf] = {}
        self.peer_headers: Headers | None = None
        self.error: WallarooError | None = None
        """Why the connection is over."""
        self.on_opened: Callable[[], None] = lambda: None
        """Called when both sides have each other's headers."""
        self.on_over: Callable[[], None] = lambda: None
        """Called when the connection is over."""
        self.changed = Waiters()
        """Woken when the connection is ready, has headers, gets emptier, or is over."""
        self.ready_for_use = False
        self.link_end: LinkEnd | None = None
        self._answer = answer
        self._closing = False
        self._timer: asyncio.TimerHandle | None = None
        self._timer_at: float | None = None

    def join(self, link: QuicLink) -> None:
        """Use a link. From now on the time of the handshake is running."""
        self.link = link
        self._set_timer()

    # What the link tells.

    def ready(self, datagram_bytes: int) -> None:
        """The connection can be used."""
        self.ready_for_use = True
        self._do(lambda now: self.machine.handshake_completed(datagram_bytes, now))
        self.changed.wake()

    def stream_received(self, stream: int, data: bytes, ended: bool) -> None:
        """Bytes of a stream have come."""
        self._do(lambda now: self.machine.stream_received(stream, data, ended, now))

    def stream_reset(self, stream: int, code: int) -> None:
        """A stream was reset."""
        self._do(lambda now: self.machine.stream_reset(stream, code, now))

    def stream_stopped(self, stream: int, code: int) -> None:
        """A stream was stopped."""
        self._do(lambda now: self.machine.stream_stopped(stream, code, now))

    def datagram_received(self, data: bytes) -> None:
        """A datagram has come."""
        self._do(lambda now: self.machine.datagram_received(data, now))

    def link_ended(self, end: LinkEnd) -> None:
        """The link is over."""
        if not self._closing:
            self.link_end = end
            self.over_by(self._error_of_end(end.code, end.reason, by_peer=not end.here))

    # What the program does.

    def open_half(self, channel: ChannelId) -> OpenHalf:
        """The end of a channel that the program gets."""
        half = self.halves.get(channel)
        if half is None:
            half = self.halves[channel] = OpenHalf(self, channel)
            if self.error is not None:
                self._lose(half, self.error)
        return half

    def channel(self, half: Half, *, oneshot: bool) -> ChannelId:
        """Create a channel."""
        self.check()
        channel = self.machine.channel(half, oneshot=oneshot)
        self.step()
        return channel

    def send(
        self, half: OpenHalf, payload: bytes, attach: Sequence[ChannelId], *, reliable: bool, ordered: bool
    ) -> SentMessage:
        """Send a message."""
        half.check()
        number = self.machine.send(
            half.channel, payload, now=self.loop.time(), attach=attach, reliable=reliable, ordered=ordered
        )
        message = half.sent[reliable, number] = SentMessage(half.channel, number, self.loop)
        # The sender of a oneshot channel finishes itself.
        half.finished = half.channel.oneshot
        self.step()
        return message

    def take(self, half: OpenHalf) -> TakenMessage | None:
        """The next message of a receiver, if there is one."""
        # When the link is over, the machine still has what has arrived, unless it has ended itself.
        if half.ended is not None or self._closing or (half.error is not None and self.error is None):
            return None
        taken = self.machine.take(half.channel, self.loop.time())
        self.step()
        return taken

    def finish(self, half: OpenHalf) -> None:
        """Finish a sender; nothing happens if it has ended."""
        if half.ended is None and half.error is None and not half.finished:
            half.finished = True
            self.machine.finish(half.channel, self.loop.time())
            half.changed.wake()
            self.step()

    def abandon(self, half: OpenHalf) -> None:
        """Cancel a sender, or close a receiver; nothing happens if it has ended."""
        if half.ended is None and self.error is None:
            end = self.machine.cancel if half.half is Half.SENDER else self.machine.close_receiver
            end(half.channel, self.loop.time())
            reason = EndReason.CANCELLED if half.half is Half.SENDER else EndReason.CLOSED
            half.error = half.error or error_of(f"this end of {half.channel}", reason)
            half.changed.wake()
            self.step()

    def forget(self, half: OpenHalf) -> None:
        """The program has dropped an end of a channel; from any thread, as garbage is collected in any."""
        if half.ended is None and self.error is None and not self.loop.is_closed():
            with contextlib.suppress(RuntimeError):  # The loop may be closed meanwhile.
                self.loop.call_soon_threadsafe(self.abandon, half)

    def close(self, reason: str) -> None:
        """End the connection at once."""
        if self.error is None:
            self._do(lambda now: self.machine.close(reason, now))

    def check(self) -> None:
        """Raise the error of the connection, if it is over."""
        if self.error is not None:
            raise self.error.with_traceback(None)

    @property
    def idle(self) -> bool:
        """Whether all channels have ended at both sides, as far as this side knows."""
        counts = self.machine.counts()
        return not (counts.senders or counts.receivers or counts.unacked_messages)

    # The machine.

    def step(self) -> None:
        """Carry out what the machine has decided, and set its clock."""
        # To carry out one may make others.
        while instructions := self.machine.instructions():
            for instruction in instructions:
                if self.error is not None and not isinstance(instruction, ReceiverEnded):
                    continue
                _CARRY_OUT[type(instruction)](self, instruction)
        self._set_timer()

    def _do(self, call: Callable[[float], None]) -> None:
        if self.error is not None:
            return
        try:
            call(self.loop.time())
            self.step()
        except Exception:
            # A defect must end this connection, and no other one of the process.
            _log.exception("the connection with %s is closed after a defect", self.peer)
            self.over_by(errors.ConnectionLost("the connection was closed after a defect of this program; see its log"))

    def _tick(self) -> None:
        self._timer = self._timer_at = None
        self._do(self.machine.tick)

    def _set_timer(self) -> None:
        at = self.machine.next_tick() if self.error is None else None
        if at == self._timer_at:
            return
        if self._timer is not None:
            self._timer.cancel()
        self._timer_at = at
        self._timer = None if at is None else self.loop.call_at(at, self._tick)

    def _send_stream(self, what: SendStream) -> None:
        assert self.link is not None
        self.link.send(what.stream, what.data, what.end)

    def _reset_stream(self, what: ResetStream) -> None:
        assert self.link is not None
        self.link.reset(what.stream, what.code)

    def _send_datagram(self, what: SendDatagram) -> None:
        assert self.link is not None
        self.link.send_datagram(what.data)

    def _close_connection(self, what: CloseConnection) -> None:
        assert self.link is not None
        # Why the connection is over is what the machine says next, and not that its link is.
        self._closing = True
        self.link.end(int(what.code), what.reason)

    def _headers_received(self, what: HeadersReceived) -> None:
        self.peer_headers = what.headers
        self.changed.wake()
        if self._answer is not None:
            self.machine.answer_headers(self._answer(what.headers), self.loop.time())

    def _opened(self, _: HeadersExchanged) -> None:
        self.on_opened()

    def _half_changed(self, what: MessageAvailable | RoomAgain) -> None:
        half = self.halves.get(what.channel)
        if half is not None:
            half.changed.wake()

    def _acked(self, what: Acked) -> None:
        for message in self._decided(what):
            message.settle(True)

    def _nacked(self, what: Nacked) -> None:
        for message in self._decided(what):
            message.settle(error_of(f"message {message.number} of {what.channel}", what.reason))

    def _decided(self, what: Acked | Nacked) -> list[SentMessage]:
        """The messages of a notice, which are not waited for any more."""
        self.changed.wake()
        half = self.halves.get(what.channel)
        if half is None:
            return []
        found = (half.sent.pop((what.reliable, number), None) for number in what.numbers)
        return [message for message in found if message is not None]

    def _half_closed(self, what: SenderEnded | ReceiverEnded) -> None:
        half = self.halves.pop(what.channel, None)
        if half is not None:
            # A receiver that was finished ends its iteration, and no error is raised.
            plain = what.reason is EndReason.FINISHED and isinstance(what, ReceiverEnded)
            if plain:
                half.error = None
            half.end(what.reason, None if plain else error_of(str(what.channel), what.reason, what.code))
        self.changed.wake()

    def _ended(self, what: Ended) -> None:
        self.over_by(self._error_of_end(what.code, what.reason, by_peer=what.by_peer))

    def over_by(self, error: WallarooError) -> None:
        """The connection is over, and its link with it."""
        if self.error is not None:
            return
        self.error = error
        self._set_timer()
        if self.link is not None and not self.link.ended:
            self._closing = True
            self.link.end(INTERNAL_CODE, error.message)
        for half in self.halves.values():
            self._lose(half, error)
        self.changed.wake()
        self.on_over()

    def _lose(self, half: OpenHalf, error: WallarooError) -> None:
        """The connection of an end of a channel is over. A receiver first gives what has arrived."""
        if half.half is Half.RECEIVER:
            half.error = half.error or error
            half.changed.wake()
        else:
            half.end(EndReason.LOST, error)

    def _error_of_end(self, code: int, reason: str, *, by_peer: bool) -> AqueductError:
        said = printable(reason) or "no reason was given"
        if code in VIOLATIONS and (self.link_end is None or self.link_end.by_program):
            who = f"{self.peer} closed the connection" if by_peer else f"the connection with {self.peer} was closed"
            return errors.ProtocolViolation(f"{who} with code {code}: {said}", peer=self.peer, reason=reason)
        if not by_peer:
            return errors.ConnectionLost(f"the connection with {self.peer} is closed by this side: {said}")
        return errors.ConnectionLost(
            f"the connection with {self.peer} has ended: {said} (code {code}); connect again",
            peer=self.peer,
            reason=reason,
        )

    @property
    def peer(self) -> str:
        """The peer's address."""
        return self.link.peer if self.link is not None else "the peer"


_CARRY_OUT: dict[type[Any], Callable[[Driver, Any], None]] = {
    SendStream: Driver._send_stream,
    ResetStream: Driver._reset_stream,
    SendDatagram: Driver._send_datagram,
    CloseConnection: Driver._close_connection,
    HeadersReceived: Driver._headers_received,
    HeadersExchanged: Driver._opened,
    MessageAvailable: Driver._half_changed,
    RoomAgain: Driver._half_changed,
    Acked: Driver._acked,
    Nacked: Driver._nacked,
    SenderEnded: Driver._half_closed,
    ReceiverEnded: Driver._half_closed,
    Ended: Driver._ended,
}
