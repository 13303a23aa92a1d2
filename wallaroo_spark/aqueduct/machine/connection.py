"""One connection as a pure machine: events in, instructions out. Source: ``docs/aqueduct.md``."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from wallaroo_spark.aqueduct.frames import ENTRYPOINT, ChannelId, Half, Headers, Side
from wallaroo_spark.aqueduct.machine.instructions import Instruction
from wallaroo_spark.aqueduct.machine.limits import AqueductLimits


class TakenMessage(NamedTuple):
    """A message for the application."""

    number: int
    reliable: bool
    payload: bytes
    attachments: tuple[ChannelId, ...]
    """The application has these ends of channels from now on: ``half_at(side)`` says which end it is."""


class Counts(NamedTuple):
    """What a connection holds. All is 0 when the channels have ended, but for the connection's own stream."""

    senders: int
    receivers: int
    lost_links: int
    """Ends of channels that have ended here, and of which the message that carried the other end is undecided."""
    links: int
    """Attachments of messages that are undecided."""
    streams: int
    """Streams that are not ended in both directions, without the connection's own."""
    unacked_messages: int
    unacked_bytes: int
    queued_messages: int
    queued_bytes: int
    unfinished_bytes: int
    """Bytes of incomplete frames and of frames that are held."""


class ConnectionMachine:
    """One side of a connection.

    ``now`` is a monotonic clock in seconds. ``headers`` are this side's; a server that gives None answers the client's
    headers with :meth:`answer_headers`. After each call :meth:`instructions` has what is to be done.

    Events of the network never raise: a violation by the peer makes the instruction ``CloseConnection``. Calls of the
    application raise the errors of :mod:`wallaroo_spark.aqueduct.errors`, and change nothing then.
    """

    def __init__(
        self, side: Side, *, now: float, limits: AqueductLimits | None = None, headers: Headers | None = ()
    ) -> None: ...

    # The network.

    def handshake_completed(self, datagram_bytes: int, now: float) -> None:
        """TLS is complete. ``datagram_bytes``: the largest payload of a datagram; 0 where the peer takes none."""

    def stream_received(self, stream: int, data: bytes, ended: bool, now: float) -> None:
        """Bytes of a stream have come; ``ended``: they are its last."""

    def stream_reset(self, stream: int, code: int, now: float) -> None:
        """The peer has sent RESET_STREAM."""

    def stream_stopped(self, stream: int, code: int, now: float) -> None:
        """The peer has sent STOP_SENDING, which QUIC answers with a reset: nothing more is sent on the stream."""

    def datagram_received(self, data: bytes, now: float) -> None:
        """A datagram has come."""

    def connection_lost(self, code: int, reason: str, now: float) -> None:
        """The QUIC connection has ended: by the peer's close, a timeout, or an error of QUIC."""

    def tick(self, now: float) -> None:
        """The time of :meth:`next_tick` has come."""

    def next_tick(self) -> float | None:
        """The time at which :meth:`tick` has something to do; None without one."""
        raise NotImplementedError

    # The application.

    def answer_headers(self, headers: Headers, now: float) -> None:
        """Give a server's headers, after the notice HeadersReceived."""

    def channel(self, half: Half, *, oneshot: bool = False) -> ChannelId:
        """Create a channel and keep its ``half`` here. The other half is attached to one message by its id."""
        raise NotImplementedError

    def send(
        self,
        channel: ChannelId,
        payload: bytes,
        *,
        now: float,
        attach: Sequence[ChannelId] = (),
        reliable: bool = True,
        ordered: bool = True,
    ) -> int:
        """Send a message, and return its number among the reliable or the unreliable messages of the channel.

        Raises SenderClosed, NoRoom (before a notice RoomAgain), MessageTooLarge and ArgumentValueError.
        """
        raise NotImplementedError

    def finish(self, channel: ChannelId, now: float) -> None:
        """EndReason a channel behind all messages that :meth:`send` has accepted. Raises SenderClosed."""

    def cancel(self, channel: ChannelId, now: float) -> None:
        """Give up a channel, and its messages that are not delivered. It has no effect on a sender that has ended, or
        whose finish was sent already."""

    def take(self, channel: ChannelId, now: float) -> TakenMessage | None:
        """The next message of a receiver; None where there is none now, or none any more (notice ReceiverEnded)."""
        raise NotImplementedError

    def close_receiver(self, channel: ChannelId, now: float) -> None:
        """Close a receiver; messages that were not taken are dropped. It has no effect on one that has ended."""

    def close(self, reason: str, now: float) -> None:
        """EndReason the connection in an orderly way."""

    # What is to be done, and what there is.

    def instructions(self) -> list[Instruction]:
        """What is to be done since the last call, in order."""
        raise NotImplementedError

    def counts(self) -> Counts:
        """What the connection holds."""
        raise NotImplementedError

    def validate(self) -> None:
        """Raise AssertionError where an invariant does not hold."""

    @property
    def entrypoint(self) -> ChannelId:
        """The channel that exists from the beginning: the client sends on it."""
        return ENTRYPOINT
