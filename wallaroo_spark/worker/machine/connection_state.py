"""The state of one connection on the worker's side."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum

from wallaroo_spark.protocol import Notify, Revision, WorkerSession
from wallaroo_spark.references import StreamKey


class ConnectionPhase(StrEnum):
    """The phase of a connection on the worker's side. The protocol's own state is in its session."""

    GREETING = "greeting"
    """The worker waits for HELLO."""
    PARKED = "parked"
    """The HELLO is accepted. The query's references, which OK contains, are not known yet."""
    ASKING = "asking"
    """The worker waits for the registry's answer about the instance."""
    AWAITING = "awaiting"
    """The worker waits until the driver has told the committed references of the instance."""
    STREAMING = "streaming"
    """OK was sent."""
    LEAVING = "leaving"
    """The session has ended, and the connection is being closed."""


BEFORE_OK = (
    ConnectionPhase.GREETING,
    ConnectionPhase.PARKED,
    ConnectionPhase.ASKING,
    ConnectionPhase.AWAITING,
)
"""The phases before OK."""


@dataclass(slots=True)
class Connection:
    """One connection of a peer."""

    number: int
    """Number of the connection in this worker."""
    peer: str
    """The peer as ``host:port``."""
    protocol: WorkerSession
    connected_at: float
    """Time at which it connected, in monotonic seconds."""
    deadline: float | None
    """End of the current phase in monotonic seconds; None without a limit."""
    names: tuple[str, ...] = ()
    """Names in the peer's verified certificate."""
    door: bool = False
    """Whether the peer is a door of this worker."""
    phase: ConnectionPhase = ConnectionPhase.GREETING
    paused: bool = False
    """Whether its socket is not read for now."""
    last_at: int = 0
    """Time of the last received bytes, in microseconds since 1970 UTC."""
    heard_at: float = 0.0
    """Time of the last received bytes, in monotonic seconds."""
    streams: set[StreamKey] = field(default_factory=set)
    """The streams that it sends. An ended stream stays among them while rows of it are held."""
    open: set[StreamKey] = field(default_factory=set)
    """The streams that it sends and has not ended."""
    asked: dict[int, Notify] = field(default_factory=dict)
    """The NOTIFYs that wait for the registry's answer, by stream id."""
    to_ask: list[int] = field(default_factory=list)
    """The stream ids of those of these NOTIFYs about which the registry was not asked yet."""
    unacknowledged: set[StreamKey] = field(default_factory=set)
    """The streams that get no ACK until the session has repeated the messages that it sent before."""
    unfinished: int = 0
    """Received bytes of an incomplete frame, and those that a door holds for it."""
    holding: int = 0
    """Bytes of incomplete requests that a door holds for it."""
    early: int = 0
    """Received bytes before OK."""
    turn: float | None = None
    """The time by which it must complete its frame, in monotonic seconds, while it is read although the worker is full;
    otherwise None."""

    @property
    def instance(self) -> str:
        """Name of the connector instance; empty before HELLO."""
        return self.protocol.hello.instance if self.protocol.hello else ""

    @property
    def revision(self) -> Revision:
        """The revision of the session; only after HELLO."""
        assert self.protocol.revision is not None
        return self.protocol.revision

    @property
    def scope(self) -> str:
        """The scope of its streams; only after HELLO."""
        return self.instance if self.revision.stream_scope == "instance" else ""

    def key(self, stream_id: int) -> StreamKey:
        """The key of one of its streams."""
        return StreamKey(self.scope, stream_id)

    def __str__(self) -> str:
        return f"{self.instance or 'a connector'} at {self.peer}"
