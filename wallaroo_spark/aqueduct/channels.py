"""The ends of channels that a program has, and the messages on them."""

from __future__ import annotations

import asyncio
import warnings
from collections.abc import AsyncIterator, Sequence
from types import TracebackType
from typing import Self

from wallaroo_spark.aqueduct.errors import LostInTransit, NoRoom
from wallaroo_spark.aqueduct.machine import Half, TakenMessage
from wallaroo_spark.aqueduct.shell.driver import Driver, OpenHalf, SentMessage
from wallaroo_spark.errors import ArgumentTypeError, ArgumentValueError


class ChannelSender:
    """The sending end of a channel.

    ``async with`` finishes the channel at the end of the block, and cancels it when the block is left by an error. A
    sender that is dropped without one of the two is cancelled.
    """

    def __init__(self, half: OpenHalf) -> None:
        self._half = half
        self._turn = asyncio.Lock()

    async def send(
        self, payload: bytes, *, attach: Sequence[DetachedHalf] = (), unordered: bool = False, unreliable: bool = False
    ) -> SentMessage:
        """Send a message, and wait until there is room for it.

        ``attach`` are halves of new channels, from :meth:`AqueductConnection.channel`. An ``unordered`` message has a
        stream of its own, so that a lost packet of another message does not delay it. An ``unreliable`` one is a
        datagram: it may be lost, and its size is limited to that of a packet.

        Returns when the message is accepted; :attr:`SentMessage.acked` says when it has arrived. Raises
        :class:`SenderClosed`, :class:`ReceiverClosed`, :class:`Cancelled`, :class:`Lost`, :class:`MessageTooLarge` or
        :class:`ConnectionLost`.
        """
        if not isinstance(payload, bytes | bytearray | memoryview):
            raise ArgumentTypeError(
                f"the payload of a message is bytes, and this is of type {type(payload).__name__}",
                code="argument-type",
                argument="payload",
            )
        for other in attach:
            if not isinstance(other, DetachedHalf):
                raise ArgumentTypeError(
                    f"attach takes second values of connection.channel(), and this is of type {type(other).__name__}",
                    code="argument-type",
                    argument="attach",
                )
        self._half.used = True
        if not self._turn.locked():
            try:
                return self._send(bytes(payload), attach, unordered, unreliable)
            except NoRoom:
                pass
        async with self._turn:
            while True:
                try:
                    return self._send(bytes(payload), attach, unordered, unreliable)
                except NoRoom:
                    await self._half.changed.wait()

    def _send(self, payload: bytes, attach: Sequence[DetachedHalf], unordered: bool, unreliable: bool) -> SentMessage:
        ids = [other.channel for other in attach]
        sent = self._half.driver.send(self._half, payload, ids, reliable=not unreliable, ordered=not unordered)
        for other in attach:
            other.kept.attached = True
        return sent

    async def finish(self) -> None:
        """End the channel behind all messages that were accepted: its receiver gets them, and then sees the end.

        It does not wait for that; leaving the connection's block does. A channel that has ended stays as it is.
        """
        self._half.driver.finish(self._half)

    def cancel(self) -> None:
        """Give up the channel and its messages that were not taken: its receiver raises :class:`Cancelled`."""
        self._half.driver.abandon(self._half)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, where: TracebackType | None
    ) -> None:
        if error is None:
            await self.finish()
        else:
            self.cancel()

    def __del__(self) -> None:
        half = self._half
        if half.finished or half.ended is not None or half.error is not None:
            return
        if half.used:
            warnings.warn(f"{self!r} was dropped without finish or cancel", ResourceWarning, source=self, stacklevel=2)
        half.driver.forget(half)

    def __repr__(self) -> str:
        return f"<sender of {self._half.channel}>"


class ChannelReceiver:
    """The receiving end of a channel: an asynchronous iterator over its messages, which ends when the sender has
    finished. One that is dropped is closed."""

    def __init__(self, half: OpenHalf) -> None:
        self._half = half

    async def receive(self) -> ReceivedMessage | None:
        """The next message, or None when the sender has finished and all were taken.

        What had arrived before the other side has ended the connection is there behind that, too.
        Raises :class:`Cancelled`, :class:`Lost`, :class:`ReceiverClosed` (closed here) or :class:`ConnectionLost`.
        """
        while (message := self.take()) is None and not self.ended:
            await self.changed()
        return message

    def take(self) -> ReceivedMessage | None:
        """As :meth:`receive`, but None too when no message is there now."""
        half = self._half
        taken = half.driver.take(half)
        if taken is not None:
            return ReceivedMessage(half.driver, taken)
        half.check()
        return None

    @property
    def ended(self) -> bool:
        """Whether the sender has finished and all its messages were taken."""
        return self._half.ended is not None

    async def changed(self) -> None:
        """Wait until there may be another message, or the channel has ended."""
        await self._half.changed.wait()

    def close(self) -> None:
        """Take no more messages: those that were not taken are dropped, and the sender raises
        :class:`ReceiverClosed`."""
        self._half.driver.abandon(self._half)

    async def __aiter__(self) -> AsyncIterator[ReceivedMessage]:
        while (message := await self.receive()) is not None:
            yield message

    def __del__(self) -> None:
        self._half.driver.forget(self._half)

    def __repr__(self) -> str:
        return f"<receiver of {self._half.channel}>"


class DetachedHalf:
    """The end of a new channel that is for the other side: attach it to one message.

    When it is dropped without that, the end that was kept raises :class:`Lost`.
    """

    def __init__(self, kept: OpenHalf) -> None:
        self.kept = kept
        self.channel = kept.channel
        kept.attached = False

    def __del__(self) -> None:
        kept = self.kept
        if not kept.attached:
            kept.error = kept.error or LostInTransit(
                f"the other end of {self.channel} was attached to no message", channel=self.channel
            )
            kept.driver.forget(kept)

    def __repr__(self) -> str:
        return f"<the other end of {self.channel}>"


class AttachedHalf:
    """An end of a channel that came with a message. When it is dropped unused, the channel is closed or cancelled."""

    def __init__(self, half: OpenHalf) -> None:
        self._half = half
        self._handle: ChannelSender | ChannelReceiver | None = None

    @property
    def is_sender(self) -> bool:
        """Whether it is the sender of its channel; otherwise it is the receiver."""
        return self._half.half is Half.SENDER

    def sender(self) -> ChannelSender:
        """The sender, the same at each call. Raises :class:`ArgumentValueError` for a receiver."""
        if self._handle is None and self.is_sender:
            self._handle = ChannelSender(self._half)
        if not isinstance(self._handle, ChannelSender):
            raise self._other("sender", "receiver")
        return self._handle

    def receiver(self) -> ChannelReceiver:
        """The receiver, the same at each call. Raises :class:`ArgumentValueError` for a sender."""
        if self._handle is None and not self.is_sender:
            self._handle = ChannelReceiver(self._half)
        if not isinstance(self._handle, ChannelReceiver):
            raise self._other("receiver", "sender")
        return self._handle

    def _other(self, wanted: str, there: str) -> ArgumentValueError:
        return ArgumentValueError(
            f"the attachment is the {there} of {self._half.channel}, and a {wanted} is asked for; is_sender says which "
            "of both it is",
            code="attachment-kind",
            channel=int(self._half.channel),
        )

    def __del__(self) -> None:
        if self._handle is None:
            self._half.driver.forget(self._half)

    def __repr__(self) -> str:
        return f"<attached {self._half.half} of {self._half.channel}>"


class ReceivedMessage:
    """A message from the other side."""

    def __init__(self, driver: Driver, taken: TakenMessage) -> None:
        self.payload = taken.payload
        """Its bytes."""
        self.attachments = tuple(AttachedHalf(driver.open_half(channel)) for channel in taken.attachments)
        """The ends of channels that came with it, in the order in which they were attached."""
        self.reliable = taken.reliable
        """Whether it came on a stream; otherwise it was a datagram."""
        self.number = taken.number
        """Its number among the reliable, or among the unreliable messages of the channel."""

    def __repr__(self) -> str:
        shown = self.payload[:40]
        more = f" … {len(self.payload)} bytes" if len(self.payload) > len(shown) else ""
        attached = f", {len(self.attachments)} attached" if self.attachments else ""
        return f"<message {self.number}: {shown!r}{more}{attached}>"
