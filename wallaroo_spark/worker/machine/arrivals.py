"""Processes the bytes of sessions: bytes to frames, frames to columns, columns to rows of streams in the buffer.

Bytes of several sessions that arrived at about the same time are decoded in one pass. Each session is still handled
separately: bad input, or an error of this program, ends the session that caused it and no other. An error that belongs
to no single session ends all of them: frames that were already processed may be lost, and must be resent.

Source: ``docs/architecture.md#rules``, rule 7; ``docs/protocol.md#session-states`` and
``docs/protocol.md#stream-states``; ``docs/decisions/runs.md``.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from wallaroo_spark.columnar import Decoded, Grouped, RunRows, StreamRows, by_stream, decode_run, decode_runs
from wallaroo_spark.errors import RemoteProtocolError
from wallaroo_spark.protocol import EosMessage, Error, Fault, Hello, MessageRun, NotifyReceived, WorkerEvent, broken
from wallaroo_spark.worker.buffer.buffer import Buffer
from wallaroo_spark.worker.buffer.held_stream import HeldStream
from wallaroo_spark.worker.buffer.segments import HeldLot
from wallaroo_spark.worker.machine import events as e
from wallaroo_spark.worker.machine.connection_state import BEFORE_OK, Connection, ConnectionPhase
from wallaroo_spark.worker.machine.connections import Connections
from wallaroo_spark.worker.machine.handshake import Handshake
from wallaroo_spark.worker.machine.pressure.gates import Gates
from wallaroo_spark.worker.machine.streams import Streams

LONGEST_HELLO = 5 + 4 * (2 + 0xFFFF)
"""Size of the longest HELLO in bytes: four fields of the greatest length, with length field and tag."""
Run = tuple[Connection, MessageRun]
Found = tuple[list[Connection], Decoded, list[RunRows]]


class _PlainParts:
    """Parts of a lot from several sessions whose messages are all new, collected to be appended together."""

    def __init__(self, held: HeldLot, grouped: Grouped, received_at: int) -> None:
        self.held = held
        self.grouped = grouped
        self.received_at = received_at
        self.connections: list[Connection] = []
        self.streams: list[HeldStream] = []
        self._parts: list[int] = []
        self._receipts: list[tuple[int, int]] = []

    def add(self, connection: Connection, parts: Sequence[int], streams: list[HeldStream]) -> None:
        """Add parts of one session, each with its stream."""
        self.connections.append(connection)
        self.streams += streams
        self._parts += parts
        self._receipts.append((self.held.receipt(connection.instance, self.received_at), len(parts)))

    def append(self, buffer: Buffer) -> int:
        """Append all collected parts, and forget them; return the number of their rows."""
        streams, parts, receipts = self.streams, self._parts, self._receipts
        self.streams, self._parts, self._receipts = [], [], []
        numbers, counts = (np.array(column, np.int64) for column in zip(*receipts, strict=True))
        return buffer.append_parts(
            self.held, self.grouped, np.array(parts, np.int64), streams, np.repeat(numbers, counts)
        )


class Arrivals:
    """Processes the bytes of peers."""

    def __init__(self, connections: Connections, gates: Gates, handshake: Handshake, streams: Streams) -> None:
        self._connections = connections
        self._buffer = connections.buffer
        self._gates = gates
        self._handshake = handshake
        self._streams = streams

    def take_in(self, parts: tuple[tuple[int, bytes], ...], received_at: int) -> None:
        """Handle bytes, given by session, that arrived at ``received_at`` (µs since 1970 UTC)."""
        try:
            self._take_in(parts, received_at)
        except Exception as error:
            self._connections.give_up([number for number, _ in parts], error)

    def lost(self, event: e.Undelivered) -> None:
        """Charge a session for messages that were lost on the way, so that it is granted credits for others."""
        connection = self._connections.by_number.get(event.connection)
        if connection is not None and connection.phase is ConnectionPhase.STREAMING:
            self._connections.counts["lost-messages"] += event.messages
            connection.protocol.lost(event.messages)
            self._connections.guarded(connection, self._settle, connection)

    def _take_in(self, parts: tuple[tuple[int, bytes], ...], received_at: int) -> None:
        heard: dict[int, Connection] = {}
        for number, data in parts:
            connection = self._connections.by_number.get(number)
            if connection is not None:
                heard[number] = connection
                self._connections.guarded(connection, self._feed, connection, data, received_at)
        connections = going = list(heard.values())
        while going:
            found = (
                (connection, self._connections.guarded(connection, self._next_run, connection)) for connection in going
            )
            runs = [(connection, run) for connection, run in found if run is not None]
            if runs:
                self._append(runs, received_at)
            going = [connection for connection, _ in runs if connection.phase is ConnectionPhase.STREAMING]
        for connection in connections:
            self._connections.guarded(connection, self._connections.weigh, connection)
            if connection.phase is not ConnectionPhase.LEAVING:
                self._connections.guarded(connection, self._settle, connection)

    def _feed(self, connection: Connection, data: bytes, received_at: int) -> None:
        self._connections.counts["bytes"] += len(data)
        connection.last_at = received_at
        self._connections.heard(connection)
        connection.protocol.receive(data)
        if connection.phase in BEFORE_OK and connection.protocol.pending > LONGEST_HELLO:
            # A peer that was not sent OK gets no more memory than a HELLO takes.
            reason = (
                f"{connection.protocol.pending} bytes came without a whole HELLO; none is longer than {LONGEST_HELLO}"
            )
            raise broken(Fault.FRAME_TOO_LONG, reason)

    def _next_run(self, connection: Connection) -> MessageRun | None:
        """The next messages of a session; frames before them are handled."""
        while (found := connection.protocol.next_event()) is not None:
            connection.turn = None
            if isinstance(found, MessageRun):
                return found
            self._found(connection, found)
        return None

    def _found(self, connection: Connection, found: WorkerEvent) -> None:
        match found:
            case Hello():
                self._handshake.hello(connection)
            case NotifyReceived():
                self._streams.notify(connection, found)
            case EosMessage():
                self._end(connection, self._buffer.streams[connection.key(found.stream_id)])
            case Error():
                self._connections.counts["peer-errors"] += 1
                self._connections.log(connection, f"gave up: {found.reason}")
                self._connections.leave(connection)

    def _append(self, runs: list[Run], received_at: int) -> None:
        for connections, decoded, by_run in self._decoded(runs):
            grouped = by_run[0].grouped
            held = self._buffer.hold(grouped.lot) if grouped is not None else None
            plain = _PlainParts(held, grouped, received_at) if held is not None and grouped is not None else None
            if decoded.error is not None or grouped is None or not grouped.lot.plain:
                plain = None
            for connection, rows in zip(connections, by_run, strict=True):
                # The messages of another session may have ended this one.
                if connection.phase is not ConnectionPhase.STREAMING:
                    continue
                if (
                    plain is None
                    or self._connections.guarded(connection, self._admit_plain, connection, rows, plain) is False
                ):
                    self._append_plain(plain)
                    self._connections.guarded(
                        connection, self._admit, connection, rows, decoded.error, held, received_at
                    )
            self._append_plain(plain)
            if held is not None:
                self._buffer.settle(held)

    def _admit_plain(self, connection: Connection, rows: RunRows, plain: _PlainParts) -> bool:
        """Accept the rows of a run without flags; most of them are appended later, with those of other sessions.

        Returns False, and changes nothing, when one of the streams may not send.
        """
        if not connection.protocol.admit_plain(rows.stream_ids):
            return False
        grouped, number = plain.grouped, connection.number
        streams = self._buffer.of_scope(connection.key(0).scope)
        mine = slice(rows.begin, rows.end)
        lows = grouped.lows[mine]
        first_ids = grouped.lot.message_ids[lows].tolist()
        rising = grouped.rising[mine].tolist()
        size = int(grouped.sizes[mine].sum())
        others = []
        taking: list[HeldStream] = []
        for at, (stream_id, first_id, rises) in enumerate(zip(rows.stream_ids, first_ids, rising, strict=True)):
            stream = streams[stream_id]
            if rises and stream.owner == number and stream.takes(first_id):
                taking.append(stream)
            else:
                others.append(at)
        self._connections.flow.observe(rows.count, size)
        if not others:
            plain.add(connection, range(rows.begin, rows.end), taking)
            return True
        odd = set(others)
        plain.add(connection, [rows.begin + at for at in range(rows.end - rows.begin) if at not in odd], taking)
        self._append_plain(plain)
        if connection.phase is ConnectionPhase.STREAMING:
            self._append_parts(connection, [rows.parts[at] for at in others], plain.held, plain.received_at)
        return True

    def _append_plain(self, plain: _PlainParts | None) -> None:
        """Append the collected rows."""
        if plain is None or not plain.streams:
            return
        connections, plain.connections = plain.connections, []
        last = plain.streams[-1]
        try:
            accepted = plain.append(self._buffer)
            self._connections.counts["messages"] += accepted
            if self._connections.traced is not None:
                self._connections.traced.accepted(
                    accepted, last, last.key.scope or connections[-1].instance, plain.received_at
                )
        except Exception as error:
            self._connections.give_up([connection.number for connection in connections], error)

    def _decoded(self, runs: list[Run]) -> list[Found]:
        """The runs by stream, with the sessions whose runs were decoded together."""
        unit = self._connections.options.event_time_unit
        try:
            return [
                ([runs[index][0] for index in indices], decoded, by_stream(decoded))
                for indices, decoded in decode_runs([run for _, run in runs], event_time_unit=unit)
            ]
        except Exception:
            # Decode again, run by run, to find the session whose messages this program fails on.
            found = (
                self._connections.guarded(connection, self._decoded_alone, connection, run) for connection, run in runs
            )
            return [one for one in found if one is not None]

    def _decoded_alone(self, connection: Connection, run: MessageRun) -> Found:
        decoded = decode_run(run, event_time_unit=self._connections.options.event_time_unit)
        return [connection], decoded, by_stream(decoded)

    def _admit(
        self,
        connection: Connection,
        rows: RunRows,
        error: RemoteProtocolError | None,
        held: HeldLot | None,
        received_at: int,
    ) -> None:
        """Accept the rows that the session's streams may send. Raises :class:`RemoteProtocolError` for the others."""
        buffer = self._buffer
        admission = connection.protocol.admit(rows.spans, rows.count, error)
        parts = [part for part in rows.until(admission.end) if part.stream_id not in admission.ignored]
        self._connections.flow.observe(sum(len(part) for part in parts), sum(part.size for part in parts))
        if held is not None:
            self._append_parts(connection, parts, held, received_at)
        for span in rows.spans:
            if span.eos is not None and span.eos < admission.end and span.stream_id not in admission.ignored:
                self._end(connection, buffer.streams[connection.key(span.stream_id)])
        if admission.error is not None:
            raise admission.error

    def _append_parts(self, connection: Connection, parts: list[StreamRows], held: HeldLot, received_at: int) -> None:
        buffer, counts = self._buffer, self._connections.counts
        parts = [part for part in parts if not buffer.streams[connection.key(part.stream_id)].broken_off]
        sent = sum(len(part) for part in parts)
        before = buffer.rows
        try:
            pairs = [(buffer.streams[connection.key(part.stream_id)], part) for part in parts]
            buffer.append(held, pairs, received_at, connection.instance)
        finally:
            accepted = buffer.rows - before
            counts["messages"] += accepted
            counts["replayed"] += sent - accepted
        if accepted and self._connections.traced is not None:
            self._connections.traced.accepted(accepted, pairs[-1][0], connection.instance, received_at)

    def _end(self, connection: Connection, stream: HeldStream) -> None:
        """A stream has ended. If all of it is committed already, acknowledge it again, because the connector waits."""
        if stream.broken_off:
            return
        self._buffer.end(stream)
        connection.open.discard(stream.key)
        if stream.empty and self._buffer.reference(stream.key) is not None:
            self._gates.acknowledge_streams(connection, [stream.key])
        self._connections.tidy(stream)

    def _settle(self, connection: Connection) -> None:
        """After all frames of a session: send its credits and references, and decide whether its socket is read."""
        self._streams.ask(connection)
        self._gates.acknowledge_streams(connection, connection.unacknowledged & connection.streams)
        self._gates.regulate(connection)
