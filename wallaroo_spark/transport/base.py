"""The interface of every transport: a stream of bytes, and a listener that accepts streams."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Protocol

READ_AT_MOST = 256 * 1024
"""Bytes a single :meth:`ByteStream.read` returns at most, unless told otherwise."""

HIGH_WATER = 256 * 1024
"""Bytes a stream queues for sending before :meth:`ByteStream.drain` waits."""


class ByteStream(Protocol):
    """Bytes to and from one peer, in order, with back-pressure both ways.

    One task reads at a time; writing and draining may come from several. After :meth:`close` by this side ``read``
    returns ``b""``; after :meth:`abort` by either side it raises. In both cases further writes are dropped and
    ``drain`` raises, so a writer that drains cannot miss the end.
    """

    @property
    def peer(self) -> str:
        """The other end as ``host:port``, or ``memory``; for log lines and error messages."""

    @property
    def certificate_names(self) -> tuple[str, ...]:
        """Common name and alternative names of the peer's verified certificate; empty without one."""

    @property
    def queued(self) -> int:
        """Bytes written and not yet taken by the kernel.

        Under TLS this counts the bytes not yet passed to the socket's own buffer, which holds up to 192 KiB more.
        """

    async def read(self, most: int = READ_AT_MOST) -> bytes:
        """The next 1 to ``most`` bytes, or ``b""`` once the peer has ended its side.

        Bytes that arrived before a cut are returned first. Raises :class:`TransportError` when the connection was cut.
        """

    def write(self, data: bytes) -> None:
        """Queue ``data`` for sending. Never blocks and never raises; see :meth:`drain`."""

    async def drain(self) -> None:
        """Wait until less than the high-water mark is queued.

        Raises :class:`TransportError` when the connection was cut, or was closed by this side.
        """

    async def close(self) -> None:
        """Send the queued bytes, within a bounded time, and close. May be called again; never raises on a cut."""

    def abort(self) -> None:
        """Close at once: queued bytes are lost, and the peer sees a cut rather than an end."""


class Listener(Protocol):
    """A bound address at which peers connect."""

    @property
    def address(self) -> tuple[str, int]:
        """The host and the port that are bound, the port as the system chose it."""

    async def close(self, wait_seconds: float = 5.0) -> None:
        """Accept no more, then wait up to ``wait_seconds`` for the handlers; none of them is cancelled."""


Handler = Callable[[ByteStream], Awaitable[None]]
"""Serves one accepted stream; the stream is closed when it returns and aborted when it is cancelled."""
