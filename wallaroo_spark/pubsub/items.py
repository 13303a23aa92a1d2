"""The items that a subscription delivers to an application."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from wallaroo_spark.pubsub.times import Time


@dataclass(frozen=True)
class Epoch:
    """Rows of one epoch from one partition.

    An epoch can consist of several of these in a row. It is complete when a :class:`Frontier` has passed it.
    """

    epoch: Time
    """Time of the rows: a batch id, or a tuple that begins with one."""
    partition: int
    """Partition of the topic that sent the rows."""
    batch: Any = field(repr=False)
    """The rows, a ``pyarrow.RecordBatch``."""


@dataclass(frozen=True)
class Frontier:
    """The lower frontier of the topic has moved. Everything before it has been delivered to the application."""

    frontier: tuple[Time, ...]
    """The least times that may still arrive."""
    changes: tuple[tuple[Time, int], ...]
    """The times that left the frontier (-1) and the times that entered it (+1)."""


@dataclass(frozen=True)
class Position:
    """The progress of a subscription: it has delivered everything before ``time``.

    Another subscription can continue from it with ``resume``, as long as the topic retains the batches that follow.
    """

    identity: str
    """Identity of the topic's history."""
    time: Time
    """The least time that was not delivered."""


@dataclass(frozen=True)
class Lost:
    """A failure to reach the publisher of a partition."""

    partition: int
    """Partition of the topic."""
    address: str
    """Its last address, empty if it was never reached."""
    reason: str
    """The last failure, as a sentence."""
    seconds: float
    """Seconds since the partition was lost."""


Item = Epoch | Frontier
