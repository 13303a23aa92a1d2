"""How much may be in flight, and how much may be in the queues of receivers.

Source: ``docs/aqueduct/protocol.md#back-pressure``.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from wallaroo_spark.aqueduct.frames import ChannelId
from wallaroo_spark.aqueduct.machine.limits import AqueductLimits

MESSAGE_COST = 128
"""Bytes that a message costs beside its payload, in windows and queues of both sides: about what its objects take."""
ATTACHMENT_COST = 128
"""Bytes that an attachment costs."""


def message_cost(payload: bytes, attachments: Sequence[ChannelId]) -> int:
    """Bytes that a message takes from a window and in a queue."""
    return len(payload) + MESSAGE_COST + ATTACHMENT_COST * len(attachments)


class Usage:
    """Messages and bytes that are in flight or in a queue."""

    __slots__ = ("bytes", "messages")

    def __init__(self) -> None:
        self.messages = self.bytes = 0

    def add(self, cost: int) -> None:
        """One message more."""
        self.messages += 1
        self.bytes += cost

    def remove(self, cost: int) -> None:
        """One message less."""
        self.messages -= 1
        self.bytes -= cost


class SendWindow:
    """What all senders of a connection have in flight, and the senders that wait for room."""

    def __init__(self, limits: AqueductLimits) -> None:
        self._limits = limits
        self.total = Usage()
        self._waiting: dict[ChannelId, None] = {}

    def channel_has_room(self, channel: Usage, cost: int) -> bool:
        """Whether the channel takes a message. It takes one of any size where nothing is in flight."""
        return channel.messages == 0 or (
            channel.messages < self._limits.window_messages and channel.bytes + cost <= self._limits.window_bytes
        )

    def connection_has_room(self, cost: int) -> bool:
        """Whether the connection takes a message; as for a channel."""
        return self.total.messages == 0 or self.total.bytes + cost <= self._limits.connection_window_bytes

    def half_is_free(self, channel: Usage) -> bool:
        """Whether a sender that waits for room in its channel may try again."""
        return channel.messages * 2 <= self._limits.window_messages and channel.bytes * 2 <= self._limits.window_bytes

    def wait(self, channel: ChannelId) -> None:
        """A sender waits for room in the connection."""
        self._waiting[channel] = None

    def stop_waiting(self, channel: ChannelId) -> None:
        """A sender waits no more."""
        self._waiting.pop(channel, None)

    def released(self) -> list[ChannelId]:
        """The senders that may try again.

        They are many at a time, and only when half of the window is free: a sender is asked once for many acks.
        """
        if not self._waiting or self.total.bytes > self._limits.connection_window_bytes // 2:
            return []
        released, self._waiting = list(self._waiting), {}
        return released


class ReceiveQueues:
    """What is in the queues of all receivers of a connection, and the receivers whose acks wait for it."""

    def __init__(self, limits: AqueductLimits) -> None:
        self._limits = limits
        self.total = Usage()
        self.lost = 0
        """Unreliable messages that were lost, or dropped because the queues were full."""
        self._waiting: dict[ChannelId, Callable[[float], None]] = {}

    @property
    def has_room(self) -> bool:
        """Whether acks may be sent."""
        return self.total.bytes <= self._limits.connection_window_bytes

    def wait(self, channel: ChannelId, resume: Callable[[float], None]) -> None:
        """Call ``resume(now)`` when there is room again."""
        self._waiting[channel] = resume

    def stop_waiting(self, channel: ChannelId) -> None:
        """A receiver has ended."""
        self._waiting.pop(channel, None)

    def resume(self, now: float) -> None:
        """Let the receivers go on that wait, if there is room."""
        if self._waiting and self.has_room:
            waiting, self._waiting = self._waiting, {}
            for resume in waiting.values():
                resume(now)
