"""The server of a connector sink: an asyncio server that writes the rows of each committed transaction to files.

The thin layer between the transport, :class:`~wallaroo_spark.protocol.sinks.sessions.SinkServerSession` and the disk.
Source: ``docs/protocol.md#sinks``.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

from wallaroo_spark.errors import ConfigurationError, ProtocolError, SinkError, TransportError, one_line
from wallaroo_spark.protocol import Error, Frame, Hello, Notify, SessionState
from wallaroo_spark.protocol.sinks import messages
from wallaroo_spark.protocol.sinks.sessions import SUPERSEDED, RowsReceived, SinkServerSession
from wallaroo_spark.settings import Kind, check_all, setting
from wallaroo_spark.sinks.server.output_directory import OutputDirectory, UnvotedPart, checked_worker
from wallaroo_spark.steps import SinkStep, passed
from wallaroo_spark.transport import ByteStream

log = one_line("wallaroo_spark.sinks")


@dataclass(frozen=True)
class SinkServerSettings:
    """The settings of a sink server. Sizes are in bytes, times in seconds; the cookie is never shown."""

    version: str = setting("0.0.1", Kind.TEXT)
    """Protocol version that workers must say."""
    cookie: str = setting("", Kind.TEXT, secret=True)
    """Cookie that workers must present."""
    max_frame_bytes: int = setting(4 << 20, Kind.BYTES, minimum=1)
    """Longest frame accepted."""
    max_sessions: int = setting(1024, Kind.COUNT, minimum=0)
    """Most sessions at once."""
    handshake_timeout: float = setting(10.0, Kind.SECONDS, minimum=0)
    """Longest wait for HELLO."""
    write_timeout: float = setting(60.0, Kind.SECONDS, minimum=0)
    """How long a peer may leave its messages unread, and a superseded session may take to end."""

    def __post_init__(self) -> None:
        check_all(self)


class SinkServer:
    """Serves accepted connections: pass it to :func:`wallaroo_spark.transport.serve`. No input of a peer ends it.

    A worker has one session. A new session of the worker supersedes it, and its unprepared rows are deleted.
    """

    def __init__(self, directory: OutputDirectory, settings: SinkServerSettings | None = None) -> None:
        self._directory = directory
        self._settings = settings or SinkServerSettings()
        self._sessions = 0
        self._of_worker: dict[str, _Served] = {}

    async def __call__(self, stream: ByteStream) -> None:
        """Serve one connection to its end."""
        served = _Served(self._directory, stream, self._settings)
        if self._sessions >= self._settings.max_sessions:
            log.warning("< %s: refused, %d sessions are open", stream.peer, self._sessions)
            stream.abort()
            return
        self._sessions += 1
        try:
            await self._serve(served)
        finally:
            self._sessions -= 1
            await served.drop_part()
            if self._of_worker.get(served.worker) is served:
                del self._of_worker[served.worker]
            served.ended.set()

    async def _serve(self, served: _Served) -> None:
        try:
            async with asyncio.timeout(self._settings.handshake_timeout):
                await served.greeted()
            await self._supersede(served)
            await served.run()
        except TimeoutError:
            await served.refuse(f"no HELLO came within {self._settings.handshake_timeout:g} s")
        except (ProtocolError, SinkError, ConfigurationError) as error:
            await served.refuse(error.message)
        except TransportError as error:
            log.info("< %s: %s", served.shown, error.message)

    async def _supersede(self, served: _Served) -> None:
        """End the other session of the worker, and wait until its writes to the disk have ended."""
        while (other := self._of_worker.get(served.worker)) is not None:
            log.warning("< %s: a new session supersedes that of %s", served.shown, other.peer)
            other.supersede()
            try:
                async with asyncio.timeout(self._settings.write_timeout):
                    await other.ended.wait()
            except TimeoutError:
                raise SinkError(
                    f"the session that {served.worker} had before does not end, after {self._settings.write_timeout:g} "
                    "s: the sink's disk may not answer; try again later",
                    code="sink-write-failed",
                ) from None
        self._of_worker[served.worker] = served


class _Served:
    """One session and its connection."""

    def __init__(self, directory: OutputDirectory, stream: ByteStream, settings: SinkServerSettings) -> None:
        self.worker = ""
        self.peer = stream.peer
        self.part: UnvotedPart | None = None
        self.ended = asyncio.Event()
        self._directory = directory
        self._stream = stream
        self._write_timeout = settings.write_timeout
        self._superseded = False
        self._session = SinkServerSession(
            settings.max_frame_bytes, version=settings.version, cookie=settings.cookie.encode()
        )

    @property
    def shown(self) -> str:
        """The session as log lines name it."""
        return f"{self.worker or '?'} ({self.peer})"

    async def greeted(self) -> None:
        """Wait for HELLO. Raises the error that ends the session."""
        while (event := self._session.next_event()) is None:
            await self._read()
        assert isinstance(event, Hello)
        self.worker = checked_worker(event.instance)
        log.info("< %s: HELLO from %s", self.shown, event.program)

    async def run(self) -> None:
        """Answer HELLO, and serve the session until the peer closes."""
        self._stream.write(self._session.ok())
        while True:
            while (event := self._session.next_event()) is not None:
                await self._on(event)
                if self._session.state is SessionState.ERROR:
                    return
            await self._drain()
            if not await self._read():
                return

    def supersede(self) -> None:
        """End the session, because the worker has a new one; a write that has begun is finished."""
        if not self._superseded:
            self._superseded = True
            self._stream.write(self._session.fail(SUPERSEDED))
            self._stream.abort()

    async def refuse(self, reason: str) -> None:
        """End the session with ERROR, and close the connection."""
        if self._superseded:
            return
        log.warning("< %s: the session ends: %s", self.shown, reason)
        self._stream.write(self._session.fail(reason))
        await self._stream.close()

    async def _drain(self) -> None:
        try:
            async with asyncio.timeout(self._write_timeout):
                await self._stream.drain()
        except TimeoutError:
            self._stream.abort()
            raise TransportError(
                f"{self.shown} has not read the bytes that wait for it for {self._write_timeout:g} s",
                code="connection-lost",
                peer=self.peer,
            ) from None

    async def _read(self) -> bool:
        data = await self._stream.read()
        if not data and not self.worker:
            raise TransportError("closed before HELLO", code="connection-lost", peer=self.peer)
        self._session.receive(data)
        return bool(data)

    async def _on(self, event: Frame | RowsReceived | messages.SinkMessage) -> None:
        match event:
            case RowsReceived():
                if self.part is None:
                    self.part = self._directory.begin(self.worker)
                self.part.write(event.rows)
                passed(SinkStep.SERVER_ROWS_TAKEN)
            case Notify():
                await self._on_notify(event)
            case messages.ListUncommitted():
                found = tuple(self._directory.uncommitted(self.worker))
                self._stream.write(self._session.control(messages.ReplyUncommitted(event.request, found)))
            case messages.Phase1():
                await self._on_phase1(event)
            case messages.Phase2():
                log.info("< %s: PHASE2 %s %s", self.shown, event.transaction, "commit" if event.commit else "abort")
                await asyncio.to_thread(self._directory.decide, self.worker, event.transaction, event.commit)
                await self._follow()
            case messages.WorkersLeft():
                log.info("< %s: WORKERS_LEFT %s", self.shown, ", ".join(event.workers))
            case Error():
                log.warning("< %s: ERROR: %s", self.shown, event.reason)

    async def _on_notify(self, notify: Notify) -> None:
        await self.drop_part()
        committed = await asyncio.to_thread(self._directory.settle, self.worker)
        if notify.ref != committed:
            log.info("< %s: begins at %d, and has %d committed", self.shown, notify.ref, committed)
        self._stream.write(self._session.notify_ack(committed))

    async def _follow(self) -> None:
        """Move the session's start to the end of the output, after a decision about another session's transaction."""
        committed = self._directory.offset(self.worker)
        if committed != self._session.committed:
            await self.drop_part()
            self._session.decided(committed)

    async def _on_phase1(self, phase1: messages.Phase1) -> None:
        start, end, gap = self._session.committed, self._session.offset, self._session.gap()
        part, self.part = self.part or self._directory.begin(self.worker), None
        if gap or phase1.ranges not in (
            (messages.Range(messages.DATA_STREAM, start, end),),
            () if start == end else None,
        ):
            shown = ", ".join(f"{one.start} to {one.end} of stream {one.stream_id}" for one in phase1.ranges[:4])
            reason = (
                gap or f"it is about {shown or 'nothing'}, and {start} to {end} of stream {messages.DATA_STREAM} came"
            )
            await asyncio.to_thread(part.discard)
        else:
            reason = await asyncio.to_thread(self._directory.prepare, part, phase1.transaction, start, end)
        if reason:
            log.error("< %s: PHASE1 %s: voted abort: %s", self.shown, phase1.transaction, reason)
        else:
            log.info("< %s: PHASE1 %s: voted commit, %d bytes", self.shown, phase1.transaction, end - start)
        if not self._superseded:
            self._stream.write(self._session.control(messages.Reply(phase1.transaction, not reason)))

    async def drop_part(self) -> None:
        """Delete the rows that have not been voted on."""
        if self.part is not None:
            part, self.part = self.part, None
            await asyncio.to_thread(part.discard)
