"""Connection errors as sentences with the peer, the cause and the way out."""

from __future__ import annotations

import errno
import re
import socket
import ssl

from wallaroo_spark.errors import TransportError


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
