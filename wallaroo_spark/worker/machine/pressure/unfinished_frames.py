"""Unfinished frames when the worker is full.

The received bytes of a frame take memory as rows do, and only the rest of the frame can turn them into rows. When the
buffer is full and its rows cannot leave it, some sessions with an unfinished frame may continue, and have a limited
time to finish it. So a full worker waits forever neither for sessions that it does not read nor for one that does not
send the rest.

Source: ``docs/architecture.md#rules``, rules 6 and 8.
"""

from __future__ import annotations

from wallaroo_spark.protocol import faults
from wallaroo_spark.worker.machine.connection_state import Connection, ConnectionPhase
from wallaroo_spark.worker.machine.connections import Connections
from wallaroo_spark.worker.machine.pressure.flow import Pressure
from wallaroo_spark.worker.machine.pressure.gates import Gates


class UnfinishedFrames:
    """Gives sessions a turn: under any pressure they are read until their frame is complete, or for
    ``handshakeTimeout``."""

    def __init__(self, connections: Connections, gates: Gates) -> None:
        self._sessions, self._buffer, self._gates = connections, connections.buffer, gates
        self._seconds = connections.options.handshake_timeout
        self._any = False

    def tick(self, now: float) -> None:
        """Time has passed."""
        if self._gates.pressure() is Pressure.NONE:
            if self._any:
                self._end_all()
            return
        for connection in [c for c in self._sessions.by_number.values() if c.turn is not None and c.turn <= now]:
            self._dismiss(connection)
        if self._buffer.unfinished and not self._gates.drains():
            self._give(now + self._seconds)

    def _give(self, until: float) -> None:
        """Let sessions continue whose missing bytes fit into the free memory together; those that a read waits for
        first.
        """
        # A door refuses or ends the requests that it holds by itself.
        streaming = (c for c in self._sessions.streaming.values() if not c.door)
        waiting = [c for c in streaming if c.unfinished and c.turn is None]
        waiting.sort(key=lambda connection: (not self._gates.needed(connection), connection.protocol.missing))
        others = [c for c in self._sessions.streaming.values() if c.turn is not None]
        room = self._buffer.budget - self._buffer.used - sum(connection.protocol.missing for connection in others)
        for connection in waiting:
            room -= connection.protocol.missing
            if room < 0 and others:
                return
            others.append(connection)
            connection.turn, self._any = until, True
            self._gates.regulate(connection)

    def _end_all(self) -> None:
        self._any = False
        for connection in self._sessions.by_number.values():
            connection.turn = None

    def _dismiss(self, connection: Connection) -> None:
        connection.turn = None
        if connection.phase is not ConnectionPhase.STREAMING or not connection.unfinished:
            return
        missing = connection.protocol.missing
        reason = (
            f"{connection.unfinished} bytes of a frame have come, and the {missing} that are missing did "
            f"not come within {self._seconds:g} seconds (handshakeTimeout), while frames under way take "
            f"{self._buffer.unfinished} bytes of a memoryBudget of {self._buffer.budget}; send frames whole or raise it"
        )
        self._sessions.dismiss(connection, faults.later(reason), "unfinished-frames")
