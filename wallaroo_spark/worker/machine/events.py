"""The events of a worker's state machine, and the instructions that it returns; see :mod:`.state`.

Events and instructions are values. ``connection`` is the number of a connection. ``now`` is a monotonic clock in
seconds, ``received_at`` is in microseconds since 1970 UTC.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass

from wallaroo_spark.references import PlannedRange, Reference, StreamKey


@dataclass(frozen=True, slots=True)
class Connected:
    """A peer has connected."""

    connection: int
    """Number of the connection; it grows with each one."""
    peer: str
    """The peer as ``host:port``."""
    now: float
    """Monotonic seconds."""
    names: tuple[str, ...] = ()
    """Names in its verified certificate; empty without one."""
    door: bool = False
    """Whether the peer is a door of this worker, which speaks for a client of another protocol."""


@dataclass(frozen=True, slots=True)
class Received:
    """Bytes of peers, to be handled together."""

    parts: tuple[tuple[int, bytes], ...]
    """The bytes by connection, in order of arrival."""
    received_at: int
    """Time of arrival in µs since 1970 UTC."""


@dataclass(frozen=True, slots=True)
class Holding:
    """This many bytes were received for the session of this connection and not passed on: of incomplete requests, by a
    door, or of messages that wait to be read, by a transport."""

    connection: int
    size: int


@dataclass(frozen=True, slots=True)
class Undelivered:
    """EPHEMERAL messages of a peer were lost on the way and will never come; each has used a credit."""

    connection: int
    messages: int


@dataclass(frozen=True, slots=True)
class Violated:
    """A peer has violated the protocol, and its transport has found that."""

    connection: int
    fault: str
    """The kind of violation, a :class:`~wallaroo_spark.protocol.Fault`."""
    reason: str
    """The violation as a sentence for the peer."""


@dataclass(frozen=True, slots=True)
class Disconnected:
    """The connection has ended; ``reason`` is empty when the peer closed it in order."""

    connection: int
    reason: str = ""


@dataclass(frozen=True, slots=True)
class Stuck:
    """A peer does not read; ``queued`` bytes wait to be sent to it."""

    connection: int
    queued: int


@dataclass(frozen=True, slots=True)
class Assigned:
    """The registry's answer to AskAssignment."""

    connection: int
    """Number of the connection that asked."""
    instance: str
    """Name of the connector instance."""
    slot: int
    """The slot that the instance belongs to."""
    address: str | None
    """``host:port`` of that slot's worker; None while it has none."""


@dataclass(frozen=True, slots=True)
class RegistryFailed:
    """The registry did not answer a question."""

    connection: int
    """Number of the connection that asked."""
    reason: str
    """The failure as a sentence."""
    streams: tuple[int, ...] = ()
    """The stream ids of the question; empty for an assignment."""


@dataclass(frozen=True, slots=True)
class Claimed:
    """The registry's answer to AskClaims."""

    connection: int
    """Number of the connection that asked."""
    asked: tuple[int, ...]
    """The requested stream ids."""
    granted: frozenset[int]
    """The ids that this slot has claimed now."""


@dataclass(frozen=True, slots=True)
class ClaimsLost:
    """These stream ids belong to another slot now: Redis was emptied, and the other slot claimed them first."""

    streams: frozenset[int]


@dataclass(frozen=True, slots=True)
class Rewound:
    """The driver's position of the query: a query has started (a new ``epoch``), or this worker is new to it."""

    epoch: int
    """Number of the query's start; it grows."""
    batch: int
    """The newest committed batch, -1 before the first."""
    references: Mapping[StreamKey, Reference | None]
    """The committed reference of each stream in ``scopes``."""
    leaving: tuple[str, frozenset[StreamKey]] = ("", frozenset())
    """The token of the streams that are forgotten next, and these streams."""
    scopes: Collection[str] | None = None
    """The scopes all of whose references it has; None: all that this worker follows."""
    cursor: int | None = None
    """The number of the last scope of which the driver has heard from this worker; None: of all."""
    given_up: Collection[PlannedRange] = ()
    """The recorded ranges of ``scopes`` that were given up."""


@dataclass(frozen=True, slots=True)
class Committed:
    """The driver's notice that Spark has committed a batch."""

    epoch: int
    """Number of the query's start."""
    batch: int
    references: Mapping[StreamKey, Reference | None]
    """The committed references that have changed since the last notice, and all those of ``scopes``; None for a stream
    that is forgotten."""
    now: float | None = None
    """Monotonic seconds; None: the time of the last Tick."""
    told_at: int | None = None
    """When the notice arrived, in µs since 1970 UTC; None: the ages of the rows are not counted."""
    leaving: tuple[str, frozenset[StreamKey]] = ("", frozenset())
    """The token of the streams that are forgotten next, and these streams."""
    ended: tuple[StreamKey, ...] = ()
    """Streams of which the driver has recorded the end."""
    scopes: Collection[str] = ()
    """The scopes of which it has all references, because the driver has heard of them since the last notice."""
    cursor: int | None = None
    """The number of the last scope of which the driver has heard from this worker; None: of all."""
    given_up: Collection[PlannedRange] = ()
    """The recorded ranges of ``scopes`` that were given up."""


@dataclass(frozen=True, slots=True)
class GiveUp:
    """A door gives a range up, once the driver has recorded that and has told so."""

    planned: PlannedRange


@dataclass(frozen=True, slots=True)
class Wanted:
    """The planned ranges that reads wait for now."""

    ranges: tuple[PlannedRange, ...]


@dataclass(frozen=True, slots=True)
class ReadBegan:
    """A reading task asks for the rows of a batch whose plan has leaving streams."""

    leaving: str
    """The token of these streams."""
    behind: int
    """When the plan was made behind which the batch starts, by the plans' clock."""


@dataclass(frozen=True, slots=True)
class Tick:
    """Time has passed."""

    now: float


@dataclass(frozen=True, slots=True)
class Stopping:
    """The worker shuts down."""

    reason: str


Event = (
    Connected
    | Received
    | Holding
    | Undelivered
    | Violated
    | Disconnected
    | Stuck
    | Assigned
    | RegistryFailed
    | Claimed
    | ClaimsLost
    | Rewound
    | Committed
    | GiveUp
    | Wanted
    | ReadBegan
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
    """Close the connection, after the queued bytes are sent or at once."""

    connection: int
    at_once: bool = False


@dataclass(frozen=True, slots=True)
class SetReading:
    """Stop reading this peer's socket, or read it again."""

    connection: int
    reading: bool


@dataclass(frozen=True, slots=True)
class AskAssignment:
    """Ask the registry for the slot of an instance. The answer is Assigned or RegistryFailed."""

    connection: int
    instance: str


@dataclass(frozen=True, slots=True)
class AskClaims:
    """Ask the registry to claim stream ids that are unique in the whole source. The answer is Claimed or
    RegistryFailed.
    """

    connection: int
    streams: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class ReleaseClaims:
    """Release the claims of stream ids; no rows of them are held any more."""

    streams: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class ReleaseInstances:
    """Release connector instances: none is connected, and none has held rows any more."""

    instances: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class WakeReaders:
    """The buffer has changed in a way that matters to planning or to waiting reads."""


@dataclass(frozen=True, slots=True)
class WakeDriver:
    """The driver has to tell this worker references: answer its waiting call."""


@dataclass(frozen=True, slots=True)
class Log:
    """A log line."""

    connection: int | None
    """Number of the connection it is about; None for none."""
    text: str
    """The line."""
    warning: bool = False
    """Whether an operator should read it."""
    error: Exception | None = None
    """A defect of this program, to be logged with its traceback."""


Instruction = (
    Send
    | Close
    | SetReading
    | AskAssignment
    | ReleaseInstances
    | AskClaims
    | ReleaseClaims
    | WakeReaders
    | WakeDriver
    | Log
)
