"""Turns the bytes of sessions into rows in the buffer: bytes, frames, columns, and the streams that they belong to.

Bytes of several sessions that arrived at about the same time are decoded in one pass. Each session is still handled by
itself: bad input, or an error of this program, costs the session that caused it and no other. An error that belongs to
no single session costs all of them: frames that were already taken may be lost, and have to be sent again.

Source: ``docs/architecture.md#rules``, rule 7; ``docs/protocol.md#session-states`` and
``docs/protocol.md#stream-states``; ``docs/decisions/runs.md``.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import ParamSpec, TypeVar

from wallaroo_spark.columnar import Decoded, RunRows, by_stream, decode_run, decode_runs
from wallaroo_spark.errors import RemoteProtocolError
from wallaroo_spark.protocol import (
    EosReceived,
    ErrorReceived,
    Fault,
    HelloReceived,
    MessageRun,
    MessagesReceived,
    NotifyReceived,
    WorkerEvent,
    broken,
)
from wallaroo_spark.worker.buffer.held_stream import Ledger
from wallaroo_spark.worker.buffer.segments import HeldLot
from wallaroo_spark.worker.machine.connections import BEFORE_OK, Client, Phase
from wallaroo_spark.worker.machine.handshake import Handshake
from wallaroo_spark.worker.machine.pressure.gates import Gates
from wallaroo_spark.worker.machine.sessions import Sessions
from wallaroo_spark.worker.machine.streams import Streams

LONGEST_HELLO = 5 + 4 * (2 + 0xFFFF)
"""The longest HELLO: its four fields are as long as they can be."""
Run = tuple[Client, MessageRun]
Found = tuple[list[Client], Decoded, list[RunRows]]
P = ParamSpec("P")
T = TypeVar("T")


class Arrivals:
    """Handles the bytes that peers send."""

    def __init__(self, sessions: Sessions, gates: Gates, handshake: Handshake, streams: Streams) -> None:
        self._sessions = sessions
        self._buffer = sessions.buffer
        self._gates = gates
        self._handshake = handshake
        self._streams = streams

    def take_in(self, parts: tuple[tuple[int, bytes], ...], received_at: int) -> None:
        """Handle bytes, given by session, that arrived at ``received_at`` (µs since 1970 UTC)."""
        try:
            self._take_in(parts, received_at)
        except Exception as error:
            self._sessions.give_up([session for session, _ in parts], error)

    def _take_in(self, parts: tuple[tuple[int, bytes], ...], received_at: int) -> None:
        heard: dict[int, Client] = {}
        for session, data in parts:
            client = self._sessions.clients.get(session)
            if client is not None:
                heard[session] = client
                self._guarded(client, self._feed, client, data, received_at)
        clients = going = list(heard.values())
        while going:
            found = ((client, self._guarded(client, self._next_run, client)) for client in going)
            runs = [(client, run) for client, run in found if run is not None]
            if runs:
                self._append(runs, received_at)
            going = [client for client, _ in runs if client.phase is Phase.STREAMING]
        for client in clients:
            self._guarded(client, self._sessions.weigh, client)
            if client.phase is not Phase.LEAVING:
                self._guarded(client, self._settle, client)

    def _guarded(self, client: Client, work: Callable[P, T], *args: P.args, **options: P.kwargs) -> T | None:
        """Call a function for a session, which ends if the call fails; None then."""
        try:
            return work(*args, **options)
        except RemoteProtocolError as error:
            self._sessions.fault(client, error)
        except Exception as error:
            self._sessions.give_up([client.session], error)
        return None

    def _feed(self, client: Client, data: bytes, received_at: int) -> None:
        self._sessions.counts["bytes"] += len(data)
        client.last_at = received_at
        self._sessions.heard(client)
        client.protocol.receive(data)
        if client.phase in BEFORE_OK and client.protocol.pending > LONGEST_HELLO:
            # Nobody who has not been told OK gets more memory than a HELLO takes.
            reason = f"{client.protocol.pending} bytes came without a whole HELLO; none is longer than {LONGEST_HELLO}"
            raise broken(Fault.FRAME_TOO_LONG, reason)

    def _next_run(self, client: Client) -> MessageRun | None:
        """The next messages of a session; frames before them are handled."""
        while (found := client.protocol.next_event()) is not None:
            client.turn = None
            if isinstance(found, MessagesReceived):
                return found.run
            self._found(client, found)
        return None

    def _found(self, client: Client, found: WorkerEvent) -> None:
        match found:
            case HelloReceived():
                self._handshake.hello(client)
            case NotifyReceived():
                self._streams.notify(client, found)
            case EosReceived():
                self._end(client, self._buffer.ledgers[client.key(found.stream_id)])
            case ErrorReceived():
                self._sessions.counts["peer-errors"] += 1
                self._sessions.log(client, f"gave up: {found.reason}")
                self._sessions.leave(client)

    def _append(self, runs: list[Run], received_at: int) -> None:
        for clients, decoded, by_run in self._decoded(runs):
            lots = [part.lot for rows in by_run for part in rows.parts[:1]]
            held = self._buffer.hold(lots[0]) if lots else None
            for client, rows in zip(clients, by_run, strict=True):
                # What another session has sent may have ended this one.
                if client.phase is Phase.STREAMING:
                    self._guarded(client, self._admit, client, rows, decoded.error, held, received_at)
            if held is not None:
                self._buffer.settle(held)

    def _decoded(self, runs: list[Run]) -> list[Found]:
        """The runs by stream, with the sessions whose runs were decoded together."""
        unit = self._sessions.options.event_time_unit
        try:
            return [
                ([runs[index][0] for index in indices], decoded, by_stream(decoded))
                for indices, decoded in decode_runs([run for _, run in runs], event_time_unit=unit)
            ]
        except Exception:
            # Once more, to see whose messages they are that this program fails on.
            found = (self._guarded(client, self._decoded_alone, client, run) for client, run in runs)
            return [one for one in found if one is not None]

    def _decoded_alone(self, client: Client, run: MessageRun) -> Found:
        decoded = decode_run(run, event_time_unit=self._sessions.options.event_time_unit)
        return [client], decoded, by_stream(decoded)

    def _admit(
        self,
        client: Client,
        rows: RunRows,
        error: RemoteProtocolError | None,
        held: HeldLot | None,
        received_at: int,
    ) -> None:
        """Accept the rows that the session's streams may send. Raises :class:`RemoteProtocolError` for the others."""
        buffer, counts = self._buffer, self._sessions.counts
        admission = client.protocol.admit(rows.spans, rows.count, error)
        parts = [part for part in rows.until(admission.end) if part.stream_id not in admission.ignored]
        self._sessions.flow.observe(sum(len(part) for part in parts), sum(part.size for part in parts))
        parts = [part for part in parts if not buffer.ledgers[client.key(part.stream_id)].broken_off]
        sent = sum(len(part) for part in parts)
        before = buffer.rows
        try:
            if held is not None:
                pairs = [(buffer.ledgers[client.key(part.stream_id)], part) for part in parts]
                buffer.append(held, pairs, received_at, client.instance)
        finally:
            accepted = buffer.rows - before
            counts["messages"] += accepted
            counts["replayed"] += sent - accepted
        for span in rows.spans:
            if span.eos is not None and span.eos < admission.end and span.stream_id not in admission.ignored:
                self._end(client, buffer.ledgers[client.key(span.stream_id)])
        if admission.error is not None:
            raise admission.error

    def _end(self, client: Client, ledger: Ledger) -> None:
        """A stream has ended; when all of it is committed already, acknowledge it again: the connector waits."""
        if ledger.broken_off:
            return
        self._buffer.end(ledger)
        client.open.discard(ledger.key)
        if ledger.empty and self._buffer.reference(ledger.key) is not None:
            self._gates.tell(client, [ledger.key])
        self._sessions.tidy(ledger)

    def _settle(self, client: Client) -> None:
        """Tell the session its credits and references, and decide whether it is read, after all its frames."""
        self._streams.ask(client)
        self._gates.tell(client, client.untold & client.streams)
        self._gates.regulate(client)
