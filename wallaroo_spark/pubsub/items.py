"""The items that a subscription gives to an application."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from wallaroo_spark.pubsub.times import Time


@dataclass(frozen=True)
class Epoch:
    """Some rows of an epoch: ``batch`` is a ``pyarrow.RecordBatch``, and came from one ``partition`` of the topic.

    An epoch can have several of these, behind each other; it is whole when a :class:`Frontier` has passed it.
    """

    epoch: Time
    partition: int
    batch: Any = field(repr=False)


@dataclass(frozen=True)
class Frontier:
    """The lower frontier of the topic has moved: the least times that may still come.

    Everything before it has been given to the application. ``changes`` are what left it (-1) and what came (+1).
    """

    frontier: tuple[Time, ...]
    changes: tuple[tuple[Time, int], ...]


@dataclass(frozen=True)
class Position:
    """Where a subscription is: it has given everything before ``time`` of the history called ``identity``.

    Another subscription can go on from it, while the topic keeps what follows; see ``resume``.
    """

    identity: str
    time: Time


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
    """How long it has been lost."""


Item = Epoch | Frontier
