"""What kind of history a seed is: how large, how forgiving, and with what for connectors."""

from __future__ import annotations

import random
from dataclasses import dataclass


@dataclass(frozen=True)
class Profile:
    """Drawn once. ``goes_back``: the checkpoint may be replaced by an older one, and every source can be read again."""

    slots: int
    message_ids: str
    goes_back: bool
    large: bool
    max_rows: int | None
    lease_seconds: float
    replay_timeout: float
    fault_seconds: float
    fault_pause: float

    @property
    def inline_bytes(self) -> int:
        """The longest plan that stands in an offset: no plan, some, or all. Not drawn, so that seeds stay the same."""
        return (0, 90, 16_384)[int(self.fault_seconds * 1e6) % 3]

    @property
    def memory_budget(self) -> int:
        """Bytes for each worker: the least there can be, or plenty."""
        return 1 << 20 if self.large else 16 << 20


def draw_profile(random: random.Random) -> Profile:
    """What this history is like."""
    return Profile(
        slots=random.choice((1, 2, 2, 3)),
        message_ids="opaque" if random.random() < 0.25 else "increasing",
        goes_back=random.random() < 0.3,
        large=random.random() < 0.2,
        max_rows=random.choice((None, None, 10, 40)),
        lease_seconds=random.choice((2.0, 3.0, 6.0)),
        replay_timeout=random.choice((8.0, 20.0)),
        fault_seconds=random.uniform(8.0, 30.0),
        fault_pause=random.choice((0.5, 1.5, 4.0)),
    )
