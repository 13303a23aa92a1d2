"""What the worker's shell needs of the way to a peer, whatever carries its bytes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol


class PeerStream(Protocol):
    """The way to a peer of the worker's machine: over TCP, over QUIC, or to a door of this process."""

    @property
    def peer(self) -> str:
        """The peer as ``host:port``, or the name of its door."""

    @property
    def queued(self) -> int:
        """Written bytes that the network has not taken yet."""

    def write(self, data: bytes) -> None:
        """Queue bytes for sending. Never raises."""

    def set_delivering(self, on: bool) -> None:
        """Continue or suspend the delivery of received bytes."""

    async def close(self) -> None:
        """Send the queued bytes, within a bounded time, and close."""

    def abort(self) -> None:
        """Close at once."""


class ConnectorStream(PeerStream, Protocol):
    """The way to a connector. It hands over the bytes of whole frames, or of parts of them that follow each other."""

    @property
    def certificate_names(self) -> tuple[str, ...]:
        """The names in the peer's verified certificate."""

    async def deliver(self, received: Callable[[bytes], None]) -> None:
        """Call ``received`` with bytes as they arrive, until the peer has ended.

        Raises :class:`TransportError` when the connection was cut, and :class:`RemoteProtocolError` when the bytes may
        not be handed over.
        """
