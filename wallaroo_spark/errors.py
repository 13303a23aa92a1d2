"""All errors of this package, as one tree.

    WallarooError
    ├── ConfigurationError      an option, an environment or a combination of them that cannot work
    │   ├── ArgumentTypeError       an argument of a call has the wrong type; a TypeError, too
    │   ├── ArgumentValueError      an argument of a call has a value that cannot work; a ValueError, too
    │   └── PackageMissingError     a package of an extra is not installed; an ImportError, too
    ├── ProtocolError           the connector protocol was violated
    │   ├── LocalProtocolError      by this side: a bug in this program or in its caller
    │   └── RemoteProtocolError     by the peer, or the peer reported a violation in an ERROR frame
    ├── TransportError          a connection failed: refused, closed, timed out, or a TLS error
    ├── RegistryError           Redis cannot be reached, or its answer cannot be used
    │   └── LeaseLostError          a newer generation holds the slot's lease
    ├── CheckpointError         the checkpoint cannot be read, or is used by another query
    ├── ReplayError             messages must be replayed, and no connector can send them again
    ├── SinkError               a batch cannot be written to its sink
    ├── PubSubError             a topic cannot be published, found or subscribed to
    ├── AqueductError           a channel over QUIC, or its connection, has ended or cannot be used
    └── PipelineError           the state of a durable stream or pipeline cannot be read, or is not consistent

Every message names the thing, the value, the limit and the remedy, and ends with the error's code in brackets. A code
never changes, ``wallaroo-spark explain CODE`` explains it, and ``docs/errors.md`` lists all. The class attribute
``retryable`` says whether the same call may succeed later although nobody has changed anything; retry policies read it.
Every error can be pickled and unpickled without losing its code and fields, because Spark sends exceptions from one
process to another.
"""

from __future__ import annotations

import logging
import re
from typing import Any, ClassVar

LONGEST_LINE = 4096
"""The most characters of one log line; a longer line is cut.

A choice, not a measurement: it keeps a frame of several MiB that a peer sends out of the log.
"""

LONGEST_REASON = 1000
"""The most characters of the reason of a nack: a choice, enough for a message, and not for a traceback."""


def printable(text: str) -> str:
    """Return the text as one line that is safe to show on a terminal and in a log.

    Characters that are not printable, line ends included, are escaped as in a Python string. Peers may send any text,
    so every text that comes from a peer passes through this function before it is shown.
    """
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode("ascii") for c in text)


def shown_error(error: BaseException, longest: int = LONGEST_LINE) -> str:
    """The type and the text of any error, as one :func:`printable` line of ``longest`` characters at most.

    It never raises: an error's own methods may raise, or return a text that no encoding has.
    """
    try:
        # A part of a subclass of str is a str.
        text = str.__getitem__(str(error), slice(longest))
    except BaseException as failed:
        text = f"its text cannot be read ({type(failed).__name__})"
    return printable(f"{type(error).__name__}: {text}")[:longest]


def bounded_reason(text: str) -> str:
    """The reason of a failed delivery as one :func:`printable` line of :data:`LONGEST_REASON` characters at most.

    It can be stored in every table, and encoded everywhere.
    """
    return printable(text[:LONGEST_REASON])[:LONGEST_REASON]


def one_line(log: logging.Logger | str) -> logging.Logger:
    """Add a filter to a logger, or the one of a name, that makes each record one :func:`printable` line; return it.

    A line is cut behind :data:`LONGEST_LINE` characters. A traceback keeps its lines, and each of them is printable.
    """
    logger = logging.getLogger(log) if isinstance(log, str) else log
    logger.addFilter(_one_line)
    return logger


def _one_line(record: logging.LogRecord) -> bool:
    text = record.getMessage()
    if len(text) > LONGEST_LINE:
        text = f"{text[:LONGEST_LINE]}... ({len(text)} characters)"
    # Without arguments, logging does not interpret the percent signs in the text.
    record.msg, record.args = printable(text), None
    if record.exc_info and not record.exc_text:
        record.exc_text = _lines(logging.Formatter().formatException(record.exc_info))
    return True


def _lines(text: str) -> str:
    return "\n".join(printable(line) for line in text.split("\n"))


class WallarooError(Exception):
    """The root of every error that this package raises.

    ``message`` is the text for a person, and ``str`` of the error is that text with the code behind it. ``code`` names
    the cause for programs and for :mod:`wallaroo_spark.codes`; it is empty in errors that other programs raise.
    ``fields`` holds the values that the message names (such as the slot, the limit or the path), so that programs need
    not parse the message. The message may contain text from a peer, so each of its lines is made :func:`printable`.
    """

    retryable: ClassVar[bool] = False
    """Whether the same call may succeed later although nobody has changed anything."""

    def __init__(self, message: str, *, code: str = "", **fields: Any) -> None:
        message = _lines(message)
        super().__init__(f"{message} [{code}]" if code else message)
        self.message = message
        self.code = code
        self.fields = fields

    def __reduce__(self) -> tuple[Any, ...]:
        return _rebuild, (type(self), self.message, self.code, self.fields)


def _rebuild(kind: type[WallarooError], message: str, code: str, fields: dict[str, Any]) -> WallarooError:
    return kind(message, code=code, **fields)


_WITH_CODE = re.compile(r"(.*?) \[([a-z0-9]+(?:-[a-z0-9]+)*)\]", re.DOTALL)


def split_code(text: str) -> tuple[str, str]:
    """The message and the code of an error that is there as text only, as in Spark's exceptions.

    The code is empty where the text ends without one.
    """
    found = _WITH_CODE.fullmatch(text.rstrip())
    return (found[1], found[2]) if found else (text, "")


class ConfigurationError(WallarooError):
    """An option, an environment or a combination of them cannot work; nothing was started."""


class ProtocolError(WallarooError):
    """The connector protocol was violated. Source: ``docs/protocol.md``."""


class LocalProtocolError(ProtocolError):
    """This side violated the protocol: the caller asked for a frame that the session's state does not permit."""


class RemoteProtocolError(ProtocolError):
    """The peer violated the protocol, or ended the session with an ERROR frame, whose text the message contains."""


class ArgumentTypeError(ConfigurationError, LocalProtocolError, TypeError):
    """An argument of a call has the wrong type; nothing was done.

    It is a :class:`ConfigurationError` for settings and a :class:`LocalProtocolError` for messages, and a TypeError.
    """


class ArgumentValueError(ConfigurationError, LocalProtocolError, ValueError):
    """An argument of a call has a value that cannot work; nothing was done.

    It is a :class:`ConfigurationError` for settings and a :class:`LocalProtocolError` for messages, and a ValueError.
    """


class PackageMissingError(ConfigurationError, ImportError):
    """A package that an extra of this package installs is not there; an ImportError, too."""


class TransportError(WallarooError):
    """A connection could not be made or has failed: refused, closed, timed out, or a TLS error."""

    retryable = True


class RegistryError(WallarooError):
    """Redis cannot be reached, or its answer cannot be used."""

    retryable = True


class LeaseLostError(RegistryError):
    """A newer generation holds the slot's lease; the process that held it before must stop serving the slot."""

    retryable = False


class CheckpointError(WallarooError):
    """The checkpoint cannot be read, is used by another query, or does not belong to this receiver."""


class ReplayError(WallarooError):
    """A planned range must be read again, and no connector can send its messages again."""


class SinkError(WallarooError):
    """A batch cannot be written to its sink."""


class PubSubError(WallarooError):
    """A topic cannot be published, found or subscribed to."""


class AqueductError(WallarooError):
    """A channel over QUIC, or its connection, has ended or cannot be used. Source: ``docs/aqueduct.md#errors``."""


class PipelineError(WallarooError):
    """The state of a durable stream or a pipeline cannot be read, or an event contradicts it."""
