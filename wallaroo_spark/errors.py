"""What can go wrong, as one tree.

    WallarooError
    ├── ConfigurationError      an option, an environment or a combination of them that cannot work
    ├── ProtocolError           the connector protocol was broken
    │   ├── LocalProtocolError      by us: a bug in this program or in its caller
    │   └── RemoteProtocolError     by the peer, or reported by it in an ERROR frame
    ├── TransportError          bytes could not be carried: refused, cut, timed out, TLS
    ├── RegistryError           Redis could not be reached, or answered something unusable
    │   └── LeaseLostError          a slot's lease is held by a newer generation
    ├── CheckpointError         the checkpoint cannot be read, or is used by another query
    ├── ReplayError             messages are needed again and cannot be had
    ├── SinkError               results could not leave Spark
    └── PubSubError             a topic could not be published, found or followed

Every message names the thing, the value, the limit and the way out. ``retryable`` says whether the same call may
succeed later with nothing changed; retry policies read it. All of them survive pickling, fields included, because Spark
carries exceptions between processes.
"""

from __future__ import annotations

from typing import Any, ClassVar


class WallarooError(Exception):
    """The root of every error this package raises.

    ``fields`` are the values the message is about, for programs that would rather not parse a sentence.
    """

    retryable: ClassVar[bool] = False

    def __init__(self, message: str, **fields: Any) -> None:
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
    """The checkpoint cannot be read, or does not fit what is asked of it."""


class ReplayError(WallarooError):
    """Messages are needed again and cannot be had."""


class SinkError(WallarooError):
    """Results could not leave Spark."""


class PubSubError(WallarooError):
    """A topic could not be published, found or followed."""
