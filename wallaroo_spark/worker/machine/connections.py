"""The connections of a worker: their beginning, the frames that all of them can receive, and their end.

The other parts of the worker's state are built on this one. Their instructions are collected in ``out``.

Source: ``docs/protocol.md#session-states`` and ``docs/protocol.md#rewinding``.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Iterable
from typing import NamedTuple, ParamSpec, TypeVar

from wallaroo_spark.columnar import find_messages
from wallaroo_spark.errors import RemoteProtocolError
from wallaroo_spark.options import Options
from wallaroo_spark.protocol import Fault, Nack, Restart, WorkerSession, broken, faults
from wallaroo_spark.references import StreamKey
from wallaroo_spark.worker.buffer.buffer import Buffer
from wallaroo_spark.worker.buffer.ephemeral import Origin
from wallaroo_spark.worker.buffer.following import Following
from wallaroo_spark.worker.buffer.held_stream import HeldStream
from wallaroo_spark.worker.buffer.stream_ends import EndedStreams
from wallaroo_spark.worker.machine import events as e
from wallaroo_spark.worker.machine.connection_state import BEFORE_OK, Connection, ConnectionPhase
from wallaroo_spark.worker.machine.pressure.flow import FlowControl
from wallaroo_spark.worker.machine.traced_messages import TracedMessages

LEAVING_SECONDS = 5.0
"""Seconds that a peer has to close its side after RESTART or ERROR. A choice; it bounds the sockets of old sessions."""
LEAST_EARLY, EARLY_PART = 1 << 20, 16
"""Limit of the buffered bytes of all peers without OK: the greater of these bytes and this part of the budget.

It bounds the memory of unauthenticated peers. The longest HELLO has a quarter of a MiB.
"""
ACTIVE_SECONDS = 1.0
"""A session counts as active for this many seconds after its last bytes.

It is longer than the pauses of a sender that waits for credits, and short enough to follow a change of load.
"""
REFUSALS = 16
"""Refused connections that are remembered. They are enough for a person, and bound memory."""
REASON_LENGTH = 300
"""Characters of a remembered reason. It bounds memory."""
ROW_SECONDS = 60.0
"""Seconds within which the next refusal of a door by the same code belongs to the same row of them. A choice: clients
try again at least once in that time."""
P = ParamSpec("P")
T = TypeVar("T")


class RefusedConnection(NamedTuple):
    """A connection that was ended because of a fault."""

    at: float
    """Time of the end in monotonic seconds."""
    kind: str
    """The kind of the fault."""
    peer: str
    """The peer as ``host:port``."""
    instance: str
    """Name of its connector instance; empty before a valid HELLO."""
    reason: str
    """The reason that the peer was sent."""
    times: int = 1
    """How many there were in a row; of a door alone, where more than one counts as one."""


class Connections:
    """The connections, and the data that all parts of the state share: buffer, claims, counts and instructions."""

    def __init__(self, options: Options, origin: Origin, cookie: str) -> None:
        self.options = options
        self.slot = origin.slot
        self.buffer = Buffer(options.memory_budget, origin, options.message_ids)
        self.flow = FlowControl(options)
        self.ends = EndedStreams(options.stream_retention, forgets=options.forgets)
        self.following = Following()
        self.by_number: dict[int, Connection] = {}
        """All connections."""
        self.serving: set[int] = set()
        """Numbers of the connections with an accepted HELLO whose session has not ended."""
        self.streaming: dict[int, Connection] = {}
        """The connections in ``serving`` that were sent OK."""
        self.senders: dict[str, Connection] = {}
        """The only streaming session of each instance, in the drafts."""
        self.assigned: set[str] = set()
        """The instances that the registry assigns to this slot because of this worker."""
        self.claims: set[int] = set()
        """The stream ids that the registry has claimed for this slot, in v3."""
        self.counts: Counter[str] = Counter()
        self.traced = TracedMessages(options.trace_sample) if options.trace_sample else None
        """The messages that are followed for traces; None when there are to be none."""
        self.room: int | None = None
        """The number of connections for which the worker's process has open files; None: no limit."""
        self.recent: dict[int, Connection] = {}
        """The connections that sent bytes in the last ``ACTIVE_SECONDS``, the earliest first."""
        self.unheard: set[int] = set()
        """Numbers of the connections that sent bytes earlier than that, and had no credits left."""
        self.paused: dict[int, Connection] = {}
        """The connections that are not read."""
        self.awaiting: dict[int, Connection] = {}
        """The connections that wait for the driver to tell the references of their scope."""
        self.denied: dict[int, Connection] = {}
        """The sessions that got no credits because the buffer was full; they get some when it has room."""
        self.expiring: dict[int, Connection] = {}
        """The connections that have a deadline."""
        self.early = 0
        """Buffered bytes of all peers without OK."""
        self.turnover = 0
        """A number that increases when a stream gets or loses its sender, or is forgotten."""
        self.stopping = ""
        """The reason why the worker shuts down; empty while it does not."""
        self.refusals: deque[RefusedConnection] = deque(maxlen=REFUSALS)
        """The last connections that were ended because of a fault, the oldest first."""
        self.out: list[e.Instruction] = []
        """The instructions of the event that is being handled."""
        self._departures = 0
        """A count of connections that left ``serving``."""
        self._all_served_at: tuple[int, int] | None = None
        """``_departures`` and the number of assigned instances when all of these were last found to be served."""
        self._cookie = cookie.encode("utf-8")
        self.now = 0.0
        """The clock of the last event, in monotonic seconds."""

    def connected(self, event: e.Connected) -> None:
        """Register a new connection. Its peer must send HELLO within the handshake timeout."""
        self.now = event.now
        protocol = WorkerSession(
            version=self.options.version,
            cookie=self._cookie,
            max_frame_bytes=self.options.max_frame_bytes,
            find=find_messages,
        )
        connection = Connection(event.connection, event.peer, protocol, event.now, None, event.names, event.door)
        self.by_number[event.connection] = connection
        self.expire(connection, event.now + self.options.handshake_timeout)
        self.heard(connection)
        self.counts["connections"] += 1
        most, why = 2 * self.options.max_sessions, "twice maxSessions"
        if self.room is not None and self.room < most:
            most, why = self.room, "as many as its process has open files for; raise their hard limit (ulimit -Hn)"
        if len(self.by_number) > most:
            reason = f"the worker has {most} connections, {why}"
            self.fault(connection, broken(Fault.WORKER_FULL, reason), at_once=True)

    def disconnected(self, event: e.Disconnected) -> None:
        """Release a connection that has ended; either side may have ended it."""
        connection = self.by_number.get(event.connection)
        if connection is None:
            return
        reasons_given = [event.reason] if event.reason else []
        truncated = False
        try:
            connection.protocol.receive_end()
        except RemoteProtocolError as error:
            truncated = True
            reasons_given.append(error.message)
            self.counts[f"fault:{error.fields['fault']}"] += 1
        self.log(connection, ": ".join(["has disconnected", *reasons_given]), warning=truncated)
        self._release_session(connection)
        self.forget(event.connection)

    def forget(self, number: int) -> None:
        """Remove a connection from all tables of connections."""
        self.by_number.pop(number, None)
        self.expiring.pop(number, None)
        self.recent.pop(number, None)
        self.paused.pop(number, None)
        self.unheard.discard(number)

    def expire(self, connection: Connection, deadline: float | None) -> None:
        """Set the time at which the current phase of a connection has lasted too long; None: there is no limit."""
        connection.deadline = deadline
        if deadline is None:
            self.expiring.pop(connection.number, None)
        else:
            self.expiring[connection.number] = connection

    def stuck(self, event: e.Stuck) -> None:
        """End the session of a peer that does not read its bytes."""
        connection = self.by_number.get(event.connection)
        if connection is not None:
            reason = f"does not read: {event.queued} bytes wait for it"
            self.fault(connection, broken(Fault.PEER_NEVER_READS, reason), at_once=True)

    def guarded(self, connection: Connection, work: Callable[P, T], *args: P.args, **options: P.kwargs) -> T | None:
        """Call a function for a session. If the call fails, the session ends and the result is None."""
        try:
            return work(*args, **options)
        except RemoteProtocolError as error:
            self.fault(connection, error)
        except Exception as error:
            self.give_up([connection.number], error)
        return None

    def give_up(self, connections: Iterable[int], error: Exception) -> None:
        """End these sessions after an error of this program, and no other session.

        Messages of these sessions may be lost, so their connectors must resend them. Parts of the state that were
        changed only in part are made consistent. If this method raises, the state may be wrong, and the caller must end
        the worker.
        """
        self.counts["internal-errors"] += 1
        # The error may also have been raised during the release of a session that the event does not name.
        leaving = (one for one in self.by_number.values() if one.phase is ConnectionPhase.LEAVING)
        half_gone = [one.number for one in leaving if one.deadline is None]
        cut_off = list(dict.fromkeys([*connections, *half_gone]))
        self._put_in_order(cut_off)
        trace: Exception | None = error
        for number in cut_off:
            connection = self.by_number.get(number)
            if connection is None:
                self.out.append(e.Close(number, at_once=True))
            elif connection.phase is not ConnectionPhase.LEAVING:
                self.log(connection, f"is cut off: an error of this program: {error!r}", warning=True, error=trace)
                trace = None
                connection.protocol.close()
                self.leave(connection, at_once=True)
            elif connection.deadline is None:
                self.leave(connection, at_once=True)
            else:
                # The error may have been raised during its release.
                self._release_session(connection)
        for stream in [stream for stream in self.buffer.streams.values() if stream.owner is None]:
            self.tidy(stream)
        # The error may have been raised between a claim and the opening of its stream.
        for stream_id in sorted(self.claims):
            self.release(stream_id)

    def _put_in_order(self, numbers: Iterable[int]) -> None:
        """Make the parts of the state consistent again after an error between two changes."""
        connections = self.by_number
        self.buffer.unfinished = sum(connection.unfinished for connection in connections.values())
        self.early = sum(connection.early for connection in connections.values())
        for stream in self.buffer.streams.values():
            if stream.owner is not None:
                connections[stream.owner].streams.add(stream.key)
        mine = [connections[number] for number in numbers if number in connections]
        owned = {key: None for connection in mine for key in connection.streams}
        # A stream without an owner may be one that a session of the event was about to take over.
        unowned = {key: None for key, stream in self.buffer.streams.items() if stream.owner is None}
        self.buffer.recover([self.buffer.streams[key] for key in owned | unowned if key in self.buffer.streams])
        for instruction in self.out:
            if isinstance(instruction, e.ReleaseClaims):
                self.claims.difference_update(instruction.streams)

    def dismiss(self, connection: Connection, reason: str, count: str) -> None:
        """End a session that kept the protocol and needs more resources than this worker has."""
        self.counts[count] += 1
        self.log(connection, f"is sent away: {reason}", warning=True)
        self.send(connection, connection.protocol.fail(reason))
        self.leave(connection)

    def tick(self, now: float) -> None:
        """Set the clock, and end the phases that have exceeded their limits."""
        self.now = now
        self.flow.active = self._active()
        self.flow.tick(now, self.buffer.used, self.buffer.plannable)
        for connection in [c for c in self.expiring.values() if c.deadline is not None and c.deadline <= now]:
            if connection.phase is ConnectionPhase.LEAVING:
                self.out.append(e.Close(connection.number, at_once=True))
                self.expire(connection, None)
            elif connection.phase is ConnectionPhase.AWAITING:
                why = f"the driver has not told the committed references of {connection.instance!r} in time"
                self.refuse(connection, faults.later(why))
            else:
                seconds = self.options.handshake_timeout
                reason = f"no HELLO came within {seconds:g} seconds (handshakeTimeout)"
                self.fault(connection, broken(Fault.HANDSHAKE_TIMEOUT, reason))

        self._release_instances()
        if self.following.left:
            self._forget_scopes()
        if self.options.idle_timeout:
            for connection in list(self.streaming.values()):
                if connection.heard_at + self.options.idle_timeout <= now and not self._awaits(connection):
                    seconds = self.options.idle_timeout
                    self.send_off(connection, f"nothing was sent for {seconds:g} seconds (idleTimeout)", told=True)

    def instances(self) -> list[str]:
        """The connector instances that are connected, or of which rows are held."""
        return sorted({self.by_number[number].instance for number in self.serving} | self.buffer.senders())

    def _release_instances(self) -> None:
        """Release instances that are not connected and have no held rows, so that another worker can get them."""
        if self._all_served_at == (self._departures, len(self.assigned)):
            # No session has left since all instances were found to be served, and no instance was assigned since.
            return
        self._all_served_at = None
        if self.assigned.issubset(self.by_number[number].instance for number in self.serving):
            self._all_served_at = (self._departures, len(self.assigned))
            return
        gone = self.assigned.difference(self.instances())
        if gone:
            self.assigned -= gone
            self.following.left.update(scope for scope in gone if scope in self.following)
            shared = any(self.by_number[number].scope == "" for number in self.serving)
            if "" in self.following and not shared and not self.buffer.of_scope(""):
                self.following.left.add("")
            self.out.append(e.ReleaseInstances(tuple(sorted(gone))))

    def _forget_scopes(self) -> None:
        """Follow scopes no more that no connector here has, once all ends of their streams are recorded."""
        reporting = self.ends.unrecorded_scopes()
        for scope in sorted(self.following.left - reporting):
            self.following.forget(scope)
            self.buffer.forget_scope(scope)

    def _active(self) -> int:
        """The number of sessions that sent bytes recently, or would have sent some if they had had credits."""
        while self.recent:
            number = next(iter(self.recent))
            connection = self.recent[number]
            if connection.heard_at + ACTIVE_SECONDS > self.now:
                break
            del self.recent[number]
            self.unheard.add(number)
        for number in [n for n in self.unheard if not self._starves(n)]:
            self.unheard.discard(number)
        return sum(number in self.streaming for number in self.recent) + len(self.unheard)

    def _starves(self, number: int) -> bool:
        connection = self.streaming.get(number)
        return connection is not None and connection.protocol.credits.available <= 0

    def weigh(self, connection: Connection) -> None:
        """Count the received bytes of a session's incomplete frame.

        The bytes of all peers without OK are counted separately, so that such peers cannot fill the buffer. Raises
        :class:`RemoteProtocolError` when these bytes exceed their limit.
        """
        pending = connection.protocol.pending + connection.holding
        unfinished = pending if connection.phase is ConnectionPhase.STREAMING else 0
        early = pending if connection.phase in BEFORE_OK else 0
        self.buffer.unfinished += unfinished - connection.unfinished
        self.early += early - connection.early
        connection.unfinished, connection.early = unfinished, early
        most = max(LEAST_EARLY, self.buffer.budget // EARLY_PART)
        if early and self.early > most:
            why = f"peers without OK have sent {self.early} bytes, and the limit for all of them is {most}"
            raise broken(Fault.WORKER_FULL, faults.later(why))

    def hold(self, event: e.Holding) -> None:
        """Count the bytes that are held for a session, in place of those before.

        Those of a transport count until OK. Later the session's credits limit them, and the buffer must be able to
        become empty while they wait.
        """
        connection = self.by_number.get(event.connection)
        if connection is not None:
            phase = connection.phase
            counts = phase is ConnectionPhase.STREAMING if connection.door else phase in BEFORE_OK
            connection.holding = event.size if counts else 0
            self.guarded(connection, self.weigh, connection)

    def violated(self, event: e.Violated) -> None:
        """End the session of a peer that has violated the protocol, as its transport has found."""
        connection = self.by_number.get(event.connection)
        if connection is not None and connection.phase is not ConnectionPhase.LEAVING:
            self.fault(connection, broken(Fault(event.fault), event.reason))

    def heard(self, connection: Connection) -> None:
        """Record that a peer has sent bytes."""
        connection.heard_at = self.now
        self.recent.pop(connection.number, None)
        self.recent[connection.number] = connection
        self.unheard.discard(connection.number)

    def _awaits(self, connection: Connection) -> bool:
        """Whether a silent peer waits for this worker: its socket is not read, or an ACK is due."""
        streams = (self.buffer.streams.get(key) for key in connection.streams)
        return connection.paused or any(stream is not None and not stream.empty for stream in streams)

    def stop(self, reason: str) -> None:
        """Make every session reconnect, because the worker shuts down."""
        self.stopping = reason
        for connection in list(self.by_number.values()):
            if connection.phase is not ConnectionPhase.LEAVING:
                self.send_off(connection, reason)

    def fault(self, connection: Connection, error: RemoteProtocolError, *, at_once: bool = False) -> None:
        """End the session of a peer that has violated the protocol: count it, send the reason if possible, close."""
        kind = str(error.fields["fault"])
        self.counts[f"fault:{kind}"] += 1
        if connection.phase in BEFORE_OK:
            self.counts[f"refused:{kind}"] += 1
        refused = RefusedConnection(self.now, kind, connection.peer, connection.instance, error.message[:REASON_LENGTH])
        self.refusals.append(refused)
        self.log(connection, f"is sent away: {error.message}", warning=True)
        data = connection.protocol.fail(error.message)
        if not at_once:
            self.send(connection, data)
        self.leave(connection, at_once=at_once)

    def note(self, kind: str, peer: str, instance: str, reason: str) -> None:
        """Remember what a door has refused, or a batch left out: the last one of each kind, so that many of one client
        push nothing else out."""
        times = 1
        for before in [one for one in self.refusals if one.kind == kind]:
            self.refusals.remove(before)
            if self.now - before.at < ROW_SECONDS:
                times += before.times
        self.refusals.append(RefusedConnection(self.now, kind, peer, instance, reason[:REASON_LENGTH], times))

    def send_off(self, connection: Connection, why: str, *, told: bool = False) -> None:
        """Make a connector that kept the protocol reconnect, in the way of its revision.

        ``told`` is for reasons that the connector's operator should read. They are sent as an ERROR, except in a
        revision whose connectors stop after an ERROR.
        """
        revision = connection.revision if connection.phase is ConnectionPhase.STREAMING else None
        if revision is None or not revision.has(Restart):
            self._nack(connection)
            self.refuse(connection, faults.later(why))
        elif revision.back_after_close and self.options.v3_leave == "close":
            self.log(connection, f"must connect again: {why}")
            connection.protocol.close()
            self.leave(connection)
        elif told and not revision.back_after_close:
            self.refuse(connection, faults.later(why))
        else:
            self.log(connection, f"must connect again: {why}")
            self.send(connection, connection.protocol.restart())
            self.leave(connection, wait=True)

    def _nack(self, connection: Connection) -> None:
        """Send NACK for each stream, with the reference from which to resend, if the revision has NACK."""
        if connection.phase is ConnectionPhase.STREAMING and connection.revision.has(Nack):
            for key in sorted(connection.streams):
                self.send(connection, connection.protocol.nack(key.stream_id, self.buffer.reference(key)))

    def refuse(self, connection: Connection, reason: str) -> None:
        """End a session that kept the protocol, with a reason."""
        if connection.phase in BEFORE_OK:
            self.counts["refused:" + ("redirected" if faults.redirect_address(reason) else "try-later")] += 1
        self.log(connection, f"is refused: {reason}")
        self.send(connection, connection.protocol.error(reason))
        self.leave(connection)

    def leave(self, connection: Connection, *, wait: bool = False, at_once: bool = False) -> None:
        """End the session: close now, or after the peer has closed (``wait``)."""
        connection.phase = ConnectionPhase.LEAVING
        self._release_session(connection)
        self.expire(connection, self.now + LEAVING_SECONDS)
        if connection.paused:
            connection.paused = False
            self.paused.pop(connection.number, None)
            self.out.append(e.SetReading(connection.number, True))
        if not wait:
            self.out.append(e.Close(connection.number, at_once))

    def _release_session(self, connection: Connection) -> None:
        """Remove the session from the tables of sessions, and release its streams. May be called again."""
        if connection.number in self.serving:
            self.serving.discard(connection.number)
            self._departures += 1
        self.streaming.pop(connection.number, None)
        self.denied.pop(connection.number, None)
        self.awaiting.pop(connection.number, None)
        if self.senders.get(connection.instance) is connection:
            del self.senders[connection.instance]
        self.buffer.unfinished -= connection.unfinished
        self.early -= connection.early
        connection.unfinished, connection.early, connection.turn, connection.holding = 0, 0, None, 0
        keys, connection.streams = connection.streams, set()
        connection.open.clear()
        connection.asked.clear()
        connection.to_ask.clear()
        for key in keys:
            stream = self.buffer.streams.get(key)
            if stream is not None and stream.owner == connection.number:
                if connection.door:
                    # A request is accepted as a whole, and the rest of this one will not come.
                    self.buffer.drop_unstable(stream)
                stream.owner = None
                self.turnover += 1
                self.tidy(stream)

    def tidy(self, stream: HeldStream) -> None:
        """Forget a stream that no session sends and that has no held rows, so that another worker can get it."""
        if not stream.empty or stream.key not in self.buffer.streams:
            return
        owner = self.by_number.get(stream.owner) if stream.owner is not None else None
        if owner is not None and not stream.ended:
            return
        if owner is not None:
            owner.streams.discard(stream.key)
            owner.protocol.streams.finish(stream.key.stream_id)
        self.buffer.forget(stream)
        if stream.ended:
            self.ends.ended(stream.key, stream.committed)
        self.turnover += 1
        self.release(stream.key.stream_id if not stream.key.scope else None)

    def release(self, stream_id: int | None) -> None:
        """Release the claim of a stream id, unless its stream is in use."""
        if stream_id in self.claims and StreamKey("", stream_id) not in self.buffer.streams:
            self.out.append(e.ReleaseClaims((stream_id,)))
            self.claims.discard(stream_id)

    def send(self, connection: Connection, data: bytes | None) -> None:
        """Send bytes to a peer; None, for a peer to which nothing can be sent, is passed over."""
        if data is not None:
            self.out.append(e.Send(connection.number, data))

    def log(self, connection: Connection, text: str, *, warning: bool = False, error: Exception | None = None) -> None:
        """Log a line about a peer."""
        self.out.append(e.Log(connection.number, f"{connection} {text}", warning, error))
