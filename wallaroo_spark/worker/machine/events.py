"""Events, which happen to a worker, and instructions, which it asks its shell to carry out: the vocabulary of
:mod:`.state`.

Events go in, instructions come out; both are values. Times: ``now`` is a monotonic clock in seconds, ``received_at``
microseconds since 1970 UTC.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from wallaroo_spark.references import PlannedRange, Reference, StreamKey


@dataclass(frozen=True, slots=True)
class Connected:
    """A peer has connected; ``session`` is a number that grows with each.

    ``names`` are those of its verified certificate, none without one.
    """

    connection: int
    peer: str
    now: float
    names: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Received:
    """Bytes from peers, with their sessions, to be handled together; ``received_at`` is in µs since 1970 UTC."""

    parts: tuple[tuple[int, bytes], ...]
    received_at: int


@dataclass(frozen=True, slots=True)
class Disconnected:
    """The connection is gone; ``reason`` is empty when the peer closed it in good order."""

    connection: int
    reason: str = ""


@dataclass(frozen=True, slots=True)
class Stuck:
    """A peer does not read, and ``queued`` bytes wait for it."""

    connection: int
    queued: int


@dataclass(frozen=True, slots=True)
class Assigned:
    """The registry's answer: ``instance`` belongs to ``slot``, which is served at ``address`` (None: nowhere now)."""

    connection: int
    instance: str
    slot: int
    address: str | None


@dataclass(frozen=True, slots=True)
class RegistryFailed:
    """The registry could not answer for a session; ``streams`` are the ids it was asked about, if any."""

    connection: int
    reason: str
    streams: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Claimed:
    """The registry's answer: of the ids asked for, those that are this slot's now."""

    connection: int
    asked: tuple[int, ...]
    granted: frozenset[int]


@dataclass(frozen=True, slots=True)
class ClaimsLost:
    """These stream ids belong to another slot now: the registry was emptied, and the other slot claimed them first."""

    streams: frozenset[int]


@dataclass(frozen=True, slots=True)
class Rewound:
    """The driver says where the query stands: a query has started (a new ``epoch``), or this worker is new to it."""

    epoch: int
    batch: int
    references: Mapping[StreamKey, Reference]


@dataclass(frozen=True, slots=True)
class Committed:
    """The driver names the references that Spark has committed since the last event; only changed ones. Without
    ``now``, the time is that of the last Tick.
    """

    epoch: int
    batch: int
    references: Mapping[StreamKey, Reference]
    now: float | None = None


@dataclass(frozen=True, slots=True)
class Wanted:
    """The planned ranges that reads are waiting for now."""

    ranges: tuple[PlannedRange, ...]


@dataclass(frozen=True, slots=True)
class Tick:
    """Time has passed."""

    now: float


@dataclass(frozen=True, slots=True)
class Stopping:
    """The worker is about to leave."""

    reason: str


Event = (
    Connected
    | Received
    | Disconnected
    | Stuck
    | Assigned
    | RegistryFailed
    | Claimed
    | ClaimsLost
    | Rewound
    | Committed
    | Wanted
    | Tick
    | Stopping
)


@dataclass(frozen=True, slots=True)
class Send:
    """Write these bytes to the peer."""

    connection: int
    data: bytes


@dataclass(frozen=True, slots=True)
class Close:
    """Close the connection: after the written bytes have left, or at once."""

    connection: int
    at_once: bool = False


@dataclass(frozen=True, slots=True)
class PauseReading:
    """Do not read from this peer."""

    connection: int


@dataclass(frozen=True, slots=True)
class ResumeReading:
    """Read from this peer again."""

    connection: int


@dataclass(frozen=True, slots=True)
class AskAssignment:
    """Ask the registry which slot an instance belongs to; answered by Assigned or RegistryFailed."""

    connection: int
    instance: str


@dataclass(frozen=True, slots=True)
class AskClaims:
    """Ask the registry for stream ids that belong to the whole source; answered by Claimed or RegistryFailed."""

    connection: int
    streams: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class ReleaseClaims:
    """Give stream ids back; no rows of them are held here any more."""

    streams: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class ReleaseInstances:
    """Give connector instances back: none is connected, and none of their rows are held here any more."""

    instances: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class WakeReaders:
    """Something that matters to planning or to a waiting read has changed."""


@dataclass(frozen=True, slots=True)
class Log:
    """A line for the log; ``warning`` says that an operator should see it, ``error`` is a defect to be traced."""

    connection: int | None
    text: str
    warning: bool = False
    error: Exception | None = None


Instruction = (
    Send
    | Close
    | PauseReading
    | ResumeReading
    | AskAssignment
    | ReleaseInstances
    | AskClaims
    | ReleaseClaims
    | WakeReaders
    | Log
)
