"""Detects a TCP peer whose host no longer acknowledges sent bytes.

Keepalive probes are sent only while no bytes are in flight. While some are, TCP retransmits them for a quarter of an
hour. Linux's ``TCP_USER_TIMEOUT`` ends that sooner, but it also ends a connection whose peer acknowledges and does not
read, as a worker with a full buffer or a slow subscriber does. So the kernel's state of the socket is inspected
instead. Source: ``docs/decisions/tcp-info.md``.
"""

from __future__ import annotations

import socket
import struct
import sys
from typing import Any, NamedTuple

GONE_SECONDS = 60.0
"""Seconds without an acknowledgement after which the peer counts as gone.

Chosen equal to the time that keepalive takes: 30 seconds idle, then 3 probes 10 seconds apart.
"""
LOOK_SECONDS = 5.0
"""Seconds between two inspections of a connection with bytes in flight.

A choice: it adds at most a twelfth to ``GONE_SECONDS``, and an inspection is one system call.
"""

_WORDS = struct.Struct("8B13I")
"""The head of Linux's ``struct tcp_info``.

The fourth byte is the number of unanswered probes of a closed window; the fifth u32 is the number of packets in flight,
the last u32 the milliseconds since the last acknowledgement.
"""


class TcpState(NamedTuple):
    """One inspection of a connection."""

    queued: int
    """Bytes that the peer has not acknowledged."""
    unanswered: bool
    """Whether packets are in flight, or probes of a closed window are unanswered."""
    last_answer: float
    """Seconds since the peer's last acknowledgement."""


class PeerLiveness:
    """Judges the inspections of one connection over time. Pure: the clock is an argument."""

    def __init__(self) -> None:
        self._since: float | None = None

    def gone(self, state: TcpState, now: float) -> bool:
        """Whether the peer has acknowledged nothing for :data:`GONE_SECONDS`, with bytes in flight all the time."""
        answered = self._since is not None and state.last_answer < now - self._since
        if not state.unanswered or answered:
            self._since = None
        elif self._since is None:
            # The last acknowledgement may be hours old if no bytes were sent since, so the time counts from now.
            self._since = now
        return self._since is not None and now - self._since >= GONE_SECONDS


def inspect(connection: Any) -> TcpState | None:
    """Inspect a socket; None on systems that do not report this, which is all except Linux."""
    if sys.platform != "linux":
        return None
    # Other systems may not have these modules.
    import fcntl
    import termios

    try:
        told = connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _WORDS.size)
        (queued,) = struct.unpack("i", fcntl.ioctl(connection.fileno(), termios.TIOCOUTQ, bytes(4)))
        words = _WORDS.unpack(told)
    except (OSError, struct.error):
        return None
    probes, under_way, last_answer = words[3], words[12], words[20]
    return TcpState(queued, probes > 0 or under_way > 0, last_answer / 1000)
