"""The connector: pushes a program's streams of messages to a receiver.

async with Connector("orders", instance="shop-1", workers="host:7100,host:7101", cookie="…") as connector:
    stream = await connector.open("orders-2026.jsonl")
    await stream.send(b"…", id=17)
# The end of the block waits until everything is acknowledged; ``connector.drain()`` waits for it earlier.
"""

from __future__ import annotations

import asyncio
import hashlib
import os
import time
from collections.abc import Callable, Sequence
from time import time_ns
from typing import TYPE_CHECKING, Any, Self

from wallaroo_spark.connector.arguments import callable_of, stream_name_of, timeout_of, u64_of, wrong_type
from wallaroo_spark.connector.reporting import Acknowledgements, ConnectorStatus, WaitLog
from wallaroo_spark.connector.sending.connector_state import ConnectorState
from wallaroo_spark.connector.sending.open_streams import OpenStreams
from wallaroo_spark.connector.sending.resend_buffer import ResendBuffer
from wallaroo_spark.connector.sending.source_feed import FeedProgress, FeedResult, SourceFeed
from wallaroo_spark.connector.sending.stream_sender import StreamSender
from wallaroo_spark.connector.sending.unacknowledged import EphemeralMessages, SourcePosition, UnacknowledgedMessages
from wallaroo_spark.connector.session_keeper import SessionKeeper
from wallaroo_spark.connector.settings import ConnectorSettings
from wallaroo_spark.connector.sources import Source
from wallaroo_spark.connector.stream import Stream
from wallaroo_spark.connector.worker_connection import Address
from wallaroo_spark.errors import LocalProtocolError, TransportError, one_line
from wallaroo_spark.settings import takes_settings
from wallaroo_spark.transport import parse_address

if TYPE_CHECKING:
    from wallaroo_spark.registry import Registry

_log = one_line("wallaroo_spark.connector")

_REGISTRY_ATTEMPTS = 2
"""Attempts of one lookup in the registry. Few, because the connector's own back-off repeats the lookup."""


class Connector:
    """Pushes streams of messages to the receiver, as the connector ``instance`` of the program ``program``.

    A lost session is replaced by a new one. An ERROR that every new session would get again ends the connector; after
    that every call raises :class:`RemoteProtocolError`.

    The end of an ``async with`` block waits until everything is acknowledged, at most ``drain_timeout`` seconds, and
    then raises :class:`TransportError` with the streams and their numbers of unacknowledged messages. A block that ends
    with an exception does not wait.
    """

    @takes_settings(ConnectorSettings)
    def __init__(self, settings: ConnectorSettings) -> None:
        """Raises :class:`ConfigurationError` for settings that cannot work. The settings:"""
        settings = settings.resolved()
        self.program = settings.program
        self.instance = settings.instance
        self._settings = settings
        self._addresses = settings.addresses
        self._registry: Registry | None = None
        name = f"{self.program}/{self.instance}"
        waits = WaitLog(name, lambda: f"{(cause := self.status().cause).sentence}; {cause.cure}")
        self._state = ConnectorState(settings, waits)
        self._open_streams = OpenStreams(self._state)
        self._keeper = SessionKeeper(self._open_streams, settings, self._look_up)
        self._keeping: asyncio.Task[None] | None = None

    def __repr__(self) -> str:
        return f"<Connector {self.instance!r} to {self.program!r}, {len(self._streams)} streams>"

    async def __aenter__(self) -> Self:
        self._start()
        return self

    async def __aexit__(self, kind: object, error: object, trace: object) -> None:
        try:
            if kind is None and not self._state.closed:
                await self.drain(self._settings.drain_timeout)
        finally:
            await self.close()

    @property
    def waiting_for(self) -> str | None:
        """The reason for which sending waits now ("connection", "credit", "memory", …); None when no send waits."""
        found = self._state.waiting_for
        return None if found is None else str(found)

    def status(self) -> ConnectorStatus:
        """A snapshot of the connector: its state, worker and credits, unacknowledged messages, and what it waits for.

        It costs a step for each open stream. ``status().cause.sentence`` is one sentence for a person, and
        ``status().cause.code`` its stable code.
        """
        state, connection, rotation = self._state, self._state.connection, self._keeper.rotation
        now = asyncio.get_running_loop().time() if self._keeping is not None and not self._keeping.done() else None
        oldest = [stream.deliveries.oldest for stream in self._streams]
        since = min((one for one in oldest if one is not None), default=None)
        if state.failure is not None or state.closed:
            name = "failed" if state.failure is not None else "closed"
        elif self._keeping is None:
            name = "new"
        else:
            name = "connecting" if connection is None else "connected"
        waits = state.waits.since
        return ConnectorStatus(
            program=self.program,
            instance=self.instance,
            state=name,
            worker=None if connection is None else connection.peer,
            credits=None if connection is None else connection.session.credits.available,
            streams=len(self._streams),
            unacknowledged_messages=self.unacknowledged,
            unacknowledged_bytes=state.budget.held,
            oldest_unacknowledged=None if since is None else time.monotonic() - since,
            last_error=str(state.failure) if state.failure is not None else rotation.last_reason if rotation else "",
            waiting=None if waits is None or now is None else now - waits,
            waiting_for=self.waiting_for,
            down=None if connection is not None or rotation is None or now is None else now - rotation.down_since,
            handshake_with=self._keeper.handshake_with,
            lost_messages=state.lost_messages,
        )

    def acknowledgements(self) -> Acknowledgements:
        """An asynchronous iterator of the :class:`Acknowledgement` of each stream, from this call on.

        References of a stream only increase, also over reconnections, and each message that this process has sent on an
        open stream counts in exactly one acknowledgement. An iterator that is read slowly joins them. It ends when the
        connector is closed, and raises the error that ends the connector. Messages of :meth:`feed` are reported by its
        ``progress``.
        """
        self._state.check()
        return Acknowledgements(self._state.deliveries)

    @property
    def unacknowledged(self) -> int:
        """Number of messages of all streams that are kept because they are not acknowledged."""
        return sum(stream.messages.kept for stream in self._streams)

    async def open(
        self, name: str, *, id: int | None = None, reference: int | None = None, ephemeral: bool = False
    ) -> Stream:
        """Open a stream once there is a session; continue after its ``reference``.

        The stream's id is derived from instance and name unless given. ``reference`` is the caller's point of
        reference, used if the worker has none. An ``ephemeral`` stream is delivered at most once, and its messages are
        not kept; in a revision without flags it is a normal stream.

        Raises :class:`LocalProtocolError` when the stream is open already, :class:`ArgumentTypeError` and
        :class:`ArgumentValueError` for arguments that cannot work, and the error that has ended the connector.
        """
        return Stream(await self._open(name, id=id, reference=reference, ephemeral=ephemeral))

    async def feed(
        self,
        source: Source,
        *,
        name: str | None = None,
        id: int | None = None,
        progress: Callable[[FeedProgress], None] | None = None,
        end: bool = True,
        drain_timeout: float | None = None,
    ) -> FeedResult:
        """Send the records of a source after the committed reference; return when all of them are acknowledged.

        No record is kept: after a reconnection the source is read again from the committed reference. Several feeds may
        run concurrently and take turns. ``progress`` is called after some messages, after acknowledgements and at the
        end; for a :class:`BlockingConnector` in the connector's thread. ``end=False`` leaves the stream open. A source
        that is not replayable is sent as an ephemeral stream. ``drain_timeout`` is the limit in seconds without an
        acknowledgement after the last record was sent; None: no limit.

        Raises :class:`TransportError` at that limit, the errors of the source, and those of :meth:`open`.
        """
        _check_source(source)
        if progress is not None:
            callable_of(progress, "progress")
        drain_timeout = timeout_of(drain_timeout, "drain_timeout")
        name = source.name if name is None else name
        if source.replayable:
            stream = self._add(name, id, SourcePosition(name, increasing=self._settings.increasing))
        else:
            stream = await self._open(name, id=id, ephemeral=True)
        try:
            return await SourceFeed(self._state, stream, source, progress, end=end, drain_timeout=drain_timeout).run()
        finally:
            self._open_streams.remove(stream)

    async def drain(self, timeout: float | None = None) -> None:  # noqa: ASYNC109 -- the error says what is waiting
        """Wait until all sent messages are acknowledged, and ephemeral messages are written to the connection.

        Raises :class:`TransportError` after ``timeout`` seconds, with the streams and the reasons why they wait. The
        messages are kept, and drain may be called again.
        """
        timeout = timeout_of(timeout)
        try:
            async with asyncio.timeout(timeout):
                for stream in self._streams:
                    await stream.flushed()
        except TimeoutError:
            raise TransportError(
                self._undrained(timeout or 0.0), code="acknowledgement-late", seconds=timeout
            ) from None

    async def close(self) -> None:
        """Write the collected frames and close the connection. Unacknowledged messages are logged, not waited for.

        To wait for them, use :meth:`drain` or the end of an ``async with`` block.
        """
        state = self._state
        if state.closed:
            return
        waiting = [stream for stream in self._streams if not stream.messages.done]
        if waiting:
            _log.warning(
                "connector %r closes with %d messages unacknowledged: %s; lost ones must be sent again",
                self.instance,
                self.unacknowledged,
                _listed(waiting),
            )
        state.closed = True
        state.wake()
        if self._keeping is not None:
            self._keeping.cancel()
            await asyncio.wait([self._keeping])
        state.deliveries.finish(
            LocalProtocolError(
                f"connector {self.instance!r} was closed before this message was acknowledged; it may still be "
                "committed: continue behind stream.reference of the next connector",
                code="connector-closed",
            ),
            None,
        )
        state.deliveries.call_due()
        if self._registry is not None:
            await asyncio.to_thread(self._registry.close)

    def _start(self) -> None:
        if self._keeping is None and not self._state.closed:
            self._keeping = asyncio.get_running_loop().create_task(self._keeper.run())

    @property
    def _streams(self) -> list[StreamSender]:
        return list(self._open_streams.streams.values())

    async def _open(
        self, name: str, *, id: int | None = None, reference: int | None = None, ephemeral: bool = False
    ) -> StreamSender:
        increasing = self._settings.increasing
        reference = None if reference is None else u64_of(reference, "reference")
        messages: UnacknowledgedMessages
        if ephemeral and self._state.revision.layout.known_flags is not None:
            messages = EphemeralMessages(name, increasing=False)
        else:
            messages = ResendBuffer(name, self._state.budget, increasing=increasing, start=reference, clock=time_ns)
        stream = self._add(name, id, messages)
        try:
            await stream.until(lambda: stream.opened)
        except BaseException:
            self._open_streams.remove(stream)
            raise
        return stream

    def _add(self, name: str, stream_id: int | None, messages: UnacknowledgedMessages) -> StreamSender:
        self._state.check()
        self._start()
        name = stream_name_of(name)
        stream_id = stream_id_of(self.instance, name) if stream_id is None else u64_of(stream_id, "stream id")
        stream = StreamSender(self._state, name, stream_id, messages)
        self._open_streams.add(stream)
        return stream

    async def _look_up(self) -> Sequence[Address]:
        if not self._settings.registry:
            return self._addresses
        leases = await asyncio.to_thread(self._leases, self._settings.registry)
        return [parse_address(address) for address in leases]

    def _leases(self, url: str) -> list[str]:
        # Imported here because redis is installed only where a registry is used.
        from wallaroo_spark.registry import Registry

        if self._registry is None:
            self._registry = Registry(url, self.program, attempts=_REGISTRY_ATTEMPTS)
        # A worker acquires its lease before it listens, and has no address until then.
        return [lease.connect for _, lease in sorted(self._registry.leases().items()) if lease.connect]

    def _undrained(self, seconds: float) -> str:
        waiting = [stream for stream in self._streams if not stream.done]
        connection = self._state.connection
        session = f"the session with {connection.peer} is up" if connection else "there is no session with a worker"
        return (
            f"not everything that connector {self.instance!r} sent was acknowledged within {seconds:g} seconds: "
            f"{self.unacknowledged} messages were not; {session}; waiting: {_listed(waiting)}; acknowledgements come "
            "when Spark commits a batch, so check that the query runs, or allow more time (drain_timeout, where a with "
            "block ends)"
        )


def stream_id_of(instance: str, name: str) -> int:
    """The default id of a stream: the first 64 bits of BLAKE2b over instance, NUL and name.

    Source: ``docs/protocol.md#stream-states``: an id should be a deterministic mapping, such as a good hash of the full
    name.
    """
    digest = hashlib.blake2b(f"{instance}\0{name}".encode(), digest_size=8).digest()
    return int.from_bytes(digest, "big")


def _check_source(source: Any) -> None:
    if all(hasattr(source, name) for name in ("name", "replayable", "read")):
        return
    way_out = "give feed a source: Lines(path), Framed(path), Stdin(), Records(name, make), or an object like these"
    if isinstance(source, str | os.PathLike):
        way_out = f"for the lines of a file, give feed Lines({str(source)!r})"
    raise wrong_type("feed takes a source", source, "source", way_out)


def _listed(streams: Sequence[StreamSender], most: int = 10) -> str:
    shown = "; ".join(f"{stream.name!r} ({stream.messages.describe()})" for stream in streams[:most])
    return shown if len(streams) <= most else f"{shown}; and {len(streams) - most} more"
