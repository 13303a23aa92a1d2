"""The interface of every transport: a stream of bytes, and a listener that accepts streams."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Protocol

READ_AT_MOST = 256 * 1024
"""Default limit in bytes of one :meth:`ByteStream.read`.

A choice: the size of the receive buffer (see ``docs/decisions/one-receive-buffer.md``), so that one read can return all
bytes of one receive call.
"""

HIGH_WATER = 256 * 1024
"""Bytes queued for sending from which :meth:`ByteStream.drain` waits.

A choice. It bounds the memory of a peer that does not read.
"""


class ByteStream(Protocol):
    """Bytes to and from one peer, in order, with back-pressure in both directions.

    Only one task may read at a time; several may write and drain. After this side's :meth:`close`, ``read`` returns
    ``b""``; after :meth:`abort` by either side it raises. In both cases further writes are dropped and ``drain``
    raises, so that a writer that drains notices the end.
    """

    @property
    def peer(self) -> str:
        """The peer as ``host:port``, or ``memory``; for log lines and error messages."""

    @property
    def certificate_names(self) -> tuple[str, ...]:
        """Common name and alternative names in the peer's verified certificate; empty without one."""

    @property
    def queued(self) -> int:
        """Written bytes that the kernel has not taken yet.

        Under TLS this counts the bytes that were not yet passed to the socket's own buffer, which holds up to 192 KiB
        more.
        """

    async def read(self, most: int = READ_AT_MOST) -> bytes:
        """Return the next 1 to ``most`` bytes, or ``b""`` once the peer has ended its side.

        Bytes that arrived before the connection was cut are returned first. Raises :class:`TransportError` when it was
        cut.
        """

    async def deliver(self, received: Callable[[bytes], None]) -> None:
        """Call ``received`` with bytes as soon as they arrive, in place of :meth:`read`; return when the peer has ended
        its side.

        Raises :class:`TransportError` when the connection was cut, after the bytes that arrived before. An error of
        ``received`` is raised here too, and ``received`` is not called again.
        """

    def set_delivering(self, on: bool) -> None:
        """Continue or suspend the calls of :meth:`deliver`. While they are suspended, the socket is read as far as for
        :meth:`read`.
        """

    def write(self, data: bytes) -> None:
        """Queue ``data`` for sending. Never blocks and never raises; see :meth:`drain`."""

    async def drain(self) -> None:
        """Wait until fewer bytes than the high-water mark are queued.

        Raises :class:`TransportError` when the connection was cut, or was closed by this side.
        """

    async def close(self) -> None:
        """Send the queued bytes, within a bounded time, and close. May be called again. Never raises when the peer is
        gone.
        """

    def abort(self) -> None:
        """Close at once. Queued bytes are lost, and the peer receives a reset instead of an end."""


class Listener(Protocol):
    """A bound address at which peers connect."""

    @property
    def address(self) -> tuple[str, int]:
        """The bound host and port; port 0 is replaced by the port that the system chose."""

    async def close(self, wait_seconds: float = 5.0) -> None:
        """Stop accepting, then wait up to ``wait_seconds`` for the handlers; they are not cancelled."""


Handler = Callable[[ByteStream], Awaitable[None]]
"""Serves one accepted stream. The stream is closed when the handler returns, and aborted when it is cancelled."""
