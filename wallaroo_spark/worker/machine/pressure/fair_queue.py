"""Unfinished frames when the worker is full.

The received bytes of a frame take memory as rows do, and only the rest of the frame can turn them into rows. When the
buffer is full and its rows cannot leave it, some sessions with an unfinished frame may continue, and have a limited
time to finish it. So a full worker waits forever neither for sessions that it does not read nor for one that does not
send the rest.

Source: ``docs/architecture.md#rules``, rules 6 and 8.
"""

from __future__ import annotations

from wallaroo_spark.protocol import reasons
from wallaroo_spark.worker.machine.connections import Client, Phase
from wallaroo_spark.worker.machine.pressure.flow import Pressure
from wallaroo_spark.worker.machine.pressure.gates import Gates
from wallaroo_spark.worker.machine.sessions import Sessions


class Turns:
    """Gives sessions a turn: they are read whatever the pressure, until their frame is whole or their time is over."""

    def __init__(self, sessions: Sessions, gates: Gates) -> None:
        self._sessions = sessions
        self._gates = gates
        self._buffer = sessions.buffer
        self._any = False

    def tick(self, now: float) -> None:
        """Time has passed."""
        if self._sessions.flow.pressure(self._buffer.used) is Pressure.NONE:
            if self._any:
                self._end_all()
            return
        for client in [c for c in self._sessions.clients.values() if c.turn is not None and c.turn <= now]:
            self._dismiss(client)
        if self._buffer.unfinished and not self._gates.drains():
            self._give(now + self._sessions.options.handshake_timeout)

    def _give(self, until: float) -> None:
        """Frames whose missing bytes fit into the free memory, all together; those that a read waits for come first."""
        waiting = [c for c in self._sessions.streaming.values() if c.unfinished and c.turn is None]
        waiting.sort(key=lambda client: (not self._gates.needed(client), client.protocol.missing))
        others = [c for c in self._sessions.streaming.values() if c.turn is not None]
        room = self._buffer.budget - self._buffer.used - sum(client.protocol.missing for client in others)
        for client in waiting:
            room -= client.protocol.missing
            if room < 0 and others:
                return
            others.append(client)
            client.turn, self._any = until, True
            self._gates.regulate(client)

    def _end_all(self) -> None:
        self._any = False
        for client in self._sessions.clients.values():
            client.turn = None

    def _dismiss(self, client: Client) -> None:
        client.turn = None
        if client.phase is not Phase.STREAMING or not client.unfinished:
            return
        seconds = self._sessions.options.handshake_timeout
        reason = (
            f"{client.unfinished} bytes of a frame have come, and the {client.protocol.missing} that are missing did "
            f"not come within {seconds:g} seconds (handshakeTimeout), while frames under way take "
            f"{self._buffer.unfinished} bytes of a memoryBudget of {self._buffer.budget}; send frames whole or raise it"
        )
        self._sessions.dismiss(client, reasons.later(reason), "unfinished-frames")
