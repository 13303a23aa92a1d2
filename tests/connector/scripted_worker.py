"""A small worker on real sockets that the test controls: the other side of every connector test."""

from __future__ import annotations

import asyncio
import ssl
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Self

from tests.protocol.spans import spans
from tests.waiting import SECONDS
from wallaroo_spark.errors import RemoteProtocolError, TransportError
from wallaroo_spark.protocol import (
    EosMessage,
    Error,
    Flags,
    Hello,
    Message,
    MessageRun,
    NotifyAck,
    NotifyReceived,
    StreamReference,
    WorkerEvent,
    WorkerSession,
)
from wallaroo_spark.transport import ByteStream, Listener, serve


@dataclass
class StreamLog:
    """The worker's state of one stream: the accepted messages in order, and the committed reference."""

    name: str = ""
    accepted: list[Message] = field(default_factory=list)
    committed: int | None = None
    duplicates: int = 0
    notified: list[int] = field(default_factory=list)
    ended: int = 0

    @property
    def last(self) -> int | None:
        return self.accepted[-1].message_id if self.accepted else None

    @property
    def payloads(self) -> list[bytes]:
        return [m.payload for m in self.accepted if m.payload is not None]

    @property
    def ids(self) -> list[int | None]:
        return [m.message_id for m in self.accepted]

    def forget_uncommitted(self) -> None:
        """The buffer is lost: only what Spark has is left."""
        floor = -1 if self.committed is None else self.committed
        self.accepted = [m for m in self.accepted if m.message_id is not None and m.message_id <= floor]


class ScriptedWorker:
    """Streams outlive connections; ``commit`` says when messages become durable.

    ``credits`` are granted at the start and given back as messages come (``regrant``). With ``auto_commit`` everything
    is committed as it comes. ``answers`` has the answers to the next HELLOs: an ERROR reason, or a function of the
    session. ``cut_after`` are byte counts after which the next connections are cut. ``increasing`` is how replays are
    known.
    """

    def __init__(self, **script: Any) -> None:
        self.credits: int = script.pop("credits", 1000)
        self.regrant: bool = script.pop("regrant", True)
        self.auto_commit: bool = script.pop("auto_commit", True)
        self.increasing: bool = script.pop("increasing", True)
        self.keeps_buffer: bool = script.pop("keeps_buffer", False)
        self.cookie: bytes = script.pop("cookie", b"")
        self.tls: ssl.SSLContext | None = script.pop("tls", None)
        self.answers: deque[str | Callable[[ServedSession], bytes | None]] = deque(script.pop("answers", ()))
        self.cut_after: deque[int] = deque(script.pop("cut_after", ()))
        self.refuse_notifies: int = script.pop("refuse_notifies", 0)
        assert not script, script
        self.streams: dict[int, StreamLog] = {}
        self.sessions: list[ServedSession] = []
        self.errors: list[str] = []
        self.hellos: list[str] = []
        self._changed = asyncio.Condition()
        self._listener: Listener | None = None

    async def __aenter__(self) -> Self:
        self._listener = await serve(self._serve, "127.0.0.1", 0, tls=self.tls)
        return self

    async def __aexit__(self, *error: object) -> None:
        assert self._listener is not None
        for session in self.sessions:
            session.stream.abort()
        await self._listener.close()

    @property
    def address(self) -> str:
        assert self._listener is not None
        return f"127.0.0.1:{self._listener.address[1]}"

    @property
    def session(self) -> ServedSession:
        """The latest session."""
        return self.sessions[-1]

    @property
    def only(self) -> StreamLog:
        """The one stream there is; an empty one before it is announced."""
        assert len(self.streams) <= 1, self.streams
        return next(iter(self.streams.values()), StreamLog())

    def named(self, name: str) -> StreamLog:
        return next((log for log in self.streams.values() if log.name == name), StreamLog())

    async def until(self, holds: Callable[[], bool]) -> None:
        """Wait until the worker has seen something."""
        async with asyncio.timeout(SECONDS), self._changed:
            await self._changed.wait_for(holds)

    async def notice(self) -> None:
        async with self._changed:
            self._changed.notify_all()

    def commit(self) -> None:
        """Commit everything taken in, and acknowledge it to the session that is there."""
        refs = []
        for stream_id, log in self.streams.items():
            if log.accepted and log.last is not None:
                log.committed = log.last
                refs.append((stream_id, log.last))
        self.session.write(self.session.session.ack(0, refs))

    async def _serve(self, stream: ByteStream) -> None:
        session = ServedSession(self, stream)
        self.sessions.append(session)
        try:
            await session.run()
        except TransportError:
            pass
        finally:
            session.over = True
            if not self.keeps_buffer and session is self.sessions[-1]:
                for log in self.streams.values():
                    log.forget_uncommitted()
            await self.notice()


class ServedSession:
    """One connection as the scripted worker serves it."""

    def __init__(self, worker: ScriptedWorker, stream: ByteStream) -> None:
        self.worker = worker
        self.stream = stream
        self.session = WorkerSession(version="0.0.1", cookie=worker.cookie)
        self.over = False
        self.ended_in_order = False
        self._cut_after = worker.cut_after.popleft() if worker.cut_after else None

    def write(self, data: bytes | None) -> None:
        if data is not None:
            self.stream.write(data)

    def nack(self, stream_id: int, ref: int) -> None:
        log = self.worker.streams[stream_id]
        log.committed = ref or None
        log.forget_uncommitted()
        self.write(self.session.nack(stream_id, ref))

    async def run(self) -> None:
        read = 0
        while data := await self.stream.read():
            if self._cut_after is not None and read + len(data) >= self._cut_after:
                self._take(data[: self._cut_after - read])
                self.stream.abort()
                return
            read += len(data)
            if not self._take(data):
                return
            await self.worker.notice()
        self.ended_in_order = True

    def _take(self, data: bytes) -> bool:
        self.session.receive(data)
        try:
            while (event := self.session.next_event()) is not None:
                self._handle(event)
        except RemoteProtocolError as error:
            self.worker.errors.append(error.message)
            self.write(self.session.fail(error.message))
            return False
        return not self.over

    def _handle(self, event: WorkerEvent) -> None:
        match event:
            case Hello():
                self._hello(event)
            case NotifyReceived():
                self._notify(event)
            case MessageRun():
                messages = list(event.messages())
                rows = [(m.stream_id, bool(m.flags & Flags.EOS), bool(m.flags & Flags.EPHEMERAL)) for m in messages]
                admission = self.session.admit(spans(rows), len(rows))
                if admission.error is not None:
                    raise admission.error
                self._messages([m for m in messages if m.stream_id not in admission.ignored], len(messages))
            case EosMessage():
                log = self.worker.streams[event.stream_id]
                log.ended += 1
                if log.committed is not None and log.committed == log.last:
                    self.write(self.session.ack(0, [(event.stream_id, log.committed)]))
            case Error():
                self.worker.errors.append(event.reason)

    def _hello(self, event: Hello) -> None:
        self.worker.hellos.append(event.instance)
        if self.worker.answers:
            answer = self.worker.answers.popleft()
            if isinstance(answer, str):
                self.write(self.session.error(answer))
                self.over = True
            else:
                self.write(answer(self))
            return
        known = [
            StreamReference(stream_id, log.committed, log.name)
            for stream_id, log in self.worker.streams.items()
            if log.committed is not None
        ]
        self.write(self.session.ok(self.worker.credits, known))

    def _notify(self, event: NotifyReceived) -> None:
        notify = event.notify
        log = self.worker.streams.setdefault(notify.stream_id, StreamLog(notify.name))
        log.notified.append(notify.ref)
        revision = self.session.revision
        assert revision is not None
        if revision.has(NotifyAck):
            refused = self.worker.refuse_notifies > 0
            self.worker.refuse_notifies -= refused
            self.write(self.session.notify_ack(notify.stream_id, log.committed, success=not refused))
        if self.worker.regrant:
            self.write(self.session.ack(1))

    def _messages(self, messages: list[Message], received: int) -> None:
        refs: dict[int, int] = {}
        for message in messages:
            log = self.worker.streams[message.stream_id]
            self._accept(log, message)
            if self.worker.auto_commit and log.last is not None and not message.flags & Flags.EPHEMERAL:
                log.committed = refs[message.stream_id] = log.last
        credits = received if self.worker.regrant else 0
        if refs or credits:
            self.write(self.session.ack(credits, list(refs.items())))

    def _accept(self, log: StreamLog, message: Message) -> None:
        log.ended += bool(message.flags & Flags.EOS)
        if message.flags & Flags.EOS and message.payload is None:
            return
        known = message.message_id in log.ids if not self.worker.increasing else self._is_replay(log, message)
        if known:
            log.duplicates += 1
        else:
            log.accepted.append(message)

    def _is_replay(self, log: StreamLog, message: Message) -> bool:
        if message.message_id is None or message.flags & Flags.EPHEMERAL:
            return False
        return log.last is not None and message.message_id <= log.last


async def spin(holds: Callable[[], bool]) -> None:
    """Let the event loop turn until something holds that fires no event; bounded."""
    for _ in range(1_000_000):
        if holds():
            return
        await asyncio.sleep(0)
    raise AssertionError("what was waited for did not come about")
