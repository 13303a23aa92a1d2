"""Whether the host at the other end of a TCP connection still answers what it is sent.

Keepalive asks only while no bytes are under way. While some are, TCP repeats them for a quarter of an hour. Linux's
``TCP_USER_TIMEOUT`` ends that sooner, but it also ends a connection whose peer answers and does not read, as a worker
does when its buffer is full, or a slow subscriber. So the state of the socket in the kernel is inspected instead.
Source: ``docs/decisions/tcp-info.md``.
"""

from __future__ import annotations

import socket
import struct
import sys
from typing import Any, NamedTuple

GONE_SECONDS = 60.0
"""How long sent bytes may stay unanswered: as long as keepalive takes."""
LOOK_SECONDS = 5.0
"""Seconds between two inspections of a connection, while bytes are under way on it."""

_WORDS = struct.Struct("8B13I")
"""The head of Linux' ``struct tcp_info``: the fourth byte counts unanswered probes of a closed window; the fifth number
is of packets under way, the last one of milliseconds since an answer came.
"""


class TcpState(NamedTuple):
    """One inspection of a connection."""

    queued: int
    """Bytes that the peer has not confirmed."""
    unanswered: bool
    """Whether packets are under way, or probes of a closed window are unanswered."""
    last_answer: float
    """Seconds since the peer's last answer."""


class PeerLiveness:
    """Judges the inspections of one connection over time; pure, with the clock as an argument."""

    def __init__(self) -> None:
        self._since: float | None = None

    def gone(self, state: TcpState, now: float) -> bool:
        """Whether the peer has answered nothing for :data:`GONE_SECONDS` while bytes were under way all the time."""
        answered = self._since is not None and state.last_answer < now - self._since
        if not state.unanswered or answered:
            self._since = None
        elif self._since is None:
            # The last answer may be hours old, if nothing was sent until now.
            self._since = now
        return self._since is not None and now - self._since >= GONE_SECONDS


def inspect(connection: Any) -> TcpState | None:
    """Inspect a socket; None where the system does not tell, as on systems other than Linux."""
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
