"""Connection errors as sentences with the peer, the cause and the remedy, and the detection of a lost host.

Keepalive probes are sent only while no bytes are in flight. While some are, TCP retransmits them for a quarter of an
hour. Linux's ``TCP_USER_TIMEOUT`` ends that sooner, but it also ends a connection whose peer acknowledges and does not
read, as a worker with a full buffer or a slow subscriber does. So the kernel's state of the socket is inspected
instead. Source: ``docs/decisions/tcp-info.md``.
"""

from __future__ import annotations

import errno
import re
import socket
import ssl
import struct
import sys
from typing import Any, NamedTuple

from wallaroo_spark.errors import TransportError

READ_AT_MOST = 256 * 1024
"""Default limit in bytes of one :meth:`ByteStream.read`.

A choice: the size of the receive buffer (see ``docs/decisions/one-receive-buffer.md``), so that one read can return all
bytes of one receive call.
"""

HIGH_WATER = 256 * 1024
"""Bytes queued for sending from which :meth:`ByteStream.drain` waits.

A choice. It bounds the memory of a peer that does not read.
"""


def cut(peer: str, detail: str) -> TransportError:
    """The error of a connection that ended without the peer's regular close."""
    return TransportError(
        f"connection to {peer} was cut: {detail}; connect again and resume",
        code="connection-lost",
        peer=peer,
        reason="cut",
    )


def closed_here(peer: str) -> TransportError:
    """The error of using a connection that this side has closed."""
    return TransportError(
        f"connection to {peer} is closed by this side; connect again to send more",
        code="connector-closed",
        peer=peer,
        reason="closed",
    )


def check_port(port: int) -> None:
    """Raise OverflowError above 65535, because name resolution would silently take the port modulo 65536."""
    if not 0 <= port <= 0xFFFF:
        raise OverflowError(f"port {port} is not in the range of 0 to 65535")


def not_connected(peer: str, error: Exception, seconds: float) -> TransportError:
    """The error of an attempt to connect that failed, or exceeded ``seconds``."""
    if isinstance(error, ssl.SSLError | ssl.CertificateError):
        problem, reason = f"TLS failed: {describe(error)}", "tls"
        way_out = "check the authority, the certificate's host name, and that both sides use TLS"
    elif isinstance(error, TimeoutError):
        problem, reason = f"timed out after {seconds:g} s", "timeout"
        way_out = "check the address and the firewalls in between"
    elif isinstance(error, socket.gaierror):
        problem, reason, way_out = f"unknown host: {describe(error)}", "unknown host", "check the host name"
    elif _error_numbers(error) == {errno.ECONNREFUSED}:
        problem, reason, way_out = "refused", "refused", "check that a worker listens there"
    elif isinstance(error, ConnectionError):
        problem, reason = f"cut while connecting: {describe(error)}", "cut"
        way_out = "check that both sides use TLS, or neither"
    else:
        problem, reason, way_out = describe(error), "unreachable", "check the address and the network"
    return TransportError(
        f"cannot connect to {peer}: {problem}; {way_out}", code="cannot-connect", peer=peer, reason=reason
    )


def _error_numbers(error: Exception) -> set[int]:
    """The error numbers of a failed attempt; asyncio puts those of several addresses into one text."""
    number = getattr(error, "errno", None)
    return {number} if number else {int(found) for found in re.findall(r"\[Errno (\d+)\]", str(error))}


def describe(error: BaseException) -> str:
    """The cause in a socket or TLS error, in words and without its number."""
    if isinstance(error, ssl.SSLCertVerificationError):
        return f"the certificate was not accepted: {error.verify_message}"
    if isinstance(error, ssl.SSLError) and error.reason:
        return str(error.reason).replace("_", " ").lower()
    if isinstance(error, OSError) and error.strerror:
        return error.strerror
    return str(error) or type(error).__name__


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
