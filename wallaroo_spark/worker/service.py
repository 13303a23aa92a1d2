"""The worker's shell: listener, registry and clock around the pure state, on one event loop.

Only the loop's thread touches the state; the Flight server's threads come in through :meth:`WorkerService.call`.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import time
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field
from typing import Any, TypeVar

from wallaroo_spark import transport
from wallaroo_spark.errors import LeaseLostError, RegistryError, TransportError, one_line
from wallaroo_spark.options import Options, resolve_secret
from wallaroo_spark.slots.tenancy import Registry, Tenancy
from wallaroo_spark.steps import Step, passed
from wallaroo_spark.transport import ByteStream, Listener
from wallaroo_spark.worker import ports
from wallaroo_spark.worker.buffer.ephemeral import Origin
from wallaroo_spark.worker.flight_server import InnerPort
from wallaroo_spark.worker.machine import events as e
from wallaroo_spark.worker.machine.state import WorkerState
from wallaroo_spark.worker.reads import Reads

log = one_line(logging.getLogger("wallaroo_spark.worker"))

T = TypeVar("T")
UNSENT_LIMIT = 4 << 20
"""Most bytes that may wait for a peer that does not read; a peer past it is cut off."""
TICK_SECONDS = 0.25
LOT_SECONDS = 0.01
LOT_BYTES = 2 << 20
"""Bytes that arrive within this time are handled together, or sooner when there are many: a pass has a fixed price."""
STOP_SECONDS = 3.0


@dataclass(frozen=True)
class WorkerSetup:
    """What the driver ships to a worker. It is pickled; ``token`` is the fleet's secret for the Flight port."""

    options: Options
    slot: int
    submission: int
    token: str = field(repr=False)


@dataclass(slots=True)
class _Peer:
    stream: ByteStream
    readable: asyncio.Event
    stuck: bool = False


class WorkerService:
    """One worker, from taking the slot's lease to giving it back."""

    def __init__(self, setup: WorkerSetup, registry: Registry, holder: str) -> None:
        self.setup = setup
        self.options = setup.options
        self.state: WorkerState | None = None
        self.reads: Reads | None = None
        self._registry = registry
        self._tenancy = Tenancy(registry, setup.slot, setup.submission, holder)
        self._loop: asyncio.AbstractEventLoop | None = None
        self._peers: dict[int, _Peer] = {}
        self._next_session = 0
        self._tasks: set[asyncio.Task[None]] = set()
        self._stopped = asyncio.Event()
        self._alone = asyncio.Event()
        self._stop_reason = ""
        self._registry_away = False
        self._failure: BaseException | None = None
        self._arrived: list[tuple[int, bytes]] = []
        self._arrived_bytes = 0

    async def run(self) -> None:
        """Serve the slot until :meth:`stop`, or until a newer submission takes it over.

        Raises the error that has ended the worker, when it was an error of this program.
        """
        self._loop = asyncio.get_running_loop()
        flight = None
        try:
            if not await self._take_lease():
                return
            origin = Origin(self.setup.slot, self._tenancy.current.generation)
            self.state = WorkerState(self.options, origin, resolve_secret(self.options.cookie))
            self.reads = Reads(self.state.buffer, lambda ranges: self.handle(e.Wanted(ranges)), self._later)
            # A port may be held for longer than the lease lasts.
            self._spawn(self._renew())
            listener = await self._listen()
            if listener is not None:
                flight = await self._open_inner_port()
                await self._serve_until_stopped(listener, flight)
        finally:
            if self.reads is not None:
                self.reads.close()
            for task in list(self._tasks):
                task.cancel()
            if flight is not None:
                await asyncio.to_thread(flight.shutdown)
            await self._tenancy.release()
        if self._failure is not None:
            raise self._failure

    async def _serve_until_stopped(self, listener: Listener, flight: InnerPort | None) -> None:
        try:
            self._spawn(self._tick())
            if flight is not None:
                await self._publish(listener, flight)
            await self._stopped.wait()
        finally:
            await self._farewell(listener)

    def stop(self, reason: str) -> None:
        """Leave in good order; the sessions are told to connect again. On the loop's thread, or before ``run``."""
        self._stop_reason = self._stop_reason or reason
        self._stopped.set()

    def stop_from_outside(self, reason: str) -> None:
        """:meth:`stop` from any thread, also when the loop has ended since."""
        loop = self._loop
        if loop is None:
            self.stop(reason)
            return
        with contextlib.suppress(RuntimeError):
            loop.call_soon_threadsafe(self.stop, reason)

    def call(self, coroutine: Coroutine[Any, Any, T], timeout: float) -> T:
        """Run something on the loop from another thread, and wait for it."""
        assert self._loop is not None
        return asyncio.run_coroutine_threadsafe(coroutine, self._loop).result(timeout)

    async def _take_lease(self) -> bool:
        """Take the slot's lease; False when another has it, or when this copy was told to stop while it waited."""
        while not self._stopped.is_set():
            try:
                if await self._tenancy.acquire():
                    return True
                if await self._tenancy.relieve_the_dead():
                    continue
            except LeaseLostError as error:
                log.warning("slot %d: %s", self.setup.slot, error)
                return False
            await self._pause(self.options.lease_seconds / 3)
        return False

    async def _pause(self, seconds: float) -> None:
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._stopped.wait(), seconds)

    async def _listen(self) -> Listener | None:
        """Bind the slot's port, waiting until a predecessor frees it; None when told to stop meanwhile."""
        options = self.options
        port = options.port + self.setup.slot if options.port else 0
        tls = None
        if options.tls_certificate:
            tls = transport.server_context(options.tls_certificate, options.tls_key, options.tls_ca)
        return await transport.serve_once_free(self._serve, options.host, port, tls=tls, stopped=self._stopped)

    async def _open_inner_port(self) -> InnerPort | None:
        port = await ports.free_inner_port(self.options, self.setup.slot, self._stopped)
        if port is None:
            return None
        return InnerPort(self, ports.inner_host(self.options), self.setup.token, self._inner_pair(), port)

    def _inner_pair(self) -> tuple[bytes, bytes] | None:
        """The certificate that the inner port presents: the one that connectors see; None when they see none."""
        options = self.options
        return transport.read_pair(options.tls_certificate, options.tls_key) if options.tls_certificate else None

    async def _publish(self, listener: Listener, flight: InnerPort) -> None:
        """Write the addresses to the registry; a lease that was lost meanwhile ends the worker."""
        connect, inner = ports.addresses(self.options, self.setup.slot, listener.address, flight.port)
        flight.serve_locally(inner)
        while not self._stopped.is_set():
            try:
                if await self._tenancy.acquire(connect, inner):
                    generation = self._tenancy.current.generation
                    log.info("slot %d listens at %s, generation %d", self.setup.slot, connect, generation)
                    return
            except LeaseLostError as error:
                self.stop(error.message)
                return
            await self._pause(self.options.lease_seconds / 3)

    async def _farewell(self, listener: Listener) -> None:
        """Tell the sessions to leave, and give them a moment to do so."""
        closing = asyncio.ensure_future(listener.close(STOP_SECONDS))
        self.handle(e.Stopping(self._stop_reason))
        if self._peers:
            self._alone.clear()
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._alone.wait(), STOP_SECONDS)
        for peer in self._peers.values():
            peer.stream.abort()
        await closing

    async def _serve(self, stream: ByteStream) -> None:
        session = self._next_session
        self._next_session += 1
        peer = _Peer(stream, asyncio.Event())
        peer.readable.set()
        self._peers[session] = peer
        reason = ""
        try:
            self.handle(e.Connected(session, stream.peer, time.monotonic(), stream.certificate_names))
            while data := await stream.read():
                # Behind the read, since a peer may be paused while its session is in one.
                await peer.readable.wait()
                passed(Step.FRAME_RECEIVED)
                self._gather(session, data)
        except TransportError as error:
            reason = error.message
        finally:
            self._take_in()
            del self._peers[session]
            self.handle(e.Disconnected(session, reason))
            if not self._peers:
                self._alone.set()

    def _gather(self, session: int, data: bytes) -> None:
        """A peer has sent bytes; they are handled together with those of others that arrive at about the same time."""
        assert self._loop is not None
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
        """Give the state an event and carry out its instructions; on the loop's thread.

        An error that costs more than some sessions ends the worker, because an event loop has no caller to raise it to.
        """
        if self._failure is None:
            self._guarded(self._handle, event)

    def _handle(self, event: e.Event) -> None:
        assert self.state is not None
        instructions = self.state.handle(event)
        if isinstance(event, e.Committed):
            passed(Step.REFERENCES_RECEIVED)
        elif isinstance(event, e.Received) and e.WakeReaders() in instructions:
            passed(Step.BUFFERED)
        for instruction in instructions:
            self._carry_out_for_its_session(instruction)
        if isinstance(event, e.Committed) and any(isinstance(instruction, e.Send) for instruction in instructions):
            passed(Step.ACK_SENT)

    def _carry_out_for_its_session(self, instruction: e.Instruction) -> None:
        """Carry out an instruction; an error in it costs its session and no other."""
        try:
            self._carry_out(instruction)
        except Exception:
            session: int | None = getattr(instruction, "session", None)
            peer = self._peers.get(session) if session is not None else None
            if peer is None:
                raise
            log.exception("slot %d: the connection to %s is cut: telling it failed", self.setup.slot, peer.stream.peer)
            peer.stream.abort()

    def _carry_out(self, instruction: e.Instruction) -> None:
        match instruction:
            case e.Send():
                self._send(instruction)
            case e.Close():
                self._close(instruction)
            case e.PauseReading():
                self._set_readable(instruction.session, False)
            case e.ResumeReading():
                self._set_readable(instruction.session, True)
            case e.AskAssignment():
                self._spawn(self._ask_assignment(instruction))
            case e.ReleaseInstances():
                assert self.state is not None
                self._spawn(self._tenancy.unassign(instruction.instances, self.state))
            case e.AskClaims():
                self._spawn(self._ask_claims(instruction))
            case e.ReleaseClaims():
                self._spawn(self._tenancy.unclaim(instruction.streams))
            case e.Log():
                level = logging.WARNING if instruction.warning else logging.INFO
                log.log(level, "slot %d: %s", self.setup.slot, instruction.text, exc_info=instruction.error)
            case e.WakeReaders():
                if self.reads is not None:
                    self.reads.wake()

    def _later(self, seconds: float, work: Callable[..., None], *args: Any) -> None:
        """Call a function after some seconds. The event loop itself would log an error in it, and go on."""
        assert self._loop is not None
        self._loop.call_later(seconds, self._guarded, work, *args)

    def _guarded(self, work: Callable[..., None], *args: Any) -> None:
        """Call a function that has no caller to raise an error to: an error ends the worker."""
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
        self._failure = self._failure or error
        self.stop(f"an error of this program: {error!r}")
        log.critical("slot %d: an error of this program ends the worker", self.setup.slot, exc_info=error)
        if self.reads is not None:
            self.reads.close()
        for peer in list(self._peers.values()):
            peer.readable.set()
            peer.stream.abort()

    def _send(self, instruction: e.Send) -> None:
        peer = self._peers.get(instruction.session)
        if peer is None:
            return
        peer.stream.write(instruction.data)
        if peer.stream.queued > UNSENT_LIMIT and not peer.stuck:
            assert self._loop is not None
            peer.stuck = True
            self._loop.call_soon(self.handle, e.Stuck(instruction.session, peer.stream.queued))

    def _close(self, instruction: e.Close) -> None:
        peer = self._peers.get(instruction.session)
        if peer is None:
            return
        if instruction.at_once:
            peer.stream.abort()
        else:
            self._spawn(self._close_stream(peer.stream))

    async def _close_stream(self, stream: ByteStream) -> None:
        try:
            await stream.close()
        except Exception:
            # What goes wrong with one connection must not end the worker, as an error in its other tasks does.
            log.exception("slot %d: closing the connection to %s failed", self.setup.slot, stream.peer)
            stream.abort()

    def _set_readable(self, session: int, readable: bool) -> None:
        if (peer := self._peers.get(session)) is not None:
            (peer.readable.set if readable else peer.readable.clear)()

    async def _ask_assignment(self, ask: e.AskAssignment) -> None:
        try:
            answer = await self._tenancy.assign(ask.instance, self.options.workers)
        except Exception as error:
            self._unanswered(ask.session, error)
        else:
            self.handle(e.Assigned(ask.session, ask.instance, answer.slot, answer.connect))

    async def _ask_claims(self, ask: e.AskClaims) -> None:
        try:
            granted = await self._tenancy.claim(ask.streams)
        except Exception as error:
            self._unanswered(ask.session, error, ask.streams)
        else:
            self.handle(e.Claimed(ask.session, ask.streams, granted))

    def _unanswered(self, session: int, error: Exception, streams: tuple[int, ...] = ()) -> None:
        """The registry has failed: tell the session; only a lost lease ends more than that."""
        if not isinstance(error, RegistryError):
            log.error("slot %d: asking the registry failed", self.setup.slot, exc_info=error)
        self.handle(e.RegistryFailed(session, str(error), streams))
        if isinstance(error, LeaseLostError):
            self.stop(error.message)

    async def _renew(self) -> None:
        state = self.state
        assert state is not None
        while True:
            await asyncio.sleep(self.options.lease_seconds / 3)
            try:
                lost = await self._tenancy.renew(state, lambda: state.claims)
            except LeaseLostError as error:
                log.warning("slot %d ends: %s", self.setup.slot, error)
                self.stop(error.message)
                return
            except RegistryError as error:
                if not self._registry_away:
                    log.warning("slot %d goes on without the registry: %s", self.setup.slot, error)
                self._registry_away = True
            else:
                self._registry_away = False
                if lost:
                    self.handle(e.ClaimsLost(lost))

    async def _tick(self) -> None:
        while True:
            await asyncio.sleep(TICK_SECONDS)
            self.handle(e.Tick(time.monotonic()))

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.ensure_future(work)
        self._tasks.add(task)
        task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        error = None if task.cancelled() else task.exception()
        if error is not None:
            self._fail(error)

    async def on_loop(self, work: Callable[[WorkerState], T]) -> T:
        """Ask the state from the Flight server."""
        assert self.state is not None
        self._must_be_sound()
        return work(self.state)

    async def apply(self, event: e.Event) -> None:
        """Give the state an event from the Flight server."""
        self.handle(event)
        self._must_be_sound()

    def _must_be_sound(self) -> None:
        if self._failure is not None:
            raise TransportError(f"the worker ends by an error of this program: {self._failure!r}")

    async def request_stop(self, reason: str) -> None:
        """:meth:`stop` for the Flight server's threads."""
        self.stop(reason)

    def status(self) -> dict[str, Any]:
        """The state's status with what the shell knows; on the loop's thread."""
        assert self.state is not None
        return {
            **self.state.status(),
            "pid": os.getpid(),
            "generation": self._tenancy.current.generation,
            "connect": self._tenancy.current.connect,
            "registry_away": self._registry_away,
            "stopping": self._stop_reason,
            "warnings": ports.warnings(self.options),
        }
