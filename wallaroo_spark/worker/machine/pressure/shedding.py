"""Makes room when the buffer is full and no row could ever leave it.

Rows leave when they are committed, and they are committed after they were planned and read. That stops when a read
waits for messages for which there is no room, and when no held row may end a batch.

Source: ``docs/architecture.md#rules``, rule 6.
"""

from __future__ import annotations

from wallaroo_spark.references import StreamKey
from wallaroo_spark.worker.buffer.held_stream import HeldStream
from wallaroo_spark.worker.machine.connections import Connections
from wallaroo_spark.worker.machine.pressure.flow import Pressure
from wallaroo_spark.worker.machine.pressure.gates import Gates
from wallaroo_spark.worker.machine.resend import Resend


class Shedding:
    """Makes room by dropping rows, whose senders must resend them, or, where that would not help, by ending a session.

    Dropped rows are requested again when no read waits any longer. Requested at once, they would arrive before the rows
    that the read waits for, take the same room and be dropped again. In some revisions only a whole session can resend,
    with the streams that reads wait for.
    """

    def __init__(self, connections: Connections, gates: Gates, resend: Resend) -> None:
        self._sessions, self._buffer, self._flow = connections, connections.buffer, connections.flow
        self._gates = gates
        self._resend = resend
        self._owed: set[StreamKey] = set()

    def shed(self) -> None:
        """Called after every event; does nothing as long as the query can continue."""
        if self._owed:
            self._request_dropped()
        pressure = self._gates.pressure()
        if pressure is Pressure.NONE:
            return
        if pressure is Pressure.HARD:
            self._buffer.merge()
            pressure = self._gates.pressure()
        waited = self._gates.waited
        if not waited:
            if self._flow.pressure(self._buffer.held) is not Pressure.NONE:
                self._drop_unstable_tails()
        elif pressure is Pressure.HARD and all(self._buffer.find(planned) is None for planned in waited):
            # A complete range leaves with its reader first, and may be held only for a short time.
            self._make_room()

    def _make_room(self) -> None:
        """Drop streams that no read waits for: first those that can be resent, the largest first."""
        waited = {planned.key for planned in self._gates.waited}
        streams = [stream for stream in self._buffer.streams.values() if not stream.empty]
        others = [stream for stream in streams if stream.key not in waited]
        for stream in sorted(others, key=lambda stream: (bool(stream.ephemeral), -stream.cost)):
            if self._gates.pressure() is Pressure.NONE or (
                stream.ephemeral and self._gates.pressure() is Pressure.SOFT
            ):
                return
            self._sessions.counts["shed-streams"] += 1
            self._buffer.drop(stream)
            if stream.owner is not None and not stream.ephemeral:
                stream.broken_off = True
                self._owed.add(stream.key)
            self._sessions.tidy(stream)
        if self._flow.pressure(self._buffer.held) is Pressure.HARD:
            self._give_up(max((x for x in streams if x.key in waited), key=lambda stream: stream.cost))

    def _request_dropped(self) -> None:
        waited = {planned.key for planned in self._gates.waited}
        due = self._owed & waited if waited else self._owed
        if not due:
            return
        self._owed = self._owed - due
        broken_off = [key for key in due if key in self._buffer.streams and self._buffer.streams[key].broken_off]
        self._resend.send_again(sorted(broken_off), "its memory was needed for what a read waited for")

    def _give_up(self, stream: HeldStream) -> None:
        reason = (
            f"a read waits for a part of stream {stream.key.stream_id} that does not fit: {stream.cost} bytes are held "
            f"and memoryBudget is {self._buffer.budget}; raise it"
        )
        self._dismiss_owner(stream, reason)
        self._buffer.drop(stream)
        self._sessions.tidy(stream)

    def _drop_unstable_tails(self) -> None:
        """When no stream has a row at which a batch may end, end the session with the most unstable bytes."""
        while self._flow.pressure(self._buffer.held) is not Pressure.NONE:
            streams = [stream for stream in self._buffer.streams.values() if not stream.empty]
            if not streams or any(stream.start < stream.stable_end for stream in streams):
                return
            stream = max(streams, key=lambda stream: stream.cost)
            reason = (
                f"stream {stream.key.stream_id} has sent {stream.cost} bytes since its last stable reference, and "
                f"memoryBudget is {self._buffer.budget}; send stable references (a BOUNDARY will do) or raise it"
            )
            self._dismiss_owner(stream, reason)
            self._buffer.drop_unstable(stream)
            self._sessions.tidy(stream)

    def _dismiss_owner(self, stream: HeldStream, reason: str) -> None:
        owner = self._sessions.by_number.get(stream.owner) if stream.owner is not None else None
        if owner is not None:
            self._sessions.dismiss(owner, reason, "streams-too-large")
