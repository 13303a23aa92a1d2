"""The state of one connection on the worker's side."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum

from wallaroo_spark.protocol import Notify, Revision, WorkerSession
from wallaroo_spark.references import StreamKey


class ConnectionPhase(StrEnum):
    """The phase of a connection on the worker's side. The protocol's own state is in its session."""

    GREETING = "greeting"
    PARKED = "parked"
    ASKING = "asking"
    STREAMING = "streaming"
    LEAVING = "leaving"


BEFORE_OK = (ConnectionPhase.GREETING, ConnectionPhase.PARKED, ConnectionPhase.ASKING)


@dataclass(slots=True)
class Connection:
    """One connection of a peer."""

    number: int
    """Number of the connection in this worker."""
    peer: str
    """The peer as ``host:port``."""
    protocol: WorkerSession
    """The protocol's session."""
    deadline: float | None
    """End of the current phase in monotonic seconds; None without a limit."""
    names: tuple[str, ...] = ()
    """Names in its verified certificate."""
    phase: ConnectionPhase = ConnectionPhase.GREETING
    """The phase."""
    paused: bool = False
    """Whether its socket is not read for now."""
    last_at: int = 0
    """Time of the last received bytes, in microseconds since 1970 UTC."""
    heard_at: float = 0.0
    """Time of the last received bytes, in monotonic seconds."""
    streams: set[StreamKey] = field(default_factory=set)
    """The streams that it sends. Ended streams stay for as long as rows of them are held."""
    open: set[StreamKey] = field(default_factory=set)
    """The streams that it has not ended."""
    asked: dict[int, Notify] = field(default_factory=dict)
    """NOTIFYs that wait for the registry's answer, by stream id."""
    to_ask: list[int] = field(default_factory=list)
    """Stream ids of those NOTIFYs for which the registry was not asked yet."""
    untold: set[StreamKey] = field(default_factory=set)
    """Streams that are acknowledged only after the session has repeated the messages that it sent before."""
    unfinished: int = 0
    """Received bytes of an incomplete frame."""
    early: int = 0
    """Received bytes before OK."""
    turn: float | None = None
    """Limit in monotonic seconds for completing its frame, while it is read although the worker is full; else None."""

    @property
    def instance(self) -> str:
        """Name of the connector instance; empty before HELLO."""
        return self.protocol.hello.instance if self.protocol.hello else ""

    @property
    def revision(self) -> Revision:
        """The revision of the session; only after HELLO."""
        assert self.protocol.revision is not None
        return self.protocol.revision

    def key(self, stream_id: int) -> StreamKey:
        """The key of one of its streams."""
        return StreamKey(self.instance if self.revision.stream_scope == "instance" else "", stream_id)

    def __str__(self) -> str:
        return f"{self.instance or 'a connector'} at {self.peer}"
