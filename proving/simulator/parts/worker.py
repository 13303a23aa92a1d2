"""A worker's process: a simulated shell around the product's own state machine.

It follows ``wallaroo_spark/worker/service.py``, ``slot_tenancy.py`` and ``reads.py`` rule by rule. Its doors are in
``proving/simulator/parts/doors.py``.
"""

from __future__ import annotations

import contextlib
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from proving.simulator.engine.core import Promise, Simulation, Steps, Violation
from proving.simulator.engine.failing import Failing
from proving.simulator.engine.network import End
from proving.simulator.parts.doors import DoorEnd, Doors, DoorShell
from proving.simulator.parts.surroundings import Surroundings
from wallaroo_spark.columnar.decode import ROW_OVERHEAD
from wallaroo_spark.doors.client import DoorClient
from wallaroo_spark.errors import LeaseLostError, RegistryError, TransportError
from wallaroo_spark.inner.calls import PlanQuestion
from wallaroo_spark.inner.rows import Unpacker
from wallaroo_spark.protocol import WorkerSession
from wallaroo_spark.references import PlannedRange
from wallaroo_spark.registry import Lease
from wallaroo_spark.worker.buffer.delivery import gather
from wallaroo_spark.worker.buffer.ephemeral import Origin
from wallaroo_spark.worker.buffer.found import FoundRanges
from wallaroo_spark.worker.buffer.segments import LOT_OVERHEAD, SEGMENT_OVERHEAD
from wallaroo_spark.worker.machine import events as e
from wallaroo_spark.worker.machine.environment import carry_out
from wallaroo_spark.worker.machine.state import WorkerState
from wallaroo_spark.worker.reads import LINGER_SECONDS, NEWS_SECONDS, WaitedRanges
from wallaroo_spark.worker.slot_tenancy import next_names

TICK_SECONDS = 1.0
STOP_SECONDS = 3.0
LOT_SECONDS = 0.02
NAMED_INSTANCES = 1
"""The most instances that one renewal names unless it names all: far fewer than the product's, as there are few."""


@dataclass
class Peer:
    """A connection of the shell."""

    end: End | DoorEnd
    """The worker's end of the connection."""
    paused: bool = False
    """Whether the worker does not read from it now."""
    inbox: deque[bytes | e.Disconnected] = field(default_factory=deque)
    """Received data and events that are not handled yet."""


@dataclass
class Waiting:
    """A read that waits for ranges."""

    ranges: dict[int, PlannedRange]
    answer: Promise


class Worker(DoorShell):
    """One process that serves a slot or waits for its lease. ``end`` is the reason for its end, empty before that."""

    def __init__(self, world: Surroundings, slot: int, submission: int, token: str, workers: int) -> None:
        self.number = world.next_number()
        super().__init__(f"worker {slot}#{self.number}", token)
        self.world = world
        self.sim: Simulation = world.sim
        self.slot = slot
        self.submission = submission
        self.options = world.options(workers)
        self.state: WorkerState | None = None
        self.lease: Lease = None  # type: ignore[assignment]  # nothing reads it before a slot is held
        self.stopping = False
        self.address = f"10.0.0.{self.number}:7100"
        self.flight = f"10.0.0.{self.number}:7200"
        self.ended = Promise()
        self.unanswered_at = 0.0
        self.largest_read = 0
        self.failing: Failing | None = None
        self.failed = False
        self.doors: Doors | None = None
        self._peers: dict[int, Peer] = {}
        self._lot: dict[int, bytes] = {}
        self._sessions: dict[int, int] = {}
        self._next_session = 0
        self._named_last = ""
        self._doubtful: set[int] = set()
        self._releasing: Promise | None = None
        self._claiming: deque[tuple[Callable[[], Steps], Promise]] = deque()
        self._waited = WaitedRanges(self._want)
        self._reads: list[Waiting] = []
        self._asking: list[tuple[int, Promise]] = []
        self._asked: list[tuple[int, bool, Promise]] = []
        self._woken = False
        self.sim.spawn(self, self._run())

    @property
    def holder(self) -> str:
        """Its name in the registry."""
        return f"process-{self.number}"

    # Its life.

    def _run(self) -> Steps:
        third = self.options.lease_seconds / 3
        while True:
            try:
                lease = yield self._acquire("", "")
                if lease is not None:
                    break
                if (yield from self._release_for_dead_holder()):
                    continue
            except LeaseLostError as error:
                self._end(error.message)
                return
            except RegistryError:
                pass
            if self.stopping:
                self._end("told to stop")
                return
            yield third
        self.lease = lease
        if self.stopping:
            yield from self._release("told to stop")
            return
        self.sim.log(self.name, f"has the lease, generation {lease.generation % 10_000_000}")
        self.state = WorkerState(self.options, Origin(self.slot, lease.generation), self.world.cookie)
        self.serving = True
        if self.world.profile.doors:
            self.doors = Doors(self, self.state)
        self.sim.spawn(self, self._renew())
        self.world.network.listeners[self.address] = (self, self._accept)
        self.world.inner.ports[self.flight] = self
        self.sim.spawn(self, self._tick())
        while not self.stopping:
            try:
                lease = yield self._acquire(self.address, self.flight)
                if lease is not None:
                    self.lease = lease
                    return
            except LeaseLostError as error:
                self.stop(error.message)
                return
            except RegistryError:
                pass
            yield third

    def _acquire(self, connect: str, flight: str) -> Promise:
        slot, submission, holder = self.slot, self.submission, self.holder
        return self.world.registry.ask(lambda r: r.acquire(slot, submission, holder, connect, flight))

    def _release_for_dead_holder(self) -> Steps:
        held = (yield self.world.registry.ask(lambda r: r.leases())).get(self.slot)
        if held is None or not held.flight or held.flight in self.world.inner.ports:
            return False
        yield self.world.registry.ask(lambda r: r.release(held))
        return True

    def stop(self, reason: str) -> None:
        """Stop in good order."""
        if self.stopping:
            return
        self.stopping = True
        self.sim.log(self.name, f"stops: {reason}")
        if self.serving:
            self.world.network.listeners.pop(self.address, None)
            self.handle(e.Stopping(reason))
            if self.doors is not None:
                self.doors.close()
            self.sim.spawn(self, self._farewell(reason))

    def _farewell(self, reason: str) -> Steps:
        until = self.sim.now + STOP_SECONDS
        while self._peers and self.sim.now < until:
            yield 0.2
        for peer in list(self._peers.values()):
            peer.end.abort()
        self.serving = False
        self.world.inner.ports.pop(self.flight, None)
        yield from self._release(reason)

    def _release(self, reason: str) -> Steps:
        lease = self.lease
        with contextlib.suppress(RegistryError):
            yield self.world.registry.ask(lambda r: r.release(lease))
        self._end(reason)

    def kill(self, *, silent: bool = False) -> None:
        """End at once, as by SIGKILL, or with its machine (``silent``)."""
        if not self.alive:
            return
        self.alive = False
        self.serving = False
        self.sim.log(self.name, "is lost with its machine" if silent else "is killed")
        self.world.network.listeners.pop(self.address, None)
        self.world.inner.ports.pop(self.flight, None)
        self.world.network.kill(self, silent=silent)
        self.ended.resolve("killed")

    def _end(self, reason: str) -> None:
        self.sim.log(self.name, f"ends: {reason}")
        self.alive = False
        self.serving = False
        self.ended.resolve(reason)

    def _tick(self) -> Steps:
        while True:
            yield TICK_SECONDS
            self.handle(e.Tick(self.sim.now))
            if self.doors is not None and not self.failed:
                self.doors.tick()

    def _want(self, ranges: tuple[PlannedRange, ...]) -> None:
        if self.doors is not None:
            self.doors.ground.wanted(ranges)
        self.handle(e.Wanted(ranges))

    def _renew(self) -> Steps:
        state = self.state
        assert state is not None
        while True:
            yield self.options.lease_seconds / 3
            try:
                yield from self._renew_lease(state)
                lost = yield self._in_turn(self._renew_claims)
            except LeaseLostError as error:
                self.lease_lost(error)
                return
            except RegistryError:
                self.unanswered_at = self.sim.now
                continue
            if lost:
                self.sim.log(self.name, f"has lost the claims of {sorted(lost)}")
                self.handle(e.ClaimsLost(frozenset(lost)))

    def _renew_lease(self, state: WorkerState) -> Steps:
        instances = next_names(state.connections.instances(), self._named_last, NAMED_INSTANCES)
        whole = yield self._ask_renewal(instances, everything=False)
        state.connections.assigned.update(instances)
        self._named_last = instances[-1] if instances else ""
        if not whole:
            instances = state.connections.instances()
            yield self._ask_renewal(instances, everything=True)
            state.connections.assigned.update(instances)

    def _ask_renewal(self, instances: list[str], *, everything: bool) -> Promise:
        lease = self.lease
        return self.world.registry.ask(lambda r: r.renew(lease, instances=instances, everything=everything))

    def lease_lost(self, error: LeaseLostError) -> None:
        """The registry says that another worker has the slot."""
        self.stop(error.message)

    # Claims, one after the other.

    def _in_turn(self, work: Callable[[], Steps]) -> Promise:
        answer = Promise()
        self._claiming.append((work, answer))
        if len(self._claiming) == 1:
            self.sim.spawn(self, self._take_turns())
        return answer

    def _take_turns(self) -> Steps:
        while self._claiming:
            work, answer = self._claiming[0]
            try:
                result = yield from work()
            except RegistryError as error:
                answer.fail(error)
            else:
                answer.resolve(result)
            self._claiming.popleft()

    def _claim(self, streams: Iterable[int]) -> Steps:
        wanted, lease = list(streams), self.lease
        self._doubtful.update(wanted)
        granted = yield self.world.registry.ask(lambda r: r.claim(lease, wanted))
        self._doubtful.difference_update(wanted)
        return granted

    def _renew_claims(self) -> Steps:
        assert self.state is not None
        yield from self._give_back()
        wanted, lease = sorted(self.state.connections.claims), self.lease
        if not wanted:
            return set()
        return set(wanted) - (yield self.world.registry.ask(lambda r: r.claim(lease, wanted)))

    def _unclaim(self, streams: tuple[int, ...]) -> Steps:
        self._doubtful.update(streams)
        yield from self._give_back()

    def _give_back(self) -> Steps:
        doubtful, lease = sorted(self._doubtful), self.lease
        if doubtful:
            yield self.world.registry.ask(lambda r: r.unclaim(lease, doubtful))
            self._doubtful.clear()

    # Connections.

    def _accept(self, end: End) -> None:
        session = self._next_session
        self._next_session += 1
        self._peers[session] = Peer(end)
        self._sessions[end.number] = session
        end.taker = self
        self.handle(e.Connected(session, f"a peer:{end.number}", self.sim.now))

    def enter(self, client: DoorClient) -> int:
        """Register the session of a door's client as a peer; returns its number."""
        session = self._next_session
        self._next_session += 1
        self._peers[session] = Peer(DoorEnd(client))
        return session

    def depart(self, session: int) -> None:
        """The session of a door's client has ended."""
        self._take_in()
        if self._peers.pop(session, None) is not None:
            self.handle(e.Disconnected(session, ""))

    def gather(self, session: int, data: bytes) -> None:
        """A door's client has sent bytes. They are handled at once only when many have come."""
        self._gather(session, data)
        if self.sim.chance(0.02):
            self._take_in()

    def take(self, end: End, data: bytes) -> None:
        """Bytes have arrived; they wait while the session is not read."""
        session = self._sessions[end.number]
        peer = self._peers.get(session)
        if peer is not None:
            peer.inbox.append(data)
            self._drain(session)

    def session_of(self, end: End) -> WorkerSession | None:
        """The session that a connection carries."""
        client = self.state.connections.by_number.get(self._sessions.get(end.number, -1)) if self.state else None
        return client.protocol if client else None

    def gone(self, end: End, reason: str) -> None:
        """A connection has ended; the end is handled after the bytes that arrived before it."""
        session = self._sessions[end.number]
        peer = self._peers.get(session)
        if peer is not None:
            peer.inbox.append(e.Disconnected(session, reason))
            if end.closed:
                peer.paused = False
            self._drain(session)

    def _drain(self, session: int) -> None:
        # Handling received bytes may drain the rest as well, up to the end of the session.
        while (peer := self._peers.get(session)) and peer.inbox and not peer.paused and session not in self._lot:
            found = peer.inbox.popleft()
            if isinstance(found, bytes):
                self._receive(session, found)
            else:
                del self._peers[session]
                self.handle(found)

    def _receive(self, session: int, data: bytes) -> None:
        state = self.state
        assert state is not None
        buffer = state.buffer
        client = state.connections.streaming.get(session)
        if client is not None and client.turn is None and buffer.used >= buffer.budget:
            raise Violation(f"{self.name} reads session {session} with its budget used up: {buffer.used}")
        if self.sim.random.random() < 0.5:
            self._lot[session] = data
            self._take_in()
        else:
            self._gather(session, data)

    def _gather(self, session: int, data: bytes) -> None:
        if not self._lot:
            self.sim.after(self.sim.random.random() * LOT_SECONDS, self, self._take_in)
        self._lot[session] = self._lot.get(session, b"") + data

    def _take_in(self) -> None:
        """Handle at once the bytes that sessions have sent meanwhile."""
        state = self.state
        if state is None or not self._lot:
            return
        parts, self._lot = self._lot, {}
        clients = (client for session in parts if (client := state.connections.by_number.get(session)))
        size = sum(map(len, parts.values())) + sum(client.protocol.pending for client in clients)
        before = state.buffer.rows
        self.handle(e.Received(tuple(parts.items()), round(self.sim.now * 1_000_000)))
        if state.buffer.rows > before:
            self.world.judge.took_in(self)
        # Each row may have come alone, in a lot of its own.
        each = ROW_OVERHEAD + LOT_OVERHEAD + SEGMENT_OVERHEAD
        self.largest_read = max(self.largest_read, size + (state.buffer.rows - before) * each)
        for session in parts:
            self._drain(session)

    # The state.

    def handle(self, event: e.Event) -> None:
        """Give the state an event and carry out its instructions."""
        state = self.state
        if state is None or not self.alive or self.failed:
            return
        try:
            instructions = self._instructions(state, event)
        except MemoryError as error:
            self._fail(error)
            return
        # A door may answer an instruction with another event.
        outer, self._woken = self._woken, False
        for instruction in instructions:
            carry_out(instruction, self)
        self.world.judge.touched(self)
        if self._woken:
            self._wake()
        self._woken = outer

    def _instructions(self, state: WorkerState, event: e.Event) -> list[e.Instruction]:
        """The state's instructions; one of the calls that it makes meanwhile may fail."""
        failing = self.failing
        errors = state.connections.counts["internal-errors"]
        if failing is None:
            instructions = state.handle(event)
        else:
            with failing.counting():
                instructions = state.handle(event)
        if failing is not None and failing.failed:
            self.failing = None
        elif state.connections.counts["internal-errors"] > errors:
            raise Violation(f"{self.name} finds an error of its own in {event}")
        return instructions

    def _fail(self, error: MemoryError) -> None:
        """An error that the state cannot assign to a session: the worker ends and sends no more."""
        self.sim.log(self.name, f"fails: {error}")
        self.failed, self.stopping, self.serving = True, True, False
        self.world.network.listeners.pop(self.address, None)
        self.world.inner.ports.pop(self.flight, None)
        for peer in list(self._peers.values()):
            peer.end.abort()
        if self.doors is not None:
            self.doors.close()
        self._peers.clear()
        self._lot.clear()
        reads, self._reads = self._reads, []
        for waiting in reads:
            waiting.answer.fail(TransportError(f"{self.name} has failed"))
        self.sim.spawn(self, self._release(f"an error: {error}"))

    def send(self, send: e.Send) -> None:
        """Write bytes to a peer."""
        peer = self._peers.get(send.connection)
        if peer is not None:
            self.world.judge.said(self, send.connection, send.data)
            peer.end.write(send.data)

    def close(self, close: e.Close) -> None:
        """Close a connection."""
        peer = self._peers.get(close.connection)
        if peer is None or peer.end.closed:
            return
        end = peer.end
        if close.at_once:
            end.abort()
        else:
            end.close()
        if isinstance(end, End):
            self.sim.after(self.sim.latency(), self, lambda: self.gone(end, ""))

    def set_reading(self, session: int, reading: bool) -> None:
        """Start or stop reading from a peer."""
        peer = self._peers.get(session)
        if peer is not None:
            peer.paused = not reading
            if reading:
                self.sim.after(0.0, self, lambda: self._drain(session))

    def ask_assignment(self, ask: e.AskAssignment) -> None:
        """Ask the registry which slot an instance belongs to."""
        self.sim.spawn(self, self._ask_assignment(ask))

    def release_instances(self, instances: tuple[str, ...]) -> None:
        """Release the assignments of instances."""
        self.sim.spawn(self, self._release_instances(instances))

    def ask_claims(self, ask: e.AskClaims) -> None:
        """Ask the registry for stream ids."""
        self.sim.spawn(self, self._ask_claims(ask))

    def release_claims(self, streams: tuple[int, ...]) -> None:
        """Release stream ids."""
        self._in_turn(lambda: self._unclaim(streams))

    def log(self, line: e.Log) -> None:
        """Write a line to the history."""
        self.sim.log(self.name, line.text)

    def wake_readers(self) -> None:
        """Let the waiting reads look again once all instructions of the event are carried out."""
        self._woken = True

    def wake_driver(self) -> None:
        """Answer the driver's calls that wait for scopes."""
        for asked in list(self._asked):
            self._name_scopes(asked)

    def scopes(self, cursor: int, everything: bool) -> bytes:
        """The scopes that it follows."""
        assert self.state is not None
        return self.state.connections.following.answer(cursor, everything).encode()

    def followed(self, cursor: int, seconds: float, everything: bool) -> Promise:
        """:meth:`scopes` once there are some with a number above ``cursor``, or the time is over."""
        assert self.state is not None
        asked = cursor, everything, Promise()
        self._asked.append(asked)
        if everything or self.state.connections.following.cursor != cursor:
            self._name_scopes(asked)
        else:
            self.sim.after(max(0.0, seconds), self, lambda: self._name_scopes(asked))
        return asked[2]

    def _name_scopes(self, asked: tuple[int, bool, Promise]) -> None:
        if asked in self._asked:
            self._asked.remove(asked)
            asked[2].resolve(self.scopes(asked[0], asked[1]))

    def _ask_assignment(self, ask: e.AskAssignment) -> Steps:
        slot, workers = self.slot, self.options.workers
        try:
            while self._releasing is not None:
                yield self._releasing
            answer = yield self.world.registry.ask(lambda r: r.assign(ask.instance, slot, workers))
        except RegistryError as error:
            self.handle(e.RegistryFailed(ask.connection, str(error)))
        else:
            peer = self._peers.get(ask.connection)
            if peer is not None and isinstance(peer.end, DoorEnd):
                peer.end.client.slot, peer.end.client.address = answer.slot, answer.connect
            self.handle(e.Assigned(ask.connection, ask.instance, answer.slot, answer.connect))

    def _release_instances(self, instances: tuple[str, ...]) -> Steps:
        state, lease = self.state, self.lease
        assert state is not None
        while self._releasing is not None:
            yield self._releasing
        self._releasing, back = Promise(), set(instances) & set(state.connections.instances())
        try:
            yield self.world.registry.ask(lambda r: r.unassign(lease, sorted(set(instances) - back)))
        except RegistryError:
            back = set(instances)
        state.connections.assigned.update(back)
        done, self._releasing = self._releasing, None
        done.resolve(None)

    def _ask_claims(self, ask: e.AskClaims) -> Steps:
        try:
            granted = yield self._in_turn(lambda: self._claim(ask.streams))
        except RegistryError as error:
            self.handle(e.RegistryFailed(ask.connection, str(error), ask.streams))
            if isinstance(error, LeaseLostError):
                self.lease_lost(error)
        else:
            self.handle(e.Claimed(ask.connection, ask.streams, frozenset(granted)))

    # The inner port.

    def plan(self, question: bytes) -> bytes:
        """How far a batch may read from this worker."""
        assert self.state is not None
        return self.state.offer(PlanQuestion.decode(question)).encode()

    def available(self, version: int, seconds: float) -> Promise:
        """Answer with the state of the buffer once its version differs from ``version``, or the time is over."""
        assert self.state is not None
        answer = Promise()
        self._asking.append((version, answer))
        self.sim.after(max(0.0, seconds), self, lambda: self._announce(answer))
        self.sim.after(NEWS_SECONDS, self, self._announce_changes)
        return answer

    def _announce_changes(self) -> None:
        """Answer the calls that wait for another version of the buffer."""
        assert self.state is not None
        for version, answer in list(self._asking):
            if version != self.state.buffer.version:
                self._announce(answer)

    def _announce(self, answer: Promise) -> None:
        assert self.state is not None
        if answer.settled:
            return
        self._asking = [asked for asked in self._asking if asked[1] is not answer]
        buffer, ends = self.state.buffer, self.state.has_ends_to_report
        answer.resolve({"version": buffer.version, "buffered_bytes": buffer.held, "ends": ends})

    def read(
        self,
        ranges: dict[int, PlannedRange],
        wait: float,
        deliver: Callable[[Any, Any], None],
        done: Promise,
        leaving: tuple[str, int],
    ) -> None:
        """Stream ranges to a task, and notify it of the end."""
        if leaving[0]:
            self.handle(e.ReadBegan(*leaving))
        self.sim.spawn(self, self._read(ranges, wait, deliver, done))

    def _read(
        self, ranges: dict[int, PlannedRange], wait: float, deliver: Callable[[Any, Any], None], done: Promise
    ) -> Steps:
        until = self.sim.now + wait
        unpacker = Unpacker(boundaries=True)
        while ranges:
            try:
                found = yield self._find(ranges, until - self.sim.now)
            except TransportError as error:
                done.fail(error)
                return
            if not found and self.sim.now >= until:
                break
            ranges = {index: planned for index, planned in ranges.items() if index not in found}
            for batch, text in gather(found):
                deliver(*unpacker.unpack(batch, text))
                yield self.sim.latency()
        done.resolve(None)

    def _find(self, ranges: dict[int, PlannedRange], seconds: float) -> Promise:
        answer = Promise()
        if not self.serving:
            answer.fail(TransportError(f"{self.name} is about to leave"))
            return answer
        if self.doors is not None:
            self.doors.ground.planned(ranges.values())
        found = self._look(ranges)
        if found:
            answer.resolve(found)
            return answer
        waiting = Waiting(ranges, answer)
        self._reads.append(waiting)
        self._waited.add(ranges.values())
        self.sim.after(max(0.0, seconds), self, lambda: self._settle(waiting))
        return answer

    def _look(self, ranges: dict[int, PlannedRange]) -> FoundRanges:
        assert self.state is not None
        return self.state.buffer.find_all(ranges)

    def _wake(self) -> None:
        if self._asking:
            self.sim.after(NEWS_SECONDS, self, self._announce_changes)
        for waiting in list(self._reads):
            if self._look(waiting.ranges):
                self.sim.after(0.0, self, partial(self._settle, waiting))

    def _settle(self, waiting: Waiting) -> None:
        if waiting not in self._reads:
            return
        self._reads.remove(waiting)
        found = self._look(waiting.ranges)
        missing = [planned for index, planned in waiting.ranges.items() if index not in found]
        self._waited.remove(waiting.ranges[index] for index in found)
        self.sim.after(LINGER_SECONDS, self, lambda: self._waited.remove(missing))
        waiting.answer.resolve(found)
