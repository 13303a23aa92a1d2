"""The parts of a gateway that a session of the connector protocol needs."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol

from wallaroo_spark.gateway.limits import GatewayLimits
from wallaroo_spark.gateway.state.requests import RequestsInFlight
from wallaroo_spark.pipelines.controller.messages.values import PartitionKey
from wallaroo_spark.protocol.framing import Finder


class SendingSession(Protocol):
    """A session as its gateway sees it."""

    @property
    def instance(self) -> str:
        """Name of the connector's instance."""

    @property
    def peer(self) -> str:
        """The connector's address."""

    def superseded(self, peer: str) -> None:
        """A newer session, of this peer, sends one of the streams."""


class GatewaySide(Protocol):
    """What a session asks of its gateway. Methods named ``check`` and ``require`` raise :class:`Refused`."""

    @property
    def limits(self) -> GatewayLimits:
        """The limits of the gateway."""

    @property
    def requests(self) -> RequestsInFlight:
        """The requests of the gateway."""

    @property
    def find(self) -> Finder | None:
        """Finds frames; None for the finder of the protocol itself."""

    def check_token(self, token: str) -> None:
        """Whether a token is valid."""

    def check(self, token: str, stream: str) -> None:
        """Whether the bearer of a token may publish to a stream."""

    def keys(self, token: str) -> Iterable[PartitionKey]:
        """The partitions of all streams that the bearer of a token may publish to."""

    def require_partition(self, stream: str, partition: int) -> None:
        """Whether there is the partition of the stream."""

    def require_room(self) -> None:
        """Whether there is room for another session. Raises :class:`RemoteProtocolError` when there is none."""

    def window(self) -> int:
        """The window of a session: the most messages that it has sent, or may send, and that are not committed."""

    def uncommitted(self, messages: int, size: int) -> None:
        """Count messages, and the bytes of their payloads, that are not committed; negative: they are."""

    def opened(self, session: SendingSession, name: str) -> None:
        """The session has opened a connector stream; an older session of this gateway that sends it ends."""

    def log(self, session: SendingSession, text: str, *, warning: bool = False) -> None:
        """Write a line about the session to the log."""
