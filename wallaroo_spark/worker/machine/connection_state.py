"""A connection as the worker's state knows it."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum

from wallaroo_spark.protocol import Notify, Revision, WorkerSession
from wallaroo_spark.references import StreamKey


class ConnectionPhase(StrEnum):
    """The phase of a connection on the worker's side; the protocol's own state is in its session."""

    GREETING = "greeting"
    PARKED = "parked"
    ASKING = "asking"
    STREAMING = "streaming"
    LEAVING = "leaving"


BEFORE_OK = (ConnectionPhase.GREETING, ConnectionPhase.PARKED, ConnectionPhase.ASKING)


@dataclass(slots=True)
class Connection:
    """One connection. ``deadline`` (monotonic seconds) is when the current phase has lasted too long.

    ``last_at`` is when it last sent anything, in microseconds since 1970 UTC, and ``heard_at`` the same in monotonic
    seconds. ``names`` are those of its verified certificate. ``streams`` are those it sends, ended ones for as long as
    something of them is held; ``open`` are those that it has not ended. ``asked`` are the NOTIFYs
    that wait for the registry, ``to_ask`` those of them that it has not been asked about yet. ``untold`` are the
    streams whose committed reference it is told once it has repeated what it sent before. ``unfinished`` are the bytes
    of a frame that has not come to its end, and ``turn`` (monotonic seconds) is by when it must have where the session
    is read although the worker is full; None where it is read as all others are. ``early`` are bytes before OK.
    """

    number: int
    peer: str
    protocol: WorkerSession
    deadline: float | None
    names: tuple[str, ...] = ()
    phase: ConnectionPhase = ConnectionPhase.GREETING
    paused: bool = False
    last_at: int = 0
    heard_at: float = 0.0
    streams: set[StreamKey] = field(default_factory=set)
    open: set[StreamKey] = field(default_factory=set)
    asked: dict[int, Notify] = field(default_factory=dict)
    to_ask: list[int] = field(default_factory=list)
    untold: set[StreamKey] = field(default_factory=set)
    unfinished: int = 0
    early: int = 0
    turn: float | None = None

    @property
    def instance(self) -> str:
        """The connector instance, empty before HELLO."""
        return self.protocol.hello.instance if self.protocol.hello else ""

    @property
    def revision(self) -> Revision:
        """The revision of the session; HELLO has been received."""
        assert self.protocol.revision is not None
        return self.protocol.revision

    def key(self, stream_id: int) -> StreamKey:
        """The key of one of its streams."""
        return StreamKey(self.instance if self.revision.stream_scope == "instance" else "", stream_id)

    def __str__(self) -> str:
        return f"{self.instance or 'a connector'} at {self.peer}"
