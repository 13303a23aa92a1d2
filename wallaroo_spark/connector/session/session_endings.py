"""The meaning of the end of a session: whether and where the connector tries again. Pure: the clock is an argument.

Source: ``docs/protocol.md#when-to-try-again``.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass

from wallaroo_spark.connector.session.address_rotation import Address, AddressRotation
from wallaroo_spark.errors import ConfigurationError, RemoteProtocolError, TransportError, one_line
from wallaroo_spark.protocol import Error, Frame, Restart
from wallaroo_spark.protocol.reasons import is_later, is_superseded, redirect_address
from wallaroo_spark.transport import format_address, parse_address

_log = one_line(logging.getLogger("wallaroo_spark.connector"))

Ending = Error | Restart | TransportError
"""The frame or the error that ended a session."""

_HINTS = {
    "cookie": ("wrong-cookie", "check that the connector's cookie is the receiver's"),
    "version": ("wrong-version", "check that connector and receiver are given the same protocol version"),
    "program": (
        "wrong-program",
        "give the connector one of these program names, or add its own to the receiver's option programs",
    ),
    "certificate": ("wrong-certificate", "use a certificate that names the instance, or correct the instance name"),
    "instance": ("bad-instance", "check the instance name, and that no other connector runs under it"),
}
"""Word in a refusing reason → the code, and the way out. The wire has no codes."""
_OTHER = ("refused", "see the worker's log")


@dataclass(frozen=True)
class EndedSession:
    """A connection that has ended, before or after OK."""

    address: Address
    """The worker's address."""
    last: Ending | Frame
    """The last frame, or the error that ended the connection."""
    began: float | None
    """The time at which the worker answered OK; None if it did not."""
    progressed: bool
    """Whether the worker sent an ACK in the session."""


def report_ending(rotation: AddressRotation, ended: EndedSession, now: float) -> None:
    """Report the end of an attempt to the rotation. Raises :class:`RemoteProtocolError` if no further attempt can
    succeed.
    """
    where = format_address(*ended.address)
    elsewhere, reason = _meaning(ended.last, where)
    if ended.began is not None:
        rotation.ended(ended.address, reason, now, progressed=ended.progressed or rotation.was_long(now - ended.began))
        _log.warning("the session with the worker at %s has ended: %s", where, reason)
    if elsewhere:
        _follow(rotation, where, elsewhere)
    elif ended.began is None:
        report_failure(rotation, where, reason)


def report_failure(rotation: AddressRotation, where: str, reason: str) -> None:
    """Report to the rotation that an attempt has brought no session."""
    rotation.failed(where, reason)
    _log.warning("no session with %s: %s", where, reason)


def _follow(rotation: AddressRotation, where: str, elsewhere: str) -> None:
    try:
        target = parse_address(elsewhere)
    except ConfigurationError as error:
        report_failure(rotation, where, f"its redirection has no valid address: {error}")
        return
    _log.info("the worker at %s redirects this connector to %s", where, elsewhere)
    rotation.redirected(where, target)


def _meaning(last: Ending | Frame, where: str) -> tuple[str, str]:
    """The address of a redirection, empty for none, and the reason of an ending. Raises if no further attempt can
    succeed.
    """
    match last:
        case TransportError():
            return "", last.message
        case Restart():
            return last.address, "the worker asked for a restart"
        case Error():
            elsewhere = redirect_address(last.reason)
            if elsewhere or is_later(last.reason):
                return elsewhere or "", last.reason
            if is_superseded(last.reason):
                raise RemoteProtocolError(
                    f"the worker at {where} has ended this session: {last.reason}; another program runs under this "
                    "instance name; end one of them, or give each program an instance name of its own",
                    code="superseded",
                    address=where,
                    reason=last.reason,
                )
            code, hint = next((known for word, known in _HINTS.items() if word in last.reason), _OTHER)
            raise RemoteProtocolError(
                f"the worker at {where} refused: {last.reason}; {hint}", code=code, address=where, reason=last.reason
            )
    raise AssertionError(f"the session table lets {last!r} end a session")
