"""A connection, as a program has it."""

from __future__ import annotations

import asyncio
import warnings
from types import TracebackType
from typing import Literal, Self, overload

from wallaroo_spark.aqueduct.channels import ChannelReceiver, ChannelSender, DetachedHalf
from wallaroo_spark.aqueduct.errors import ConnectionLost
from wallaroo_spark.aqueduct.machine import ENTRYPOINT, Half, Headers, Side
from wallaroo_spark.aqueduct.shell.driver import Driver

CLOSE_SECONDS = 10.0
"""Seconds that the orderly end of a connection waits for what is on its way. A choice: the limit of a handshake."""


class AqueductConnection:
    """A connection with another program.

    At the end of its ``async with`` block the senders that are open are finished, the receivers are closed, and the
    connection ends when the other side has everything. When the block is left by an error, the connection ends at once.
    """

    def __init__(self, driver: Driver) -> None:
        self._driver = driver
        half = driver.open_half(ENTRYPOINT)
        self._entrypoint = ChannelSender(half) if driver.side is Side.CLIENT else None
        self._entrance = ChannelReceiver(half) if driver.side is Side.SERVER else None

    @property
    def entrypoint(self) -> ChannelSender:
        """The sender of the channel that exists from the beginning: the client sends its first messages on it."""
        if self._entrypoint is None:
            raise TypeError("a server has no sender at the beginning; its receiver is connection.requests")
        return self._entrypoint

    @property
    def requests(self) -> ChannelReceiver:
        """The receiver of the channel that exists from the beginning: a server gets the first messages from it."""
        if self._entrance is None:
            raise TypeError("a client has no receiver at the beginning; its sender is connection.entrypoint")
        return self._entrance

    @overload
    def channel(
        self, keep: Literal["receiver"] = "receiver", *, oneshot: bool = False
    ) -> tuple[ChannelReceiver, DetachedHalf]: ...

    @overload
    def channel(self, keep: Literal["sender"], *, oneshot: bool = False) -> tuple[ChannelSender, DetachedHalf]: ...

    def channel(
        self, keep: Literal["receiver", "sender"] = "receiver", *, oneshot: bool = False
    ) -> tuple[ChannelReceiver | ChannelSender, DetachedHalf]:
        """Make a channel. Returns the end that stays here, and the other one, to be attached to a message.

        A ``oneshot`` channel is for one message: its sender finishes by itself.
        """
        half = self._driver.open_half(self._driver.channel(Half(keep), oneshot=oneshot))
        return (ChannelSender(half) if keep == "sender" else ChannelReceiver(half)), DetachedHalf(half)

    async def headers(self) -> Headers:
        """The headers of the other side, in their order; waits until they have come."""
        while self._driver.peer_headers is None:
            self._driver.check()
            await self._driver.changed.wait()
        return self._driver.peer_headers

    async def rebind(self) -> None:
        """Go on from a new socket, for a client whose network has changed. Nothing is lost, and no channel ends.

        A change of address is noticed without this, as long as packets leave by the old socket.
        """
        if self._driver.side is Side.SERVER:
            raise TypeError("only a client can move to a new socket: all connections of a server share one")
        self._driver.check()
        assert self._driver.link is not None
        await self._driver.link.rebind()

    @property
    def peer(self) -> str:
        """The address of the other side."""
        return self._driver.peer

    @property
    def queued_bytes(self) -> int:
        """Bytes of received messages that were not taken."""
        return self._driver.machine.queues.total.bytes

    @property
    def lost_messages(self) -> int:
        """Unreliable messages of the other side that were lost, or dropped here because too many were not taken."""
        return self._driver.machine.queues.lost

    async def close(self, reason: str = "done", *, seconds: float = CLOSE_SECONDS) -> None:
        """End the connection in an orderly way: finish the senders, close the receivers, and wait until the other side
        has everything.

        Raises :class:`ConnectionLost` when that takes more than ``seconds``. Nothing happens if the connection is over.
        """
        driver = self._driver
        for half in list(driver.halves.values()):
            if half.half is Half.SENDER and half.attached:
                driver.finish(half)
            else:
                driver.abandon(half)
        try:
            async with asyncio.timeout(seconds):
                while driver.error is None and not driver.idle:
                    await driver.changed.wait()
        except TimeoutError:
            counts = driver.machine.counts()
            raise ConnectionLost(
                f"the connection with {self.peer} was closed after {seconds:g} s with {counts.unacked_messages} "
                f"messages that were not acknowledged, and {counts.senders + counts.receivers} open ends of channels",
                peer=self.peer,
            ) from None
        finally:
            driver.close(reason)

    def abort(self, reason: str) -> None:
        """End the connection at once: what was not acknowledged may be lost."""
        self._driver.close(reason)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, where: TracebackType | None
    ) -> None:
        if error is None:
            await self.close()
        else:
            self.abort(f"left by {type(error).__name__}")

    def __del__(self) -> None:
        driver = self._driver
        if driver.error is None and not driver.loop.is_closed():
            warnings.warn(f"{self!r} was dropped without close or abort", ResourceWarning, source=self, stacklevel=2)
            driver.loop.call_soon_threadsafe(driver.close, "dropped by its program")

    def __repr__(self) -> str:
        return f"<connection with {self.peer}{' (over)' if self._driver.error else ''}>"
