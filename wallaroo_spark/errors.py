"""All errors of this package, as one tree.

    WallarooError
    ├── ConfigurationError      an option, an environment or a combination of them that cannot work
    ├── ProtocolError           the connector protocol was broken
    │   ├── LocalProtocolError      by us: a bug in this program or in its caller
    │   └── RemoteProtocolError     by the peer, or reported by it in an ERROR frame
    ├── TransportError          bytes could not be carried: refused, cut, timed out, TLS
    ├── RegistryError           Redis could not be reached, or answered something unusable
    │   └── LeaseLostError          a slot's lease is held by a newer generation
    ├── CheckpointError         the checkpoint cannot be read, or is used by another query
    ├── ReplayError             messages are needed again and cannot be sent again
    ├── SinkError               results could not leave Spark
    └── PubSubError             a topic could not be published, found or followed

Every message names the thing, the value, the limit and the way out. ``retryable`` says whether the same call may
succeed later with nothing changed; retry policies read it. All of them survive pickling, fields included, because Spark
carries exceptions between processes.
"""

from __future__ import annotations

import logging
from typing import Any, ClassVar

LONGEST_LINE = 4096
"""Characters of a log line that are shown."""


def printable(text: str) -> str:
    """The text as one line that is safe to show on a terminal and in a log, because peers may send any bytes.

    Characters that are not printable are escaped as in a Python string.
    """
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode("ascii") for c in text)


def one_line(logger: logging.Logger) -> logging.Logger:
    """Make each record of the logger one :func:`printable` line, apart from tracebacks; returns the logger."""
    logger.addFilter(_one_line)
    return logger


def _one_line(record: logging.LogRecord) -> bool:
    text = record.getMessage()
    if len(text) > LONGEST_LINE:
        text = f"{text[:LONGEST_LINE]}... ({len(text)} characters)"
    # The text is the message as it is: without arguments, nothing in it is taken for a place of one.
    record.msg, record.args = printable(text), None
    if record.exc_info and not record.exc_text:
        record.exc_text = _lines(logging.Formatter().formatException(record.exc_info))
    return True


def _lines(text: str) -> str:
    return "\n".join(printable(line) for line in text.split("\n"))


class WallarooError(Exception):
    """The root of every error this package raises.

    ``fields`` are the values the message is about, so that programs need not parse a sentence. The message may
    contain text from a peer, so its lines are :func:`printable`.
    """

    retryable: ClassVar[bool] = False

    def __init__(self, message: str, **fields: Any) -> None:
        message = _lines(message)
        super().__init__(message)
        self.message = message
        self.fields = fields

    def __reduce__(self) -> tuple[Any, ...]:
        return _rebuild, (type(self), self.message, self.fields)


def _rebuild(kind: type[WallarooError], message: str, fields: dict[str, Any]) -> WallarooError:
    return kind(message, **fields)


class ConfigurationError(WallarooError):
    """An option, an environment or a combination of them that cannot work."""


class ProtocolError(WallarooError):
    """The connector protocol was broken."""


class LocalProtocolError(ProtocolError):
    """We broke the protocol: the caller asked for a frame that the session's state does not allow."""


class RemoteProtocolError(ProtocolError):
    """The peer broke the protocol, or told us with an ERROR frame why it ends the session."""


class TransportError(WallarooError):
    """Bytes could not be carried."""

    retryable = True


class RegistryError(WallarooError):
    """Redis could not be reached, or answered something unusable."""

    retryable = True


class LeaseLostError(RegistryError):
    """The slot's lease is held by a newer generation; the holder must stop serving."""

    retryable = False


class CheckpointError(WallarooError):
    """The checkpoint cannot be read, or does not fit the request."""


class ReplayError(WallarooError):
    """Messages are needed again and cannot be sent again."""


class SinkError(WallarooError):
    """Results could not leave Spark."""


class PubSubError(WallarooError):
    """A topic could not be published, found or followed."""
