"""The worker's shell: listener, registry and clock around the pure state, on one event loop.

Only the loop's thread touches the state; the Flight server's threads come in through :meth:`WorkerService.call`.
"""

from __future__ import annotations

import asyncio
import functools
import logging
import os
import socket
import time
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, TypeVar

from wallaroo_spark import transport
from wallaroo_spark.doors.client import DoorClient
from wallaroo_spark.errors import (
    LeaseLostError,
    RegistryError,
    RemoteProtocolError,
    TransportError,
    WallarooError,
    one_line,
)
from wallaroo_spark.inner.client import FleetKeys
from wallaroo_spark.options import Options, resolve_secret
from wallaroo_spark.references import PlannedRange
from wallaroo_spark.runtime.service import ServiceShell
from wallaroo_spark.steps import Step, passed
from wallaroo_spark.transport import Listener
from wallaroo_spark.worker import open_files
from wallaroo_spark.worker.buffer.ephemeral import Origin
from wallaroo_spark.worker.doors import WorkerDoors, option_named
from wallaroo_spark.worker.executor_id import executor_id
from wallaroo_spark.worker.flight_server import InnerPort
from wallaroo_spark.worker.listening import ports
from wallaroo_spark.worker.listening.streams import ConnectorStream, PeerStream
from wallaroo_spark.worker.machine import events as e
from wallaroo_spark.worker.machine.environment import carry_out
from wallaroo_spark.worker.machine.state import WorkerState
from wallaroo_spark.worker.reads import Reads
from wallaroo_spark.worker.slot_tenancy import SlotRegistry, SlotTenancy

if TYPE_CHECKING:
    from wallaroo_spark.aqueduct import Server
    from wallaroo_spark.worker.listening.quic import QuicStream

log = one_line(logging.getLogger("wallaroo_spark.worker"))

T = TypeVar("T")
UNSENT_LIMIT = 4 << 20
"""Limit in bytes of the data that waits for a peer that does not read; above it the peer is cut off.

A choice: the default limit of a frame, and far more than the ACKs of one commit. It bounds memory.
"""
TICK_SECONDS = 0.25
"""Seconds between two Ticks. Timeouts are exact to a quarter of a second."""
LOT_SECONDS = 0.01
"""Bytes that arrive within this many seconds are handled together, because a pass has a fixed cost.

Measured in ``docs/decisions/runs.md``: 10 ms and 2 MiB in place of 5 ms and 1 MiB.
"""
LOT_BYTES = 2 << 20
"""Received bytes that are handled at once, before ``LOT_SECONDS`` have passed; see there."""
STOP_SECONDS = 3.0
"""Limit in seconds of the wait for connections at the end."""


@dataclass(frozen=True)
class WorkerSetup:
    """The settings that the driver ships to a worker. It is pickled."""

    options: Options
    """The receiver's options, with resolved secrets."""
    slot: int
    """The slot to serve."""
    submission: int
    """Number of the Spark job that runs the worker."""
    token: str = field(repr=False)
    """The fleet's secret for the Flight port."""
    keys: FleetKeys | None = field(default=None, repr=False)
    """The fleet's keys, so that the worker need not derive them; None: it derives them."""

    def of(self, slot: int, submission: int) -> WorkerSetup:
        """The setup of one worker."""
        return replace(self, slot=slot, submission=submission)


@dataclass(slots=True)
class _ConnectorPeer:
    """The shell's state of one connection."""

    stream: PeerStream
    stuck: bool = False
    """Whether the peer was reported as not reading."""


class WorkerService(ServiceShell[_ConnectorPeer, SlotTenancy]):
    """One worker, from acquiring the slot's lease to releasing it."""

    def __init__(self, setup: WorkerSetup, registry: SlotRegistry, holder: str) -> None:
        slot, seconds = setup.slot, setup.options.lease_seconds
        super().__init__(SlotTenancy(registry, slot, setup.submission, holder), slot, f"slot {slot}", seconds)
        self.setup = setup
        self.options = setup.options
        self.state: WorkerState | None = None
        self.reads: Reads | None = None
        self.doors: WorkerDoors | None = None
        self._quic: Server | None = None
        self._over_quic: dict[int, QuicStream] = {}
        self._inner_port: InnerPort | None = None
        self._warnings: list[str] = []
        self._arrived: list[tuple[int, bytes]] = []
        self._arrived_bytes = 0

    async def _serve(self) -> None:
        if not await self._take_lease():
            return
        options = self.options
        origin = Origin(self.setup.slot, self._tenancy.current.generation)
        cookie = resolve_secret(options.cookie)
        state = self.state = WorkerState(options, origin, cookie)
        self.doors = WorkerDoors(self, state, options, cookie, self._tenancy.served)
        files = open_files.raise_limit(options.max_sessions)
        state.bound(files.connections, files.sessions)
        self._warnings = [warning for warning in (files.warning(options.max_sessions),) if warning]
        for warning in self._warnings:
            log.warning("slot %d: %s", self.setup.slot, warning)
        self.reads = Reads(state.buffer, self._want, self._later, self.doors.ground.planned)
        # A predecessor may hold the port for longer than the lease lasts, so the lease is renewed meanwhile.
        renewal = functools.partial(self._tenancy.renew, state.connections)
        self._spawn(self._renew(self._renewal_seconds, renewal, self._renewed))
        listener = await self._listen(options, self._serve_peer)
        if listener is not None:
            await self._listen_quic(listener.address)
            self._inner_port = await self._open_inner_port()
            await self.doors.open(self._stopped)
            await self._serve_until_stopped(listener, self._inner_port)

    async def _listen_quic(self, address: tuple[str, int]) -> None:
        """Serve connectors over QUIC too, where the option says so."""
        if self.options.quic:
            from wallaroo_spark.worker.listening.quic import listen

            with option_named("quic"):
                self._quic = await listen(self._serve_over_quic, self.options, address, self._stopped)

    async def _shut_down(self) -> None:
        if self._quic is not None:
            await self._quic.close()
        if self.reads is not None:
            self.reads.close()
        if self._inner_port is not None:
            await asyncio.to_thread(self._inner_port.shutdown)

    async def _serve_until_stopped(self, listener: Listener, flight: InnerPort | None) -> None:
        try:
            self._spawn(self._tick())
            if flight is not None:
                await self._publish(listener, flight)
            await self._stopped.wait()
        finally:
            await self._farewell(listener, STOP_SECONDS, self._tell_all_to_go)

    def call(self, coroutine: Coroutine[Any, Any, T], timeout: float) -> T:
        """Run a coroutine on the loop from another thread, and wait for it."""
        assert self._loop is not None
        return asyncio.run_coroutine_threadsafe(coroutine, self._loop).result(timeout)

    async def _open_inner_port(self) -> InnerPort | None:
        options, setup = self.options, self.setup
        port = await ports.free_inner_port(options, setup.slot, self._stopped)
        if port is None:
            return None
        # The certificate of the connectors' port, where there is one.
        pair = transport.read_pair(options.tls_certificate, options.tls_key) if options.tls_certificate else None
        return InnerPort(self, ports.inner_host(options), setup.token, setup.keys, pair, port)

    async def _publish(self, listener: Listener, flight: InnerPort) -> None:
        """Write the addresses to the registry. A lease that was lost meanwhile ends the worker."""
        connect, inner = ports.addresses(self.options, self.setup.slot, listener.address, flight.port)
        flight.serve_locally(inner)
        if await self._take_lease(connect, inner):
            generation = self._tenancy.current.generation
            log.info("slot %d listens at %s, generation %d", self.setup.slot, connect, generation)

    async def _tell_all_to_go(self) -> None:
        self.handle(e.Stopping(self._stop_reason))
        if self.doors is not None:
            await self.doors.close(self._stop_reason, STOP_SECONDS)

    def _want(self, ranges: tuple[PlannedRange, ...]) -> None:
        assert self.doors is not None
        self.doors.ground.wanted(ranges)
        self.handle(e.Wanted(ranges))

    def enter(self, client: DoorClient) -> int:
        """Register the session of a door's client as a peer; returns its number."""
        return self._enter(_ConnectorPeer(client))

    def depart(self, number: int, reason: str = "") -> None:
        """A peer has gone."""
        self._take_in()
        self._leave(number)
        self.handle(e.Disconnected(number, reason))

    async def _serve_over_quic(self, stream: QuicStream) -> None:
        session = self._next_session
        self._over_quic[session] = stream
        try:
            await self._serve_peer(stream)
        finally:
            del self._over_quic[session]

    async def _serve_peer(self, stream: ConnectorStream) -> None:
        session = self._enter(_ConnectorPeer(stream))
        reason = ""
        try:
            self.handle(e.Connected(session, stream.peer, time.monotonic(), stream.certificate_names))
            await stream.deliver(functools.partial(self.gather, session))
        except RemoteProtocolError as error:
            self._take_in()
            self.handle(e.Violated(session, str(error.fields["fault"]), error.message))
        except TransportError as error:
            reason = error.message
        finally:
            self.depart(session, reason)

    def gather(self, session: int, data: bytes) -> None:
        """A peer has sent bytes. They are handled together with those of others that arrive at about the same time."""
        passed(Step.FRAME_RECEIVED)
        if not self._arrived:
            self._later(LOT_SECONDS, self._take_in)
        self._arrived.append((session, data))
        self._arrived_bytes += len(data)
        if self._arrived_bytes >= LOT_BYTES:
            self._take_in()

    def _take_in(self) -> None:
        if self._arrived:
            arrived, self._arrived, self._arrived_bytes = self._arrived, [], 0
            self.handle(e.Received(tuple(arrived), time.time_ns() // 1000))

    def handle(self, event: e.Event) -> None:
        """Pass an event to the state and carry out its instructions; on the loop's thread.

        An error that affects more than some sessions ends the worker, because an event loop has no caller to raise it
        to.
        """
        if self._failure is None:
            self._guarded(self._handle, event)

    def _handle(self, event: e.Event) -> None:
        assert self.state is not None
        for instruction in self.state.handle(event):
            self._carry_out_for_its_session(instruction)

    def _carry_out_for_its_session(self, instruction: e.Instruction) -> None:
        """Carry out an instruction. An error ends its session and no other."""
        try:
            carry_out(instruction, self)
        except Exception:
            session: int | None = getattr(instruction, "connection", None)
            peer = self._peers.get(session) if session is not None else None
            if peer is None:
                raise
            log.exception(
                "slot %d: the connection to %s is cut: an instruction for it failed", self.setup.slot, peer.stream.peer
            )
            peer.stream.abort()

    def ask_assignment(self, ask: e.AskAssignment) -> None:
        """See :class:`~.machine.environment.Environment`."""
        self._spawn(self._ask_assignment(ask))

    def release_instances(self, instances: tuple[str, ...]) -> None:
        """See :class:`~.machine.environment.Environment`."""
        assert self.state is not None
        self._spawn(self._tenancy.unassign(instances, self.state.connections))

    def ask_claims(self, ask: e.AskClaims) -> None:
        """See :class:`~.machine.environment.Environment`."""
        self._spawn(self._ask_claims(ask))

    def release_claims(self, streams: tuple[int, ...]) -> None:
        """See :class:`~.machine.environment.Environment`."""
        self._spawn(self._tenancy.unclaim(streams))

    def log(self, line: e.Log) -> None:
        """See :class:`~.machine.environment.Environment`."""
        level = logging.WARNING if line.warning else logging.INFO
        log.log(level, "slot %d: %s", self.setup.slot, line.text, exc_info=line.error)

    def wake_readers(self) -> None:
        """See :class:`~.machine.environment.Environment`."""
        if self.reads is not None:
            self.reads.wake()

    def wake_driver(self) -> None:
        """See :class:`~.machine.environment.Environment`."""
        if self.reads is not None:
            self.reads.wake_driver()

    def _later(self, seconds: float, work: Callable[..., None], *args: Any) -> None:
        """Call a function after some seconds. The event loop alone would only log its error and continue."""
        asyncio.get_running_loop().call_later(seconds, self._guarded, work, *args)

    def _guarded(self, work: Callable[..., None], *args: Any) -> None:
        """Call a function that has no caller to raise an error to. An error ends the worker."""
        try:
            work(*args)
        except BaseException as error:
            self._fail(error)
            if not isinstance(error, Exception):
                raise

    def _fail(self, error: BaseException) -> None:
        """End the worker at once and send nothing more, because its state may be wrong.

        Uncommitted messages are sent again to the next worker.
        """
        super()._fail(error)
        log.critical("slot %d: an error of this program ends the worker", self.setup.slot, exc_info=error)
        if self.reads is not None:
            self.reads.close()
        for peer in list(self._peers.values()):
            peer.stream.abort()

    def send(self, send: e.Send) -> None:
        """See :class:`~.machine.environment.Environment`."""
        peer = self._peers.get(send.connection)
        if peer is None:
            return
        peer.stream.write(send.data)
        if peer.stream.queued > UNSENT_LIMIT and not peer.stuck:
            peer.stuck = True
            asyncio.get_running_loop().call_soon(self.handle, e.Stuck(send.connection, peer.stream.queued))

    def close(self, close: e.Close) -> None:
        """See :class:`~.machine.environment.Environment`."""
        peer = self._peers.get(close.connection)
        if peer is None:
            return
        if close.at_once:
            peer.stream.abort()
        else:
            self._spawn(self._close_stream(peer.stream))

    async def _close_stream(self, stream: PeerStream) -> None:
        try:
            await stream.close()
        except Exception:
            # A failure of one connection must not end the worker, as an error in its other tasks does.
            log.exception("slot %d: closing the connection to %s failed", self.setup.slot, stream.peer)
            stream.abort()

    def set_reading(self, session: int, reading: bool) -> None:
        """See :class:`~.machine.environment.Environment`."""
        if (peer := self._peers.get(session)) is not None:
            peer.stream.set_delivering(reading)

    async def _ask_assignment(self, ask: e.AskAssignment) -> None:
        try:
            answer = await self._tenancy.assign(ask.instance, self.options.workers)
        except Exception as error:
            self._unanswered(ask.connection, error)
        else:
            peer = self._peers.get(ask.connection)
            if peer is not None and isinstance(peer.stream, DoorClient):
                peer.stream.slot, peer.stream.address = answer.slot, answer.connect
            self.handle(e.Assigned(ask.connection, ask.instance, answer.slot, answer.connect))

    async def _ask_claims(self, ask: e.AskClaims) -> None:
        try:
            granted = await self._tenancy.claim(ask.streams)
        except Exception as error:
            self._unanswered(ask.connection, error, ask.streams)
        else:
            self.handle(e.Claimed(ask.connection, ask.streams, granted))

    def _unanswered(self, session: int, error: Exception, streams: tuple[int, ...] = ()) -> None:
        """The registry has failed: pass that to the session. Only a lost lease ends more than one session."""
        if not isinstance(error, RegistryError):
            log.error("slot %d: asking the registry failed", self.setup.slot, exc_info=error)
        reason = error.message if isinstance(error, WallarooError) else str(error)
        self.handle(e.RegistryFailed(session, reason, streams))
        if isinstance(error, LeaseLostError):
            self.stop(error.message)

    def _renewed(self, lost: frozenset[int]) -> None:
        """The lease was renewed; other slots have the claims in ``lost``."""
        if lost:
            self.handle(e.ClaimsLost(lost))

    async def _tick(self) -> None:
        while True:
            await asyncio.sleep(TICK_SECONDS)
            now = time.monotonic()
            for session, stream in list(self._over_quic.items()):
                for event in stream.news(session):
                    self.handle(event)
            self.handle(e.Tick(now))
            if self.doors is not None:
                self._guarded(self.doors.tick, now)

    async def on_loop(self, work: Callable[[WorkerState], T]) -> T:
        """Call a function on the state, for the Flight server."""
        assert self.state is not None
        self._must_be_sound()
        return work(self.state)

    async def apply(self, event: e.Event) -> None:
        """Pass an event to the state, for the Flight server."""
        self.handle(event)
        self._must_be_sound()

    def _must_be_sound(self) -> None:
        if self._failure is not None:
            raise TransportError(
                f"the worker ends by an error of this program: {self._failure!r}", code="internal-error"
            )

    def status(self) -> dict[str, Any]:
        """The state's status and the shell's own values; on the loop's thread."""
        assert self.state is not None
        assert self.doors is not None
        return {
            **self.state.status(),
            **self.doors.status(),
            "pid": os.getpid(),
            "host": socket.gethostname(),
            "executor": executor_id(),
            "generation": self._tenancy.current.generation,
            "address": self._tenancy.current.connect,
            "quic": self._tenancy.current.connect if self._quic is not None else "",
            "quic_connections": len(self._over_quic),
            "registry_away": self._tenancy.unanswered,
            "stopping": self._stop_reason,
            "warnings": [*ports.warnings(self.options), *self._warnings],
        }
