"""The connector: what a program holds that pushes streams of messages to a receiver.

async with Connector("orders", instance="shop-1", workers="host:7100,host:7101", cookie="…") as connector:
    stream = await connector.open("orders-2026.jsonl")
    await stream.send(b"…", id=17)
# Leaving the block waits until everything is acknowledged; ``connector.drain()`` waits for it earlier.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
import ssl
from collections.abc import Callable, Sequence
from time import time_ns
from types import TracebackType
from typing import TYPE_CHECKING, Self

from wallaroo_spark.connector.backoff import Backoff
from wallaroo_spark.connector.feed import Feed, FeedResult, Progress
from wallaroo_spark.connector.hub import Hub
from wallaroo_spark.connector.keeper import Keeper, Settings
from wallaroo_spark.connector.ledger import Ledger
from wallaroo_spark.connector.outbox import Budget, Fleeting, Outbox, Trail
from wallaroo_spark.connector.route import Address
from wallaroo_spark.connector.sources import Source
from wallaroo_spark.connector.stream import Stream
from wallaroo_spark.errors import ConfigurationError, LocalProtocolError, TransportError, one_line
from wallaroo_spark.options import resolve_secret
from wallaroo_spark.protocol import MAX_INSTANCE_BYTES, MAX_NAME_BYTES, REVISIONS, U64_MAX, Revision
from wallaroo_spark.transport import client_context, parse_address, parse_addresses

if TYPE_CHECKING:
    from wallaroo_spark.registry import Registry

_log = one_line(logging.getLogger("wallaroo_spark.connector"))

# The connector's own back-off goes on where the registry's leaves off.
_REGISTRY_ATTEMPTS = 2


class Connector:
    """Pushes streams of messages to the receiver, as the connector ``instance`` of the program ``program``.

    ``program`` is the receiver's name where ``registry`` is given, and else any name, unless the receiver's option
    ``programs`` lists those that it lets in. The instance name is what the receiver knows the streams by: keep it the
    same from run to run, and use it in one program at a time. ``workers`` are the addresses of one or more workers
    (``host:port``, a list or comma-separated); or ``registry`` is the Redis URL where they are looked up, each time
    anew when a session is lost. ``cookie`` may be ``env:NAME`` or ``file:PATH``.

    ``max_unacknowledged`` bounds, in bytes, what is kept for sending again; sending waits beyond it. A worker may hold
    its answer to HELLO until its query has started, so ``handshake_timeout`` (seconds) is long. ``message_ids`` is
    ``"increasing"`` or, in the drafts and where the receiver has the same setting, ``"opaque"``.

    An ``async with`` block ends when everything is acknowledged: it waits for ``drain_timeout`` seconds at most (None:
    without a limit) and then raises :class:`TransportError`, which names the streams and how many of their messages are
    not acknowledged. A block that an exception ends is left at once.

    TLS: give ``tls`` a context, or ``ca`` (and ``certificate`` with ``key``) as paths of PEM files.

    Raises :class:`ConfigurationError` for settings that cannot work. A session that is lost comes back by itself; an
    ERROR that no new session can mend ends the connector, and every call then raises :class:`RemoteProtocolError`.
    """

    def __init__(
        self,
        program: str,
        *,
        instance: str,
        workers: str | Sequence[str] = "",
        registry: str | None = None,
        cookie: str = "",
        version: str = "0.0.1",
        revision: str = "draft-be",
        tls: ssl.SSLContext | None = None,
        ca: str = "",
        certificate: str = "",
        key: str = "",
        max_unacknowledged: int = 64 << 20,
        max_frame_bytes: int = 4 << 20,
        connect_timeout: float = 10.0,
        handshake_timeout: float = 60.0,
        retry: Backoff | None = None,
        message_ids: str = "increasing",
        drain_timeout: float | None = 60.0,
    ) -> None:
        if not 0 < len(instance.encode()) <= MAX_INSTANCE_BYTES:
            raise ConfigurationError(
                f"instance {instance!r} has {len(instance.encode())} bytes; it has 1 to {MAX_INSTANCE_BYTES}",
                option="instance",
            )
        if not program:
            raise ConfigurationError("program is empty; give the receiver's name", option="program")
        if max_unacknowledged < 1:
            raise ConfigurationError(f"max_unacknowledged is {max_unacknowledged} bytes; it must be above 0")
        if drain_timeout is not None and not drain_timeout >= 0:
            raise ConfigurationError(
                f"drain_timeout is {drain_timeout} seconds; it must be 0 or more, or None for no limit"
            )
        if tls is None and (ca or certificate or key):
            tls = client_context(ca, certificate, key)
        settings = Settings(
            program=program,
            instance=instance,
            version=version,
            cookie=resolve_secret(cookie),
            tls=tls,
            max_frame_bytes=max_frame_bytes,
            connect_timeout=connect_timeout,
            handshake_timeout=handshake_timeout,
            retry=retry or Backoff(),
        )
        self.program = program
        self.instance = instance
        self._fixed = _addresses(workers, registry)
        self._registry_url = registry or ""
        self._drain_timeout = drain_timeout
        self._registry: Registry | None = None
        chosen = _revision(revision)
        self._hub = Hub(chosen, Budget(max_unacknowledged), settings.retry, increasing=_increasing(message_ids, chosen))
        self._keeper = Keeper(self._hub, settings, self._look_up)
        self._keeping: asyncio.Task[None] | None = None

    def __repr__(self) -> str:
        return f"<Connector {self.instance!r} to {self.program!r}, {len(self._hub.streams)} streams>"

    async def __aenter__(self) -> Self:
        self._start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            if kind is None and not self._hub.closed:
                await self.drain(self._drain_timeout)
        finally:
            await self.close()

    @property
    def waiting_for(self) -> str | None:
        """What sending waits for at the moment ("connection", "credit", "memory", …); None when nothing waits."""
        found = self._hub.waiting_for
        return None if found is None else str(found)

    @property
    def unacknowledged(self) -> int:
        """Messages kept because they are not acknowledged, of all streams together."""
        return sum(stream.unacknowledged for stream in self._hub.streams.values())

    async def open(
        self, name: str, *, id: int | None = None, reference: int | None = None, ephemeral: bool = False
    ) -> Stream:
        """Open a stream, once there is a session; go on behind its ``reference``.

        The stream's id is derived from instance and name unless it is given. ``reference`` is where the caller resumes
        in case the worker has no reference of its own. An ``ephemeral`` stream is delivered at most once and keeps
        nothing; in a revision without flags it is a stream like any other.

        Raises :class:`LocalProtocolError` when the stream is open already, and whatever has ended the connector.
        """
        ledger: Ledger
        if ephemeral and self._hub.revision.layout.known_flags is not None:
            ledger = Fleeting(name, increasing=False)
        else:
            ledger = Outbox(name, self._hub.budget, increasing=self._hub.increasing, start=reference, clock=time_ns)
        stream = self._add(name, id, ledger)
        try:
            await self._hub.until(lambda: stream.opened or stream.failure is not None)
            if stream.failure is not None:
                raise stream.failure
        except BaseException:
            self._hub.forget(stream)
            raise
        return stream

    async def feed(
        self,
        source: Source,
        *,
        name: str | None = None,
        id: int | None = None,
        progress: Callable[[Progress], None] | None = None,
        end: bool = True,
        drain_timeout: float | None = None,
    ) -> FeedResult:
        """Send what a source has behind the committed reference; return when all of it is acknowledged.

        Nothing is kept: after a reconnection the source is read again from the committed reference. Many feeds may
        run at once, each gets its turn. ``progress`` is called now and then, and at the end; ``end=False`` leaves the
        stream open. A source that is not replayable goes into an ephemeral stream. ``drain_timeout`` is how many
        seconds may pass behind the last record without anything being acknowledged; None: any number.

        Raises :class:`TransportError` when more have passed, what the source raises, and what :meth:`open` raises.
        """
        if source.replayable:
            stream = self._add(name or source.name, id, Trail(name or source.name, increasing=self._hub.increasing))
        else:
            stream = await self.open(name or source.name, id=id, ephemeral=True)
        try:
            return await Feed(self._hub, stream, source, progress, end=end, drain_timeout=drain_timeout).run()
        finally:
            self._hub.forget(stream)

    async def drain(self, timeout: float | None = None) -> None:  # noqa: ASYNC109 -- the error says what is waiting
        """Wait until everything sent is acknowledged; what is ephemeral, until it is written.

        Raises :class:`TransportError` after ``timeout`` seconds, saying which streams wait for what; the messages stay
        where they are, and waiting may go on.
        """
        try:
            async with asyncio.timeout(timeout):
                for stream in list(self._hub.streams.values()):
                    await stream.flushed()
        except TimeoutError:
            raise TransportError(self._undrained(timeout or 0.0), seconds=timeout) from None

    async def close(self) -> None:
        """Send what is on its way and close the connection. What is not acknowledged is logged, and not waited for.

        The end of an ``async with`` block waits for it; so does :meth:`drain`.
        """
        hub = self._hub
        if hub.closed:
            return
        waiting = [stream for stream in hub.streams.values() if not stream.ledger.done]
        if waiting:
            _log.warning(
                "connector %r closes with %d messages unacknowledged: %s; what is lost of them has to be sent again",
                self.instance,
                self.unacknowledged,
                _listed(waiting),
            )
        hub.closed = True
        hub.wake()
        if self._keeping is not None:
            self._keeping.cancel()
            await asyncio.wait([self._keeping])
        if self._registry is not None:
            await asyncio.to_thread(self._registry.close)

    def _start(self) -> None:
        if self._keeping is None and not self._hub.closed:
            self._keeping = asyncio.get_running_loop().create_task(self._keeper.run())

    def _add(self, name: str, stream_id: int | None, ledger: Ledger) -> Stream:
        self._hub.check()
        self._start()
        if len(name.encode()) > MAX_NAME_BYTES:
            raise LocalProtocolError(f"stream name {name[:40]!r}… has more than {MAX_NAME_BYTES} bytes; shorten it")
        if stream_id is not None and not 0 <= stream_id <= U64_MAX:
            raise LocalProtocolError(f"stream id {stream_id} is not an unsigned 64-bit integer (0 to {U64_MAX})")
        stream = Stream(self._hub, name, stream_id_of(self.instance, name) if stream_id is None else stream_id, ledger)
        self._hub.add(stream)
        return stream

    async def _look_up(self) -> Sequence[Address]:
        if not self._registry_url:
            return self._fixed
        leases = await asyncio.to_thread(self._leases)
        return [parse_address(address) for address in leases]

    def _leases(self) -> list[str]:
        # Redis is needed by those alone who name a registry.
        from wallaroo_spark.registry import Registry

        if self._registry is None:
            self._registry = Registry(self._registry_url, self.program, attempts=_REGISTRY_ATTEMPTS)
        # A worker takes its lease before it listens, and has no address until then.
        return [lease.connect for _, lease in sorted(self._registry.leases().items()) if lease.connect]

    def _undrained(self, seconds: float) -> str:
        waiting = [stream for stream in self._hub.streams.values() if not stream.done]
        link = self._hub.link
        where = "there is no session with a worker" if link is None else f"the session with {link.peer} is up"
        return (
            f"not everything that connector {self.instance!r} sent was acknowledged within {seconds:g} seconds: "
            f"{self.unacknowledged} messages were not; {where}; waiting: {_listed(waiting)}; acknowledgements come "
            "when Spark commits a batch, so check that the query runs, or allow more time (drain_timeout, where a with "
            "block ends)"
        )


def stream_id_of(instance: str, name: str) -> int:
    """The id of a stream that is given none: the first 64 bits of BLAKE2b over instance, NUL and name.

    Source: ``docs/protocol.md#stream-states``: an id should be a deterministic mapping, such as a good hash of the full
    name.
    """
    digest = hashlib.blake2b(f"{instance}\0{name}".encode(), digest_size=8).digest()
    return int.from_bytes(digest, "big")


def _listed(streams: Sequence[Stream], most: int = 10) -> str:
    shown = "; ".join(f"{stream.name!r} ({stream.ledger.state()})" for stream in streams[:most])
    return shown if len(streams) <= most else f"{shown}; and {len(streams) - most} more"


def _addresses(workers: str | Sequence[str], registry: str | None) -> list[Address]:
    if bool(workers) == bool(registry):
        what = "both workers and registry are" if workers else "neither workers nor registry is"
        raise ConfigurationError(
            f"{what} given; name the workers' addresses (host:port, comma-separated), or the registry to find them in"
        )
    if not workers:
        return []
    return parse_addresses(workers if isinstance(workers, str) else ",".join(workers))


def _revision(name: str) -> Revision:
    if name not in REVISIONS:
        raise ConfigurationError(f"revision {name!r} is not one of {', '.join(REVISIONS)}", option="revision")
    return REVISIONS[name]


def _increasing(message_ids: str, revision: Revision) -> bool:
    if message_ids not in ("increasing", "opaque"):
        raise ConfigurationError(f"message_ids {message_ids!r} is not one of increasing, opaque", option="messageIds")
    if message_ids == "opaque" and revision.layout.known_flags is None:
        raise ConfigurationError(
            f"message_ids is opaque, and ids always increase in {revision.name}; speak a draft", option="messageIds"
        )
    return message_ids == "increasing"
