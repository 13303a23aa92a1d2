"""What the halves of channels share within a connection."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from wallaroo_spark.aqueduct.frames import ChannelId, Side
from wallaroo_spark.aqueduct.machine.channels.links import Links
from wallaroo_spark.aqueduct.machine.channels.window import ReceiveQueues, SendWindow
from wallaroo_spark.aqueduct.machine.limits import AqueductLimits
from wallaroo_spark.aqueduct.machine.outgoing import Outgoing
from wallaroo_spark.aqueduct.machine.timers import Timers


@dataclass(slots=True)
class ChannelContext:
    """What the halves of channels share within a connection."""

    side: Side
    limits: AqueductLimits
    outgoing: Outgoing
    timers: Timers
    links: Links
    window: SendWindow
    queues: ReceiveQueues
    ended: Callable[[ChannelId, int | None], None]
    """Called when a half has ended, with its control stream, which is not read any more."""
    message_streams: dict[int, Any] = field(default_factory=dict)
    """The senders of the unidirectional streams that carry their messages."""
    dropped: deque[tuple[ChannelId, bool]] = field(default_factory=deque)
    """Attachments of messages that were dropped from a queue, and whether they end as lost."""
