"""The properties of a history that a seed decides: its size, its limits, and what the network does."""

from __future__ import annotations

import random
from dataclasses import dataclass

from wallaroo_spark.aqueduct.machine import AqueductLimits


@dataclass(frozen=True)
class Profile:
    """The properties of one history, drawn once from its seed."""

    actions: int
    """What each application does at random before it comes to an end."""
    pause: float
    """The mean pause between two actions, in seconds."""
    loss: float
    """The share of datagrams that are lost."""
    doubling: float
    """The share of datagrams that arrive twice."""
    late: float
    """The share of streams and datagrams that arrive :attr:`latest` seconds late at most."""
    latest: float
    """The longest delay, in seconds."""
    datagram_bytes: int
    """The largest datagram."""
    cut: float | None
    """When the connection is lost, in seconds; None in a history in which it is not."""
    closes: float | None
    """When a side closes the connection; None in a history in which none does."""
    early: bool
    """Whether the client sends before the handshake is complete."""
    asks: bool
    """Whether the server decides on its headers when it has the client's."""
    attaches: float
    """The share of messages with attachments."""
    unreliable: float
    """The share of senders that send unreliable messages."""
    limits: AqueductLimits
    """The limits of both sides."""


def draw_profile(random: random.Random) -> Profile:
    """Draw the properties of a history."""
    window = random.choice((600, 2000, 10_000))
    faulty = random.random() < 0.75
    return Profile(
        actions=random.choice((8, 20, 40, 80, 160)),
        pause=random.choice((0.01, 0.05, 0.3)),
        loss=random.choice((0.05, 0.3, 0.7)) if faulty else 0.0,
        doubling=random.choice((0.0, 0.1, 0.3)) if faulty else 0.0,
        late=random.choice((0.0, 0.02, 0.1)) if faulty else 0.0,
        latest=random.choice((2.0, 10.0, 60.0)),
        datagram_bytes=random.choice((120, 400, 1200)),
        cut=random.uniform(0.0, 10.0) if random.random() < 0.12 else None,
        closes=random.uniform(0.0, 10.0) if random.random() < 0.05 else None,
        early=random.random() < 0.3,
        asks=random.random() < 0.5,
        attaches=random.choice((0.2, 0.5, 0.8)),
        unreliable=random.choice((0.0, 0.3, 0.6)),
        limits=AqueductLimits(
            frame=max(1024, window),
            attachments=8,
            headers=256,
            window_bytes=window,
            window_messages=random.choice((3, 10, 40)),
            connection_window_bytes=window * random.choice((1, 2, 8)),
            unfinished_bytes=65536,
            remembered_receivers=random.choice((64, 1024)),
        ),
    )
