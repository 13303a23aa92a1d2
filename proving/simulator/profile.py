"""The properties of a history that a seed decides: its size, its faults and its connectors."""

from __future__ import annotations

import random
from dataclasses import dataclass


@dataclass(frozen=True)
class Profile:
    """The properties of one history, drawn once from its seed."""

    slots: int
    """Slots of the fleet."""
    message_ids: str
    """The ``messageIds`` option of the receiver."""
    goes_back: bool
    """Whether the checkpoint may be replaced by an older one; every source can then be read again."""
    large: bool
    """Whether payloads are large and the memory budget is the smallest."""
    max_rows: int | None
    """Rows that a batch may have; None without a limit."""
    lease_seconds: float
    """The length of a lease in seconds."""
    replay_timeout: float
    """Seconds that a reading task waits for rows to be sent again."""
    fault_seconds: float
    """Simulated seconds during which faults happen."""
    fault_pause: float
    """The mean pause between two faults in seconds."""
    retention_seconds: float | None = None
    """The :attr:`retention` in place of the one that follows from ``fault_seconds``."""
    producer_retention: float = 0.0
    """The ``kafka.producerRetention`` of the receiver in seconds."""
    doors: bool = False
    """Whether producers send through the workers' doors, too."""
    absences: int = 3
    """How likely it is that the next fault loses planned rows whose producer is away, in histories with doors."""
    faults: tuple[str, ...] = ()
    """The names of the only faults that happen; empty: all of them."""
    busy: bool = False
    """Whether Kafka's producers send to every worker all the time, wait long for answers, and are never away."""
    cut_offs: int = 2
    """How likely it is that the next fault puts a worker out of the driver's reach, where streams are forgotten."""

    @property
    def inline_bytes(self) -> int:
        """The longest plan in bytes that an offset contains. Not drawn, to keep the histories of known seeds."""
        return (0, 90, 16_384)[int(self.fault_seconds * 1e6) % 3]

    @property
    def retention(self) -> float:
        """The ``streamRetention`` of the receiver in seconds; 0 in half of the histories. Not drawn, as above."""
        if self.retention_seconds is not None:
            return self.retention_seconds
        return 0.0 if self.message_ids == "opaque" else (0.0, 0.0, 1.0, 4.0)[int(self.fault_seconds * 1e6) // 3 % 4]

    @property
    def memory_budget(self) -> int:
        """The memory budget of each worker in bytes: the least that is possible, or more than enough."""
        return 1 << 20 if self.large else 16 << 20


def draw_profile(random: random.Random) -> Profile:
    """Draw the properties of a history."""
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
